//! The renewal thread: what it has scheduled, and what it does. `upkeep` is what is sent to it.
//!
//! `thread` wires the owners of its state, and passes calls and replies between them. Each is in one
//! file: `waiter_upkeep`, `release_upkeep` and `lease_renewal` know nothing of each other. `thread`
//! collects from them the calls that are due, and they put tasks for later into `schedule`. `link`
//! sends, and decides nothing. `timers` makes the calls that others have asked for.

mod lease_renewal;
mod link;
mod release_upkeep;
mod schedule;
mod thread;
mod timers;
mod waiter_upkeep;

pub(crate) use thread::RenewalThread;
