//! Sentinel: the master of a service, wherever it is.

mod anew;
mod build;
mod common;
mod failover;
mod fences;
mod idle;
mod kept;
mod lost_data;
mod processes;
mod set;
mod silent;
mod stale;

pub(crate) use anew::SET_UP_ANEW;
pub(crate) use processes::TURNS;
