//! The times at which a command is ended, and whether they fit each other.

use std::time::Duration;

use humantime::format_duration;

use crate::exit::Failure;

/// The default grace: a quarter of the ttl, and no longer than this.
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The margin is a tenth of the ttl within these bounds. A host with much to do may let a thread
/// wait for long, so it is generous.
const SHORTEST_MARGIN: Duration = Duration::from_millis(100);
const LONGEST_MARGIN: Duration = Duration::from_secs(2);

/// The times at which a command is ended.
///
/// The manager renews the lock when two thirds of its ttl are left. Where renewals fail, the time
/// left shrinks, and the command is ended so that it is dead when the time is over:
///
/// ```text
/// ttl          2/3 ttl        grace + margin        margin      0
///  |--------------|------ retries ---|----- grace ------|---------|
///  granted      renewal            TERM               KILL      others may have the lock
/// ```
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// From TERM to KILL.
    pub(super) grace: Duration,
    /// How much of the lease is left at KILL: for the kernel to end all processes of a group, and
    /// for this one to be scheduled late.
    pub(super) margin: Duration,
}

impl Times {
    /// Refuses a grace that leaves no time for a second attempt to renew. The library refuses a ttl
    /// that no lock can have.
    pub(super) fn new(ttl: Duration, grace: Option<Duration>) -> Result<Times, Failure> {
        let margin = (ttl / 10).clamp(SHORTEST_MARGIN, LONGEST_MARGIN);
        // Renewals begin at 2/3 of the ttl. At 1/2 two or three attempts have failed.
        let longest = (ttl / 2).saturating_sub(margin);
        let default = (ttl / 4).min(LONGEST_DEFAULT_GRACE).min(longest);
        let grace = grace.unwrap_or(default);
        if grace > longest {
            return Err(Failure::usage(format!(
                "with --ttl {}, --grace can be {} at most, and not {}: the command must be dead \
                 before the lock can be lost",
                format_duration(ttl),
                format_duration(longest),
                format_duration(grace)
            )));
        }
        Ok(Times { grace, margin })
    }

    /// The time left at which the command gets TERM, if no renewal has come by then.
    pub(super) fn left_at_term(&self) -> Duration {
        self.grace + self.margin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_grace_fits_every_ttl_and_none_takes_more_than_half() {
        let fits = |ttl, grace| Times::new(Duration::from_millis(ttl), grace);
        for ttl in [1000, 1500, 10_000, 60_000, 86_400_000] {
            let times = fits(ttl, None).expect("fits");
            let half = Duration::from_millis(ttl / 2);
            assert!(times.left_at_term() <= half, "{times:?}");
            assert!(times.grace <= LONGEST_DEFAULT_GRACE, "{times:?}");
            let longest = half - times.margin;
            assert!(fits(ttl, Some(longest)).is_ok(), "{times:?}");
            let longer = longest + Duration::from_millis(1);
            assert!(fits(ttl, Some(longer)).is_err(), "{times:?}");
        }
    }
}
