//! The mutex: one holder at a time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::handle::{Handle, Wanted};
use super::request_to_try_one;
use crate::detached::DetachedLock;
use crate::engine;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::lease::Lease;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::waiter::Waiter;

impl LockManager {
    /// Takes the lock. Waits its turn, for as long as Redis answers.
    ///
    /// Waiters are served first come, first served. On a quorum there is no such order: each waiter
    /// asks again after a random pause. A waiting caller holds no connection. The grant wakes it, a
    /// [`shutdown`](LockManager::shutdown), a refusal that will not pass, or the outage limit.
    ///
    /// Blocks without a bound while others hold the lock. While Redis does not answer, blocks for
    /// at most the outage limit and two command timeouts. The first time that a caller of this
    /// manager waits, the manager subscribes first, which takes at most one command timeout more. A
    /// thread that holds the lock already deadlocks: its own guard keeps being renewed.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = mgr.lock("invoices:42")?;
    /// // … the work …
    /// guard.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Misused`](crate::Error::Misused): the name or an option is not allowed, and nothing is sent.
    ///   Or the name is in use as another kind of lock.
    /// - [`Unavailable`](crate::Error::Unavailable): Redis was silent for the outage limit. Or too few
    ///   replicas acknowledged the lock, see [`replica_acks`](crate::Builder::replica_acks): then it
    ///   is released.
    /// - [`Refused`](crate::Error::Refused): Redis refused. Returned at once if the refusal will not
    ///   pass by itself, else after the outage limit.
    /// - [`Closed`](crate::Error::Closed): the manager was shut down, or this is a forked child.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn lock(&self, name: impl AsRef<str>) -> Result<LockGuard> {
        Wanted::mutex(self, name.as_ref()).lock()
    }

    /// Takes the lock if it is free and nobody waits for it. `None`: it is taken, or others wait.
    /// On a quorum `None` may also mean that several callers asked at the same moment, and nobody
    /// has the lock. So try again later, or use [`try_lock_for`](LockManager::try_lock_for).
    ///
    /// Holders whose lease is over and waiters that died do not count: if nobody alive seems to want the
    /// lock, this asks their processes, and takes it one and a half command timeouts after it began.
    /// Tens of thousands of dead waiters may still have to be skipped; the next try goes on there.
    /// Never waits for others, with one exception: another process may keep the lock for its next
    /// guard. It is told then, and has 50 ms to let go of it, but no more than one command timeout.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply. In that
    /// exception for 50 ms and one command timeout more.
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock), but without waiting out an outage.
    /// [`Lost`](crate::Error::Lost) if the lease is so short, or the process so slow, that the
    /// lease had lapsed when the reply came.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock(&self, name: impl AsRef<str>) -> Result<Option<LockGuard>> {
        Wanted::mutex(self, name.as_ref()).try_lock()
    }

    /// Takes the lock. Waits its turn, for at most `at_most`. `None`: others had the lock until
    /// then. On a quorum a short wait may end as [`try_lock`](LockManager::try_lock) may.
    ///
    /// Blocks for at most `at_most` and one command timeout. If the outage limit ends first, for
    /// that and up to two. The same events wake it as [`lock`](LockManager::lock). Zero is one try,
    /// as by [`try_lock`](LockManager::try_lock). `Duration::MAX` waits forever.
    ///
    /// # Errors
    /// As [`try_lock`](LockManager::try_lock). [`Unavailable`](crate::Error::Unavailable) also if
    /// Redis was silent at the end: then it is not known whether others had the lock.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock_for(
        &self,
        name: impl AsRef<str>,
        at_most: Duration,
    ) -> Result<Option<LockGuard>> {
        Wanted::mutex(self, name.as_ref()).try_lock_for(at_most)
    }

    /// Takes a place in the queue of the lock, to wait later, or in several short waits. If the
    /// lock is free, the waiter has it at once. On a quorum there is no queue: the waiter asks for
    /// the lock while you wait with it, and at no other time.
    ///
    /// Blocks for at most two command timeouts while Redis answers. The first time that the manager
    /// waits, for at most five, because it subscribes first. It blocks for longer if more than 64
    /// dead waiters must be skipped. While Redis does not answer, or nobody can queue because the
    /// slot of a cluster moves, blocks for at most the outage limit and two command timeouts.
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock).
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue(&self, name: impl AsRef<str>) -> Result<Waiter> {
        Wanted::mutex(self, name.as_ref()).enqueue(|guard| guard)
    }

    /// Takes over a lock that was [detached](LockGuard::detach), ahead of its queue, with the options of
    /// this handle. Any manager with the same prefix can do it, on any host, once. It never waits for
    /// others.
    ///
    /// The guard has a larger fence than the guard that detached the lock. Its
    /// [`previous_holder`](Lease::previous_holder) is what that guard's was: the work goes on. The
    /// lock stays taken for as long as [`hold_at_least`](crate::LockOptions::hold_at_least) says, of the
    /// guard that detached it or of this handle, whichever ends later.
    /// As after a try, [`notify_wanted`](crate::LockOptions::notify_wanted) and
    /// [`keep_idle`](crate::LockOptions::keep_idle) apply, and
    /// [`local_handovers`](crate::LockOptions::local_handovers) does not: callers that wait here have
    /// their place in the queue.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply.
    ///
    /// # Errors
    /// - [`Lost`](crate::Error::Lost): the detached lock is gone. That does not say that its work was done:
    ///   whoever attached it may have died. [Take the lock anew](LockManager::lock), and look.
    ///   [`Expired`](crate::LossReason::Expired): it was valid for too short a time.
    ///   [`Forced`](crate::LossReason::Forced): somebody released it by force.
    ///   [`NotOwner`](crate::LossReason::NotOwner): somebody has attached it before, or Redis has lost it.
    /// - [`Misused`](crate::Error::Misused): an option is not allowed, the lock is of a manager with
    ///   another prefix, or this is a quorum. Nothing is sent, and the same call never works.
    /// - [`Unavailable`](crate::Error::Unavailable), [`Refused`](crate::Error::Refused): Redis did not
    ///   answer, or refused, or too few replicas acknowledged it. You may call this again, in any
    ///   process: the text stays valid until its time is over. If the first request took effect, that is
    ///   undone in the background, and another call may return `Lost` until then.
    /// - [`Closed`](crate::Error::Closed): the manager was shut down, or this is a forked child.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn attach(&self, detached: &DetachedLock) -> Result<LockGuard> {
        let end = attach(self, detached);
        let end = end.inspect_err(|error| self.engine().client().on_acquire_error(error));
        Ok(LockGuard {
            lease: Lease::new(end?, self.running()),
        })
    }

    /// The mutex of this name, as a handle with the same verbs.
    ///
    /// Never blocks; no I/O. If the name is not allowed, the verbs of the mutex return
    /// [`Misused`](crate::Error::Misused).
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex {
            handle: Handle::new(self, name.as_ref()),
        }
    }
}

