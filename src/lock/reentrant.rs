//! A mutex that its holder, a thread, can take again.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use super::Mutex;
use crate::engine::Engine;
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::waiter::Waiter;

/// The locks that a thread holds re-entrantly. There are few, so a search through all is cheap.
type HeldLocks = Vec<(LockId, Weak<HeldLock>)>;

thread_local! {
    /// The locks of this thread. It has no destructor, so the destructors of other thread-locals
    /// can still use it. [`RemoveDead`] frees its memory with the last entry.
    static HELD: ManuallyDrop<RefCell<HeldLocks>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// A name of one manager. The engine is known by its address. No other engine can have that
/// address, because a held lock keeps its engine alive.
#[derive(PartialEq)]
struct LockId {
    engine: usize,
    key: Key,
}

impl LockId {
    fn new(engine: &Arc<Engine>, key: Key) -> LockId {
        let engine = Arc::as_ptr(engine).addr();
        LockId { engine, key }
    }
}

/// A lock that this thread holds, shared by all guards of it.
struct HeldLock {
    guard: LockGuard,
    /// Declared after the guard, so it is dropped after the guard.
    _remove: RemoveDead,
}

/// Removes locks that have no guards any more from [`HELD`].
///
/// It runs after the release. While the lock is being released, a logger on this thread may take
/// the same lock. Then there is a second entry for it, which has a guard and stays.
struct RemoveDead;

impl Drop for RemoveDead {
    fn drop(&mut self) {
        HELD.with(|locks| {
            let mut locks = locks.borrow_mut();
            locks.retain(|(_, held)| held.strong_count() > 0);
            if locks.is_empty() {
                *locks = Vec::new();
            }
        });
    }
}

impl LockManager {
    /// The mutex of this name, as a handle with which a thread can take it again while it holds it.
    ///
    /// Never blocks; no I/O. If the name is not allowed, the verbs of the mutex return
    /// [`Misused`](crate::Error::Misused).
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let ledger = mgr.reentrant_mutex("ledger");
    /// let outer = ledger.lock()?;
    /// let inner = ledger.lock()?; // at once, without a request to Redis
    /// assert_eq!(inner.fence(), outer.fence());
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex {
            mutex: self.mutex(name),
        }
    }
}

/// A mutex that its holder, a thread, can take again.
///
/// In Redis it is the [`Mutex`] of its name. A caller that takes the name as a `Mutex`, or by
/// another manager of this process, waits like any other caller.
///
/// # Guarantees
/// - All that [`Mutex`] guarantees.
/// - The thread that holds it can take it again, with any handle of the same manager, at once and
///   without a request.
/// - The lock is released when the last guard of the thread is dropped. The order does not matter.
/// - The fence stays the same, and so do the options of the first call.
///
/// # Limits
/// - Re-entry works only within one thread. A guard cannot be sent to another thread. If the holder
///   gives work to another thread, that thread waits for the holder.
/// - A thread that holds the name as a [`Mutex`] and takes it here deadlocks.
/// - Once the lock is lost, re-entry fails with [`Error::Lost`](crate::Error::Lost) until the last
///   guard is dropped, because the work under the outer guard is not safe any more.
/// - A guard that leaks (`mem::forget`) counts forever.
#[derive(Clone)]
pub struct ReentrantMutex {
    mutex: Mutex,
}

