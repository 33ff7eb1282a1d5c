//! The caller's end of a waiter: it waits for the grant, and cancels.

use std::slice;
use std::sync::Arc;
use std::thread;

use crate::engine::lease::Lease;
use crate::engine::request::Request;
use crate::engine::waiter::grant_notice::GrantNotice;
use crate::engine::waiter::nested::{NestedWait, WaitEnds};
use crate::engine::waiter::registry::WaiterEntry;
use crate::engine::waiter::state::{TakeGrant, WaiterAction, WaiterState};
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result, Step};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
use crate::script::Token;
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// A registered waiter. Dropping it cancels the wait and leaves the queue.
pub(crate) struct QueuedWaiter {
    pub(crate) engine: Arc<Engine>,
    pub(crate) waiter: Arc<WaiterEntry>,
}

/// A thread waits until this is dropped.
pub(crate) struct BegunWait<'a> {
    waiter: &'a WaiterEntry,
    _nested: Option<NestedWait>,
}

impl Drop for BegunWait<'_> {
    fn drop(&mut self) {
        self.waiter.state.lock().end_wait();
    }
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

/// The result of a waiter's acquire.
pub(crate) enum EnqueueOutcome {
    /// The waiter is queued, granted or cancelled: its state says which.
    Done,
    /// Send it again at once, to pass over more dead waiters.
    More,
    /// Send it again at once.
    Again,
    /// It will not succeed.
    Rejected(Error),
    /// It may succeed later.
    RetryLater(StoreFault),
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
    fn new(entered: Time, until: Time, at_deadline: AtDeadline) -> WaitCall {
        WaitCall {
            entered,
            until,
            at_deadline,
            answer_by: None,
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
    /// Ask Redis, which has been silent, before the wait ends.
    Ask,
    Outage,
}

impl QueuedWaiter {
    /// R1 (registered before sent): the waiter is in the registry before its token is sent.
    pub(crate) fn register(
        engine: &Arc<Engine>,
        request: &Arc<Request>,
        state: WaiterState,
    ) -> QueuedWaiter {
        let waiter = engine
            .waiters
            .register(Arc::clone(request), state, engine.now());
        engine.meter.waiting.add(1);
        QueuedWaiter {
            engine: Arc::clone(engine),
            waiter,
        }
    }

    /// 1 is next. `None` once the lock is granted, and while the waiter is enqueued again.
    pub(crate) fn position(&self) -> Option<u64> {
        if self.engine.is_forked() {
            return None;
        }
        self.engine.position_of(&self.waiter)
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
    pub(crate) fn wait(&self, until: Time, at_deadline: AtDeadline) -> Result<Option<Arc<Lease>>> {
        self.engine.check_fork()?;
        let _waits = self.begin_wait(until);
        self.wait_on(until, at_deadline)
    }

    /// This thread begins to wait until `until`, in one piece or in several. The renewal thread may
    /// report the wait until the result is dropped. If it closes a circle of waits, a warning says
    /// so now, or later if there was one of the same names a short time ago.
    pub(crate) fn begin_wait(&self, until: Time) -> BegunWait<'_> {
        let thread = thread::current();
        let mut state = self.waiter.state.lock();
        state.begin_wait(thread.clone(), self.engine.now());
        let is_over = !state.awaits_grant();
        drop(state);
        let ends = if until == Time::NEVER {
            WaitEnds::WithTheLock
        } else {
            WaitEnds::AtADeadline
        };
        let nested = if is_over {
            None
        } else {
            NestedWait::begin(self.engine.id(), &self.waiter, thread, ends)
        };
        let (nested, circle) = nested.unzip();
        let begun = BegunWait {
            waiter: &self.waiter,
            _nested: nested,
        };
        if let Some(circle) = circle.flatten() {
            self.engine.report_circle(&circle);
        }
        begun
    }

    /// Goes on with a wait that has begun.
    pub(crate) fn wait_on(
        &self,
        until: Time,
        at_deadline: AtDeadline,
    ) -> Result<Option<Arc<Lease>>> {
        if self.engine.service.has_queue {
            self.sleep_until_granted(until, at_deadline)
        } else {
            self.ask_until_granted(until, at_deadline)
        }
    }

    fn sleep_until_granted(
        &self,
        until: Time,
        at_deadline: AtDeadline,
    ) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        let waiter = &self.waiter;
        let mut call = WaitCall::new(engine.now(), until, at_deadline);
        let long_wait = engine.config.long_wait;
        let mut state = waiter.state.lock();
        // No sync of the renewal thread checks a member while its line has the lock. So it looks
        // itself, and at once if it waits in pieces: each may end before the next look is due.
        let is_member = waiter.request.is_member();
        let mut check_at = if is_member && state.has_waited_for(long_wait, call.entered) {
            call.entered
        } else {
            Time::NEVER
        };
        loop {
            let now = engine.now();
            if now >= check_at {
                check_at = Time::NEVER;
                drop(state);
                engine.report_postponed_circles(slice::from_ref(waiter));
                engine.report_if_long(&engine.line_of(waiter));
                state = waiter.state.lock();
            }
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
                    // The confirmation may have come by now, and its notification woke nobody.
                    continue;
                }
                TakeGrant::NotYet => {}
            }
            let wake_at = match self.next_step(&call, now) {
                WaitStep::NotYet => return Ok(None),
                WaitStep::Outage => return Err(self.outage(now)),
                WaitStep::Sleep(wake_at) => {
                    call.answer_by = None;
                    wake_at
                }
                WaitStep::AwaitReply(answer_by) => answer_by,
                WaitStep::Ask => {
                    let timeouts = if now < until { 2 } else { 1 };
                    call.answer_by = Some(now + engine.config.command_timeout * timeouts);
                    waiter.wake_on_reply();
                    // The registry's mutex is never asked for under a waiter's.
                    drop(state);
                    engine.sync_now(&waiter.request.key);
                    state = waiter.state.lock();
                    // A reply or a grant may have come by now, and its notification woke nobody.
                    continue;
                }
            };
            if is_member {
                let next = state.check_at(now, long_wait, engine.config.check_period);
                check_at = check_at.min(next);
            }
            let wake_at = wake_at.min(check_at);
            engine.clock.wait(&waiter.changed, &mut state, wake_at);
        }
    }

    fn next_step(&self, call: &WaitCall, now: Time) -> WaitStep {
        let last_reply_at = self.waiter.last_reply_at().min(now);
        let silent_since = match call.at_deadline {
            AtDeadline::Cancel => last_reply_at.max(call.entered),
            // A caller that waits in pieces enters again and again. That must not hide an outage.
            AtDeadline::Keep => last_reply_at,
        };
        let outage_at = silent_since + self.engine.config.outage_limit;
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
            None => WaitStep::Ask,
        }
    }

    /// Leaves the queue at a deadline, but keeps a grant that came first.
    pub(crate) fn cancel(self, until: Time) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        if let Some(call) = self.begin_cancel() {
            let started = engine.now();
            let deadlines = engine.deadlines(started, until);
            let result = single_result(engine.store.run(slice::from_ref(&call), deadlines));
            if let Err(fault) = self.on_cancel_reply(&call, result.answer) {
                let is_answer = matches!(fault, StoreFault::NotReplicated { .. });
                if !is_answer && self.redis_answered_lately(until) {
                    return Ok(None);
                }
                let waited = engine.now() - started;
                return Err(self
                    .engine
                    .error(fault, Some(&self.waiter.request.key), waited));
            }
        }
        self.take_grant_or_cancel()
    }

    /// The call that leaves the queue. `None` if the waiter is not queued, or if a request is in
    /// flight.
    pub(crate) fn begin_cancel(&self) -> Option<Call> {
        let mut state = self.waiter.state.lock();
        let verb = Verb::Release {
            token: state.token,
            fence: 0,
            mode: Mode::KeepIfOwner,
        };
        state.begin_cancel().then(|| self.waiter.request.call(verb))
    }

    /// Applies the reply to that call. Without a reply the token is abandoned in the background.
    pub(crate) fn on_cancel_reply(
        &self,
        call: &Call,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> std::result::Result<(), StoreFault> {
        let engine = &self.engine;
        let waiter = &self.waiter;
        match answer {
            Ok(answer) => {
                engine.deliver_all(call, &answer);
                if let Outcome::Granted(grant) = answer.reply.outcome {
                    let notice = GrantNotice::from_reply(grant, answer.sent);
                    let mut state = waiter.state.lock();
                    let action = state.on_granted(notice, engine.now(), &waiter.request);
                    drop(state);
                    engine.apply_hand_over(waiter, action);
                } else if let (true, Verb::Release { token, .. }) = (answer.reply.more, &call.verb)
                {
                    engine.abandon_token(call, *token, 0, waiter.request.longest());
                }
            }
            Err(fault) => {
                let mut state = waiter.state.lock();
                let action = state.on_no_reply(0, engine.now(), &waiter.request);
                if matches!(action, WaiterAction::Nothing) {
                    let action = state.abandon_token();
                    drop(state);
                    engine.apply(waiter, action);
                    return Err(fault);
                }
                drop(state);
                engine.apply_hand_over(waiter, action);
            }
        }
        Ok(())
    }

    /// The last look at a cancelled waiter: a grant may have come first, by any way.
    pub(crate) fn take_grant_or_cancel(&self) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        let waiter = &self.waiter;
        let found = waiter
            .state
            .lock()
            .take_grant(engine.now(), &waiter.request);
        match found {
            TakeGrant::Taken(lease) => engine.give_to_caller(lease).map(Some),
            TakeGrant::Failed(error) => Err(error),
            // A doubtful grant is not worth another round trip past the deadline, for itself or its
            // release.
            TakeGrant::Confirm | TakeGrant::NotYet => {
                self.cancel_in_background();
                Ok(None)
            }
        }
    }

    /// Cancels the waiter without waiting for Redis: the renewal thread abandons the token.
    pub(crate) fn cancel_in_background(&self) {
        let action = self.waiter.state.lock().cancel();
        self.engine.apply(&self.waiter, action);
    }

    /// Cancels the waiter when it is dropped. The release is sent at once if a connection is open
    /// and one release is enough. Else the renewal thread sends it (R7, late copies).
    fn cancel_on_drop(&self) {
        let engine = &self.engine;
        let action = self.waiter.state.lock().cancel();
        let WaiterAction::Abandon { token, not_after } = action else {
            return engine.apply(&self.waiter, action);
        };
        let call = self.waiter.request.call(Verb::Release {
            token,
            fence: 0,
            mode: Mode::Unused,
        });
        if not_after == 0 {
            let started = engine.now();
            let deadlines = engine.at_once(started);
            match single_result(engine.store.run(slice::from_ref(&call), deadlines)).answer {
                Ok(answer) => {
                    engine.note_release_answered();
                    engine.deliver_all(&call, &answer);
                    if !answer.reply.more {
                        return;
                    }
                }
                Err(StoreFault::NotReady) => {}
                Err(fault) => engine.note_release_fault(started, &fault),
            }
        }
        engine.abandon_queued(&self.waiter.request, token, not_after);
    }

    /// A try may say "not yet" only if Redis answered within the last P + T.
    fn redis_answered_lately(&self, at: Time) -> bool {
        at - self.waiter.last_reply_at()
            <= self.engine.config.check_period + self.engine.config.command_timeout
    }

    /// Redis was asked after its last reply, and did not answer. If that was long ago, this process
    /// may have slept since, and it says nothing.
    fn was_unanswered(&self, now: Time) -> bool {
        let config = &self.engine.config;
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
            self.engine
                .error(fault, Some(&waiter.request.key), silent_for)
        })
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        self.cancel_on_drop();
        self.engine.waiters.forget(&self.waiter);
        self.engine.meter.waiting.sub(1);
    }
}
