//! Standing in a queue: waiting for the grant, and leaving.

use std::sync::Arc;

use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiter::{TakeGrant, WaiterAction};
use crate::engine::{Engine, Lease};
use crate::error::{Error, Result, Step};
#[cfg(any(all(test, feature = "memory"), fuzzing))]
use crate::script::Token;
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// A place in a queue; dropping it leaves the queue.
pub(crate) struct QueuedWaiter {
    pub(crate) engine: Arc<Engine>,
    pub(crate) waiter: Arc<WaiterEntry>,
}

/// What becomes of a place at the end of a wait for it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AtDeadline {
    /// It is left, so the answer has to be known: that others have the lock is not said of a silent Redis.
    Cancel,
    /// It is kept for another wait, and "not yet" is true however silent Redis is, up to the outage limit.
    Keep,
}

impl QueuedWaiter {
    /// 1 is next; `None` once it is granted, or while the place is being taken again.
    pub(crate) fn position(&self) -> Option<u64> {
        if self.engine.is_forked() {
            return None;
        }
        self.waiter.state.lock().position()
    }

    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn token(&self) -> Token {
        self.waiter.state.lock().token
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        &self.waiter.request
    }

    /// Waits for the grant until `until`; what happens to the place then is the caller's. An error if Redis was silent
    /// for too long.
    ///
    /// The silence may be this process's own, which was stopped, or whose host slept: it is not held against a
    /// Redis that has not been asked meanwhile. It is asked then, and has one command timeout at a deadline, else two:
    /// for a connection and for the reply.
    pub(crate) fn wait(&self, until: Time, at_deadline: AtDeadline) -> Result<Option<Arc<Lease>>> {
        let (engine, waiter) = (&self.engine, &self.waiter);
        engine.check_fork()?;
        let entered = engine.now();
        let mut last_chance = None;
        let mut state = waiter.state.lock();
        loop {
            let now = engine.now();
            match state.take_grant(now, &waiter.request) {
                TakeGrant::Taken(lease) => {
                    drop(state);
                    return engine.hand_out(lease).map(Some);
                }
                TakeGrant::Failed(error) => return Err(error),
                TakeGrant::Confirm => {
                    drop(state);
                    engine.apply(waiter, WaiterAction::Confirm);
                    state = waiter.state.lock();
                }
                TakeGrant::NotYet => {}
            }
            let silent_since = match at_deadline {
                AtDeadline::Cancel => waiter.last_reply_at().max(entered),
                // Who waits bit by bit enters again and again.
                AtDeadline::Keep => waiter.last_reply_at(),
            };
            let outage = silent_since + engine.config.outage_limit;
            let wake = if now < outage && now < until {
                last_chance = None;
                until.min(outage)
            } else if now < outage && (at_deadline == AtDeadline::Keep || self.is_informed(now)) {
                return Ok(None);
            } else if self.was_missed(now)
                || last_chance.is_some_and(|end| now >= end && waiter.awaits_reply())
            {
                return Err(self.outage(now));
            } else {
                // If a word came, the clock has jumped again since.
                let deadlines = engine.config.command_timeout * if now < until { 2 } else { 1 };
                let end = last_chance
                    .filter(|_| waiter.awaits_reply())
                    .unwrap_or(now + deadlines);
                last_chance = Some(end);
                waiter.wake_on_reply();
                drop(state);
                engine.sync_now(&waiter.request.key);
                state = waiter.state.lock();
                if !waiter.awaits_reply() {
                    continue;
                }
                end
            };
            engine.clock.wait(&waiter.changed, &mut state, wake);
        }
    }

