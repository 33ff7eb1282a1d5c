//! The semaphore: a number of permits. Each holder takes one or several of them, and may release
//! some of them before the others.

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

/// The most permits that a semaphore can have.
const MAX_PERMITS: u32 = 1_000_000;

impl LockManager {
    /// The semaphore of this name with this number of permits, as a handle. 1 to 1,000,000
    /// permits.
    ///
    /// Never blocks; no I/O. If the name or the number is not allowed, the verbs of the semaphore
    /// return [`Misused`](Error::Misused).
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let uploads = mgr.semaphore("uploads", 8);
    /// let permit = uploads.acquire(1)?; // at most eight holders at once, in all processes together
    /// // … upload …
    /// permit.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore {
            handle: Handle::new(self, name.as_ref()),
            permits,
        }
    }
}

/// A semaphore by its name. `Clone` and `'static`, so you can keep it in a struct.
///
/// A guard holds one permit, or as many as the caller asked for. It releases all of them together,
/// or some of them earlier ([`release_permits`](SemaphoreGuard::release_permits)).
///
/// # Guarantees
/// - Never more permits are held than there are, if all callers use the same number.
/// - Callers hold permits in the order in which Redis ran their requests, except those that died. A
///   request for few permits does not overtake a request for many.
/// - Every grant has a larger fence than all grants before it.
/// - Each guard has its own lease, options and label. The loss of one does not affect the others.
/// - A dead process delays the others by little more than one TTL, however many of its permits died
///   with it.
///
/// # Limits
/// - The number of permits belongs to each call, not to the name. A call gets permits once they and
///   all that are held are no more than its own number. So you can change the number while
///   processes are replaced one by one. All holders keep what they have. Until the last caller with
///   the larger number is gone, up to that many permits are held. The order stays: a waiter with a
///   smaller number is not overtaken by later ones with a larger number.
/// - While somebody holds or waits for permits, a call that uses the name as another kind of lock
///   gets [`Misused`](crate::Error::Misused).
/// - A thread that holds permits and asks for more than are left deadlocks.
/// - [`previous_holder`](Lease::previous_holder) says how the holder that ended last ended.
///   That need not be the holder that had the same permits.
/// - Several guards are held at the same time. So a resource that receives their fences must not
///   refuse smaller ones.
/// - A request for many permits leaves permits unused until there are enough for it.
/// - When a lease may be over, Redis looks through the holders, some 32 in each call. So no call
///   takes longer because there are many. But with more than 64 holders, Redis finds a lapsed lease
///   later, by up to 50 µs for each holder: 5 s with 100,000.
/// - If asynchronous replication loses data, it can lose permits; see the [limits](crate#limits) of
///   the crate.
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle,
    permits: u32,
}

