//! The renewal thread: what it has scheduled, and what it does. `upkeep` is what is sent to it.
//!
//! `thread` wires the owners of its state. Each is in one file, and calls only those in files further
//! down: `waiter_upkeep`, `release_upkeep` and `lease_renewal` put what is to be sent into `schedule`,
//! and know nothing of each other. `link` sends, and decides nothing.

mod lease_renewal;
mod link;
mod long_wait;
mod release_upkeep;
mod schedule;
mod thread;
mod waiter_upkeep;

pub(crate) use thread::RenewalThread;
