//! The reader/writer lock: any number of readers, or one writer.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::handle::{Handle, Wanted};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::lease::Lease;
use crate::manager::LockManager;
use crate::script::{LockSpec, Mode};
use crate::waiter::Waiter;

impl LockManager {
    /// The reader/writer lock of this name, as a handle.
    ///
    /// Never blocks; no I/O. If the name is not allowed, the verbs of the lock return
    /// [`Misused`](crate::Error::Misused).
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let index = mgr.rw_lock("index");
    /// let writer = index.write()?; // nobody else holds it
    /// // … rebuild …
    /// // Lets other readers in, and no writer in between.
    /// let reader = fairlock::RwLock::downgrade(writer)?;
    /// // … check …
    /// reader.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock {
            handle: Handle::new(self, name.as_ref()),
        }
    }
}

/// A reader/writer lock by its name. `Clone` and `'static`, so you can keep it in a struct.
///
/// # Guarantees
/// - While a writer holds it, nobody else does. Readers hold it together.
/// - Redis grants it in the order in which it ran the requests. It skips requests of dead
///   processes. A reader that comes after a waiting writer waits too. So neither side starves the
///   other.
/// - Every writer has a larger fence than all writers before it. A reader has the fence of the last
///   writer before it.
/// - A dead process delays the others by little more than one TTL, however many of its readers died
///   with it.
///
/// # Limits
/// - It is not re-entrant. A thread that holds it as a reader and calls [`write`](RwLock::write)
///   deadlocks. So does a reader that calls [`read`](RwLock::read) again, if a writer began to wait
///   in between.
/// - A reader cannot become a writer: two that tried would wait for each other. Release it, call
///   [`write`](RwLock::write), and read again what you had read, since another writer may come
///   first. Or begin with `write`, and [`downgrade`](RwLock::downgrade) later.
/// - [`previous_holder`](Lease::previous_holder) says how the last writer ended, to readers
///   too. Readers leave nothing half done.
/// - A reader has the same fence as the last writer. A resource that checks fences must accept it.
/// - While somebody holds it or waits for it, a call that uses the name as another kind of lock
///   gets [`Misused`](crate::Error::Misused).
/// - Many readers at a time cost Redis as much as many holders of a
///   [`Semaphore`](crate::Semaphore).
/// - If asynchronous replication loses data, it can lose a lock; see the [limits](crate#limits) of
///   the crate.
#[derive(Clone)]
pub struct RwLock {
    handle: Handle,
}

impl RwLock {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Takes the lock as a reader. Waits its turn, for as long as Redis answers. Blocks as long as
    /// [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`LockManager::lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn read(&self) -> Result<ReadGuard> {
        self.reader()?.lock().map(ReadGuard::new)
    }

    /// Takes the lock as a reader if no writer holds it and nobody waits. `None`: a writer holds
    /// it, or others wait. Blocks as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        let guard = self.reader()?.try_lock()?;
        Ok(guard.map(ReadGuard::new))
    }

    /// Takes the lock as a reader. Waits its turn, for at most `at_most`. `None`: its turn did not
    /// come. Blocks as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_read_for(&self, at_most: Duration) -> Result<Option<ReadGuard>> {
        let guard = self.reader()?.try_lock_for(at_most)?;
        Ok(guard.map(ReadGuard::new))
    }

    /// Takes the lock as a writer. Waits its turn, for as long as Redis answers. Blocks as long as
    /// [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`LockManager::lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn write(&self) -> Result<LockGuard> {
        self.writer()?.lock()
    }

    /// Takes the lock as a writer if nobody holds it and nobody waits. `None`: it is held, or
    /// others wait. Blocks as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_write(&self) -> Result<Option<LockGuard>> {
        self.writer()?.try_lock()
    }

    /// Takes the lock as a writer. Waits its turn, for at most `at_most`. `None`: its turn did not
    /// come. Blocks as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_write_for(&self, at_most: Duration) -> Result<Option<LockGuard>> {
        self.writer()?.try_lock_for(at_most)
    }

    /// Takes a place in the queue as a reader, to wait later, or in several short waits. Blocks as
    /// long as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`LockManager::enqueue`].
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue_read(&self) -> Result<Waiter<ReadGuard>> {
        self.reader()?.enqueue(ReadGuard::new)
    }

    /// Takes a place in the queue as a writer. Blocks as long as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`LockManager::enqueue`].
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue_write(&self) -> Result<Waiter> {
        self.writer()?.enqueue(|guard| guard)
    }

    /// Turns the writer into a reader. No writer comes in between.
    ///
    /// In the same step, the readers that wait before the next writer get the lock. The fence, the
    /// lease and its options stay.
    ///
    /// Blocks for at most one command timeout. If Redis does not answer in that time, this goes on
    /// in the background, and the call returns the reader's guard. Until Redis has the request, it
    /// lets nobody else in, neither to write nor to read.
    ///
    /// # Errors
    /// After an error the writer's guard is dropped.
    /// - [`Misused`](crate::Error::Misused): the guard is that of a mutex.
    /// - [`Lost`](crate::Error::Lost): you did not hold the lock any more.
    /// - [`Refused`](crate::Error::Refused): Redis refused, and the refusal will not pass by itself.
    /// - [`Closed`](crate::Error::Closed) in a forked child.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn downgrade(writer: LockGuard) -> Result<ReadGuard> {
        if !writer.is_writer() {
            let message = "only a writer becomes a reader, and this is the guard of a mutex";
            return Err(Error::setting("guard", message).about(&writer.key().name));
        }
        writer.reduce(1)?;
        Ok(ReadGuard::new(writer))
    }

    fn reader(&self) -> Result<Wanted<'_>> {
        Ok(self.handle.with_spec(LockSpec::read()))
    }

    fn writer(&self) -> Result<Wanted<'_>> {
        Ok(self.handle.with_spec(LockSpec::write()))
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// An [`RwLock`] that is held for reading. It derefs to a [`Lease`], which has the other
/// methods.
///
/// # Drop
/// Like a [`LockGuard`], but a panic does not matter: a reader leaves nothing half done. So it also
/// has no `abandon`.
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the lock"]
pub struct ReadGuard {
    lease: Lease,
}

impl ReadGuard {
    fn new(guard: LockGuard) -> ReadGuard {
        ReadGuard {
            lease: guard.lease.of_reader(),
        }
    }

    /// Releases the lock like drop, and reports whether you held it to the end. Blocks as long as
    /// [`LockGuard::unlock`].
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        self.lease.release(Mode::Used)
    }
}

impl Deref for ReadGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard")
            .field("lease", &self.lease)
            .finish()
    }
}
