//! Locks on a majority of independent servers.

mod locks;
mod set;