    /// Leaves the queue at a deadline, but keeps a grant that came first.
    pub(crate) fn cancel(self, until: Time) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        if let Some(call) = self.begin_cancel() {
            let started = engine.now();
            let answer = engine
                .run_one(&call, engine.deadlines(started, until))
                .answer;
            if let Err(fault) = self.on_cancel_reply(&call, answer) {
                if self.is_informed(until) {
                    engine.counters.missed.add(1);
                    return Ok(None);
                }
                return Err(
                    fault.into_error(Some(&self.waiter.request.key), engine.now() - started)
                );
            }
        }
        self.take_grant_or_cancel()
    }

    /// The call that leaves the queue, if there is anything to leave and no request is in flight.
    pub(crate) fn begin_cancel(&self) -> Option<Call> {
        let mut state = self.waiter.state.lock();
        let verb = Verb::Release {
            token: state.token,
            fence: 0,
            mode: Mode::KeepIfOwner,
        };
        state.begin_cancel().then(|| self.waiter.request.call(verb))
    }

    /// What the answer to that call means for the place. Without one it is left in the background.
    pub(crate) fn on_cancel_reply(
        &self,
        call: &Call,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> std::result::Result<(), StoreFault> {
        let (engine, waiter) = (&self.engine, &self.waiter);
        match answer {
            Ok(answer) => {
                engine.deliver_all(call, &answer);
                if let Outcome::Granted(grant) = answer.reply.outcome {
                    let notice = GrantNotice::from_reply(grant, answer.sent);
                    let action =
                        waiter
                            .state
                            .lock()
                            .on_granted(notice, engine.now(), &waiter.request);
                    engine.apply(waiter, action);
                } else if let (true, Verb::Release { token, .. }) = (answer.reply.more, &call.verb)
                {
                    engine.abandon_in_background(call, *token, 0, waiter.request.longest());
                }
            }
            Err(fault) => {
                let action = waiter
                    .state
                    .lock()
                    .on_no_reply(0, engine.now(), &waiter.request);
                if matches!(action, WaiterAction::Nothing) {
                    let action = waiter.state.lock().abandon_token();
                    engine.apply(waiter, action);
                    return Err(fault);
                }
                engine.apply(waiter, action);
            }
        }
        Ok(())
    }

    /// The last look at a place that was left: the grant may have come first, by whichever way.
    pub(crate) fn take_grant_or_cancel(&self) -> Result<Option<Arc<Lease>>> {
        let (engine, waiter) = (&self.engine, &self.waiter);
        let claim = waiter
            .state
            .lock()
            .take_grant(engine.now(), &waiter.request);
        match claim {
            TakeGrant::Taken(lease) => engine.hand_out(lease).map(Some),
            TakeGrant::Failed(error) => Err(error),
            // A grant that is in doubt is not worth an answer past the deadline, nor is its release worth waiting.
            TakeGrant::Confirm | TakeGrant::NotYet => {
                self.cancel_in_background_now();
                engine.counters.missed.add(1);
                Ok(None)
            }
        }
    }

    pub(crate) fn cancel_in_background_now(&self) {
        let action = self.waiter.state.lock().cancel();
        self.engine.apply(&self.waiter, action);
    }

    /// A try may say "not yet" only if that is known: Redis answered in the last check period.
    fn is_informed(&self, at: Time) -> bool {
        at - self.waiter.last_reply_at()
            <= self.engine.config.check_period + self.engine.config.command_timeout
    }

    /// Redis was asked after it last answered, and not so long ago that this process may have slept since.
    fn was_missed(&self, now: Time) -> bool {
        let (missed, config) = (self.waiter.last_unanswered_at(), &self.engine.config);
        missed > self.waiter.last_reply_at()
            && now - missed <= config.check_period + config.command_timeout * 2
    }

    fn outage(&self, now: Time) -> Error {
        self.waiter
            .take_last_refusal()
            .unwrap_or_else(|| Error::Unavailable {
                lock: Some(Arc::clone(&self.waiter.request.key.name)),
                step: Step::Reply,
                waited: now - self.waiter.last_reply_at(),
                source: "redis was silent while this waited in the queue".into(),
            })
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            return;
        }
        self.engine.cancel(&self.waiter);
        self.engine.waiters.forget(&self.waiter);
        self.engine.counters.waiting.sub(1);
    }
}
