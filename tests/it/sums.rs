//! Sums of the counts of a manager.

use fairlock::stats::Stats;

pub(crate) trait Sums {
    /// Guards that callers got.
    fn granted(&self) -> u64;

    /// Locks that were lost, for whatever reason.
    fn losses(&self) -> u64;
}

impl Sums for Stats {
    fn granted(&self) -> u64 {
        self.acquisitions_at_once + self.acquisitions_after_wait
    }

    fn losses(&self) -> u64 {
        self.losses_expired
            + self.losses_not_owner
            + self.losses_max_hold
            + self.losses_forced
            + self.losses_shutdown
    }
}
