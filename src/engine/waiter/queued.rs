//! Standing in a queue: waiting for the grant, and leaving.

use std::sync::Arc;

use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiter::{Action, Claim};
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
    pub(crate) waiting: Arc<WaiterEntry>,
}

/// What becomes of a place at the end of a wait for it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Then {
    /// It is left, so the answer has to be known: that others have the lock is not said of a silent Redis.
    Leave,
    /// It is kept for another wait, and "not yet" is true however silent Redis is, up to the outage limit.
    Stay,
}

impl QueuedWaiter {
    /// 1 is next; `None` once it is granted, or while the place is being taken again.
    pub(crate) fn position(&self) -> Option<u64> {
        if self.engine.is_forked() {
            return None;
        }
        self.waiting.place.lock().position()
    }

    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn token(&self) -> Token {
        self.waiting.place.lock().token
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        &self.waiting.request
    }

    /// Waits for the grant until `until`; what happens to the place then is the caller's. An error if Redis was silent
    /// for too long.
    ///
    /// The silence may be this process's own, which was stopped, or whose host slept: it is not held against a
    /// Redis that has not been asked meanwhile. It is asked then, and has one command timeout at a deadline, else two:
    /// for a connection and for the reply.
    pub(crate) fn wait(&self, until: Time, then: Then) -> Result<Option<Arc<Lease>>> {
        let (engine, waiting) = (&self.engine, &self.waiting);
        engine.check_fork()?;
        let entered = engine.now();
        let mut last_chance = None;
        let mut place = waiting.place.lock();
        loop {
            let now = engine.now();
            match place.claim(now, &waiting.request) {
                Claim::Taken(lease) => {
                    drop(place);
                    return engine.claimed(lease).map(Some);
                }
                Claim::Failed(error) => return Err(error),
                Claim::Confirm => {
                    drop(place);
                    engine.act(waiting, Action::Confirm);
                    place = waiting.place.lock();
                }
                Claim::NotYet => {}
            }
            let silent_since = match then {
                Then::Leave => waiting.heard_at().max(entered),
                // Who waits bit by bit enters again and again.
                Then::Stay => waiting.heard_at(),
            };
            let outage = silent_since + engine.config.outage_limit;
            let wake = if now < outage && now < until {
                last_chance = None;
                until.min(outage)
            } else if now < outage && (then == Then::Stay || self.is_informed(now)) {
                return Ok(None);
            } else if self.was_missed(now)
                || last_chance.is_some_and(|end| now >= end && waiting.awaits_word())
            {
                return Err(self.outage(now));
            } else {
                // If a word came, the clock has jumped again since.
                let deadlines = engine.config.command_timeout * if now < until { 2 } else { 1 };
                let end = last_chance
                    .filter(|_| waiting.awaits_word())
                    .unwrap_or(now + deadlines);
                last_chance = Some(end);
                waiting.await_word();
                drop(place);
                engine.look_after(&waiting.request.key);
                place = waiting.place.lock();
                if !waiting.awaits_word() {
                    continue;
                }
                end
            };
            engine.clock.wait(&waiting.changed, &mut place, wake);
        }
    }

    /// Leaves the queue at a deadline, but keeps a grant that came first.
    pub(crate) fn withdraw(self, until: Time) -> Result<Option<Arc<Lease>>> {
        let engine = &self.engine;
        if let Some(call) = self.leave() {
            let started = engine.now();
            let answer = engine
                .run_one(&call, engine.deadlines(started, until))
                .answer;
            if let Err(fault) = self.left(&call, answer) {
                if self.is_informed(until) {
                    engine.counters.missed.add(1);
                    return Ok(None);
                }
                return Err(
                    fault.into_error(Some(&self.waiting.request.key), engine.now() - started)
                );
            }
        }
        self.claim_or_leave()
    }

    /// The call that leaves the queue, if there is anything to leave and no request is in flight.
    pub(crate) fn leave(&self) -> Option<Call> {
        let mut place = self.waiting.place.lock();
        let verb = Verb::Release {
            token: place.token,
            fence: 0,
            mode: Mode::KeepIfOwner,
        };
        place.withdraw().then(|| self.waiting.request.call(verb))
    }

    /// What the answer to that call means for the place. Without one it is left in the background.
    pub(crate) fn left(
        &self,
        call: &Call,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> std::result::Result<(), StoreFault> {
        let (engine, waiting) = (&self.engine, &self.waiting);
        match answer {
            Ok(answer) => {
                engine.deliver_all(call, &answer);
                if let Outcome::Granted(grant) = answer.reply.outcome {
                    let news = GrantNotice::from_reply(grant, answer.sent);
                    let action =
                        waiting
                            .place
                            .lock()
                            .answered(news, engine.now(), &waiting.request);
                    engine.act(waiting, action);
                } else if let (true, Verb::Release { token, .. }) = (answer.reply.more, &call.verb)
                {
                    engine.abandon_in_background(call, *token, 0, waiting.request.longest());
                }
            }
            Err(fault) => {
                let action = waiting
                    .place
                    .lock()
                    .unanswered(0, engine.now(), &waiting.request);
                if matches!(action, Action::Nothing) {
                    let action = waiting.place.lock().obsolete();
                    engine.act(waiting, action);
                    return Err(fault);
                }
                engine.act(waiting, action);
            }
        }
        Ok(())
    }

    /// The last look at a place that was left: the grant may have come first, by whichever way.
    pub(crate) fn claim_or_leave(&self) -> Result<Option<Arc<Lease>>> {
        let (engine, waiting) = (&self.engine, &self.waiting);
        let claim = waiting.place.lock().claim(engine.now(), &waiting.request);
        match claim {
            Claim::Taken(lease) => engine.claimed(lease).map(Some),
            Claim::Failed(error) => Err(error),
            // A grant that is in doubt is not worth an answer past the deadline, nor is its release worth waiting.
            Claim::Confirm | Claim::NotYet => {
                self.give_up_in_background();
                engine.counters.missed.add(1);
                Ok(None)
            }
        }
    }

    pub(crate) fn give_up_in_background(&self) {
        let action = self.waiting.place.lock().give_up();
        self.engine.act(&self.waiting, action);
    }

    /// A try may say "not yet" only if that is known: Redis answered in the last check period.
    fn is_informed(&self, at: Time) -> bool {
        at - self.waiting.heard_at()
            <= self.engine.config.check_period + self.engine.config.command_timeout
    }

    /// Redis was asked after it last answered, and not so long ago that this process may have slept since.
    fn was_missed(&self, now: Time) -> bool {
        let (missed, config) = (self.waiting.missed_at(), &self.engine.config);
        missed > self.waiting.heard_at()
            && now - missed <= config.check_period + config.command_timeout * 2
    }

    fn outage(&self, now: Time) -> Error {
        self.waiting
            .take_refusal()
            .unwrap_or_else(|| Error::Unavailable {
                lock: Some(Arc::clone(&self.waiting.request.key.name)),
                step: Step::Reply,
                waited: now - self.waiting.heard_at(),
                source: "redis was silent while this waited in the queue".into(),
            })
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            return;
        }
        self.engine.give_up(&self.waiting);
        self.engine.places.forget(&self.waiting);
        self.engine.counters.waiting.sub(1);
    }
}
