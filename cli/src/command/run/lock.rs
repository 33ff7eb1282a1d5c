//! The lock that a command runs under, of whichever kind.

use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use fairlock::{
    Lease, LockGuard, LockManager, MAX_PERMITS, Mutex, PreviousHolder, ReadGuard, Result, RwLock,
    Semaphore, SemaphoreGuard, Waiter, WriteGuard,
};

/// How much of the lock the command takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    Alone,
    Permits(Permits),
    Reader,
    Writer,
}

/// `K/N`: this many of so many permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) take: u32,
    pub(super) of: u32,
}

impl FromStr for Permits {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Permits, String> {
        let numbers = text.split_once('/');
        let parsed = numbers.and_then(|(take, of)| {
            Some(Permits {
                take: take.parse().ok()?,
                of: of.parse().ok()?,
            })
        });
        match parsed {
            Some(Permits { of, .. }) if of > MAX_PERMITS => {
                Err(format!("a semaphore has at most {MAX_PERMITS} permits"))
            }
            Some(permits) if (1..=permits.of).contains(&permits.take) => Ok(permits),
            _ => Err("two numbers as in 1/4, the first from 1 to the second".to_owned()),
        }
    }
}

/// A lock, and how much of it the command takes.
pub(super) enum Lock {
    Mutex(Mutex),
    Permits(Semaphore, u32),
    Reader(RwLock),
    Writer(RwLock),
}

impl Lock {
    pub(super) fn new(manager: &LockManager, name: &str, share: Share) -> Lock {
        match share {
            Share::Alone => Lock::Mutex(manager.mutex(name)),
            Share::Permits(permits) => {
                Lock::Permits(manager.semaphore(name, permits.of), permits.take)
            }
            Share::Reader => Lock::Reader(manager.rw_lock(name)),
            Share::Writer => Lock::Writer(manager.rw_lock(name)),
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Lock::Mutex(mutex) => mutex.name(),
            Lock::Permits(semaphore, _) => semaphore.name(),
            Lock::Reader(lock) | Lock::Writer(lock) => lock.name(),
        }
    }

    /// Takes the lock if it is free. Blocks for at most two command timeouts, or for one and 50 ms
    /// longer if another process keeps a mutex for its next guard.
    pub(super) fn try_take(&self) -> Result<Option<Held>> {
        Ok(match self {
            Lock::Mutex(mutex) => mutex.try_lock()?.map(Held::Mutex),
            Lock::Permits(semaphore, take) => semaphore.try_acquire_many(*take)?.map(Held::Permits),
            Lock::Reader(lock) => lock.try_read()?.map(Held::Reader),
            Lock::Writer(lock) => lock.try_write()?.map(Held::Writer),
        })
    }

    pub(super) fn enqueue(&self) -> Result<Place> {
        Ok(match self {
            Lock::Mutex(mutex) => Place::Mutex(mutex.enqueue()?),
            Lock::Permits(semaphore, take) => Place::Permits(semaphore.enqueue_many(*take)?),
            Lock::Reader(lock) => Place::Reader(lock.enqueue_read()?),
            Lock::Writer(lock) => Place::Writer(lock.enqueue_write()?),
        })
    }
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) enum Place {
    Mutex(Waiter),
    Permits(Waiter<SemaphoreGuard>),
    Reader(Waiter<ReadGuard>),
    Writer(Waiter<WriteGuard>),
}

impl Place {
    /// `None`: not yet, and the place is kept.
    pub(super) fn wait_for(&mut self, at_most: Duration) -> Result<Option<Held>> {
        Ok(match self {
            Place::Mutex(waiter) => waiter.wait_for(at_most)?.map(Held::Mutex),
            Place::Permits(waiter) => waiter.wait_for(at_most)?.map(Held::Permits),
            Place::Reader(waiter) => waiter.wait_for(at_most)?.map(Held::Reader),
            Place::Writer(waiter) => waiter.wait_for(at_most)?.map(Held::Writer),
        })
    }

    pub(super) fn position(&self) -> Option<u64> {
        match self {
            Place::Mutex(waiter) => waiter.position(),
            Place::Permits(waiter) => waiter.position(),
            Place::Reader(waiter) => waiter.position(),
            Place::Writer(waiter) => waiter.position(),
        }
    }
}

/// The lock, held.
pub(super) enum Held {
    Mutex(LockGuard),
    Permits(SemaphoreGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
}

impl Held {
    pub(super) fn unlock(self) -> Result<()> {
        match self {
            Held::Mutex(guard) => guard.unlock(),
            Held::Permits(guard) => guard.unlock(),
            Held::Reader(guard) => guard.unlock(),
            Held::Writer(guard) => guard.unlock(),
        }
    }

    /// Releases it as half-done work: the next holder's previous one has lapsed. A reader leaves
    /// nothing half done.
    pub(super) fn abandon(self) -> Result<()> {
        match self {
            Held::Mutex(guard) => guard.abandon(),
            Held::Permits(guard) => guard.abandon(),
            Held::Reader(guard) => guard.unlock(),
            Held::Writer(guard) => guard.abandon(),
        }
    }

    /// Releases a lock under which no command ran. If the holder before left its work half done,
    /// the next one must still learn of that. Its time of `--hold-at-least` ends, too.
    pub(super) fn release_unused(self, manager: &LockManager) {
        let (name, fence) = (self.name().to_owned(), self.fence());
        let shares_fence = matches!(self, Held::Reader(_) | Held::Writer(_));
        let result = match self.previous_holder() {
            PreviousHolder::Lapsed | PreviousHolder::Forced => self.abandon(),
            _ => self.unlock(),
        };
        // The process ends with another failure. Without an answer, the ttl ends the lock.
        // A release by force goes by the fence. Other readers have the same one now, or have it by
        // the time at which the request of a writer arrives: they would lose their locks.
        if result.is_ok() && !shares_fence {
            let _ = manager.force_release(name, fence);
        }
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Held::Mutex(guard) => guard,
            Held::Permits(guard) => guard,
            Held::Reader(guard) => guard,
            Held::Writer(guard) => guard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Permits;

    #[test]
    fn permits_are_two_numbers_that_fit() {
        assert_eq!("2/4".parse(), Ok(Permits { take: 2, of: 4 }));
        assert_eq!("4/4".parse(), Ok(Permits { take: 4, of: 4 }));
        for wrong in [
            "",
            "2",
            "2/",
            "/4",
            "0/4",
            "5/4",
            "0/0",
            "-1/4",
            "1/4/5",
            "1/99999999",
        ] {
            assert!(wrong.parse::<Permits>().is_err(), "{wrong}");
        }
    }
}
