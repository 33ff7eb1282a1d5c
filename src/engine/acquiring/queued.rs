//! The caller's end of a waiter: it waits for the grant. `cancel` is how it leaves the queue.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::{Acquiring, is_transient, wait_log};
use crate::engine::lease::HeldLease;
use crate::engine::request::Request;
use crate::engine::waiter::{
    Asking, TakeGrant, WaiterAction, WaiterEntry, WaiterOwner, WaiterState,
};
use crate::error::{Error, Result, Step};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
use crate::script::Token;
use crate::stats::{Count, Meter};
use crate::store::StoreFault;
use crate::store::clock::Time;

/// A registered waiter. Dropping it cancels the wait and leaves the queue.
pub(crate) struct QueuedWaiter {
    pub(super) acquiring: Arc<Acquiring>,
    pub(crate) waiter: Arc<WaiterEntry>,
}

/// The caller's choice for its waiter when a wait times out.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AtDeadline {
    /// It cancels the waiter. So the answer must be known: "others have the lock" is not said while
    /// Redis is silent.
    Cancel,
    /// It keeps the waiter for another wait. "Not yet" is true however silent Redis is, up to the
    /// outage limit.
    Keep,
}

/// One call of [`QueuedWaiter::wait`].
struct WaitCall {
    entered: Time,
    until: Time,
    at_deadline: AtDeadline,
    /// Redis was asked because it had been silent. It must answer by then.
    answer_by: Option<Time>,
}

impl WaitCall {
    /// R21 (asking again): the next step where the store has no queue.
    fn next_asking_step(&self, state: &WaiterState, now: Time) -> WaitStep {
        let asks_last = now >= self.until && self.at_deadline == AtDeadline::Cancel;
        if state.is_asking() && (now >= state.ask_at || asks_last) {
            WaitStep::Ask
        } else if now >= self.until {
            WaitStep::NotYet
        } else {
            WaitStep::Sleep(state.ask_at.min(self.until))
        }
    }
}

/// The next step of a waiter without a grant.
enum WaitStep {
    Sleep(Time),
    /// Redis was asked, and must answer by then.
    AwaitReply(Time),
    /// The time is up.
    NotYet,
    /// Have Redis asked, which has been silent, before the wait ends.
    Sync,
    /// R21 (asking again): ask for the lock.
    Ask,
    Outage,
}

impl QueuedWaiter {
    /// R1 (registered before sent): the waiter is in the registry before its token is sent.
    pub(crate) fn register(
        acquiring: &Arc<Acquiring>,
        request: &Arc<Request>,
        state: WaiterState,
        owner: Option<Arc<dyn WaiterOwner>>,
    ) -> QueuedWaiter {
        let (request, now) = (Arc::clone(request), acquiring.client.now());
        let waiter = acquiring.registry.register(request, state, owner, now);
        acquiring.client.meter().waiting.add(1);
        QueuedWaiter {
            acquiring: Arc::clone(acquiring),
            waiter,
        }
    }

    /// 1 is next. `None` once the lock is granted, and while the waiter is enqueued again.
    pub(crate) fn position(&self) -> Option<u64> {
        if self.acquiring.life.is_forked() {
            return None;
        }
        self.waiter.position()
    }

    /// A channel that says when [`QueuedWaiter::wait`] would end at once. From now on the caller counts
    /// as one that waits, by the channel.
    pub(crate) fn ready(&self) -> &Receiver<()> {
        let acquiring = &self.acquiring;
        if acquiring.life.is_forked() {
            return acquiring.life.disconnected();
        }
        if !self.waiter.is_watched() {
            let (now, long_wait) = (acquiring.client.now(), acquiring.client.config().long_wait);
            self.waiter.state.lock().begin_wait(now, long_wait);
            let _ = self.waiter.ready();
            acquiring.grants.watch_pause(&self.waiter);
        }
        self.waiter.ready()
    }

    #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
    pub(crate) fn token(&self) -> Token {
        self.waiter.state.lock().token
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        &self.waiter.request
    }

