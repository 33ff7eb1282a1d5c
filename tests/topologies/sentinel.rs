//! Sentinel: the master of a service, wherever it is.

mod build;
mod common;
mod failover;
mod fences;
mod idle;
mod lost_data;
mod processes;
mod set;
mod silent;
mod stale;

pub(crate) use processes::TURNS;
