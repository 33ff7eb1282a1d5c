//! Locks on a majority of independent servers.

pub(crate) mod clocks;
mod faults;
mod fences;
mod gaps;
mod locks;
mod nodes;
mod restarts;
mod same_server;
pub(crate) mod set;
mod waiting;
mod warnings;

pub(crate) use warnings::WARNINGS;
