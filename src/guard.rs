//! A held lock, as RAII.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::{EngineHandle, Lease, WantResult};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};

/// A lock that is held; dropping it releases it.
///
/// It is renewed by the manager's one renewal thread for as long as it lives, whichever thread it is
/// on. If that fails for so long that the lock may belong to somebody else, [`is_held`](LockGuard::is_held) turns
/// false, at the latest when the local deadline has passed, and stays so.
///
/// # Guarantees
/// While `is_held` is true, no other guard for the name is held anywhere (of a semaphore, no more permits than there are; of
/// a reader/writer lock, no writer beside it), given clocks that run apart by less than 500 ppm and a Redis that did not
/// lose acknowledged data.
///
/// # Limits
/// A process can be stopped between looking at `is_held` and acting on it. Only a resource that checks
/// [`fence`](LockGuard::fence) is safe against that; see [`FenceGate`](crate::FenceGate). A guard that is leaked
/// (`mem::forget`) is renewed until `max_hold` or until the process ends.
///
/// # Drop
/// Releases the lock and hands it to the first waiter. Never panics; blocks for at most one command
/// timeout. What could not be released goes on in the background, and failing that ends with the TTL.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard {
    lease: Arc<Lease>,
    running: Arc<EngineHandle>,
    /// `unlock` has released it; there is nothing left for Drop to do.
    unlocked: bool,
}

impl LockGuard {
    pub(crate) fn new(lease: Arc<Lease>, running: &Arc<EngineHandle>) -> LockGuard {
        running.engine().on_guard_created();
        LockGuard {
            lease,
            running: Arc::clone(running),
            unlocked: false,
        }
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.lease.request.key.name
    }

    /// A number that is larger than that of every earlier grant of this name ("fencing token"). Give it to
    /// the resource with every write, and let it refuse smaller ones. A reader of an [`RwLock`](crate::RwLock) has the last
    /// writer's.
    pub fn fence(&self) -> u64 {
        self.lease.fence
    }

    /// Whether the lock is certainly still ours. Looks at a clock and a flag; no I/O, never blocks.
    ///
    /// Once false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.lease.is_held(engine.now())
    }

    /// For how long [`is_held`](LockGuard::is_held) stays true if no renewal succeeds any more; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.lease.remaining(self.running.engine().now())
        } else {
            Duration::ZERO
        }
    }

    /// As [`is_held`](LockGuard::is_held), to be used with `?` between two steps of work.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason; [`Error::Closed`] in a forked child.
    pub fn check(&self) -> Result<()> {
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        if self.is_held() {
            Ok(())
        } else {
            Err(self.loss())
        }
    }

    /// A channel that tells of the loss: one [`Loss`], then disconnected. After a clean release it is
    /// disconnected at once. For `select!` beside the work; made when it is first asked for.
    ///
    /// It tells at most one command timeout after [`is_held`](LockGuard::is_held) turns false, also when Redis is
    /// unreachable.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.never()
        } else {
            self.lease.lost()
        }
    }

    /// How the holder before this one ended. `Lapsed` or `Forced`: what the lock protects may be half done.
    pub fn previous_holder(&self) -> PreviousHolder {
        self.lease.previous
    }

    /// Renews the lock now, beside the renewal thread; a fixed lease starts anew. Blocks for at most two
    /// command timeouts.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not ours any more. After [`Error::Unavailable`] and [`Error::Server`] it is held
    /// for as long as before.
    pub fn renew(&self) -> Result<()> {
        self.running.engine().renew(&self.lease)
    }

    /// Releases the lock and says how that went. Blocks for at most one command timeout.
    ///
    /// # Errors
    /// `Ok`: it was released while it was ours. [`Error::Lost`]: it was not ours any more.
    /// [`Error::Unavailable`]: not known; the release goes on in the background.
    pub fn unlock(mut self) -> Result<()> {
        self.unlocked = true;
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.running.engine().release(&self.lease, WantResult::Yes)
    }

    /// Keeps one permit of all that it has. Blocks for at most one command timeout; without an answer this goes on in the
    /// background.
    pub(crate) fn downgrade(&self) -> Result<()> {
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.running.engine().downgrade(&self.lease)
    }

    fn loss(&self) -> Error {
        Error::Lost {
            loss: self
                .lease
                .loss()
                .unwrap_or_else(|| self.lease.loss_for(LossReason::Expired)),
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let engine = self.running.engine();
        if engine.is_forked() {
            return;
        }
        if !self.unlocked
            && let Err(error) = engine.release(&self.lease, WantResult::No)
        {
            log::warn!("dropping the guard of {:?}: {error}", self.name());
        }
        engine.on_guard_dropped();
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
