//! The renewal thread: what is sent to it, what it has scheduled, and what it does.

mod command;
mod lease_renewal;
mod logins;
mod long_wait;
mod release_upkeep;
mod schedule;
mod thread;
mod token_release;
mod unread;
mod waiter_upkeep;
mod waker;

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use command::Task;
pub(crate) use command::{Command, EndAll, ScheduledLease, ShutdownReport};
pub(crate) use thread::RenewalThread;
pub(crate) use token_release::{ReportTo, TokenRelease, excludes_late_copies, warn_of_drop};
pub(crate) use waker::Waker;
