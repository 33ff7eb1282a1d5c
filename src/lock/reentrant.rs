//! A mutex that the thread which holds it can take again.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mutex;
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;

type Kept = Vec<(Id, Weak<Held>)>;

thread_local! {
    /// What this thread holds re-entrantly, which is not much. Without a destructor it is there for those of other
    /// thread-locals, too; what is allocated goes with the last entry.
    static HELD: ManuallyDrop<RefCell<Kept>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// A name of one manager. What is held keeps the manager alive, so its address is nobody else's.
#[derive(PartialEq)]
struct Id {
    engine: usize,
    key: Key,
}

/// A lock that is held, once for all guards of it.
struct Held {
    guard: LockGuard,
    /// Dropped after the guard.
    _entry: Entry,
}

/// Forgets what has no guards any more. A logger that takes the lock while it is being released is another holder of it.
struct Entry;

impl Drop for Entry {
    fn drop(&mut self) {
        HELD.with(|all| {
            let mut all = all.borrow_mut();
            all.retain(|(_, held)| held.strong_count() > 0);
            if all.is_empty() {
                *all = Vec::new();
            }
        });
    }
}

impl LockManager {
    /// The mutex of this name, as one that a thread can take again while it holds it.
    ///
    /// Costs no I/O. A name that is not allowed is refused when the mutex is used.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let ledger = mgr.reentrant_mutex("ledger");
    /// let outer = ledger.lock()?;
    /// let inner = ledger.lock()?; // at once, without a word to Redis
    /// assert_eq!(inner.fence(), outer.fence());
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn reentrant_mutex(&self, name: &str) -> ReentrantMutex {
        ReentrantMutex {
            manager: self.clone(),
            mutex: self.mutex(name),
        }
    }
}

/// A mutex that the thread which holds it can take again.
///
/// In Redis it is the [`Mutex`] of its name: who takes it as that, also another manager of this process, waits like
/// anybody else.
///
/// # Guarantees
/// All that [`Mutex`] guarantees. The thread that holds it takes it again, by any handle of the same manager, at once and
/// without a request; it is released when the last of the thread's guards is gone, in whatever order they go. The fence
/// stays the same. Options of the first taking hold for all.
///
/// # Limits
/// Re-entry is a matter of threads: a guard cannot be sent to another one, and a thread that is given work by the holder
/// waits for the holder. A thread that holds the name as a [`Mutex`] and takes it here waits for itself. Once the lock is
/// lost, re-entry is refused with [`Error::Lost`](crate::Error::Lost) until the last guard is gone, since what the outer
/// guard protects is not safe any more. A guard that is leaked (`mem::forget`) counts for ever.
#[derive(Clone)]
pub struct ReentrantMutex {
    manager: LockManager,
    mutex: Mutex,
}

impl ReentrantMutex {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.mutex.name()
    }

    /// Takes the lock, waiting its turn for as long as Redis answers; at once if this thread holds it. Blocks as
    /// [`LockManager::lock`].
    ///
    /// # Errors
    /// As there, and [`Lost`](crate::Error::Lost) if this thread held it and has lost it.
    pub fn lock(&self) -> Result<ReentrantGuard> {
        match self.held_here()? {
            Some(guard) => Ok(guard),
            None => self.keep(self.mutex.lock()?),
        }
    }

    /// Takes the lock if this thread holds it, or if it is free and nobody waits for it; `None` if not. Blocks as
    /// [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.take(Mutex::try_lock)
    }

    /// Takes the lock, waiting its turn for at most so long; `None` if it did not come. Blocks as
    /// [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there, and [`Lost`](crate::Error::Lost) if this thread held it and has lost it.
    pub fn try_lock_for(&self, at_most: Duration) -> Result<Option<ReentrantGuard>> {
        self.take(|mutex| mutex.try_lock_for(at_most))
    }

    /// As [`try_lock_for`](ReentrantMutex::try_lock_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<ReentrantGuard>> {
        self.take(|mutex| mutex.try_lock_until(deadline))
    }

    fn take(
        &self,
        take: impl FnOnce(&Mutex) -> Result<Option<LockGuard>>,
    ) -> Result<Option<ReentrantGuard>> {
        match self.held_here()? {
            Some(guard) => Ok(Some(guard)),
            None => take(&self.mutex)?.map(|guard| self.keep(guard)).transpose(),
        }
    }

    fn held_here(&self) -> Result<Option<ReentrantGuard>> {
        let id = self.id()?;
        let held = HELD.with(|all| {
            let all = all.borrow();
            all.iter()
                .filter(|(other, _)| *other == id)
                .find_map(|(_, held)| held.upgrade())
        });
        held.map(|held| held.guard.check().map(|()| ReentrantGuard { held }))
            .transpose()
    }

    fn keep(&self, guard: LockGuard) -> Result<ReentrantGuard> {
        let id = self.id()?;
        let held = Rc::new(Held {
            guard,
            _entry: Entry,
        });
        HELD.with(|all| all.borrow_mut().push((id, Rc::downgrade(&held))));
        Ok(ReentrantGuard { held })
    }

    fn id(&self) -> Result<Id> {
        Ok(Id {
            engine: Arc::as_ptr(self.manager.engine()).addr(),
            key: self.mutex.key()?,
        })
    }
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantMutex")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// A [`ReentrantMutex`] that is held; dropping the last guard of the thread releases it. What can be asked of the lock is
/// asked of the [`LockGuard`] behind it.
///
/// It belongs to its thread:
///
/// ```compile_fail,E0277
/// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/").unwrap();
/// let guard = mgr.reentrant_mutex("ledger").lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// # Drop
/// Of the last one as of a [`LockGuard`]; of any other one nothing but a number goes down.
#[must_use = "the lock is released as soon as the last guard is dropped"]
pub struct ReentrantGuard {
    held: Rc<Held>,
}

impl ReentrantGuard {
    /// How many guards this thread has of it.
    pub fn depth(&self) -> usize {
        Rc::strong_count(&self.held)
    }

    /// Gives this guard back. The last one releases the lock and says how that went, as [`LockGuard::unlock`] does and for
    /// as long; any other one neither blocks nor fails.
    ///
    /// # Errors
    /// As there.
    pub fn unlock(self) -> Result<()> {
        match Rc::try_unwrap(self.held) {
            Ok(held) => held.guard.unlock(),
            Err(_) => Ok(()),
        }
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

    /// As a logger may that is called while the lock is being released.
    #[test]
    fn who_takes_it_while_its_last_guard_goes_takes_it_again_afterwards() {
        let mgr = LockManager::in_memory().expect("threads can be started");
        let mutex = mgr.reentrant_mutex("n");
        let Ok(Held { guard, _entry }) = Rc::try_unwrap(mutex.lock().expect("it is free").held)
        else {
            panic!("there is one guard");
        };
        guard.unlock().expect("it is held");
        let meanwhile = mutex.lock().expect("it is free");
        let again = || {
            mutex
                .try_lock()
                .expect("no error")
                .expect("this thread holds it")
                .depth()
        };
        assert_eq!(again(), 2);
        drop(_entry);
        assert_eq!(again(), 2);
        drop(meanwhile);
        assert!(HELD.with(|all| all.borrow().is_empty()));
    }
}
