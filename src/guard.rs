//! A held lock, as RAII.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::{EngineHandle, Lease, WantResult};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};

/// A lock that is held. Dropping the guard releases the lock.
///
/// The renewal thread of the manager renews the lock for as long as the guard lives, on whichever
/// thread that is. If renewals fail for so long that somebody else may have the lock,
/// [`is_held`](LockGuard::is_held) turns false. That happens no later than the local deadline, and
/// it stays false.
///
/// # Guarantees
/// While `is_held` is true, no other guard for the name is held anywhere. For a semaphore: no more
/// permits are held than there are. For a reader/writer lock: no writer holds it beside another
/// guard. This assumes that the rates of the clocks differ by less than 500 ppm, and that Redis did
/// not lose data that it had acknowledged.
///
/// # Limits
/// The process can be stopped after it looked at `is_held` and before it acts. Only a resource that
/// checks [`fence`](LockGuard::fence) is safe against that; see [`FenceGate`](crate::FenceGate). If
/// a guard leaks (`mem::forget`), the manager renews its lock until `max_hold`, or until the
/// process ends.
///
/// # Bind it to a variable
/// Write `let _guard = mgr.lock("n")?`. A guard that is not bound to a variable is dropped at once,
/// so the lock is free before the work begins:
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn work(mgr: &fairlock::LockManager) -> fairlock::Result<()> {
/// mgr.lock("n")?; // rustc: unused `LockGuard` that must be used
/// # Ok(())
/// # }
/// ```
///
/// rustc then suggests `let _ = mgr.lock("n")?`, which silences it and drops the guard all the same.
/// Its lint `let_underscore_lock` does not know the guards of this crate. Clippy's
/// `let_underscore_must_use` finds them, if you enable it:
///
/// ```
/// #![deny(clippy::let_underscore_must_use)]
/// # #![deny(unused_must_use)]
/// # fn work(mgr: &fairlock::LockManager) -> fairlock::Result<()> {
/// let _guard = mgr.lock("n")?;
/// # Ok(())
/// # }
/// ```
///
/// No lint looks into an `Option`. So be careful with `try_lock`: `let _ = mgr.try_lock("n")?` is
/// wrong, and nothing says so.
///
/// # Drop
/// Releases the lock and hands it to the first waiter. Never panics; blocks for at most one command
/// timeout. If Redis does not answer, the release goes on in the background. If that fails too, the
/// lock ends with its TTL.
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the lock"]
pub struct LockGuard {
    lease: Arc<Lease>,
    running: Arc<EngineHandle>,
    /// `unlock` has released the lock, so Drop must not do it again.
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

    /// A number that is larger than the fence of every earlier grant of this name ("fencing
    /// token").
    ///
    /// Send it to the resource with every write, and let the resource refuse smaller fences. A
    /// reader of an [`RwLock`](crate::RwLock) has the fence of the last writer.
    pub fn fence(&self) -> u64 {
        self.lease.fence
    }

    /// Whether you certainly still hold the lock. Reads a clock and a flag; no I/O, never blocks.
    ///
    /// Once it is false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.lease.is_held(engine.now())
    }

    /// How long [`is_held`](LockGuard::is_held) stays true if no further renewal succeeds. Zero if
    /// the lock is lost. Never blocks.
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.lease.remaining(self.running.engine().now())
        } else {
            Duration::ZERO
        }
    }

    /// Like [`is_held`](LockGuard::is_held), but for use with `?` between two steps of work. Never
    /// blocks.
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

    /// A channel that receives one [`Loss`] if the lock is lost, and is disconnected after that.
    /// For `select!` beside the work. Never blocks.
    ///
    /// The message comes at most one command timeout after [`is_held`](LockGuard::is_held) turns
    /// false, even if Redis cannot be reached. After a clean release the channel is disconnected at
    /// once. It is created on the first call.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.never()
        } else {
            self.lease.lost()
        }
    }

    /// How the holder before this one ended. After `Lapsed` or `Forced` the protected work may be
    /// half done.
    pub fn previous_holder(&self) -> PreviousHolder {
        self.lease.previous
    }

    /// Renews the lock now, in addition to the renewal thread. A fixed lease starts again.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply.
    ///
    /// # Errors
    /// - [`Error::Lost`]: you do not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Server`]: you hold it for as long as before.
    /// - [`Error::Closed`] in a forked child.
    pub fn renew(&self) -> Result<()> {
        self.running.engine().renew(&self.lease)
    }

    /// Releases the lock like drop, and reports whether you held it to the end.
    ///
    /// Blocks for at most one command timeout. `Ok`: the lock was released while you held it.
    ///
    /// # Errors
    /// - [`Error::Lost`]: you did not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Server`]: not known. The release goes on in the
    ///   background.
    /// - [`Error::Closed`] in a forked child.
    pub fn unlock(mut self) -> Result<()> {
        self.unlocked = true;
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.running.engine().release(&self.lease, WantResult::Yes)
    }

    /// Releases all permits but one. Blocks for at most one command timeout; without an answer this
    /// goes on in the background.
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
