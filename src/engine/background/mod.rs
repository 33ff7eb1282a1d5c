//! The renewal thread: what it has scheduled, and what it does. `upkeep` is what is sent to it.

mod lease_renewal;
mod logins;
mod long_wait;
mod release_upkeep;
mod schedule;
mod task;
mod thread;
mod unread;
mod waiter_upkeep;

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use task::Task;
pub(crate) use thread::RenewalThread;
