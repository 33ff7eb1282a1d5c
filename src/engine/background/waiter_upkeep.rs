//! How the renewal thread looks after the places of those who wait.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquire::Settled;
use crate::engine::background::{Errand, RenewalThread};
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::{TokenOwner, WaiterEntry, refusal};
use crate::script::{Call, Family, LOOKUP_LIMIT, Outcome, Token, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

impl RenewalThread {
    pub(crate) fn confirmed(
        &mut self,
        waiter: Arc<WaiterEntry>,
        token: Token,
        answer: Result<Answer, StoreFault>,
    ) {
        let action = match answer {
            Ok(Answer { reply, sent, .. }) => match reply.outcome {
                Outcome::Renewed { left, fence } => {
                    waiter
                        .state
                        .lock()
                        .confirmed(sent, left, fence, &waiter.request)
                }
                _ => waiter.state.lock().absent(token, sent),
            },
            Err(fault) => {
                self.miss(&waiter, &fault);
                let again = self.again_at(&fault);
                return self.errands.put(again, Errand::Confirm(waiter));
            }
        };
        waiter.hear(self.engine.now());
        self.engine.apply(&waiter, action);
    }

    pub(crate) fn on_requeue_reply(
        &mut self,
        waiter: Arc<WaiterEntry>,
        call: &Call,
        result: CallResult,
    ) {
        match self.engine.on_acquire_reply(&waiter, call, result) {
            // A waiter that has claimed its grant by now did take a place.
            Settled::Done if waiter.state.lock().is_cancelled() => {}
            Settled::Done => {
                self.engine.counters.requeued.add(1);
                log::info!(
                    "took a new place for {:?}: redis did not know the old one any more",
                    waiter.request.key.name
                );
            }
            Settled::Again => self.errands.put(self.engine.now(), Errand::Requeue(waiter)),
            Settled::Refused(error) => {
                let action = waiter.state.lock().fail(error);
                waiter.changed.notify_one();
                self.engine.apply(&waiter, action);
            }
            Settled::StoreFault(fault) => {
                self.miss(&waiter, &fault);
                let again = self.again_at(&fault);
                self.errands.put(again, Errand::Requeue(waiter));
            }
        }
    }

    /// Redis was asked about a waiter's name, and did not answer. Not if this process slept meanwhile: then it may
    /// have answered in time. What comes of a closed connection, the next one tells.
    fn miss(&self, waiter: &WaiterEntry, fault: &StoreFault) {
        let now = self.engine.now();
        let slept = now - self.asked > self.engine.config.command_timeout * 2;
        if !slept && !matches!(fault, StoreFault::NotReady) && !fault.is_closed() {
            waiter.miss(now);
        }
    }

    pub(crate) fn on_sync_reply(&mut self, call: &Call, answer: Result<Answer, StoreFault>) {
        let engine = Arc::clone(&self.engine);
        let now = engine.now();
        let name = &call.key.name;
        let line = engine.waiters.line(name);
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                for waiter in &line {
                    if matches!(fault, StoreFault::Server { .. }) {
                        waiter.refuse(refusal(&fault, waiter, now));
                    }
                    self.miss(waiter, &fault);
                }
                return engine.waiters.reschedule(
                    name,
                    self.again_at(&fault).min(now + engine.config.check_period),
                );
            }
        };
        line.iter().for_each(|waiter| waiter.hear(now));
        match answer.reply.outcome {
            Outcome::Synced {
                owner,
                owner_waited_here,
                left,
                since,
                newest_known,
                served,
            } => {
                let left = left + Duration::from_millis(1);
                let next = if answer.reply.more {
                    now
                } else {
                    now + left.min(engine.config.check_period)
                };
                engine.waiters.reschedule(name, next);
                // What was taken at once, without the queue, may be a guard's that the registry never had.
                if let Some(grant) = owner
                    && (owner_waited_here
                        || matches!(engine.waiters.find(grant.token), TokenOwner::Waiting(_)))
                {
                    engine.deliver(call, GrantNotice::from_reply(grant, answer.sent));
                }
                let mut suspects = Vec::new();
                for waiter in &line {
                    let mut state = waiter.state.lock();
                    state.served(served);
                    // Of a mutex that is handed on, the answer names the owner, so no message can be missed for long.
                    let missed =
                        call.spec.family == Family::Permit && state.was_served(served, answer.sent);
                    if !newest_known || missed || state.is_suspect(since, answer.sent) {
                        suspects.push(state.token);
                    }
                }
                self.look_up(call, &suspects);
            }
            // No record at all: nobody has a place any more. Whoever was granted permits meanwhile may have them still.
            Outcome::Absent if call.spec.family == Family::Permit => {
                engine
                    .waiters
                    .reschedule(name, now + engine.config.check_period);
                let tokens: Vec<Token> = line
                    .iter()
                    .map(|waiter| waiter.state.lock().token)
                    .collect();
                self.look_up(call, &tokens);
            }
            Outcome::Absent => {
                for waiter in line {
                    let action = {
                        let mut state = waiter.state.lock();
                        let token = state.token;
                        state.absent(token, answer.sent)
                    };
                    engine.apply(&waiter, action);
                }
            }
            Outcome::Late => engine.waiters.reschedule(name, now),
            outcome => {
                let error = engine.out_of_place(call, &outcome);
                log::warn!("waiting for {name:?}: {error}");
                for waiter in line {
                    let action = waiter
                        .state
                        .lock()
                        .fail(engine.out_of_place(call, &outcome));
                    waiter.changed.notify_one();
                    engine.apply(&waiter, action);
                }
            }
        }
    }

    pub(crate) fn look_up(&mut self, about: &Call, tokens: &[Token]) {
        for tokens in tokens.chunks(LOOKUP_LIMIT) {
            let verb = Verb::Lookup {
                tokens: tokens.to_vec(),
            };
            self.lookups.push(Call {
                spec: about.spec,
                key: about.key.clone(),
                verb,
            });
        }
    }

    pub(crate) fn on_lookup_reply(&mut self, call: &Call, answer: Result<Answer, StoreFault>) {
        let Verb::Lookup { tokens } = &call.verb else {
            return;
        };
        let Ok(Answer { reply, sent, .. }) = answer else {
            // The next sync finds the same suspects.
            return;
        };
        let Outcome::Present {
            owner,
            since,
            waiting: known,
        } = reply.outcome
        else {
            return;
        };
        for (token, known) in tokens.iter().zip(known) {
            let TokenOwner::Waiting(waiter) = self.engine.waiters.find(*token) else {
                continue;
            };
            if known {
                waiter.state.lock().present(*token, since);
            } else if owner == Some(*token) {
                // Granted, and the message was missed: a sync has the fence.
                let queued = waiter.state.lock().is_queued();
                if queued {
                    self.engine
                        .waiters
                        .reschedule(&call.key.name, self.engine.now());
                }
            } else {
                let action = waiter.state.lock().absent(*token, sent);
                self.engine.apply(&waiter, action);
            }
        }
    }

    pub(crate) fn resync(&mut self, now: Time) {
        self.engine.waiters.all_due(now);
        for (about, tokens) in self.engine.waiters.all_tokens() {
            self.look_up(&about, &tokens);
        }
    }
}
