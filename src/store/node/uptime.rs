//! For how long a server has run. A server that has just started may have forgotten its locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Node;
use super::connection::Connection;
use super::identity::run_id_of;
use crate::store::StoreFault;
use crate::store::clock::Time;

/// A server restarts only after its connections have ended. So each new connection asks.
pub(super) struct Uptime {
    /// The shortest time for which it must have run.
    least: Duration,
    /// When it will have run for that long, in ns of the local clock.
    reached_at: AtomicU64,
}

impl Node {
    /// The same node, which asks each new connection for how long the server has run. It must have
    /// run for `least`.
    pub(in crate::store) fn watching_uptime(self, least: Duration) -> Node {
        Node {
            uptime: Some(Uptime {
                least,
                reached_at: AtomicU64::new(0),
            }),
            ..self
        }
    }

    /// When the server has run for long enough. In the past if nobody asks.
    pub(in crate::store) fn is_up_long_enough_at(&self) -> Time {
        let reached_at = self.uptime.as_ref().map_or(0, |uptime| {
            // Written before the connection is used.
            uptime.reached_at.load(Ordering::Acquire)
        });
        Time::from_nanos(reached_at)
    }

    /// Asks a new connection which server it leads to, and for how long that has run: one question,
    /// and only if somebody wants to know.
    pub(super) fn check_server(
        &self,
        connection: &mut Connection,
        reply_by: Time,
    ) -> Result<(), StoreFault> {
        if self.uptime.is_none() && self.identity.is_none() {
            return Ok(());
        }
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let reply = connection.request(&info, self.time_left(reply_by)?);
        let text: String = match (reply, &self.identity) {
            // Without the right, the server may still vote.
            (Err(fault @ StoreFault::Server { .. }), Some(identity)) if self.uptime.is_none() => {
                identity.note_unknown(&fault.reason());
                return Ok(());
            }
            (reply, _) => {
                let needed =
                    "which a quorum needs: a server that restarted has forgotten its locks";
                let reply = reply.map_err(|fault| fault.of_command("INFO", needed))?;
                redis::from_redis_value(reply).unwrap_or_default()
            }
        };
        self.check_uptime(&text)?;
        let Some(identity) = &self.identity else {
            return Ok(());
        };
        match run_id_of(&text) {
            None => identity.note_unknown("INFO server has no run_id"),
            Some(run_id) if identity.note(run_id) => {
                // The address leads to another server now. The older connections vote for the one
                // that it led to before.
                self.retire(connection.age);
                connection.age = self.ages.now();
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn check_uptime(&self, info: &str) -> Result<(), StoreFault> {
        let Some(uptime) = &self.uptime else {
            return Ok(());
        };
        let ran = uptime_of(info).ok_or_else(|| {
            StoreFault::protocol("expected uptime_in_seconds in the reply to INFO server")
        })?;
        let left = uptime.least.saturating_sub(ran);
        if !left.is_zero() {
            let reached_at = self.clock.now() + left;
            uptime
                .reached_at
                .fetch_max(reached_at.as_nanos(), Ordering::AcqRel);
        }
        Ok(())
    }
}

/// The least time for which the server has run. It counts in whole seconds of two readings of its
/// clock, so it may say one second more than it has run.
fn uptime_of(info: &str) -> Option<Duration> {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
    let seconds: u64 = line.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_never_taken_for_longer_than_it_is() {
        let info = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:7\r\nhz:10\r\n";
        assert_eq!(uptime_of(info), Some(Duration::from_secs(6)));
        assert_eq!(uptime_of("uptime_in_seconds:0\r\n"), Some(Duration::ZERO));
        assert_eq!(uptime_of("uptime_in_days:0\r\n"), None);
    }
}
