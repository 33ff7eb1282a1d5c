//! Sentinel: the master of a service, wherever it is.

mod common;
mod failover;
mod set;
