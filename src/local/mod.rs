//! Local hand-overs: a layer above the engine. The waiters of a line have the lock one after the
//! other, without Redis.
//!
//! A *member* of a line waits by a waiter that asks Redis for nothing. The line's *place* is one more
//! waiter, and the only one that Redis and the renewal thread's syncs know. No thread waits for the
//! place: when it is granted, the first member gets a turn, and is woken. Members and place are
//! waiters of the engine, which calls this layer as their owner.
//!
//! A tenure may be *kept* after its last guard, and lent to the next caller. Others tell this process
//! when they want the lock. `kept` has that, `keeper` which names are worth it, `tries` the callers that
//! do not wait.
//!
//! `state` is the machine that decides. `turns` changes who has the lock, `places` changes what waits
//! in Redis's queue. `lines` has the lines of each name under a mutex. Requests and
//! wake-ups come after that mutex is free. [`Running`] is what a manager runs: the engine and the lines.

mod ended;
mod keeper;
mod kept;
mod lines;
#[cfg(all(test, fairlock_loom))]
mod loom_models;
mod places;
mod state;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/stepped_lines.rs"]
mod stepped;
mod tries;
mod turns;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::Config;
use crate::engine::{
    Caller, Engine, EngineHandle, Entered, Handovers, HeldLease, QueuedWaiter, Request, WantResult,
    is_passing,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::options::LockOptions;
use crate::script::{CallerId, Family, Mode, Token};
use crate::store::Store;
use crate::store::clock::Time;
use lines::Lines;

pub(crate) use lines::{NameSlot, PinnedSlot};

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use stepped::{GuardEnd, GuardRelease, KeptLease, LinePlace, SteppedManager, TryStart};

/// A fence that is due later than this is taken all the same.
const MOST_FENCE_WAIT: Duration = Duration::from_micros(10);

/// A kept lease that was lent, and where it is kept.
pub(crate) struct LentLease {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) slot: Arc<NameSlot>,
}

/// Keeps an engine running, for all handles, guards and waiters of one manager.
pub(crate) struct Running {
    engine: EngineHandle,
    lines: Arc<Lines>,
}

impl Running {
    pub(crate) fn start(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> Result<Running> {
        let engine = EngineHandle::start(config, store, caller_id)?;
        let lines = Lines::new(engine.engine());
        Ok(Running { engine, lines })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.engine.engine()
    }

    /// [`Error::Misused`] if this kind of lock or this store has not what the options ask for.
    pub(crate) fn check_options(&self, family: Family, options: &LockOptions) -> Result<()> {
        if !self.engine().client().has_queue() {
            self.engine().config().check_for_quorum(options)?;
        }
        match options.option_of_lent_locks() {
            Some((option, default)) if family == Family::Permit => {
                let message = format!(
                    "only for mutexes and re-entrant mutexes; for other kinds, take a handle with {default}"
                );
                Err(Error::setting(option, message))
            }
            _ => Ok(()),
        }
    }

    /// The uses that this manager may make of the grant of a lock that a caller is about to ask for.
    pub(crate) fn handovers(&self, key: &Key, options: &LockOptions) -> Handovers {
        let keep = options.keep_time();
        let keep = keep.filter(|keep| self.lines.is_worth_keeping(key, *keep));
        self.lines.handovers(options, keep)
    }

    /// The same for a caller that does not wait: it takes no part in hand-overs alone.
    pub(crate) fn handovers_of_try(&self, key: &Key, options: &LockOptions) -> Handovers {
        if options.keep_time().is_none() && !options.notifies_wanted() {
            return Handovers::NONE;
        }
        self.handovers(key, options)
    }

    /// A lease that is kept for the next guard of this name, for a caller with these options. `None`:
    /// the caller is to ask. Never blocks, and sends nothing. A handle has the slot of its name at hand.
    pub(crate) fn lend_kept(
        &self,
        name: &str,
        options: &LockOptions,
        at_hand: Option<&OnceLock<PinnedSlot>>,
    ) -> Option<LentLease> {
        if options.keep_time().is_none() || self.engine().is_forked() {
            return None;
        }
        let pinned = at_hand.and_then(OnceLock::get);
        let slot = match pinned {
            Some(pinned) => Arc::clone(pinned.slot()),
            None => self.lines.known_slot(name)?,
        };
        let lease = self.lines.lend_kept(&slot, options)?;
        if let (Some(at_hand), None) = (at_hand, pinned)
            && let Some(pinned) = self.lines.pin(&slot)
        {
            let _ = at_hand.set(pinned);
        }
        Some(LentLease { lease, slot })
    }

    /// See [`Lines::make_way`].
    pub(crate) fn make_way<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        if self.engine().is_forked() {
            return;
        }
        for key in keys {
            self.lines.make_way(&key.name);
        }
    }

