//! The lock that a command runs under, of whichever kind.

use std::ops::Deref;
use std::time::Duration;

use fairlock::{
    LockGuard, LockManager, Mutex, PreviousHolder, ReadGuard, Result, RwLock, Semaphore,
    SemaphoreGuard, Waiter, WriteGuard,
};

use super::share::Share;

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

    /// Takes the lock if it is free. Blocks for at most two command timeouts.
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
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Held::Mutex(guard) => guard,
            Held::Permits(guard) => guard,
            Held::Reader(guard) => guard,
            Held::Writer(guard) => guard,
        }
    }
}
