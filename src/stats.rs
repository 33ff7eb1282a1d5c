//! Counts what a manager has done.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a manager's work since it was built. From
        /// [`LockManager::stats`](crate::LockManager::stats).
        ///
        /// The numbers are read one after the other, without a mutex. So they may not all be from
        /// the same moment.
        #[non_exhaustive]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        /// All counts on one line: `held 1, waiting 0, granted 7, …`.
        impl fmt::Display for Stats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let counts = [$((stringify!($name), self.$name)),*];
                for (i, (name, count)) in counts.into_iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{} {count}", name.replace('_', " "))?;
                }
                Ok(())
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Guards that are alive now. A guard of several names counts once for each name.
    held,
    /// Waiters of this manager that are in a queue now.
    waiting,
    /// Guards that were returned to callers, at once or after a wait.
    granted,
    /// Grants that came by hand-over from the holder before.
    handed_over,
    /// Calls that returned without the lock because it was taken.
    missed,
    /// Locks that were lost while a guard was alive.
    lost,
    /// Renewals that Redis confirmed.
    renewed,
    /// Renewals that failed and were retried. A renewal that found its connection closed is sent
    /// again on another at once. It counts only if that fails as well.
    renewal_failures,
    /// Waiters that were queued again because Redis did not know them any more. Redis lost its
    /// data, or this process was silent for so long that it counted as dead.
    requeued,
    /// Releases of locks and of places in queues that went to the background.
    background_releases,
    /// Connections that were opened. Always 0 on the in-memory store.
    connects,
    /// Commands that were sent to Redis, of every sort: calls, renewals, checks, retries, pages of
    /// `list`, SUBSCRIBE, the PINGs of the subscription, and AUTH, SELECT, HELLO and TIME of each
    /// new connection, and ASKING on one to a cluster. Redis's own count, in `INFO commandstats`,
    /// also has the commands that scripts run. The in-memory store counts calls and pages.
    requests,
}

/// One number of [`Counters`].
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
