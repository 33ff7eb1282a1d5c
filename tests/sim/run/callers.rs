//! What processes do with what they hear: callers, and the renewal thread's work.

use std::sync::Arc;

use super::{Event, MS, Run};
use crate::engine::{Lease, Next};
use crate::script::{Call, Token};
use crate::sim::defect::Defect;
use crate::sim::plan::Terms;
use crate::sim::process::{Caller, Doing, Process, Resent, Whose, no_reply};
use crate::store::CallResult;
use crate::store::clock::Time;

impl Run<'_> {
    /// Something for a process, which is carried out when it gets to run.
    pub(super) fn happen(&mut self, number: u64, event: Event) {
        let slot = self
            .processes
            .iter()
            .position(|p| p.as_ref().is_some_and(|p| p.number == number));
        // Who is dead hears nothing.
        let Some(slot) = slot else { return };
        let Some(mut process) = self.processes[slot].take() else {
            return;
        };
        let from_network = matches!(event, Event::Reply(_) | Event::Message { .. });
        let not_before = process
            .paused_until
            .max(if from_network { process.cut_until } else { 0 });
        if not_before > self.now {
            self.at(not_before, event);
        } else {
            process.show(self.now);
            self.act(&mut process, event);
            self.tend(&mut process);
        }
        self.processes[slot] = Some(process);
    }

    pub(super) fn act(&mut self, process: &mut Process, event: Event) {
        match event {
            Event::Reply(reply) => {
                if reply.epoch == self.epoch {
                    self.replied(process, *reply);
                }
            }
            Event::GiveUp { flight, .. } => self.complete(process, flight, &no_reply),
            Event::Reset { flight, .. } => self.reset(process, flight),
            Event::Message {
                subscription, text, ..
            } => {
                if process.subscribed && process.subscription == subscription {
                    self.hear(process, &text);
                }
            }
            // One for a moment that was put off since then is none.
            Event::Wake { .. } if self.now < process.wake_at => {}
            Event::Wake { .. } => process.wake_at = u64::MAX,
            Event::Subscribe { .. } => self.subscribe(process),
            Event::AskAgain { caller, .. } => self.ask(process, caller),
            Event::Deadline { caller, .. } => self.leave_at_deadline(process, caller),
            Event::WorkDone { caller, .. } => {
                let Some(Caller {
                    doing: Doing::Holding(lease),
                    ..
                }) = process.callers.get(&caller)
                else {
                    return;
                };
                let lease = Arc::clone(lease);
                // Whoever renews or downgrades it has it as well.
                let has_it = |caller: &Caller| match &caller.doing {
                    Doing::Renewing(other) | Doing::Downgrading(other, _) => {
                        Arc::ptr_eq(other, &lease)
                    }
                    _ => false,
                };
                if process.callers.values().any(has_it) {
                    return self.at(self.now + 10 * MS, event);
                }
                match process.engine.begin_release(&lease) {
                    Some(call) => {
                        self.become_(
                            process,
                            caller,
                            Doing::Releasing(lease, process.local(self.now)),
                        );
                        self.send(
                            process,
                            Whose::Caller(caller),
                            Arc::new(vec![call]),
                            Resent::default(),
                        );
                    }
                    None => self.go(process, caller),
                }
            }
            Event::Deed(_) | Event::Arrive(_) => {}
        }
    }

    pub(super) fn hear(&mut self, process: &mut Process, text: &str) {
        // The first word is the token; of permits the second.
        let token = text.split(' ').take(2).find_map(Token::parse);
        if process.newest_after < self.judge.clock_steps() {
            process.misdated.extend(token);
        }
        if self.defect == Some(Defect::R8) {
            process.engine.on_message_at_once(text)
        } else {
            process.engine.on_message(text)
        }
    }

    pub(super) fn subscribe(&mut self, process: &mut Process) {
        if process.subscribed {
            return;
        }
        if !self.is_reachable(process) {
            let again = self.now + self.setting.config.back_off.as_nanos() as u64;
            return self.at(
                again,
                Event::Subscribe {
                    process: process.number,
                },
            );
        }
        process.subscribed = true;
        process.subscription = self.number();
        process.engine.on_subscribed();
    }

    /// A caller has the answer to its call.
    pub(super) fn answered(
        &mut self,
        process: &mut Process,
        id: u64,
        calls: Arc<Vec<Call>>,
        answer: CallResult,
    ) {
        let Some(Caller {
            request,
            place,
            doing,
            since,
            until,
            patient_until,
            ..
        }) = process.callers.get_mut(&id)
        else {
            return;
        };
        let (call, engine) = (&calls[0], &process.engine);
        match (doing, place) {
            (Doing::Asking, Some(place)) => match engine.on_acquire_reply(place, call, answer) {
                Next::Wait if self.now >= *until => {
                    self.become_(process, id, Doing::Waiting);
                    self.leave_at_deadline(process, id);
                }
                Next::Wait => self.become_(process, id, Doing::Waiting),
                Next::AskAgain => self.ask(process, id),
                Next::AskLater if self.now < (*until).min(*patient_until) => {
                    let pause = self.setting.config.back_off.as_nanos() as u64 / 4;
                    self.at(
                        self.now + pause,
                        Event::AskAgain {
                            process: process.number,
                            caller: id,
                        },
                    );
                }
                Next::AskLater | Next::Fail => self.go(process, id),
            },
            (Doing::Leaving, Some(place)) => {
                let lease = engine.on_cancel_reply(place, Some((call, answer)));
                self.hold_or_go(process, id, lease);
            }
            (Doing::Trying { token, doubt }, _) => {
                match engine.on_try_reply(request, *token, call, doubt, answer) {
                    Some(lease) => self.hold_or_go(process, id, lease),
                    None if self.now
                        < *since + self.setting.config.command_timeout.as_nanos() as u64 =>
                    {
                        self.send(process, Whose::Caller(id), calls, Resent::default());
                    }
                    None => {
                        engine.stop_trying(request, *token, call, *doubt);
                        self.go(process, id);
                    }
                }
            }
            (Doing::Forcing, _) => self.go(process, id),
            (Doing::Renewing(lease), _) => {
                engine.on_renew_reply(lease, answer);
                self.go(process, id);
            }
            (Doing::Downgrading(lease, started), _) => {
                engine.on_downgrade_reply(lease, call, *started, answer);
                self.go(process, id);
            }
            (Doing::Releasing(lease, started), _) => {
                engine.on_release_reply(lease, call, *started, answer);
                self.go(process, id);
            }
            _ => {}
        }
    }

    pub(super) fn ask(&mut self, process: &mut Process, id: u64) {
        let Some(Caller {
            place: Some(place), ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        let now = process.local(self.now);
        if self.defect == Some(Defect::R6) {
            process.engine.keep_token(place);
        }
        match process.engine.begin_acquire(place, now) {
            Some(call) => self.send(
                process,
                Whose::Caller(id),
                Arc::new(vec![call]),
                Resent::default(),
            ),
            None => self.become_(process, id, Doing::Waiting),
        }
    }

    pub(super) fn leave_at_deadline(&mut self, process: &mut Process, id: u64) {
        let Some(Caller {
            place: Some(place),
            doing: Doing::Waiting,
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        match process.engine.begin_cancel(place) {
            Some(call) => {
                self.become_(process, id, Doing::Leaving);
                self.send(
                    process,
                    Whose::Caller(id),
                    Arc::new(vec![call]),
                    Resent::default(),
                );
            }
            None => {
                let lease = process.engine.on_cancel_reply(place, None);
                self.hold_or_go(process, id, lease);
            }
        }
    }

    pub(super) fn hold_or_go(&mut self, process: &mut Process, id: u64, lease: Option<Arc<Lease>>) {
        let Some(lease) = lease else {
            return self.go(process, id);
        };
        let left = lease.remaining(process.local(self.now));
        let Some(caller) = process.callers.get_mut(&id) else {
            return;
        };
        // R12
        if caller.place.take().is_some() && left < lease.request.ttl / 2 {
            self.watch.claimed_late = Some(lease.token);
        }
        self.judge.claimed(lease.token);
        (caller.since, caller.doing) = (self.now, Doing::Holding(lease));
        if caller.terms == Terms::MaxHold {
            caller.ends_at = self.now + self.setting.moment.as_nanos() as u64;
        }
        let done = self.now + caller.hold;
        self.at(
            done,
            Event::WorkDone {
                process: process.number,
                caller: id,
            },
        );
    }

    pub(super) fn become_(&self, process: &mut Process, id: u64, doing: Doing) {
        if let Some(caller) = process.callers.get_mut(&id) {
            caller.since = self.now;
            caller.doing = doing;
        }
    }

    /// It is dropped, with what it has.
    pub(super) fn go(&self, process: &mut Process, id: u64) {
        process.callers.remove(&id);
    }

    /// It is dropped while it waits.
    pub(super) fn drop_place(&self, process: &mut Process) {
        let first = process
            .callers
            .iter()
            .find(|(_, caller)| matches!(caller.doing, Doing::Waiting));
        if let Some(id) = first.map(|(id, _)| *id) {
            self.go(process, id);
        }
    }

    /// By a thread of its own.
    pub(super) fn renew(&mut self, process: &mut Process) {
        let Some(lease) = self.guards(process).next() else {
            return;
        };
        let Some(call) = process.engine.begin_renew(&lease) else {
            return;
        };
        self.see_to(process, Arc::clone(&lease), Doing::Renewing(lease), call);
    }

    /// The same.
    pub(super) fn downgrade(&mut self, process: &mut Process) {
        let has_all = |lease: &Arc<Lease>| lease.request.spec.weight == self.setting.kind.permits();
        let Some(lease) = self.guards(process).find(has_all) else {
            return;
        };
        let Some(call) = process.engine.begin_downgrade(&lease) else {
            return;
        };
        let doing = Doing::Downgrading(Arc::clone(&lease), process.local(self.now));
        self.see_to(process, lease, doing, call);
    }

    fn guards(&self, process: &Process) -> impl Iterator<Item = Arc<Lease>> {
        process
            .callers
            .values()
            .filter_map(|caller| match &caller.doing {
                Doing::Holding(lease) => Some(Arc::clone(lease)),
                _ => None,
            })
    }

    /// Sends a call about another's guard.
    fn see_to(&mut self, process: &mut Process, lease: Arc<Lease>, doing: Doing, call: Call) {
        let id = self.number();
        let caller = Caller {
            request: Arc::clone(&lease.request),
            terms: Terms::Renewed,
            place: None,
            doing,
            until: u64::MAX,
            patient_until: u64::MAX,
            hold: 0,
            since: self.now,
            lost: None,
            ends_at: u64::MAX,
        };
        process.callers.insert(id, caller);
        self.send(
            process,
            Whose::Caller(id),
            Arc::new(vec![call]),
            Resent::default(),
        );
    }

    /// Whoever was woken looks, and the renewal thread sends what is due.
    pub(super) fn tend(&mut self, process: &mut Process) {
        let waiting = |caller: &Caller| matches!(caller.doing, Doing::Waiting);
        let ids: Vec<u64> = process
            .callers
            .iter()
            .filter(|(_, c)| waiting(c))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let place = process
                .callers
                .get(&id)
                .and_then(|caller| caller.place.as_ref());
            if let Some(lease) = place.and_then(|place| process.engine.take_grant(place)) {
                self.hold_or_go(process, id, Some(lease));
            }
        }
        while !process.link_busy {
            let (tasks, calls) = process.engine.collect();
            if calls.is_empty() {
                let due = process.engine.next_due();
                if due < Time::NEVER {
                    let at = process.moment(self.now, due);
                    if at < process.wake_at {
                        process.wake_at = at;
                        self.at(
                            at,
                            Event::Wake {
                                process: process.number,
                            },
                        );
                    }
                }
                return;
            }
            self.send(
                process,
                Whose::Renewal(tasks),
                Arc::new(calls),
                Resent::default(),
            );
        }
    }
}