    /// Waits for the grant until `until`. The caller then keeps or cancels the waiter. Returns an
    /// error if Redis was silent for too long.
    ///
    /// The silence may be this process's own: it was stopped, or its host slept. So Redis is asked
    /// again before the wait fails. It gets one command timeout at a deadline, else two: for a
    /// connection and for the reply.
    pub(crate) fn wait(
        &self,
        until: Time,
        at_deadline: AtDeadline,
    ) -> Result<Option<Arc<HeldLease>>> {
        self.acquiring.life.check_fork()?;
        self.begin_wait();
        self.wait_on(until, at_deadline)
    }

    /// This thread begins to wait. The log says at once if it waits for itself.
    pub(crate) fn begin_wait(&self) {
        let acquiring = &self.acquiring;
        let mut state = self.waiter.state.lock();
        let now = acquiring.client.now();
        state.begin_wait(now, acquiring.client.config().long_wait);
        let waits = state.awaits_grant();
        drop(state);
        if waits {
            wait_log::warn_of_own_lock(acquiring.client.id(), &self.waiter.request, now);
        }
    }

    /// Goes on with a wait that has begun.
    ///
    /// In the queue of the store, the caller sleeps until it is woken: by the grant, or by the replies
    /// that show whether Redis is silent. R21 (asking again): without a queue it sleeps until its
    /// pause is over, and asks. If it cancels at the deadline, it asks once more then. Each request may
    /// take two command timeouts, and one past `until`.
    pub(crate) fn wait_on(
        &self,
        until: Time,
        at_deadline: AtDeadline,
    ) -> Result<Option<Arc<HeldLease>>> {
        let acquiring = &self.acquiring;
        let waiter = &self.waiter;
        let mut call = WaitCall {
            entered: acquiring.client.now(),
            until,
            at_deadline,
            answer_by: None,
        };
        let _asking = self.begin_asking(call.entered);
        let mut state = waiter.state.lock();
        loop {
            let now = acquiring.client.now();
            match state.take_grant(now, &waiter.request) {
                TakeGrant::Taken(lease) => {
                    drop(state);
                    return acquiring.grants.give_to_waiter(waiter, lease).map(Some);
                }
                TakeGrant::Failed(error) => return Err(error),
                TakeGrant::Confirm => {
                    drop(state);
                    acquiring.grants.apply(waiter, WaiterAction::Confirm);
                    state = waiter.state.lock();
                    // The confirmation may have come by now, and its notification woke nobody.
                    continue;
                }
                TakeGrant::NotYet => {}
            }
            if let Some(waited) = state.take_report(now) {
                drop(state);
                let begun = acquiring.registry.begin_report(waiter, now, waited);
                if begun.is_ok() {
                    wait_log::warn_of_long_wait(waiter, waited);
                }
                state = waiter.state.lock();
                if let Err(overdue_at) = begun {
                    // If that report does not come, its waiter has gone.
                    state.report_by(overdue_at);
                }
                // A grant may have come by now, and its notification woke nobody.
                continue;
            }
            let wake_at = match self.next_step(&call, &state, now) {
                WaitStep::NotYet => return Ok(None),
                WaitStep::Outage => return Err(self.outage(now)),
                WaitStep::Sleep(wake_at) => {
                    call.answer_by = None;
                    wake_at
                }
                WaitStep::AwaitReply(answer_by) => answer_by,
                WaitStep::Sync => {
                    let timeouts = if now < until { 2 } else { 1 };
                    let timeout = acquiring.client.config().command_timeout;
                    call.answer_by = Some(now + timeout * timeouts);
                    waiter.wake_on_reply();
                    // The registry's mutex is never asked for under a waiter's.
                    drop(state);
                    acquiring.grants.sync_now(&waiter.request.key);
                    state = waiter.state.lock();
                    // A reply or a grant may have come by now, and its notification woke nobody.
                    continue;
                }
                WaitStep::Ask => {
                    state.ask_at = Time::NEVER;
                    drop(state);
                    if let Some(lease) = self.ask(&call)? {
                        return Ok(Some(lease));
                    }
                    if now >= until {
                        return Ok(None);
                    }
                    state = waiter.state.lock();
                    continue;
                }
            };
            let wake_at = wake_at.min(state.report_at());
            let clock = acquiring.client.clock();
            clock.wait(&waiter.changed, &mut state, wake_at);
        }
    }

