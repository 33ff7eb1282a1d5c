//! Locks on a majority of independent servers.

mod clocks;
mod faults;
mod fences;
mod locks;
mod nodes;
mod restarts;
mod set;
mod waiting;
