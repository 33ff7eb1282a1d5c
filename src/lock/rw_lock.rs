//! The reader/writer lock: any number of readers, or one writer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{enqueue, take, take_until, try_take};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::store::clock::Time;
use crate::waiter::Waiter;

impl LockManager {
    /// The reader/writer lock of this name, as a handle.
    ///
    /// Costs no I/O. A name that is not allowed is refused when the lock is used.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let index = mgr.rw_lock("index");
    /// let writer = index.write()?; // nobody else
    /// // … rebuild …
    /// let reader = writer.downgrade()?; // other readers too, and no writer in between
    /// // … check …
    /// reader.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock {
            manager: self.clone(),
            name: name.into(),
            key: self.key(name).ok(),
        }
    }
}

/// A reader/writer lock by its name: `Clone`, `'static`, and free to be kept in a struct.
///
/// # Guarantees
/// While a writer holds it nobody else does; readers hold it together. Readers and writers have it in the order in which
/// Redis ran their requests, over those that stayed alive: a reader that comes after a waiting writer waits too, so neither
/// side starves the other. Every writer has a larger fence than all writers before it; a reader has the fence of the last
/// writer before it. A dead process delays the others by little more than one TTL, however many of its readers died with
/// it.
///
/// # Limits
/// It is not re-entrant. A thread that reads and calls [`write`](RwLock::write) waits for itself; one that reads and calls
/// [`read`](RwLock::read) again does so if a writer waits in between. A reader cannot become a writer: two that tried would
/// wait for each other, see [`ReadGuard::upgrade`]. [`previous_holder`](LockGuard::previous_holder) tells how the last writer
/// ended, to readers too; what readers leave is never half done. A resource that checks fences must let a reader's pass that
/// is the same as the last writer's. The name cannot be a [`semaphore`](LockManager::semaphore) while somebody holds it or
/// waits for it, nor a mutex until its record is gone, an hour after its last use. Many
/// readers at a time cost Redis what many holders of a [`Semaphore`](crate::Semaphore) do.
/// [`inspect`](LockManager::inspect) does not tell a writer from a lone reader. What asynchronous replication loses, it can
/// lose; see the crate's documentation.
#[derive(Clone)]
pub struct RwLock {
    manager: LockManager,
    name: Arc<str>,
    key: Option<Key>,
}

impl RwLock {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes it as a reader, waiting its turn for as long as Redis answers. Blocks as [`LockManager::lock`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self) -> Result<ReadGuard> {
        let guard = take(&self.manager, self.key()?, LockSpec::read())?;
        Ok(ReadGuard { guard })
    }

