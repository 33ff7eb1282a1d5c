//! The semaphore: a number of permits, of which each holder takes some.

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

/// How many permits a semaphore has, at most.
pub const MAX_PERMITS: u32 = 1_000_000;

impl LockManager {
    /// The semaphore of this name with so many permits, as a handle.
    ///
    /// Costs no I/O. A name or a number of permits that is not allowed (1 to [`MAX_PERMITS`]) is refused when the semaphore
    /// is used.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let uploads = mgr.semaphore("uploads", 8);
    /// let permit = uploads.acquire()?; // at most eight at a time, in all processes together
    /// // … upload …
    /// permit.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore {
            manager: self.clone(),
            name: name.into(),
            key: self.key(name).ok(),
            permits,
        }
    }
}

/// A number of permits by its name: `Clone`, `'static`, and free to be kept in a struct. A guard holds one permit, or as many
/// as were asked for, and gives them all back together.
///
/// # Guarantees
/// Never more permits held than there are; holders in the order in which Redis ran their requests, over those that stayed
/// alive: who asks for many is not overtaken by those who ask for few. Every grant has a larger fence than all before it.
/// Each guard has its own lease, options and label, and is lost by itself. A dead process delays the others by little more
/// than one TTL, however many of its permits died with it.
///
/// # Limits
/// All who use a name must agree on the number of permits: another number is refused with
/// [`WrongKind`](crate::Error::WrongKind) while permits are held or awaited, and holds from then on when none are. The same
/// goes for [`rw_lock`](LockManager::rw_lock). What was a mutex can be a semaphore when its record is gone, an hour after its
/// last use, and the other way round. A thread that holds permits and asks for more than are left waits for itself.
/// [`previous_holder`](LockGuard::previous_holder) tells how the one that ended last did, which need not be the one whose
/// permits these were. Guards of a semaphore are held at the same time, so a resource that is given their fences must not
/// refuse the smaller ones. While many wait for a few permits, a heavy request leaves permits unused until there are enough
/// for it. When a lease may be over, Redis looks through all holders, some 2 to 4 µs each, and serves nobody meanwhile: ten
/// thousand are no matter, a hundred thousand take it about as long as the default command timeout. What asynchronous
/// replication loses, a semaphore can lose; see the crate's documentation.
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

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Takes one permit, waiting its turn for as long as Redis answers. Blocks as [`LockManager::lock`].
    ///
    /// # Errors
    /// As there; [`Config`](Error::Config) also for a number of permits that is not allowed, and
    /// [`WrongKind`](Error::WrongKind) also if the name is in use with another number.
    pub fn acquire(&self) -> Result<LockGuard> {
        self.acquire_many(1)
    }

    /// Takes one permit if there is one and nobody waits; `None` if not. Blocks as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As there, and as [`acquire`](Semaphore::acquire).
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.try_acquire_many(1)
    }

    /// Takes one permit, waiting its turn for at most so long; `None` if it did not come. Blocks as
    /// [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there, and as [`acquire`](Semaphore::acquire).
    pub fn try_acquire_for(&self, at_most: Duration) -> Result<Option<LockGuard>> {
        self.try_acquire_many_for(1, at_most)
    }

    /// As [`try_acquire_for`](Semaphore::try_acquire_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_acquire_many_until(1, deadline)
    }

    /// Takes so many permits together, waiting its turn for as long as Redis answers. Blocks as [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire); [`Config`](Error::Config) also for none and for more than there are.
    pub fn acquire_many(&self, permits: u32) -> Result<LockGuard> {
        take(&self.manager, self.key()?, self.spec(permits)?)
    }

    /// Takes so many permits together if there are as many and nobody waits; `None`, and none is kept, if not. Blocks as
    /// [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many), without waiting out an outage.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<LockGuard>> {
        try_take(&self.manager, self.key()?, self.spec(permits)?)
    }

    /// Takes so many permits together, waiting its turn for at most so long; `None` if it did not come. Blocks as
    /// [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there, and as [`acquire_many`](Semaphore::acquire_many).
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        at_most: Duration,
    ) -> Result<Option<LockGuard>> {
        let until = self.manager.engine().now() + at_most;
        take_until(&self.manager, self.key()?, self.spec(permits)?, until)
    }

    /// As [`try_acquire_many_for`](Semaphore::try_acquire_many_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<LockGuard>> {
        let until = self.manager.engine().at(deadline);
        take_until(&self.manager, self.key()?, self.spec(permits)?, until)
    }

    /// Takes a place in the queue for one permit, to wait for it later or bit by bit. Blocks as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire).
    pub fn enqueue(&self) -> Result<Waiter> {
        self.enqueue_many(1)
    }

    /// Takes a place in the queue for so many permits together. Blocks as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn enqueue_many(&self, permits: u32) -> Result<Waiter> {
        enqueue(&self.manager, self.key()?, self.spec(permits)?, |guard| {
            guard
        })
    }

    fn spec(&self, permits: u32) -> Result<LockSpec> {
        if self.permits == 0 || self.permits > MAX_PERMITS {
            let message = format!(
                "a semaphore has 1 to {MAX_PERMITS} permits, this one would have {}",
                self.permits
            );
            return Err(Error::config("permits", message));
        }
        if permits == 0 || permits > self.permits {
            let message = format!(
                "1 to {} permits can be taken of {:?}, not {permits}",
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
