//! The counts of a store.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// The work of a manager's store since it was opened, over all its nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Connections that were opened.
    pub(crate) connects: u64,
    /// Commands that were sent, without those that scripts run.
    pub(crate) requests: u64,
    /// Calls that were sent again, since the connection was closed or the reply void.
    pub(crate) retries: u64,
    /// Calls that had to wait until their lane was open, and for how long, all together.
    pub(crate) connection_waits: u64,
    pub(crate) connection_wait_time: Duration,
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            connects: self.connects + other.connects,
            requests: self.requests + other.requests,
            retries: self.retries + other.retries,
            connection_waits: self.connection_waits + other.connection_waits,
            connection_wait_time: self.connection_wait_time + other.connection_wait_time,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Traffic>>(all: I) -> Traffic {
        all.fold(Traffic::default(), Add::add)
    }
}