impl Semaphore {
    /// The name of the semaphore.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Takes this number of permits together. Waits its turn, for as long as Redis answers. Blocks
    /// as long as [`LockManager::lock`].
    ///
    /// # Errors
    /// As [`LockManager::lock`]. [`Misused`](Error::Misused) also for zero permits, for more than there
    /// are, and if the semaphore's own number is not allowed.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn acquire(&self, permits: u32) -> Result<SemaphoreGuard> {
        self.wanted(permits)?.lock().map(SemaphoreGuard::new)
    }

    /// Takes this number of permits together if they are free and nobody waits. `None`: fewer are
    /// free, or others wait. Then none is kept. Blocks as long as [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock`] and [`acquire`](Semaphore::acquire).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire(&self, permits: u32) -> Result<Option<SemaphoreGuard>> {
        let guard = self.wanted(permits)?.try_lock()?;
        Ok(guard.map(SemaphoreGuard::new))
    }

    /// Takes this number of permits together. Waits its turn, for at most `at_most`. `None`: its
    /// turn did not come. Blocks as long as [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`] and [`acquire`](Semaphore::acquire).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_acquire_for(
        &self,
        permits: u32,
        at_most: Duration,
    ) -> Result<Option<SemaphoreGuard>> {
        let guard = self.wanted(permits)?.try_lock_for(at_most)?;
        Ok(guard.map(SemaphoreGuard::new))
    }

    /// Takes a place in the queue for this number of permits together, to wait later, or in several
    /// short waits. Blocks as long as [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire).
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue(&self, permits: u32) -> Result<Waiter<SemaphoreGuard>> {
        self.wanted(permits)?.enqueue(SemaphoreGuard::new)
    }

    fn wanted(&self, permits: u32) -> Result<Wanted<'_>> {
        let spec = self.spec(permits);
        let spec = spec.map_err(|error| error.about(&self.name().into()))?;
        Ok(self.handle.with_spec(spec))
    }

    fn spec(&self, permits: u32) -> Result<LockSpec> {
        if self.permits == 0 || self.permits > MAX_PERMITS {
            let message = format!(
                "a semaphore has 1 to {MAX_PERMITS} permits; this one would have {}",
                self.permits
            );
            return Err(Error::setting("permits", message));
        }
        if permits == 0 || permits > self.permits {
            let message = format!(
                "a guard takes 1 to {} permits of {:?}; this one would take {permits}",
                self.permits,
                self.name()
            );
            return Err(Error::setting("permits", message));
        }
        Ok(LockSpec::semaphore(self.permits, permits))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Permits of a [`Semaphore`] that are held. It derefs to a [`Lease`], which has the other
/// methods.
///
/// # Drop
/// Like a [`LockGuard`].
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the permits"]
pub struct SemaphoreGuard {
    lease: Lease,
    permits: u32,
}

impl SemaphoreGuard {
    fn new(guard: LockGuard) -> SemaphoreGuard {
        let permits = guard.weight();
        SemaphoreGuard {
            lease: guard.lease,
            permits,
        }
    }

    /// How many permits this guard holds: those that it was granted, without those that it has
    /// released since.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Releases this number of permits, and keeps the others. At least one stays: to release all,
    /// drop the guard or [`unlock`](SemaphoreGuard::unlock) it.
    ///
    /// In the same step, the waiters that come next get the permits. The fence, the lease and its
    /// options stay. [`hold_at_least`](crate::LockOptions::hold_at_least) covers only the permits
    /// that the guard keeps; the others are free at once.
    ///
    /// Blocks for at most one command timeout. If Redis does not answer in that time, this goes on
    /// in the background, and the call returns `Ok`. Until Redis has the request, nobody else gets
    /// the permits.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let mut slots = mgr.semaphore("slots", 8).acquire(5)?;
    /// // … the first half of the work needs all five …
    /// slots.release_permits(3)?;
    /// assert_eq!(slots.permits(), 2);
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// After an error the guard holds what it held before.
    /// - [`Misused`](Error::Misused): no permits, or not fewer than the guard holds.
    /// - [`Lost`](Error::Lost): you did not hold the permits any more.
    /// - [`Refused`](Error::Refused): Redis refused, and the refusal will not pass by itself.
    /// - [`Closed`](Error::Closed) in a forked child.
    pub fn release_permits(&mut self, permits: u32) -> Result<()> {
        if permits == 0 || permits >= self.permits {
            let message = format!(
                "this guard holds {}: release at least one and keep at least one, not {permits}; \
                 unlock() releases all",
                self.permits
            );
            return Err(Error::setting("permits", message).about(&self.lease.name().into()));
        }
        let kept = self.permits - permits;
        self.lease.reduce(kept)?;
        self.permits = kept;
        Ok(())
    }

    /// Releases all permits like drop, and reports whether you held them to the end. Blocks as long
    /// as [`LockGuard::unlock`].
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        let mode = self.lease.mode();
        self.lease.release(mode)
    }

    /// Releases all permits like [`unlock`](SemaphoreGuard::unlock), but says that the work is half
    /// done: the next holder's [`previous_holder`](Lease::previous_holder) is
    /// [`Lapsed`](crate::PreviousHolder::Lapsed). Blocks as long as [`LockGuard::abandon`].
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn abandon(self) -> Result<()> {
        self.lease.release(Mode::Unfinished)
    }
}

impl Deref for SemaphoreGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for SemaphoreGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreGuard")
            .field("permits", &self.permits)
            .field("lease", &self.lease)
            .finish()
    }
}
