//! One reading of the server's clock, paired with the local times around it.

use std::time::Duration;

use super::clock::Time;

/// The server's clock read `server` at some moment between `sent` and `received`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchor {
    /// In µs.
    pub(crate) server: u64,
    pub(crate) sent: Time,
    pub(crate) received: Time,
}

impl Anchor {
    /// R5 (dated requests): the lower estimate of the server's time at a local moment. It holds for
    /// clocks whose rates differ by at most 500 ppm.
    pub(crate) fn server_time_at_least(&self, at: Time) -> u64 {
        let age = (at - self.received).as_micros() as u64;
        self.server + age - age / 2000
    }

    /// R12 (doubtful grants): the earliest local time at which the server's clock can have read
    /// `server`.
    pub(crate) fn local_time_at_least(&self, server: u64) -> Time {
        if server >= self.server {
            self.sent + Duration::from_micros(server - self.server)
        } else {
            self.sent - Duration::from_micros(self.server - server)
        }
    }
}
