//! The renewal thread: what is sent to it, what it has scheduled, and what it does.

mod command;
mod schedule;
mod thread;
mod token_release;
mod waiter_upkeep;

pub(crate) use command::{Command, Fresh};
pub(crate) use thread::{Errand, RenewalThread, Task};
pub(crate) use token_release::{Job, settles};
