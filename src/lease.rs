//! What the guards of all kinds have, and the release of what is held as they are dropped.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::detached::DetachedLock;
use crate::engine::{self, Engine, WantResult, warn_of_drop};
use crate::error::{Error, Result};
use crate::fence::as_i64;
use crate::key::Key;
use crate::local::{LentLease, NameSlot, Running};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::{Family, Mode, Secret};
use crate::setting::VALID_FOR;

/// A lock that is held, of any kind. The guards of one name deref to this, and have its methods: a
/// [`LockGuard`](crate::LockGuard), a reader's, and one of permits. So code that only
/// looks at the lock takes a `&Lease`. It has no public constructor, and the guard around it is what
/// you drop.
///
/// # Guarantees
/// While `is_held` is true, no other guard for the name is held anywhere. For a semaphore: no more
/// permits are held than there are. For a reader/writer lock: no writer holds it beside another
/// guard. This assumes that the rates of the clocks differ by less than 500 ppm, and that Redis did
/// not lose data that it had acknowledged.
///
/// # Limits
/// The process can be stopped after it looked at `is_held` and before it acts. Only a resource that
/// checks [`fence`](Lease::fence) is safe against that; see [`FenceGate`](crate::FenceGate). If
/// a guard leaks (`mem::forget`), the manager renews its lock until `max_hold`, or until the
/// process ends.
pub struct Lease {
    held: Arc<engine::HeldLease>,
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

impl Lease {
    pub(crate) fn new(held: Arc<engine::HeldLease>, running: &Arc<Running>) -> Lease {
        running.engine().on_guard_created(&held);
        Lease::with_slot(held, None, running)
    }

    /// The guard of a lease that was kept. It was counted when the lease was lent.
    pub(crate) fn of_kept(lent: LentLease, running: &Arc<Running>) -> Lease {
        Lease::with_slot(lent.lease, Some(lent.slot), running)
    }

    fn with_slot(
        held: Arc<engine::HeldLease>,
        slot: Option<Arc<NameSlot>>,
        running: &Arc<Running>,
    ) -> Lease {
        Lease {
            held,
            slot,
            running: Arc::clone(running),
            unlocked: false,
            panic_watch: PanicWatch::begin(),
            unfinished: AtomicBool::new(false),
        }
    }

    /// The same guard, of a reader. A reader leaves nothing half done, so a panic does not matter.
    pub(crate) fn of_reader(mut self) -> Lease {
        self.panic_watch.is_off = true;
        self
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.held.request.key.name
    }

    /// The number of this grant ("fencing token"). Each grant but a reader's has a larger one than all
    /// before of its name.
    ///
    /// Claim the resource with it before you read anything, and send it with every write. The
    /// resource refuses smaller fences: see [`FenceGate`](crate::FenceGate). A
    /// reader of an [`RwLock`](crate::RwLock) has the fence of the last writer.
    pub fn fence(&self) -> u64 {
        self.running.fence_of(&self.held)
    }

    /// The [fence](Lease::fence) as the number that drivers of SQL take. It is the same number: a
    /// fence is a time in µs, far below 2^63.
    pub fn fence_i64(&self) -> i64 {
        as_i64(self.fence())
    }

    /// Whether you certainly still hold the lock. Reads a clock and a flag; no I/O, never blocks.
    ///
    /// Once it is false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.held.is_held(engine.now())
    }

