//! A held lock, as RAII.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::config::check_valid_for;
use crate::detached::{DetachError, DetachedLock};
use crate::engine::{Lease, WantResult, warn_of_drop};
use crate::error::{Error, Result};
use crate::fence::as_i64;
use crate::local::{LentLease, NameSlot, Running};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::{Mode, Secret};

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
/// `fn book(guard: &LockGuard)` takes any guard: of any name, also of a lost lock, and of a reader, a
/// writer or a permit, whose guards deref to this type. So it proves no exclusion. [The guide has
/// one that does](crate::pages::guide#a-guard-as-a-parameter): a type of your own around the guard.
///
/// # Drop
/// Releases the lock and hands it to the first waiter. With
/// [`keep`](crate::LockOptions::keep) it may keep the lock for the next guard of this manager instead,
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
/// [`abandon`](LockGuard::abandon): the next holder sees [`Lapsed`](PreviousHolder::Lapsed). The
/// rule is that of a poisoned `std::sync::Mutex`: only a panic counts that began after the guard
/// was created. Some guards outlive the panic: those in a thread-local variable, or those that
/// another thread shares. Their release is a normal one.
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the lock"]
pub struct LockGuard {
    lease: Arc<Lease>,
    /// Where the lease goes back to, if it is a kept one.
    slot: Option<Arc<NameSlot>>,
    running: Arc<Running>,
    /// `unlock` has released the lock, so Drop must not do it again.
    unlocked: bool,
    panic_watch: PanicWatch,
    /// One of several guards of this lock was abandoned.
    unfinished: AtomicBool,
}

/// Whether a panic interrupts the work under a guard. The rule is that of `std::sync::Mutex`: a
/// guard that a destructor creates during a panic can finish its work.
#[derive(Clone, Copy)]
pub(crate) struct PanicWatch {
    /// The thread panicked already when the watch began, or panics do not matter.
    is_off: bool,
}

impl PanicWatch {
    pub(crate) fn begin() -> PanicWatch {
        PanicWatch {
            is_off: thread::panicking(),
        }
    }

    /// How to release a guard that is given up now.
    pub(crate) fn mode(self) -> Mode {
        if !self.is_off && thread::panicking() {
            Mode::Unfinished
        } else {
            Mode::Used
        }
    }
}

impl LockGuard {
    pub(crate) fn new(lease: Arc<Lease>, running: &Arc<Running>) -> LockGuard {
        running.engine().on_guard_created(&lease);
        LockGuard::with_slot(lease, None, running)
    }

    /// The guard of a lease that was kept. It was counted when the lease was lent.
    pub(crate) fn of_kept(lent: LentLease, running: &Arc<Running>) -> LockGuard {
        LockGuard::with_slot(lent.lease, Some(lent.slot), running)
    }

    fn with_slot(
        lease: Arc<Lease>,
        slot: Option<Arc<NameSlot>>,
        running: &Arc<Running>,
    ) -> LockGuard {
        LockGuard {
            lease,
            slot,
            running: Arc::clone(running),
            unlocked: false,
            panic_watch: PanicWatch::begin(),
            unfinished: AtomicBool::new(false),
        }
    }

    /// The same guard, of a reader. A reader leaves nothing half done, so a panic does not matter.
    pub(crate) fn of_reader(mut self) -> LockGuard {
        self.panic_watch.is_off = true;
        self
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.lease.request.key.name
    }

    /// A number that is larger than the fence of every earlier grant of this name ("fencing
    /// token").
    ///
    /// Claim the resource with it before you read anything, and send it with every write. The
    /// resource refuses smaller fences: see [`FenceGate`](crate::FenceGate). A
    /// reader of an [`RwLock`](crate::RwLock) has the fence of the last writer.
    pub fn fence(&self) -> u64 {
        self.running.fence_of(&self.lease)
    }

    /// The [fence](LockGuard::fence) as the number that drivers of SQL take. It is the same number: a
    /// fence is a time in µs, far below 2^63.
    pub fn fence_i64(&self) -> i64 {
        as_i64(self.fence())
    }

