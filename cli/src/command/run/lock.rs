//! The lock that a command runs under, of whichever kind.

use std::ops::Deref;
use std::str::FromStr;

use fairlock::{Lease, LockGuard, LockManager, PreviousHolder, ReadGuard, Result, SemaphoreGuard};
use serde::{Deserialize, Serialize};

/// How much of the lock the command takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Share {
    Alone,
    Permits(Permits),
    Reader,
    Writer,
}

/// `K/N`: this many of so many permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Permits {
    pub(super) take: u32,
    pub(super) of: u32,
}

impl FromStr for Permits {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Permits, String> {
        let wrong = || "two numbers as in 1/4, the first from 1 to the second".to_owned();
        let parts = text.split_once('/');
        let numbers = parts.and_then(|(take, of)| Some((take.parse().ok()?, of.parse().ok()?)));
        let permits = numbers.map(|(take, of)| Permits { take, of });
        let fits = |permits: &Permits| (1..=permits.of).contains(&permits.take);
        permits.filter(fits).ok_or_else(wrong)
    }
}

impl Share {
    /// Takes the lock if it is free. Blocks for at most two command timeouts, or for one and 50 ms
    /// longer if another process keeps a mutex for its next guard.
    pub(super) fn try_take(self, manager: &LockManager, name: &str) -> Result<Option<Held>> {
        Ok(match self {
            Share::Alone => manager.try_lock(name)?.map(Held::Mutex),
            Share::Permits(Permits { take, of }) => {
                let semaphore = manager.semaphore(name, of);
                semaphore.try_acquire(take)?.map(Held::Permits)
            }
            Share::Reader => manager.rw_lock(name).try_read()?.map(Held::Reader),
            Share::Writer => manager.rw_lock(name).try_write()?.map(Held::Writer),
        })
    }
}

/// The lock, held.
pub(super) enum Held {
    Mutex(LockGuard),
    Permits(SemaphoreGuard),
    Reader(ReadGuard),
    Writer(LockGuard),
}

impl Held {
    /// Releases the lock. If the work is half done, the next holder's previous one has lapsed. A
    /// reader leaves nothing half done.
    pub(super) fn release(self, is_half_done: bool) -> Result<()> {
        match self {
            Held::Mutex(guard) | Held::Writer(guard) if is_half_done => guard.abandon(),
            Held::Permits(guard) if is_half_done => guard.abandon(),
            Held::Mutex(guard) | Held::Writer(guard) => guard.unlock(),
            Held::Permits(guard) => guard.unlock(),
            Held::Reader(guard) => guard.unlock(),
        }
    }

    /// Releases a lock under which no command ran. If the holder before left its work half done,
    /// the next one must still learn of that. Its time of `--hold-at-least` ends, too.
    pub(super) fn release_unused(self, manager: &LockManager) {
        let (name, fence) = (self.name().to_owned(), self.fence());
        let shares_fence = matches!(self, Held::Reader(_) | Held::Writer(_));
        let before = self.previous_holder();
        let is_half_done = matches!(before, PreviousHolder::Lapsed | PreviousHolder::Forced);
        // The process ends with another failure. Without an answer, the ttl ends the lock.
        // A release by force goes by the fence. Other readers have the same one now, or have it by
        // the time at which the request of a writer arrives: they would lose their locks.
        if self.release(is_half_done).is_ok() && !shares_fence {
            let _ = manager.force_release(&name, fence);
        }
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Held::Mutex(guard) | Held::Writer(guard) => guard,
            Held::Permits(guard) => guard,
            Held::Reader(guard) => guard,
        }
    }
}
