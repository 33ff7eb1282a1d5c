//! R21 (asking again): how a caller waits where the store has no queue. It asks for the lock,
//! pauses, and asks again. Each request is an attempt of its own, with a new token, and nothing of
//! it stays in the store. So nobody subscribes, and nobody syncs.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::{Entered, is_transient};
use crate::engine::lease::Lease;
use crate::engine::request::Request;
use crate::engine::waiter::{
    AtDeadline, QueuedWaiter, TakeGrant, WaiterAction, WaiterEntry, WaiterState,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::script::{Family, Token};
use crate::stats::Meter;
use crate::store::clock::Time;

#[cfg(all(test, feature = "memory"))]
mod tests;

/// One call of [`QueuedWaiter::ask_until_granted`].
struct AskCall {
    entered: Time,
    until: Time,
    at_deadline: AtDeadline,
}

impl Engine {
    /// Takes the lock if it is free. Otherwise the caller gets a waiter, which asks while the caller
    /// waits. Blocks for at most two command timeouts.
    pub(super) fn enter_without_queue(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Entered> {
        // Threads of this manager that wait already come first: the release of their lock wakes
        // them, and this request would overtake them.
        if !self.askers.are_any(&request.key.name) {
            match self.attempt(request, until) {
                Ok(Some(lease)) => return Ok(Entered::Granted(lease)),
                Ok(None) if self.now() >= until => return Ok(Entered::NotYet),
                Ok(None) => {}
                // The waiter outlasts an outage, and a lease that was over when its reply came.
                Err(error) if is_passing(&error) && self.now() < until => {}
                Err(error) => return Err(error),
            }
        }
        let state = WaiterState::new(Token::never_sent());
        let queued = QueuedWaiter::register(self, request, state);
        // A shutdown fails every waiter that is registered when it runs. If it ran before this
        // registration, this check finds it.
        self.check_open()?;
        let mut state = queued.waiter.state.lock();
        state.begin_pause(self.now(), self.config.back_off);
        drop(state);
        Ok(Entered::Queued(queued))
    }

    /// [`Error::Config`] if the store does not keep locks of this kind.
    pub(crate) fn check_family(&self, family: Family) -> Result<()> {
        if self.service.families.contains(&family) {
            return Ok(());
        }
        let message = "a quorum keeps mutexes and re-entrant mutexes; semaphores and reader/writer \
                       locks need one node, Sentinel or Cluster";
        Err(Error::config("kind", message))
    }

    /// R21 (asking again): the lease that the waiter had is lost, or in doubt. Its token is
    /// abandoned, and the caller asks under others. A confirmation would spare nobody a request.
    pub(super) fn ask_anew(&self, waiter: &Arc<WaiterEntry>) {
        let now = self.now();
        let mut state = waiter.state.lock();
        let abandon = state.abandon_token();
        let token = state.token;
        let _ = state.on_absent(token, now);
        state.begin_pause(now, self.config.back_off);
        drop(state);
        self.apply(waiter, abandon);
        self.waiters.replace_token(waiter);
        waiter.changed.notify_one();
    }

    /// A lock was released. Where the store has no queue, the first waiter of this manager asks at
    /// once.
    pub(super) fn wake_asker(&self, key: &Key) {
        if !self.service.has_queue {
            self.askers.wake_first(&key.name);
        }
    }
}

impl QueuedWaiter {
    /// Waits until `until`, like [`QueuedWaiter::wait`]: asks, pauses, asks again.
    ///
    /// A caller that cancels at the deadline asks once more then. Each request may take two command
    /// timeouts, and one past `until`.
    pub(super) fn ask_until_granted(
        &self,
        until: Time,
        at_deadline: AtDeadline,
    ) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        let waiter = &self.waiter;
        let call = AskCall {
            entered: engine.now(),
            until,
            at_deadline,
        };
        let _asking = engine.askers.enter(waiter);
        if Meter::PUBLISHES {
            // No check of a queue wakes the renewal thread, which shows how long the oldest wait is.
            let now = engine.now();
            engine
                .waker
                .wake_if_late_for(now + engine.config.check_period);
        }
        let mut state = waiter.state.lock();
        loop {
            let now = engine.now();
            match state.take_grant(now, &waiter.request) {
                TakeGrant::Taken(lease) => {
                    drop(state);
                    return engine.give_to_caller(lease).map(Some);
                }
                TakeGrant::Failed(error) => return Err(error),
                TakeGrant::Confirm => {
                    drop(state);
                    engine.apply(waiter, WaiterAction::Confirm);
                    state = waiter.state.lock();
                }
                TakeGrant::NotYet => {}
            }
            if state.is_asking() && call.is_due(state.ask_at, now) {
                state.ask_at = Time::NEVER;
                drop(state);
                if let Some(lease) = self.ask(&call)? {
                    return Ok(Some(lease));
                }
                if now >= until {
                    return Ok(None);
                }
                let waiters = [Arc::clone(waiter)];
                engine.report_postponed_circles(&waiters);
                // A younger waiter is due earlier each time. It would report only itself, forever.
                if engine.askers.has_waited_longest(waiter) {
                    engine.report_if_long(&waiters);
                }
                state = waiter.state.lock();
                continue;
            }
            if now >= until {
                return Ok(None);
            }
            let wake_at = state.ask_at.min(until);
            engine.clock.wait(&waiter.changed, &mut state, wake_at);
        }
    }

    /// Asks once. If the lock is taken, the next pause begins.
    fn ask(&self, call: &AskCall) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        let asked = engine.now();
        let failed = match engine.attempt(&self.waiter.request, call.until) {
            Ok(Some(lease)) => return Ok(Some(lease)),
            Ok(None) | Err(Error::Lost { .. }) => None,
            Err(error) if is_transient(&error) => Some(error),
            Err(error) => return Err(error),
        };
        let now = engine.now();
        let mut state = self.waiter.state.lock();
        state.begin_pause(now, engine.config.back_off);
        drop(state);
        match failed {
            None => self.waiter.on_reply(now),
            Some(error) if now >= self.outage_at(call) => return Err(error),
            // "Others have the lock" is not said while Redis is silent.
            Some(error) if asked >= call.until && call.at_deadline == AtDeadline::Cancel => {
                return Err(error);
            }
            Some(_) => engine.meter.retries.add(1),
        }
        Ok(None)
    }

    /// The moment from which on a request without an answer ends the wait.
    fn outage_at(&self, call: &AskCall) -> Time {
        let last_reply_at = self.waiter.last_reply_at();
        let silent_since = match call.at_deadline {
            AtDeadline::Cancel => last_reply_at.max(call.entered),
            // A caller that waits in pieces enters again and again. That must not hide an outage.
            AtDeadline::Keep => last_reply_at,
        };
        silent_since + self.engine.config.outage_limit
    }
}

impl AskCall {
    fn is_due(&self, ask_at: Time, now: Time) -> bool {
        now >= ask_at || now >= self.until && self.at_deadline == AtDeadline::Cancel
    }
}

/// Whether a retry may succeed, a retry for a lease that was over when its reply came included.
fn is_passing(error: &Error) -> bool {
    is_transient(error) || matches!(error, Error::Lost { .. })
}
