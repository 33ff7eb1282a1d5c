//! The guard of a lock that one holder has, as RAII.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::detached::DetachedLock;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::script::Mode;

/// A lock that is held by nobody else. Dropping the guard releases the lock. It derefs to a
/// [`Lease`], which has what the guards of all kinds have.
///
/// The renewal thread of the manager renews the lock for as long as the guard lives, on whichever
/// thread that is. If renewals fail for so long that somebody else may have the lock,
/// [`is_held`](Lease::is_held) turns false. That happens no later than the local deadline, and
/// it stays false.
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
/// rustc then suggests `let _ = mgr.lock("n")?`, which silences it and drops the guard all the
/// same. Its lint `let_underscore_lock` does not know the guards of this crate. Clippy's
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
/// # As a parameter
/// `fn book(guard: &LockGuard)` takes the guard of a lock that one holder has: of a mutex, or of a
/// writer. Check its name, and that it is held. A reader or a permit does not fit:
///
/// ```compile_fail,E0308
/// # use fairlock::{LockGuard, LockManager};
/// fn book(guard: &LockGuard) {}
/// # fn work(mgr: &LockManager) -> fairlock::Result<()> {
/// book(&mgr.rw_lock("invoices:42").read()?);
/// # Ok(())
/// # }
/// ```
///
/// # Drop
/// Releases the lock and hands it to the first waiter. With
/// [`keep_idle`](crate::LockOptions::keep_idle) it may keep the lock for the next guard of this manager instead,
/// and then sends nothing. Never panics. Mostly it writes the release
/// to an open connection and returns without waiting for the reply. Then, when drop returns:
/// - The lease has ended in this process. It is not renewed any more, and cannot be lost.
/// - The release is written, but Redis may not have run it yet. Another process, or another manager
///   in this one, may find the lock taken for a moment. [`unlock`](LockGuard::unlock) returns after
///   Redis has run the release. So use it if you then tell somebody else that the lock is free.
/// - Calls of this manager for the same name come behind the release, from every thread. So
///   `drop(guard)` and then `try_lock` finds the lock free, unless another caller has taken it.
/// - If the process exits now, the lock is released all the same, with few exceptions: the
///   connection was dead, Redis refused the release, or other threads had calls on the connection.
///   Then the lock may stay taken until its TTL ends it.
///
/// Drop waits for the reply, for at most one command timeout, in these cases:
/// - A caller of the same manager waits for the name.
/// - The request that took the lock was sent more than once.
/// - The connection is new: the first release of a mutex on it waits, and the first of permits.
/// - The connection had no reply for a check period, so it may be dead. Or none is open.
/// - Other replies are missing on the connection, and no thread reads them.
/// - Another thread was to write the release together with its own request, and has not done so.
/// - The manager was built with [`wait_on_drop`](crate::Builder::wait_on_drop), or is in memory.
///
/// A release without an answer goes on in the background. If that fails too, the lock ends with its
/// TTL, and the log says so.
///
/// If a panic drops the guard, the work is counted as half done, as by
/// [`abandon`](LockGuard::abandon): the next holder sees [`Lapsed`](crate::PreviousHolder::Lapsed). The
/// rule is that of a poisoned `std::sync::Mutex`: only a panic counts that began after the guard
/// was created. Some guards outlive the panic: those in a thread-local variable, or those that
/// another thread shares. Their release is a normal one.
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the lock"]
pub struct LockGuard {
    pub(crate) lease: Lease,
}

impl LockGuard {
    /// Releases the lock, waits for Redis's reply, and reports whether you held it to the end.
    ///
    /// Blocks for at most one command timeout. `Ok`: Redis has released the lock, and you held it
    /// until then. If it passes the lock to a waiter of this manager instead, as
    /// [`local_handovers`](crate::LockOptions::local_handovers) allows, it does not ask Redis. Then
    /// `Ok` says only that no loss was known here.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): you did not hold the lock any more.
    /// - [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Refused`](crate::Error::Refused): not known. The release goes on in the
    ///   background.
    /// - [`Error::Closed`](crate::Error::Closed) in a forked child.
    pub fn unlock(self) -> Result<()> {
        let mode = self.lease.mode();
        self.lease.release(mode)
    }

