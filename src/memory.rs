//! The in-memory store: a complete fairlock without a Redis server.
//!
//! A [`Memory`] takes the place of a Redis server. It runs the same Lua scripts in an embedded
//! interpreter, over a keyspace in this process, and the same engine uses it. So its locks behave
//! as they do on Redis, and you can cause the faults that a real Redis server can have. It needs
//! the feature `memory`, and a C compiler for the interpreter. If you need it for tests alone,
//! enable the feature in a dev-dependency; then your release contains no Lua.
//!
//! - **To test your own code:** give it a manager on a [`Memory`]. Let it reach its deadlines at
//!   once with [`Memory::fast_forward`], let time pass with [`Memory::advance`], end its lease with
//!   [`Memory::lapse`], take the server away with [`Memory::go_down`]. The example `unit_test`
//!   shows each of them.
//! - **To try the crate** with nothing installed:
//!   `LockManager::connect(&Memory::new())`.
//! - **To lock within one process** with queues, deadlines, fences and TTLs, for instance where a
//!   Redis is optional. If you only need mutual exclusion between threads, use a mutex: a lock here
//!   takes two runs of a script, tens of microseconds, where an uncontended `parking_lot::Mutex`
//!   takes about ten nanoseconds. For one thread, a lock here costs about half of a lock on a Redis
//!   on the same host. If several threads want one name at once, most of the time is spent waking
//!   the next of them, here and with Redis alike. The bench `uncontended` measures all three.
//!
//! # Limits
//! - One process: a program without the same [`Memory`] is not excluded, and nothing outlives the
//!   process.
//! - A name is kept for an hour after its last use, as on Redis, which takes about a kilobyte.
//! - After a fork the child must not use it.
//! - It can simulate the faults in [`Fault`], a server outage and the passing of time. To test
//!   other faults of a network or a server, use a real one.

pub use crate::store::memory::{Fault, Memory};
