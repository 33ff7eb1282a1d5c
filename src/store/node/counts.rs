//! The counts of a node's work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::Traffic;

/// What nodes have done so far: one node, or all that take each other's place.
#[derive(Default)]
pub(in crate::store) struct Counts {
    pub(super) connects: AtomicU64,
    pub(super) requests: Arc<AtomicU64>,
    pub(super) retries: AtomicU64,
    pub(super) connection_waits: AtomicU64,
    pub(super) connection_wait_ns: AtomicU64,
}

impl Counts {
    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            connects: self.connects.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            // Before their time: no wait is read without its time.
            connection_waits: self.connection_waits.load(Ordering::Acquire),
            // The form of the feature `serde` has whole microseconds.
            connection_wait_time: Duration::from_micros(
                self.connection_wait_ns.load(Ordering::Relaxed) / 1000,
            ),
        }
    }
}