    /// Releases the lock like [`unlock`](LockGuard::unlock), but says that the work is half done.
    ///
    /// The next holder's [`previous_holder`](Lease::previous_holder) is
    /// [`Lapsed`](crate::PreviousHolder::Lapsed), as after a crash, but at once. Use it where an error
    /// ends the work between two steps that belong together. Nothing is reported as lost here.
    ///
    /// Blocks for at most one command timeout. `Ok`: the lock was released while you held it.
    ///
    /// ```no_run
    /// # fn step() -> Result<(), std::io::Error> { Ok(()) }
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = mgr.lock("invoices:42")?;
    /// match step().and_then(|()| step()) {
    ///     Ok(()) => guard.unlock()?,
    ///     Err(_) => guard.abandon()?, // the first step may have been done
    /// }
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`unlock`](LockGuard::unlock).
    pub fn abandon(self) -> Result<()> {
        self.lease.release(Mode::Unfinished)
    }

    /// Makes a value of the lock that any process can [attach](crate::LockManager::attach), for instance
    /// the worker that gets the job for which this process took the lock.
    ///
    /// From then on no process has the lock, and nobody else can take it. Waiters keep their places
    /// behind it. It is not renewed: if nobody attaches it, it lapses after `valid_for`, and the next
    /// holder's [`previous_holder`](Lease::previous_holder) is
    /// [`Lapsed`](crate::PreviousHolder::Lapsed). If [`hold_at_least`](crate::LockOptions::hold_at_least)
    /// lasts longer, the lock stays taken until that is over, but it cannot be attached any more. The
    /// `max_hold`, the label and the callback of this guard do not go along.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply. With
    /// [`replica_acks`](crate::Builder::replica_acks) it blocks for its timeout more.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn submit(_job: &str, _lock: &str) {}
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = mgr.lock("invoices:42")?;
    /// match guard.detach(Duration::from_secs(600)) {
    ///     Ok(detached) => submit("bill 42", &detached.secret_text()),
    ///     // The guard holds the lock as before, so the work can be done here.
    ///     Err(error) => {
    ///         let (guard, _why) = error.into_parts();
    ///         drop(guard);
    ///     }
    /// }
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// Each error has the guard.
    /// - [`Error::Misused`](crate::Error::Misused): `valid_for` is not 1 ms to 24 h, or the lock cannot
    ///   be detached: it is on a quorum, or of a writer.
    /// - [`Error::Lost`](crate::Error::Lost): you do not hold the lock any more.
    /// - [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Refused`](crate::Error::Refused): not known. You hold the
    ///   lock for at most `valid_for`, unless a renewal confirms it until then. If the request took
    ///   effect, the renewal reports a loss. However the guard ends, the lock is released.
    /// - [`Error::Closed`](crate::Error::Closed) in a forked child.
    pub fn detach(self, valid_for: Duration) -> Result<DetachedLock, DetachError> {
        match self.lease.try_detach(valid_for) {
            Ok(detached) => {
                self.lease.forget_detached();
                Ok(detached)
            }
            Err(error) => Err(DetachError::new(self, error)),
        }
    }
}

impl Deref for LockGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lease", &self.lease)
            .finish()
    }
}

/// A lock was not detached. It has the guard, which holds the lock as before, for as long as it is
/// held.
///
/// `?` in a function that returns [`fairlock::Result`](crate::Result) drops the guard, and so releases
/// the lock. To go on with the guard, call [`into_parts`](DetachError::into_parts).
#[must_use = "it has the guard: to drop it releases the lock"]
#[derive(Debug)]
pub struct DetachError(Box<(LockGuard, Error)>);

impl DetachError {
    pub(crate) fn new(guard: LockGuard, error: Error) -> DetachError {
        DetachError(Box::new((guard, error)))
    }

    /// The guard, and why the lock was not detached.
    pub fn into_parts(self) -> (LockGuard, Error) {
        *self.0
    }
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.1.fmt(f)
    }
}

/// Its line is that of the error, and has all causes. So it has no source.
impl StdError for DetachError {}

/// Drops the guard.
impl From<DetachError> for Error {
    fn from(error: DetachError) -> Error {
        error.into_parts().1
    }
}