fn attach(manager: &LockManager, detached: &DetachedLock) -> Result<Arc<engine::HeldLease>> {
    let prefix = &manager.engine().config().prefix;
    if detached.prefix != *prefix {
        let message = format!(
            "expected a lock with the prefix {prefix:?} of this manager; it has {:?}",
            detached.prefix
        );
        return Err(Error::setting("detached lock", message).about(&detached.name));
    }
    let checked = manager.running().check_attach();
    checked.map_err(|error| error.about(&detached.name))?;
    let key = manager.key(&detached.name)?;
    let request = request_to_try_one(manager, key, LockSpec::MUTEX)?;
    let request = request.attaching(detached.secret, detached.fence);
    manager.running().attach(request)
}

/// A lock by its name. `Clone` and `'static`, so you can keep it in a struct.
///
/// # Guarantees
/// - At most one holder at a time.
/// - Callers hold the lock in the order in which Redis ran their requests, except those that died.
///   On a quorum there is no such order.
/// - Every grant has a larger fence than all grants before it.
/// - A dead process delays the others by little more than one TTL.
///
/// # Limits
/// It is not re-entrant: a thread that locks it twice deadlocks. If asynchronous replication loses
/// data, it can lose a lock; see the [limits](crate#limits) of the crate.
#[derive(Clone)]
pub struct Mutex {
    pub(super) handle: Handle,
}

impl Mutex {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Like [`LockManager::lock`], which says how long it blocks.
    ///
    /// # Errors
    /// As [`LockManager::lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn lock(&self) -> Result<LockGuard> {
        self.handle.with_spec(LockSpec::MUTEX).lock()
    }

    /// Like [`LockManager::try_lock`], which says how long it blocks.
    ///
    /// # Errors
    /// As [`LockManager::try_lock`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.handle.with_spec(LockSpec::MUTEX).try_lock()
    }

    /// Like [`LockManager::try_lock_for`], which says how long it blocks.
    ///
    /// # Errors
    /// As [`LockManager::try_lock_for`].
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock_for(&self, at_most: Duration) -> Result<Option<LockGuard>> {
        self.handle.with_spec(LockSpec::MUTEX).try_lock_for(at_most)
    }

    /// Like [`LockManager::enqueue`], which says how long it blocks.
    ///
    /// # Errors
    /// As [`LockManager::enqueue`].
    #[must_use = "bind the waiter to a variable: `let _ =` drops it at once"]
    pub fn enqueue(&self) -> Result<Waiter> {
        let wanted = self.handle.with_spec(LockSpec::MUTEX);
        wanted.enqueue(|guard| guard)
    }

    /// Like [`LockManager::attach`], which says how long it blocks.
    ///
    /// # Errors
    /// As [`LockManager::attach`]. [`Misused`](crate::Error::Misused) also if the detached lock has
    /// another name.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn attach(&self, detached: &DetachedLock) -> Result<LockGuard> {
        if detached.name() != self.name() {
            let message = format!(
                "expected a lock of the name {:?}; it is {:?}",
                self.name(),
                detached.name()
            );
            return Err(Error::setting("detached lock", message).about(&detached.name));
        }
        self.handle.manager().attach(detached)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
