//! Counts of what a manager has done, as [`LockManager::stats`](crate::LockManager::stats) returns them.

mod count;
#[cfg(feature = "metrics")]
mod facade;
mod meter;
mod metric;
mod oldest;
#[cfg(all(test, feature = "metrics"))]
#[path = "../../tests/sim/sums.rs"]
mod sums;

use std::fmt;
use std::time::Duration;

#[cfg(not(feature = "metrics"))]
use metric::not_emitted as facade;

use crate::time_text::measured;
use count::ROWS;

pub(crate) use count::Count;
pub(crate) use meter::{Meter, Traffic};
pub(crate) use oldest::OldestTimes;

/// Counts of a manager's work since it was built. From
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// The numbers are read one after the other, without a mutex. So they may not all be from the same
/// moment: an event that happens meanwhile may be in one number and not yet in another.
///
/// - `acquisitions_…`: how requests for a lock ended. A group of several names that is granted counts
///   once for each name. If it is not granted, it counts once. A call with an option or a name that is
///   not allowed ([`Error::Misused`](crate::Error::Misused)) is not counted. One for a name that is
///   in use as another kind failed.
/// - `losses_…`: why locks were lost before their guard released them. Each loss counts once, under the
///   first sign of it: a renewal, the manager's own clock, or the answer to the release. A loss that
///   shows only in the answer to a release is the error of [`unlock`](crate::LockGuard::unlock), or a
///   line of the log after a drop. It reaches neither [`lost`](crate::Lease::lost) nor
///   [`on_lost`](crate::LockOptions::on_lost). A release that never gets an answer counts as no loss.
///
/// With the feature `metrics`, the same events go to a recorder: see [the
/// page](crate::pages::metrics).
#[non_exhaustive]
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// Guards that are alive now. A guard of several names counts once for each name.
    pub held: u64,
    /// Callers and waiters of this manager that do not have their guard yet. Each
    /// [`lock`](crate::LockManager::lock) may be one for its round trip, also if the name is free.
    /// A call that may not wait is not counted.
    pub waiting: u64,
    /// Granted, and nobody else had the lock.
    pub acquisitions_at_once: u64,
    /// Granted after Redis had said that it was taken.
    pub acquisitions_after_wait: u64,
    /// It stayed taken until the time was up. A try that finds it taken is one of these.
    pub acquisitions_timed_out: u64,
    /// A [`Waiter`](crate::Waiter) was dropped without its lock, or the manager was shut down.
    pub acquisitions_cancelled: u64,
    /// The call returned another error.
    pub acquisitions_failed: u64,
    /// Grants that came by hand-over from the holder before.
    pub handovers: u64,
    /// Guards that got their lock from another guard of this manager, without Redis. See
    /// [`LockOptions::local_handovers`](crate::LockOptions::local_handovers).
    pub local_handovers: u64,
    /// Guards that got a lock that this manager had kept, without Redis. See
    /// [`LockOptions::keep_idle`](crate::LockOptions::keep_idle).
    pub kept_turns: u64,
    /// How often others said that they want a lock that this manager holds or keeps.
    pub recalls: u64,
    /// How often a name was found not worth keeping, for the next 30 to 60 s.
    pub cold_names: u64,
    /// Calls whose lock was not kept, because this manager kept as many as it may. See
    /// [`Builder::max_kept`](crate::Builder::max_kept).
    pub not_kept_full: u64,
    /// [`LossReason::Expired`](crate::LossReason::Expired)
    pub losses_expired: u64,
    /// [`LossReason::NotOwner`](crate::LossReason::NotOwner)
    pub losses_not_owner: u64,
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold)
    pub losses_max_hold: u64,
    /// [`LossReason::Forced`](crate::LossReason::Forced)
    pub losses_forced: u64,
    /// [`LossReason::Shutdown`](crate::LossReason::Shutdown)
    pub losses_shutdown: u64,
    /// Renewals that Redis confirmed.
    pub renewals_confirmed: u64,
    /// Renewals that failed and were retried. A renewal that found its connection closed is sent
    /// again on another at once. It counts only if that fails as well.
    pub renewals_failed: u64,
    /// Waiters that were queued again because Redis did not know them any more. Redis lost its
    /// data, or this process was silent for so long that it counted as dead.
    pub requeues: u64,
    /// Waiters of dead processes that calls of this manager found at the head of a queue and passed
    /// over. Each is counted by the one manager that passed over it.
    pub dead_waiters: u64,
    /// Releases of locks and of places in queues that went to the background, since no connection was
    /// open or a reply did not come. Releases that the renewal thread sends in any case are not among
    /// them: of kept locks, and of grants that came when their waiter was gone.
    pub background_releases: u64,
    /// Calls that were sent again: their connection turned out to be closed, or Redis refused them
    /// or did not answer, and there was time left. Requests that the renewal thread repeats are not
    /// counted here: renewals (see `renewals_failed`), releases in the background, confirmations of
    /// grants, and the requests for waiters. But on a quorum, each request to one node counts if
    /// its connection was closed and it is sent again.
    pub retries: u64,
    /// Connections that were opened. Always 0 on the in-memory store.
    pub connects: u64,
    /// Calls that waited until a connection was open, or failed because none could be opened. The
    /// first call on each lane is one of them. Releases are not: they go to the background then. On
    /// a quorum, where threads in the background open connections, each attempt of theirs counts.
    /// Always 0 on the in-memory store.
    pub connection_waits: u64,
    /// How long they waited, all together.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub connection_wait_time: Duration,
    /// Commands that were sent to Redis, of every sort: calls, renewals, checks, retries, pages of
    /// `list`, SUBSCRIBE, the PINGs of the subscription, and AUTH, SELECT, HELLO and TIME of each
    /// new connection, and ASKING on one to a cluster. Redis's own count, in `INFO commandstats`,
    /// also has the commands that scripts run. The in-memory store counts calls and pages.
    pub requests: u64,
    /// The longest time from a call to its grant. For a [`Waiter`](crate::Waiter) the call is
    /// `enqueue`. A call that got no lock is not in it: a timeout says how long its caller was ready
    /// to wait, and not how long the lock was taken.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub longest_wait: Duration,
    /// The longest time from a grant to its release, or to the moment at which the loss was noticed.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub longest_hold: Duration,
    /// The most by which the renewal thread confirmed a renewal later than due. Each is due a third
    /// of the ttl after the one before. So with a healthy Redis this is about a round trip. From two
    /// thirds of the ttl on the lock is lost. A renewal that was never confirmed is not in it, but
    /// its loss is counted.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub latest_renewal: Duration,
}

#[cfg(test)]
impl Stats {
    /// Locks that were lost, for whatever reason.
    pub(crate) fn losses(&self) -> u64 {
        self.losses_expired
            + self.losses_not_owner
            + self.losses_max_hold
            + self.losses_forced
            + self.losses_shutdown
    }
}

/// All counts on one line, and the longest times:
/// `held 1, waiting 0, acquisitions at once 7, …; longest wait 41ms, longest hold 1.5s, latest renewal 0ns`.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held {}, waiting {}", self.held, self.waiting)?;
        let mut counts = self.clone();
        for row in &ROWS {
            let count = *(row.field)(&mut counts);
            write!(f, ", {} {count}", row.metric.field().replace('_', " "))?;
        }
        write!(
            f,
            ", connection waits {}; longest wait {}, longest hold {}, latest renewal {}",
            self.connection_waits,
            measured(self.longest_wait),
            measured(self.longest_hold),
            measured(self.latest_renewal)
        )
    }
}