    fn next_step(&self, call: &WaitCall, state: &WaiterState, now: Time) -> WaitStep {
        if !self.acquiring.client.has_queue() {
            return call.next_asking_step(state, now);
        }
        let outage_at = self.outage_at(call, now);
        if now < outage_at && now < call.until {
            return WaitStep::Sleep(call.until.min(outage_at));
        }
        if now < outage_at
            && (call.at_deadline == AtDeadline::Keep || self.redis_answered_lately(now))
        {
            return WaitStep::NotYet;
        }
        if self.was_unanswered(now) {
            return WaitStep::Outage;
        }
        // If a reply came since the last question, the clock has jumped again: Redis gets its full
        // time again.
        match call.answer_by.filter(|_| self.waiter.awaits_reply()) {
            Some(answer_by) if now >= answer_by => WaitStep::Outage,
            Some(answer_by) => WaitStep::AwaitReply(answer_by),
            None => WaitStep::Sync,
        }
    }

    /// The moment from which on the lack of an answer ends the wait.
    fn outage_at(&self, call: &WaitCall, now: Time) -> Time {
        let last_reply_at = self.waiter.last_reply_at().min(now);
        let silent_since = match call.at_deadline {
            AtDeadline::Cancel => last_reply_at.max(call.entered),
            // A caller that waits in pieces enters again and again. That must not hide an outage.
            AtDeadline::Keep => last_reply_at,
        };
        silent_since + self.acquiring.client.config().outage_limit
    }

    /// R21 (asking again): until the result is dropped, a release by this manager may wake the
    /// caller. `None` where the store has a queue.
    fn begin_asking(&self, now: Time) -> Option<Asking<'_>> {
        let acquiring = &self.acquiring;
        if acquiring.client.has_queue() {
            return None;
        }
        if Meter::PUBLISHES {
            // No check of a queue wakes the renewal thread, which shows how long the oldest wait is.
            let due = now + acquiring.client.config().check_period;
            acquiring.upkeep.wake_if_late_for(due);
        }
        Some(acquiring.askers.enter(&self.waiter))
    }

    /// R21 (asking again): asks once. If the lock is taken, the next pause begins.
    fn ask(&self, call: &WaitCall) -> Result<Option<Arc<HeldLease>>> {
        let client = &self.acquiring.client;
        let asked = client.now();
        let trying = &self.acquiring.trying;
        let failed = match trying.attempt(&self.waiter.request, call.until) {
            Ok(Some(lease)) => return Ok(Some(lease)),
            Ok(None) | Err(Error::Lost { .. }) => None,
            Err(error) => Some(error),
        };
        let now = client.now();
        self.acquiring.grants.begin_pause(&self.waiter, now);
        match failed {
            Some(error) if !is_transient(&error) => return Err(error),
            None => self.waiter.on_reply(now),
            Some(error) if now >= self.outage_at(call, now) => return Err(error),
            // "Others have the lock" is not said while Redis is silent.
            Some(error) if asked >= call.until && call.at_deadline == AtDeadline::Cancel => {
                return Err(error);
            }
            Some(_) => client.meter().count(Count::Retries),
        }
        Ok(None)
    }

    /// A try may say "not yet" only if Redis answered within the last P + T.
    pub(super) fn redis_answered_lately(&self, at: Time) -> bool {
        at - self.waiter.last_reply_at()
            <= self.acquiring.client.config().check_period
                + self.acquiring.client.config().command_timeout
    }

    /// Redis was asked after its last reply, and did not answer. If that was long ago, this process
    /// may have slept since, and it says nothing.
    fn was_unanswered(&self, now: Time) -> bool {
        let config = &self.acquiring.client.config();
        let asked_at = self.waiter.last_unanswered_at();
        asked_at > self.waiter.last_reply_at()
            && now - asked_at <= config.check_period + config.command_timeout * 2
    }

    fn outage(&self, now: Time) -> Error {
        let waiter = &self.waiter;
        waiter.take_last_refusal().unwrap_or_else(|| {
            let source = "redis did not answer while the caller waited in the queue";
            let fault = StoreFault::unavailable(Step::Reply, source);
            let silent_for = now - waiter.last_reply_at();
            self.acquiring
                .client
                .error(fault, Some(&waiter.request.key), silent_for)
        })
    }
}
