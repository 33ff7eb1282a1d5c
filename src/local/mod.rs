//! Local hand-overs: a layer above the engine. The waiters of a line have the lock one after the
//! other, without Redis.
//!
//! A *member* of a line waits by a waiter that asks Redis for nothing. The line's *place* is one more
//! waiter, and the only one that Redis and the renewal thread's syncs know. No thread waits for the
//! place: when it is granted, the first member gets a turn, and is woken. Members and place are
//! waiters of the engine, which calls this layer as their owner.
//!
//! `state` is the machine that decides. `turns` changes who has the lock, `places` changes what waits
//! in Redis's queue. `lines` has the lines under one mutex. What is to be sent, and who is to be
//! woken, comes after that mutex is free. [`Running`] is what a manager runs: the engine and the lines.

mod lines;
mod places;
mod state;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/stepped_lines.rs"]
mod stepped;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::engine::{
    Caller, Engine, EngineHandle, Entered, Lease, QueuedWaiter, Request, WantResult,
};
use crate::error::{Error, Result};
use crate::options::LockOptions;
use crate::script::{CallerId, Family, Mode, Token};
use crate::store::Store;
use crate::store::clock::Time;
use lines::Lines;

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use stepped::{GuardRelease, LinePlace, SteppedManager};

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

    /// [`Error::Config`] if the options allow local hand-overs, and this kind of lock or this store
    /// has none.
    pub(crate) fn check_options(&self, family: Family, options: &LockOptions) -> Result<()> {
        let message = if options.most_local_handovers() == 0 {
            return Ok(());
        } else if family == Family::Permit {
            "only mutexes and re-entrant mutexes are handed over within a process; for other kinds, \
             take a handle with local_handovers(0)"
        } else if !self.engine().client().has_queue() {
            "a quorum has no queue, so it has no local hand-overs"
        } else {
            return Ok(());
        };
        Err(Error::config("local_handovers", message))
    }

    /// See [`Acquiring::acquire`](crate::engine::Acquiring::acquire). In a line if the request allows hand-overs.
    pub(crate) fn acquire(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        if request.spare_fences == 0 {
            return self.engine().acquiring().acquire(request, &[], until);
        }
        let lines = &self.lines;
        let enter = |until| lines.enter(request, until, Caller::Waits);
        lines.acquiring.acquire_by(enter, &[], until)
    }

    /// See [`Acquiring::enqueue`](crate::engine::Acquiring::enqueue). In a line if the request allows hand-overs.
    pub(crate) fn enqueue(&self, request: &Arc<Request>) -> Result<QueuedWaiter> {
        if request.spare_fences == 0 {
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

    /// See [`Releasing::detach`](crate::engine::Releasing::detach). Only a lock that no other guard of this process can have next.
    pub(crate) fn detach(&self, lease: &Arc<Lease>, to: Token, valid_for: Duration) -> Result<u64> {
        let message = if lease.lender().is_some() {
            "a lock that is handed over within the process cannot be detached; take it with a handle \
             with local_handovers(0)"
        } else if lease.request.spec.family != Family::Mutex {
            "only mutexes and re-entrant mutexes can be detached"
        } else if !self.engine().client().has_queue() {
            "the locks of a quorum cannot be detached"
        } else {
            return self.engine().releasing().detach(lease, to, valid_for);
        };
        Err(Error::config("detach", message))
    }

    /// [`Error::Config`] if this store attaches no locks.
    pub(crate) fn check_attach(&self) -> Result<()> {
        if self.engine().client().has_queue() {
            return Ok(());
        }
        Err(Error::config(
            "attach",
            "the locks of a quorum cannot be attached",
        ))
    }

    /// See [`Engine::release`]. A turn may pass to the next member of its line.
    pub(crate) fn release(&self, lease: &Arc<Lease>, mode: Mode, want: WantResult) -> Result<()> {
        if lease.lender().is_none() {
            return self.engine().release(lease, mode, want);
        }
        self.lines.release(lease, mode, want)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.engine().is_forked() {
            // As the engine: the waiters and leases are the parent's.
            std::mem::forget(Arc::clone(&self.lines));
        }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