    /// Whether you certainly still hold the lock. Reads a clock and a flag; no I/O, never blocks.
    ///
    /// Once it is false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.lease.is_held(engine.now())
    }

    /// How long [`is_held`](LockGuard::is_held) stays true if no further renewal succeeds, up to
    /// [`max_hold`](crate::LockOptions::max_hold). Zero if the lock is lost. Never blocks.
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.lease.remaining_for_guard(self.running.engine().now())
        } else {
            Duration::ZERO
        }
    }

    /// Why the last renewal in the background failed, while renewals of this lock fail. `None` if
    /// the last one was confirmed, or if none was due yet. A lock whose renewals fail is still held
    /// for [`remaining`](LockGuard::remaining). Never blocks.
    pub fn renewal_error(&self) -> Option<Error> {
        self.lease.renewal_error()
    }

    /// Like [`is_held`](LockGuard::is_held), but for use with `?` between two steps of work. Never
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason; [`Error::Closed`] in a forked child.
    pub fn check(&self) -> Result<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        if self.lease.is_held(engine.now()) {
            Ok(())
        } else {
            Err(self.loss())
        }
    }

    /// A channel that receives one [`Loss`] if the lock is lost, and is disconnected after that.
    /// For `select!` beside the work. Never blocks.
    ///
    /// The message comes at most one command timeout after [`is_held`](LockGuard::is_held) turns
    /// false, even if Redis cannot be reached (two where a round trip takes more than half of one).
    /// After a clean release the channel is disconnected at
    /// once. It is created on the first call.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.life().never()
        } else {
            self.lease.lost()
        }
    }

    /// Whether somebody else waits for the lock: a caller of this manager, or of another one. A long
    /// holder can release it at a good moment, and take it again behind them.
    ///
    /// Others are known if the lock was taken with [`notify_wanted`](crate::LockOptions::notify_wanted)
    /// or is [kept](crate::LockOptions::keep). Then this turns true a message after they wait, or up to
    /// a check period later if the message is lost. With
    /// [`local_handovers`](crate::LockOptions::local_handovers) alone, only waiters of this manager are
    /// known; without any of these options, none. Once it is true it stays so, also if they do not
    /// wait any more. Reads a flag; no I/O, never blocks. False in a forked child.
    pub fn is_wanted(&self) -> bool {
        !self.running.engine().is_forked() && self.lease.is_wanted()
    }

    /// A channel that receives one message when [`is_wanted`](LockGuard::is_wanted) turns true. For
    /// `select!` beside the work. Never blocks. It is created on the first call.
    pub fn wanted(&self) -> &Receiver<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return engine.life().disconnected();
        }
        self.lease.wanted()
    }

    /// How the holder before this one ended. After `Lapsed` or `Forced` the protected work may be
    /// half done: the holder crashed, panicked or [abandoned](LockGuard::abandon) it, or lost the
    /// lock.
    pub fn previous_holder(&self) -> PreviousHolder {
        self.lease.previous
    }

    /// Renews the lock now, in addition to the renewal thread. A fixed lease starts again.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply. With
    /// [`replica_acks`](crate::Builder::replica_acks) it blocks for its timeout and one command
    /// timeout.
    ///
    /// # Errors
    /// - [`Error::Lost`]: you do not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Server`], [`Error::NotReplicated`]: you hold it for as long
    ///   as before.
    /// - [`Error::Closed`] in a forked child.
    pub fn renew(&self) -> Result<()> {
        self.running.engine().renew(slice::from_ref(&self.lease))
    }

    /// Releases the lock, waits for Redis's reply, and reports whether you held it to the end.
    ///
    /// Blocks for at most one command timeout. `Ok`: Redis has released the lock, and you held it
    /// until then. If it passes the lock to a waiter of this manager instead, as
    /// [`local_handovers`](crate::LockOptions::local_handovers) allows, it does not ask Redis. Then
    /// `Ok` says only that no loss was known here.
    ///
    /// # Errors
    /// - [`Error::Lost`]: you did not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Server`]: not known. The release goes on in the
    ///   background.
    /// - [`Error::Closed`] in a forked child.
    pub fn unlock(self) -> Result<()> {
        let mode = self.mode();
        self.release(mode)
    }

    /// Releases the lock like [`unlock`](LockGuard::unlock), but says that the work is half done.
    ///
    /// The next holder's [`previous_holder`](LockGuard::previous_holder) is
    /// [`Lapsed`](PreviousHolder::Lapsed), as after a crash, but at once. Use it where an error
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
        self.release(Mode::Unfinished)
    }

    /// Makes a value of the lock that any process can [attach](crate::LockManager::attach), for instance
    /// the worker that gets the job for which this process took the lock.
    ///
    /// From then on no process has the lock, and nobody else can take it. Waiters keep their places
    /// behind it. It is not renewed: if nobody attaches it, it lapses after `valid_for`, and the next
    /// holder's [`previous_holder`](LockGuard::previous_holder) is
    /// [`Lapsed`](PreviousHolder::Lapsed). If [`hold_at_least`](crate::LockOptions::hold_at_least)
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
    ///     Err(error) => drop(error.into_guard()),
    /// }
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// Each error has the guard.
    /// - [`Error::Config`]: `valid_for` is not 1 ms to [`MAX_TTL`](crate::MAX_TTL), or the lock cannot
    ///   be detached: it is a semaphore or on a quorum, or a guard of it was
    ///   [abandoned](crate::ReentrantGuard::abandon).
    /// - [`Error::Lost`]: you do not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Server`], [`Error::NotReplicated`]: not known. You hold the
    ///   lock for at most `valid_for`, unless a renewal confirms it until then. If the request took
    ///   effect, the renewal reports a loss. However the guard ends, the lock is released.
    /// - [`Error::Closed`] in a forked child.
    pub fn detach(self, valid_for: Duration) -> Result<DetachedLock, DetachError<LockGuard>> {
        match self.try_detach(valid_for) {
            Ok(detached) => {
                self.forget_detached();
                Ok(detached)
            }
            Err(error) => Err(DetachError::new(self, error)),
        }
    }

    /// Detaches the lock. After that, the guard must be forgotten.
    pub(crate) fn try_detach(&self, valid_for: Duration) -> Result<DetachedLock> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        check_valid_for(valid_for)?;
        if self.unfinished.load(Ordering::Relaxed) {
            let message = "a guard of this lock was abandoned, so its work is half done";
            return Err(Error::config("detach", message));
        }
        let secret = Secret::new();
        let fence = self
            .running
            .detach(&self.lease, secret.owner(), valid_for)?;
        Ok(DetachedLock {
            prefix: Arc::clone(&engine.config().prefix),
            name: Arc::clone(&self.lease.request.key.name),
            fence,
            secret,
        })
    }

    /// The lock is detached, so Drop has nothing to release.
    pub(crate) fn forget_detached(mut self) {
        self.unlocked = true;
    }

    fn release(mut self, mode: Mode) -> Result<()> {
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.unlocked = true;
        self.running
            .release(&self.lease, self.slot.as_ref(), mode, WantResult::Yes)
    }

    /// The end of this guard counts as abandoned, however it comes.
    pub(crate) fn mark_unfinished(&self) {
        self.unfinished.store(true, Ordering::Relaxed);
    }

    fn mode(&self) -> Mode {
        if self.unfinished.load(Ordering::Relaxed) {
            Mode::Unfinished
        } else {
            self.panic_watch.mode()
        }
    }

    /// Releases all permits but `to`. Blocks for at most one command timeout; without an answer
    /// this goes on in the background.
    pub(crate) fn reduce(&self, to: u32) -> Result<()> {
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.running.engine().reduce(&self.lease, to)
    }

    /// How many permits the lock was granted with.
    pub(crate) fn weight(&self) -> u32 {
        self.lease.request.spec.weight
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
        // `unlock` has looked before it released the lock.
        if !self.unlocked && engine.is_forked() {
            return;
        }
        if !self.unlocked
            && let Err(error) =
                self.running
                    .release(&self.lease, self.slot.as_ref(), self.mode(), WantResult::No)
        {
            // The renewal thread warns of a loss, and once is enough.
            if self.lease.loss().is_none() {
                warn_of_drop(self.name(), &error);
            }
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