    /// See [`Acquiring::acquire`](crate::engine::Acquiring::acquire). In a line if the grant may be lent.
    pub(crate) fn acquire(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        if !request.may_be_lent() {
            self.make_way([&request.key]);
            return self.engine().acquiring().acquire(request, &[], until);
        }
        let lines = &self.lines;
        if !request.hears && !lines.acquiring.has_subscription() {
            match lines.try_first(request, until) {
                Ok(None) => {}
                // The wait below outlasts an outage, and a lease that was over when its reply came.
                Err(error) if is_passing(&error) => {}
                tried => return tried,
            }
        }
        let enter = |until| lines.enter(request, until, Caller::Waits);
        lines.acquiring.acquire_by(enter, &[], until)
    }

    /// See [`Engine::try_acquire`]. In a line if the grant may be lent.
    pub(crate) fn try_acquire(&self, request: &Arc<Request>) -> Result<Option<Arc<HeldLease>>> {
        let engine = self.engine();
        if request.may_be_lent() {
            let attempt = |owned: &Arc<Request>| engine.try_acquire(owned);
            return self.lines.try_acquire(request, attempt);
        }
        self.make_way([&request.key]);
        engine.try_acquire(request)
    }

    /// See [`Acquiring::enqueue`](crate::engine::Acquiring::enqueue). In a line if the request allows hand-overs.
    pub(crate) fn enqueue(&self, request: &Arc<Request>) -> Result<QueuedWaiter> {
        if !request.may_be_lent() {
            self.make_way([&request.key]);
            return self.engine().acquiring().enqueue(request);
        }
        let engine = self.engine();
        let started = engine.now();
        match self.lines.enter(request, Time::NEVER, Caller::Enqueues) {
            Ok(Entered::Queued(member)) => Ok(member),
            Ok(_) => unreachable!("an enqueue has no deadline, and a member waits"),
            Err(error) => Err(error.after(engine.now() - started)),
        }
    }

    /// See [`Releasing::detach`](crate::engine::Releasing::detach). The lock of a turn takes its tenure along.
    pub(crate) fn detach(
        &self,
        lease: &Arc<HeldLease>,
        to: Token,
        valid_for: Duration,
    ) -> Result<u64> {
        let message = if lease.request.spec.family != Family::Mutex {
            "only mutexes can be detached"
        } else if !self.engine().client().has_queue() {
            "the locks of a quorum cannot be detached"
        } else {
            return match lease.lender() {
                None => self.engine().releasing().detach(lease, to, valid_for),
                Some(_) => self.lines.detach(lease, to, valid_for),
            };
        };
        Err(Error::setting("detach", message).about(&lease.request.key.name))
    }

    /// See [`Acquiring::attach`](crate::engine::Acquiring::attach). In a line of its own if the grant may be
    /// lent: the lock is not free, so callers that wait for it here are not in its way.
    pub(crate) fn attach(&self, request: Request) -> Result<Arc<HeldLease>> {
        let acquiring = self.engine().acquiring();
        if !request.may_be_lent() {
            return acquiring.attach(&Arc::new(request));
        }
        let started = acquiring.client().now();
        if request.hears {
            acquiring.begin(
                &request,
                started + acquiring.client().config().command_timeout,
            )?;
        }
        let attach = |owned: &Arc<Request>| acquiring.attach(owned).map(Some);
        let attached = self.lines.try_alone(&request, attach)?;
        Ok(attached.expect("an attach has the lock, or an error"))
    }

    /// [`Error::Misused`] if this store attaches no locks.
    pub(crate) fn check_attach(&self) -> Result<()> {
        if self.engine().client().has_queue() {
            return Ok(());
        }
        Err(Error::setting(
            "attach",
            "the locks of a quorum cannot be attached",
        ))
    }

    /// The fence of a guard's lease. Blocks for less than a microsecond, if the guards of a lock that is
    /// kept all ask for theirs faster than that.
    pub(crate) fn fence_of(&self, lease: &HeldLease) -> u64 {
        let due_after = lease.fence_due_after();
        if due_after > Duration::ZERO {
            let due = lease.renewed_noticed_at() + due_after;
            self.engine().client().spin_until(due, MOST_FENCE_WAIT);
        }
        lease.fence()
    }

    /// See [`Engine::shut_down`].
    pub(crate) fn shut_down(&self, until: Time) -> Result<Vec<Arc<str>>> {
        if !self.engine().is_forked() {
            // Nothing is kept or lent from here on. So the shutdown waits for all guards.
            self.lines.acquiring.close();
            self.lines.release_all_kept();
        }
        self.engine().shut_down(until)
    }

    /// See [`Engine::release`]. A turn may pass to the next member of its line.
    pub(crate) fn release(
        &self,
        lease: &Arc<HeldLease>,
        slot: Option<&Arc<NameSlot>>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        if lease.lender().is_none() {
            return self.engine().release(lease, mode, want);
        }
        self.lines.release(lease, slot, mode, want)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.engine().is_forked() {
            // As the engine: the waiters and leases are the parent's.
            std::mem::forget(Arc::clone(&self.lines));
        } else {
            self.lines.release_all_kept();
        }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
