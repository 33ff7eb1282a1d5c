//! The semaphore: a number of permits. Each holder takes one or several of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{enqueue, take, take_until, try_take};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::waiter::Waiter;

/// The most permits that a semaphore can have.
pub const MAX_PERMITS: u32 = 1_000_000;

impl LockManager {
    /// The semaphore of this name with this number of permits, as a handle. 1 to [`MAX_PERMITS`]
    /// permits.
    ///
    /// Never blocks; no I/O. If the name or the number is not allowed, the verbs of the semaphore
    /// return [`Config`](Error::Config).
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let uploads = mgr.semaphore("uploads", 8);
    /// let permit = uploads.acquire()?; // at most eight holders at once, in all processes together
    /// // … upload …
    /// permit.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        let name = name.as_ref();
        Semaphore {
            manager: self.clone(),
            name: name.into(),
            key: self.key(name).ok(),
            permits,
        }
    }
}

/// A semaphore by its name. `Clone` and `'static`, so you can keep it in a struct.
///
/// A guard holds one permit, or as many as the caller asked for. It releases all of them together.
///
/// # Guarantees
/// - Never more permits are held than there are.
/// - Callers hold permits in the order in which Redis ran their requests, except those that died. A
///   request for few permits does not overtake a request for many.
/// - Every grant has a larger fence than all grants before it.
/// - Each guard has its own lease, options and label. The loss of one does not affect the others.
/// - A dead process delays the others by little more than one TTL, however many of its permits died
///   with it.
///
/// # Limits
/// - All callers of a name must use the same number of permits. While somebody holds or waits for
///   permits, a call with another number gets [`WrongKind`](crate::Error::WrongKind). While nobody
///   does, the next call sets the number. The same is true for a use of the name as an
///   [`rw_lock`](LockManager::rw_lock).
/// - A mutex can become a semaphore only when its record is gone, an hour after its last use. The
///   same is true the other way round.
/// - A thread that holds permits and asks for more than are left deadlocks.
/// - [`previous_holder`](LockGuard::previous_holder) says how the holder that ended last ended.
///   That need not be the holder who had the same permits.
/// - Several guards are held at the same time. So a resource that receives their fences must not
///   refuse smaller ones.
/// - A request for many permits leaves permits unused until there are enough for it.
/// - When a lease may be over, Redis looks through all holders. That takes some 2 to 4 µs for each,
///   and Redis serves nobody during that time. Ten thousand holders do not matter. A hundred
///   thousand take about the default command timeout.
/// - If asynchronous replication loses data, it can lose permits; see the [limits](crate#limits) of
///   the crate.
#[derive(Clone)]
pub struct Semaphore {
    manager: LockManager,
    name: Arc<str>,
    key: Option<Key>,
    permits: u32,
}

impl Semaphore {
    /// The name of the semaphore.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many permits there are in all.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Takes one permit. Waits its turn, for as long as Redis answers. Blocks as long as
    /// [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`LockManager::lock`]. [`Config`](Error::Config) also if the number of permits is not
    /// allowed. [`WrongKind`](Error::WrongKind) also if the name is in use with another number.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn acquire(&self) -> Result<LockGuard> {
        self.acquire_many(1)
    }

    /// Takes one permit if one is free and nobody waits. `None`: no permit is free, or others wait.
    /// Blocks as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`] and [`acquire`](Semaphore::acquire).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.try_acquire_many(1)
    }

    /// Takes one permit. Waits its turn, for at most `at_most`. `None`: its turn did not come.
    /// Blocks as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`] and [`acquire`](Semaphore::acquire).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_for(&self, at_most: Duration) -> Result<Option<LockGuard>> {
        self.try_acquire_many_for(1, at_most)
    }

    /// Like [`try_acquire_for`](Semaphore::try_acquire_for), but until a deadline. A deadline that
    /// has passed is one try.
    ///
    /// # Errors
    /// As [`try_acquire_for`](Semaphore::try_acquire_for).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_acquire_many_until(1, deadline)
    }

    /// Takes this number of permits together. Waits its turn, for as long as Redis answers. Blocks
    /// as long as [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire). [`Config`](Error::Config) also for zero permits, and for
    /// more than there are.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn acquire_many(&self, permits: u32) -> Result<LockGuard> {
        take(&self.manager, self.key()?, self.spec(permits)?)
    }

    /// Takes this number of permits together if they are free and nobody waits. `None`: fewer are
    /// free, or others wait. Then none is kept. Blocks as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`] and [`acquire_many`](Semaphore::acquire_many).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<LockGuard>> {
        try_take(&self.manager, self.key()?, self.spec(permits)?)
    }

    /// Takes this number of permits together. Waits its turn, for at most `at_most`. `None`: its
    /// turn did not come. Blocks as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`] and [`acquire_many`](Semaphore::acquire_many).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        at_most: Duration,
    ) -> Result<Option<LockGuard>> {
        let until = self.manager.engine().now() + at_most;
        take_until(&self.manager, self.key()?, self.spec(permits)?, until)
    }

    /// Like [`try_acquire_many_for`](Semaphore::try_acquire_many_for), but until a deadline. A
    /// deadline that has passed is one try.
    ///
    /// # Errors
    /// As [`try_acquire_many_for`](Semaphore::try_acquire_many_for).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<LockGuard>> {
        let until = self.manager.engine().at(deadline);
        take_until(&self.manager, self.key()?, self.spec(permits)?, until)
    }

    /// Takes a place in the queue for one permit, to wait later, or in several short waits. Blocks
    /// as long as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire).
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue(&self) -> Result<Waiter> {
        self.enqueue_many(1)
    }

    /// Takes a place in the queue for this number of permits together. Blocks as long as
    /// [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many).
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue_many(&self, permits: u32) -> Result<Waiter> {
        enqueue(&self.manager, self.key()?, self.spec(permits)?, |guard| {
            guard
        })
    }

    fn spec(&self, permits: u32) -> Result<LockSpec> {
        if self.permits == 0 || self.permits > MAX_PERMITS {
            let message = format!(
                "a semaphore has 1 to {MAX_PERMITS} permits; this one would have {}",
                self.permits
            );
            return Err(Error::config("permits", message));
        }
        if permits == 0 || permits > self.permits {
            let message = format!(
                "a guard takes 1 to {} permits of {:?}; this one would take {permits}",
                self.permits, self.name
            );
            return Err(Error::config("permits", message));
        }
        Ok(LockSpec::semaphore(self.permits, permits))
    }

    fn key(&self) -> Result<Key> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => self.manager.key(&self.name),
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
