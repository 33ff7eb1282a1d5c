//! The in-memory store: a whole fairlock without a Redis.
//!
//! A [`Memory`] stands where a Redis would. It runs the very same Lua scripts, in an embedded interpreter, over
//! a keyspace in this process, behind the very same engine: what holds on Redis holds here, and what goes
//! wrong there can be made to go wrong here. Needs the feature `memory`, and a C compiler for the interpreter; for
//! tests alone, let a dev-dependency have the feature, and no Lua comes into your release.
//!
//! - **To test your own code:** give it a manager on a [`Memory`], let time pass with [`Memory::advance`], end
//!   its lease with [`Memory::lapse`], take Redis away with [`Memory::go_down`]. The example `unit_test` shows each.
//! - **To try the crate** with nothing installed: [`LockManager::in_memory`](crate::LockManager::in_memory).
//! - **To lock within one process** with queues, deadlines, fences and TTLs, for instance where a Redis is optional.
//!   Whoever needs only exclusion between threads is far better served by a mutex: a lock here is two runs of a
//!   script, tens of microseconds, where an uncontended `parking_lot::Mutex` takes some ten nanoseconds. One
//!   thread has it for about half of what a lock on a Redis on the same host costs; where several want one name at
//!   once, the time goes into waking the next of them, here as there. The bench `uncontended` measures all
//!   three; the README has figures.
//!
//! # Limits
//! - One process: whoever has not the same [`Memory`] is not excluded, and nothing outlives the process.
//! - As on Redis, a name is kept for an hour after its last use, which takes about a kilobyte.
//! - After a fork the child must not use it.
//! - Faults are those of [`Fault`], a server that is down, and the passing of time. What else a network or a
//!   server can do wants the real one.

pub use crate::store::memory::{Fault, Memory, Reply};
