//! The in-memory store itself: its commands are Redis's, its clock hangs nobody, its faults strike once. On this
//! store alone, since a Redis has no clock to put forward; what holds on both is in the behaviour suite.

mod clock;
mod commands;
mod faults;

use std::time::Duration;

/// What must happen at once, given the machine's noise.
const SOON: Duration = Duration::from_secs(8);
