//! How the renewal thread looks after the places of those who wait.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquire::Settled;
use crate::engine::background::{Errand, Renewal};
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::{Found, WaiterEntry, refusal};
use crate::script::{Call, Family, LOOKUP_LIMIT, Outcome, Token, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

impl Renewal {
    pub(crate) fn confirmed(
        &mut self,
        waiting: Arc<WaiterEntry>,
        token: Token,
        answer: Result<Answer, StoreFault>,
    ) {
        let action = match answer {
            Ok(Answer { reply, sent, .. }) => match reply.outcome {
                Outcome::Renewed { left, fence } => {
                    waiting
                        .place
                        .lock()
                        .confirmed(sent, left, fence, &waiting.request)
                }
                _ => waiting.place.lock().absent(token, sent),
            },
            Err(fault) => {
                self.miss(&waiting, &fault);
                let again = self.again_at(&fault);
                return self.errands.put(again, Errand::Confirm(waiting));
            }
        };
        waiting.hear(self.engine.now());
        self.engine.act(&waiting, action);
    }

    pub(crate) fn requeued(&mut self, waiting: Arc<WaiterEntry>, call: &Call, result: CallResult) {
        match self.engine.settle_acquire(&waiting, call, result) {
            // A waiter that has claimed its grant by now did take a place.
            Settled::Done if waiting.place.lock().is_given_up() => {}
            Settled::Done => {
                self.engine.counters.requeued.add(1);
                log::info!(
                    "took a new place for {:?}: redis did not know the old one any more",
                    waiting.request.key.name
                );
            }
            Settled::Again => self
                .errands
                .put(self.engine.now(), Errand::Requeue(waiting)),
            Settled::Refused(error) => {
                let action = waiting.place.lock().fail(error);
                waiting.changed.notify_one();
                self.engine.act(&waiting, action);
            }
            Settled::StoreFault(fault) => {
                self.miss(&waiting, &fault);
                let again = self.again_at(&fault);
                self.errands.put(again, Errand::Requeue(waiting));
            }
        }
    }

    /// Redis was asked about a waiter's name, and did not answer. Not if this process slept meanwhile: then it may
    /// have answered in time. What comes of a closed connection, the next one tells.
    fn miss(&self, waiting: &WaiterEntry, fault: &StoreFault) {
        let now = self.engine.now();
        let slept = now - self.asked > self.engine.config.command_timeout * 2;
        if !slept && !matches!(fault, StoreFault::NotReady) && !fault.is_closed() {
            waiting.miss(now);
        }
    }

    pub(crate) fn synced(&mut self, call: &Call, answer: Result<Answer, StoreFault>) {
        let engine = Arc::clone(&self.engine);
        let now = engine.now();
        let name = &call.key.name;
        let line = engine.places.line(name);
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                for waiting in &line {
                    if matches!(fault, StoreFault::Server { .. }) {
                        waiting.refuse(refusal(&fault, waiting, now));
                    }
                    self.miss(waiting, &fault);
                }
                return engine.places.put_off(
                    name,
                    self.again_at(&fault).min(now + engine.config.check_period),
                );
            }
        };
        line.iter().for_each(|waiting| waiting.hear(now));
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
                engine.places.put_off(name, next);
                // What was taken at once, without the queue, may be a guard's that the registry never had.
                if let Some(grant) = owner
                    && (owner_waited_here
                        || matches!(engine.places.find(grant.token), Found::Waiting(_)))
                {
                    engine.deliver(call, GrantNotice::from_reply(grant, answer.sent));
                }
                let mut suspects = Vec::new();
                for waiting in &line {
                    let mut place = waiting.place.lock();
                    place.served(served);
                    // Of a mutex that is handed on, the answer names the owner, so no message can be missed for long.
                    let missed =
                        call.spec.family == Family::Permit && place.was_served(served, answer.sent);
                    if !newest_known || missed || place.is_suspect(since, answer.sent) {
                        suspects.push(place.token);
                    }
                }
                self.look_up(call, &suspects);
            }
            // No record at all: nobody has a place any more. Whoever was granted permits meanwhile may have them still.
            Outcome::Absent if call.spec.family == Family::Permit => {
                engine
                    .places
                    .put_off(name, now + engine.config.check_period);
                let tokens: Vec<Token> = line
                    .iter()
                    .map(|waiting| waiting.place.lock().token)
                    .collect();
                self.look_up(call, &tokens);
            }
            Outcome::Absent => {
                for waiting in line {
                    let action = {
                        let mut place = waiting.place.lock();
                        let token = place.token;
                        place.absent(token, answer.sent)
                    };
                    engine.act(&waiting, action);
                }
            }
            Outcome::Late => engine.places.put_off(name, now),
            outcome => {
                let error = engine.out_of_place(call, &outcome);
                log::warn!("waiting for {name:?}: {error}");
                for waiting in line {
                    let action = waiting
                        .place
                        .lock()
                        .fail(engine.out_of_place(call, &outcome));
                    waiting.changed.notify_one();
                    engine.act(&waiting, action);
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

    pub(crate) fn looked_up(&mut self, call: &Call, answer: Result<Answer, StoreFault>) {
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
            let Found::Waiting(waiting) = self.engine.places.find(*token) else {
                continue;
            };
            if known {
                waiting.place.lock().present(*token, since);
            } else if owner == Some(*token) {
                // Granted, and the message was missed: a sync has the fence.
                let queued = waiting.place.lock().is_queued();
                if queued {
                    self.engine
                        .places
                        .put_off(&call.key.name, self.engine.now());
                }
            } else {
                let action = waiting.place.lock().absent(*token, sent);
                self.engine.act(&waiting, action);
            }
        }
    }

    pub(crate) fn resync(&mut self, now: Time) {
        self.engine.places.all_due(now);
        for (about, tokens) in self.engine.places.all_tokens() {
            self.look_up(&about, &tokens);
        }
    }
}