    /// How long [`is_held`](Lease::is_held) stays true if no further renewal succeeds, up to
    /// [`max_hold`](crate::LockOptions::max_hold). Zero if the lock is lost. Never blocks.
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.held.remaining_for_guard(self.running.engine().now())
        } else {
            Duration::ZERO
        }
    }

    /// Why the last renewal in the background failed, while renewals of this lock fail. `None` if
    /// the last one was confirmed, or if none was due yet. A lock whose renewals fail is still held
    /// for [`remaining`](Lease::remaining). Never blocks.
    pub fn renewal_error(&self) -> Option<Error> {
        self.held.renewal_error()
    }

    /// Like [`is_held`](Lease::is_held), but for use with `?` between two steps of work. Never
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason; [`Error::Closed`] in a forked child.
    pub fn check(&self) -> Result<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        if self.held.is_held(engine.now()) {
            Ok(())
        } else {
            Err(self.loss())
        }
    }

    /// A channel that receives one [`Loss`] if the lock is lost, and is disconnected after that.
    /// For `select!` beside the work. Never blocks.
    ///
    /// The message comes at most one command timeout after [`is_held`](Lease::is_held) turns
    /// false, even if Redis cannot be reached (two where a round trip takes more than half of one).
    /// After a clean release the channel is disconnected at
    /// once. It is created on the first call.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.life().never()
        } else {
            self.held.lost()
        }
    }

    /// Whether somebody else waits for the lock: a caller of this manager, or of another one. A long
    /// holder can release it at a good moment, and take it again behind them.
    ///
    /// Others are known if the lock was taken with [`notify_wanted`](crate::LockOptions::notify_wanted)
    /// or is [kept](crate::LockOptions::keep_idle). Then this turns true a message after they wait, or up to
    /// a check period later if the message is lost. With
    /// [`local_handovers`](crate::LockOptions::local_handovers) alone, only waiters of this manager are
    /// known; without any of these options, none. Once it is true it stays so, also if they do not
    /// wait any more. Reads a flag; no I/O, never blocks. False in a forked child.
    pub fn is_wanted(&self) -> bool {
        !self.running.engine().is_forked() && self.held.is_wanted()
    }

    /// A channel that receives one message when [`is_wanted`](Lease::is_wanted) turns true. For
    /// `select!` beside the work. Never blocks. It is created on the first call.
    pub fn wanted(&self) -> &Receiver<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return engine.life().disconnected();
        }
        self.held.wanted()
    }

    /// How the holder before this one ended. After `Lapsed` or `Forced` the protected work may be
    /// half done: the holder crashed, panicked or [abandoned](crate::LockGuard::abandon) it, or lost the
    /// lock.
    pub fn previous_holder(&self) -> PreviousHolder {
        self.held.previous
    }

    /// Renews the lock now, in addition to the renewal thread. A fixed lease starts again.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply. With
    /// [`replica_acks`](crate::Builder::replica_acks) it blocks for its timeout and one command
    /// timeout.
    ///
    /// # Errors
    /// - [`Error::Lost`]: you do not hold the lock any more.
    /// - [`Error::Unavailable`], [`Error::Refused`]: you hold it for as long as before.
    /// - [`Error::Closed`] in a forked child.
    pub fn renew(&self) -> Result<()> {
        self.running.engine().renew(slice::from_ref(&self.held))
    }

    /// Detaches the lock. After that, the guard must be forgotten.
    pub(crate) fn try_detach(&self, valid_for: Duration) -> Result<DetachedLock> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        let name = &self.held.request.key.name;
        VALID_FOR
            .check(valid_for)
            .map_err(|error| error.about(name))?;
        let secret = Secret::new();
        let fence = self.running.detach(&self.held, secret.owner(), valid_for)?;
        Ok(DetachedLock {
            prefix: Arc::clone(&engine.config().prefix),
            name: Arc::clone(&self.held.request.key.name),
            fence,
            secret,
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.running.engine()
    }

    pub(crate) fn key(&self) -> &Key {
        &self.held.request.key
    }

    /// The lock is detached, so Drop has nothing to release.
    pub(crate) fn forget_detached(mut self) {
        self.unlocked = true;
    }

    pub(crate) fn release(mut self, mode: Mode) -> Result<()> {
        if self.running.engine().is_forked() {
            return Err(Error::Closed);
        }
        self.unlocked = true;
        self.running
            .release(&self.held, self.slot.as_ref(), mode, WantResult::Yes)
    }

    /// The end of this guard counts as abandoned, however it comes.
    pub(crate) fn mark_unfinished(&self) {
        self.unfinished.store(true, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self) -> Mode {
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
        self.running.engine().reduce(&self.held, to)
    }

    /// A writer of a reader/writer lock has all of its permits. No other exclusive guard has any.
    pub(crate) fn is_writer(&self) -> bool {
        self.held.request.spec.family == Family::Permit
    }

    /// How many permits the lock was granted with.
    pub(crate) fn weight(&self) -> u32 {
        self.held.request.spec.weight
    }

    fn loss(&self) -> Error {
        Error::Lost {
            loss: self
                .held
                .loss()
                .unwrap_or_else(|| self.held.loss_for(LossReason::Expired)),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let engine = self.running.engine();
        // `unlock` has looked before it released the lock.
        if !self.unlocked && engine.is_forked() {
            return;
        }
        if !self.unlocked
            && let Err(error) =
                self.running
                    .release(&self.held, self.slot.as_ref(), self.mode(), WantResult::No)
        {
            // The renewal thread warns of a loss, and once is enough.
            if self.held.loss().is_none() {
                warn_of_drop(self.name(), &error);
            }
        }
        engine.on_guard_dropped();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