impl ReentrantMutex {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.mutex.name()
    }

    /// Takes the lock. Waits its turn, for as long as Redis answers.
    ///
    /// Never blocks if this thread holds the lock, else as long as [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`LockManager::lock`]. [`Lost`](crate::Error::Lost) if this thread has lost the lock and
    /// still has a guard.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn lock(&self) -> Result<ReentrantGuard> {
        match self.held_here()? {
            Some(guard) => Ok(guard),
            None => Ok(ReentrantGuard::of(self.mutex.lock()?)),
        }
    }

    /// Takes the lock if this thread holds it, or if it is free and nobody waits for it. `None`: it
    /// is taken, or others wait; [on a quorum](LockManager::try_lock) perhaps neither.
    ///
    /// Never blocks if this thread holds the lock, else as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`]. [`Lost`](crate::Error::Lost) also if this thread has lost the
    /// lock and still has a guard.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.take(Mutex::try_lock)
    }

    /// Takes the lock. Waits its turn, for at most `at_most`. `None`: its turn did not come.
    ///
    /// Never blocks if this thread holds the lock, else as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`]. [`Lost`](crate::Error::Lost) also if this thread has lost
    /// the lock and still has a guard.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock_for(&self, at_most: Duration) -> Result<Option<ReentrantGuard>> {
        self.take(|mutex| mutex.try_lock_for(at_most))
    }

    /// Takes a place in the queue at once, and lets the caller wait later. Blocks as long as
    /// [`LockManager::enqueue`]. The thread that takes the guard from the waiter may take the lock
    /// again. A thread that has a guard already deadlocks: unlike [`lock`](ReentrantMutex::lock), this
    /// does not re-enter.
    ///
    /// # Errors
    /// As [`LockManager::enqueue`].
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue(&self) -> Result<Waiter<ReentrantGuard>> {
        let wanted = self.mutex.handle.with_spec(LockSpec::MUTEX);
        wanted.enqueue(ReentrantGuard::of)
    }

    fn take(
        &self,
        take: impl FnOnce(&Mutex) -> Result<Option<LockGuard>>,
    ) -> Result<Option<ReentrantGuard>> {
        match self.held_here()? {
            Some(guard) => Ok(Some(guard)),
            None => Ok(take(&self.mutex)?.map(ReentrantGuard::of)),
        }
    }

    fn held_here(&self) -> Result<Option<ReentrantGuard>> {
        let handle = &self.mutex.handle;
        let id = LockId::new(handle.manager().engine(), handle.key()?);
        let held = HELD.with(|locks| {
            let locks = locks.borrow();
            locks
                .iter()
                .filter(|(other, _)| *other == id)
                .find_map(|(_, held)| held.upgrade())
        });
        held.map(|held| held.guard.check().map(|()| ReentrantGuard { held }))
            .transpose()
    }
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantMutex")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// A [`ReentrantMutex`] that is held. Dropping the last guard of the thread releases it. It derefs
/// to a [`LockGuard`], which has the other methods.
///
/// The guard cannot leave its thread:
///
/// ```compile_fail,E0277
/// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/").unwrap();
/// let guard = mgr.reentrant_mutex("ledger").lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// # Drop
/// The last guard of the thread: like a [`LockGuard`]. Any other guard only lowers the
/// [`depth`](ReentrantGuard::depth), also in a panic. So a panic that is caught while the thread
/// has another guard does not count: its owner can [`abandon`](ReentrantGuard::abandon) that guard.
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the lock"]
pub struct ReentrantGuard {
    held: Rc<HeldLock>,
}

impl ReentrantGuard {
    /// This thread may take the lock of the guard again.
    fn of(guard: LockGuard) -> ReentrantGuard {
        let id = LockId::new(guard.lease.engine(), guard.lease.key().clone());
        let held = Rc::new(HeldLock {
            guard,
            _remove: RemoveDead,
        });
        HELD.with(|locks| locks.borrow_mut().push((id, Rc::downgrade(&held))));
        ReentrantGuard { held }
    }

    /// How many guards of the lock this thread has.
    pub fn depth(&self) -> usize {
        Rc::strong_count(&self.held)
    }

    /// Drops this guard. If it is the thread's last, releases the lock like [`LockGuard::unlock`],
    /// and blocks as long. Any other guard neither blocks nor fails.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        match Rc::try_unwrap(self.held) {
            Ok(held) => held.guard.unlock(),
            Err(_) => Ok(()),
        }
    }

    /// Drops this guard, and says that the work is half done. If it is the thread's last, releases
    /// the lock like [`LockGuard::abandon`], and blocks as long. Any other guard neither blocks nor
    /// fails; then the end of the last guard counts as abandoned.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn abandon(self) -> Result<()> {
        self.held.guard.mark_unfinished();
        self.unlock()
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.held.guard
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("guard", &self.held.guard)
            .field("depth", &self.depth())
            .finish()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;

    /// A logger may do this if it is called while the lock is being released.
    #[test]
    fn lock_taken_during_its_release_can_be_reentered_afterwards() {
        let mgr =
            LockManager::connect(&crate::memory::Memory::new()).expect("threads can be started");
        let mutex = mgr.reentrant_mutex("n");
        let Ok(HeldLock { guard, _remove }) =
            Rc::try_unwrap(mutex.lock().expect("it is free").held)
        else {
            panic!("there is one guard");
        };
        guard.unlock().expect("it is held");
        let taken_during_release = mutex.lock().expect("it is free");
        let again = || {
            mutex
                .try_lock()
                .expect("no error")
                .expect("this thread holds it")
                .depth()
        };
        assert_eq!(again(), 2);
        drop(_remove);
        assert_eq!(again(), 2);
        drop(taken_during_release);
        assert!(HELD.with(|locks| locks.borrow().is_empty()));
    }
}
