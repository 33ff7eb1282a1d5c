//! The numbers of a manager that the checks compare with.

use std::time::Duration;

use crate::config::{Config, margin};

pub(crate) struct Limits<'a> {
    pub(crate) config: &'a Config,
    /// The length of the leases of the handle that asks.
    pub(crate) ttl: Duration,
}

impl Limits<'_> {
    /// How long a reply may take until something is late: the command timeout, or a tenth of the
    /// ttl. A renewal is due at a third of the ttl and is tried three times before the lease ends.
    pub(super) fn reply(&self) -> Duration {
        self.config.command_timeout.min(self.ttl / 10)
    }

    /// How long the renewal thread's connection is idle at most, while a lock is held or awaited.
    pub(super) fn longest_pause(&self) -> Duration {
        (self.ttl / 3).max(self.config.check_period)
    }

    /// P1 (one holder) holds across a failover if the clocks of master and replica differ by less.
    pub(super) fn clock_margin(&self) -> Duration {
        margin(self.ttl, Duration::ZERO)
    }
}