    /// Takes it as a reader if no writer has it and nobody waits; `None` if not. Blocks as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        let guard = try_take(&self.manager, self.key()?, LockSpec::read())?;
        Ok(guard.map(|guard| ReadGuard { guard }))
    }

    /// Takes it as a reader, waiting its turn for at most so long; `None` if it did not come. Blocks as
    /// [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read_for(&self, at_most: Duration) -> Result<Option<ReadGuard>> {
        self.read_before(self.manager.engine().now() + at_most)
    }

    /// As [`try_read_for`](RwLock::try_read_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<ReadGuard>> {
        self.read_before(self.manager.engine().at(deadline))
    }

    /// Takes it as a writer, waiting its turn for as long as Redis answers. Blocks as [`LockManager::lock`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self) -> Result<WriteGuard> {
        let guard = take(&self.manager, self.key()?, LockSpec::write())?;
        Ok(WriteGuard { guard })
    }

    /// Takes it as a writer if nobody has it and nobody waits; `None` if not. Blocks as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        let guard = try_take(&self.manager, self.key()?, LockSpec::write())?;
        Ok(guard.map(|guard| WriteGuard { guard }))
    }

    /// Takes it as a writer, waiting its turn for at most so long; `None` if it did not come. Blocks as
    /// [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_write_for(&self, at_most: Duration) -> Result<Option<WriteGuard>> {
        self.write_before(self.manager.engine().now() + at_most)
    }

    /// As [`try_write_for`](RwLock::try_write_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<WriteGuard>> {
        self.write_before(self.manager.engine().at(deadline))
    }

    /// Takes a place in the queue as a reader, to wait for it later or bit by bit. Blocks as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As there.
    pub fn enqueue_read(&self) -> Result<Waiter<ReadGuard>> {
        enqueue(&self.manager, self.key()?, LockSpec::read(), |guard| {
            ReadGuard { guard }
        })
    }

    /// Takes a place in the queue as a writer. Blocks as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As there.
    pub fn enqueue_write(&self) -> Result<Waiter<WriteGuard>> {
        enqueue(&self.manager, self.key()?, LockSpec::write(), |guard| {
            WriteGuard { guard }
        })
    }

    fn read_before(&self, until: Time) -> Result<Option<ReadGuard>> {
        let guard = take_until(&self.manager, self.key()?, LockSpec::read(), until)?;
        Ok(guard.map(|guard| ReadGuard { guard }))
    }

    fn write_before(&self, until: Time) -> Result<Option<WriteGuard>> {
        let guard = take_until(&self.manager, self.key()?, LockSpec::write(), until)?;
        Ok(guard.map(|guard| WriteGuard { guard }))
    }

    fn key(&self) -> Result<Key> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => self.manager.key(&self.name),
        }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An [`RwLock`] that is held for reading. What can be asked of the lock is asked of the [`LockGuard`] behind it.
///
/// # Drop
/// As of a [`LockGuard`].
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct ReadGuard {
    guard: LockGuard,
}

impl ReadGuard {
    /// Releases the lock and says how that went, as [`LockGuard::unlock`] does and for as long.
    ///
    /// # Errors
    /// As there.
    pub fn unlock(self) -> Result<()> {
        self.guard.unlock()
    }

    /// A reader cannot become a writer: two readers that tried would each wait for the other to end. This says so, at once
    /// and without a request, instead of hanging; the guard is kept. Release it and take [`RwLock::write`], and look again
    /// at what was read, since another writer may come first; or take `write` from the beginning, and
    /// [`downgrade`](WriteGuard::downgrade).
    ///
    /// # Errors
    /// [`Config`](Error::Config), always.
    pub fn upgrade(&self) -> Result<WriteGuard> {
        let message = "a reader cannot become a writer, since two of them would wait for each other: release it and take \
                       write(), or take write() first and downgrade()";
        Err(Error::config("upgrade", message))
    }
}

impl Deref for ReadGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard")
            .field("guard", &self.guard)
            .finish()
    }
}

/// An [`RwLock`] that is held for writing. What can be asked of the lock is asked of the [`LockGuard`] behind it.
///
/// # Drop
/// As of a [`LockGuard`].
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct WriteGuard {
    guard: LockGuard,
}

impl WriteGuard {
    /// Releases the lock and says how that went, as [`LockGuard::unlock`] does and for as long.
    ///
    /// # Errors
    /// As there.
    pub fn unlock(self) -> Result<()> {
        self.guard.unlock()
    }

    /// Goes on as a reader: those who wait to read, up to the next writer, have the lock in the same step, and no writer
    /// comes in between. The fence, the lease and its options stay.
    ///
    /// Blocks for at most one command timeout. If Redis does not answer in that time, this goes on in the background: the
    /// guard is a reader's, and until Redis has heard of it nobody else is let in, neither to write nor to read.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if the lock was not ours any more; [`Server`](Error::Server) for a refusal that will not pass by
    /// itself; [`Closed`](Error::Closed) in a forked child. After an error it is dropped.
    pub fn downgrade(self) -> Result<ReadGuard> {
        self.guard.downgrade()?;
        Ok(ReadGuard { guard: self.guard })
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGuard")
            .field("guard", &self.guard)
            .finish()
    }
}
