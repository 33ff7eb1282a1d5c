//! The in-memory store itself: its commands match Redis, its clock blocks no thread, and each fault
//! takes effect once. On this store alone, since a Redis has no clock to advance; tests of both
//! stores are in the behaviour suite.

mod clock;
mod commands;
mod fast_forward;
mod faults;
mod late_copies;

use std::time::Duration;

/// The bound for anything that must happen at once, given the machine's noise.
const SOON: Duration = Duration::from_secs(30);
