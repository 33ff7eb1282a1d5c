//! Counters of what a manager has done.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a manager has done since it was built, from [`LockManager::stats`](crate::LockManager::stats).
        ///
        /// The numbers are read one by one without a lock, so two of them may be a moment apart.
        #[non_exhaustive]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

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
    /// Guards alive now; one of several names counts for each.
    held,
    /// Waiters standing in a queue now, of this manager.
    waiting,
    /// Guards that were given out, at once or after waiting.
    granted,
    /// Grants that came by hand-over from another holder.
    handed_over,
    /// Calls that found the lock taken and went away without it.
    missed,
    /// Locks that were lost while a guard was alive.
    lost,
    /// Renewals that Redis confirmed.
    renewed,
    /// Renewals that failed and were tried again.
    renewal_failures,
    /// Places in a queue that Redis did not know any more and that were taken again: its data was lost, or this
    /// process was silent for so long that it was taken for dead.
    requeued,
    /// Releases and withdrawals that went to the background.
    background_releases,
    /// Connections that were opened; none are, in memory.
    connects,
    /// Requests that were sent to Redis, renewals and retries included.
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
