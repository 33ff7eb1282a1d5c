//! Requests, replies and messages on their way.

use std::sync::Arc;
use std::time::Duration;

use super::{Event, MS, Replied, Run, Sent};
use crate::script::{Call, Form, Mode, Outcome, Reply, Token, Verb};
use crate::sim::defect::Defect;
use crate::sim::judge::{Broken, Ran};
use crate::sim::model::Promise;
use crate::sim::plan::Mishap;
use crate::sim::process::{
    Caller, Connection, Doing, Flight, Process, Resent, Whose, no_connection, no_reply,
};
use crate::store::clock::Time;
use crate::store::memory::server::words_of;
use crate::store::{Anchor, Answer, CallResult, StoreFault};

impl Run<'_> {
    pub(super) fn is_reachable(&self, process: &Process) -> bool {
        self.now >= self.down_until.max(self.hangs_until).max(process.cut_until)
    }

    /// Puts a pipeline on its way, or ends it at once if there is no connection.
    pub(super) fn send(
        &mut self,
        process: &mut Process,
        whose: Whose,
        calls: Arc<Vec<Call>>,
        resent: Resent,
    ) {
        let sent = process.local(self.now);
        let flight = self.number();
        let renewal = matches!(whose, Whose::Renewal(_));
        process.link_busy |= renewal;
        let answers = calls.iter().map(|call| self.unsent(call, sent)).collect();
        process.flights.insert(
            flight,
            Flight {
                whose,
                calls: Arc::clone(&calls),
                answers,
                sent,
                resent,
                not_after: resent.not_after,
            },
        );
        let is_reachable = self.is_reachable(process);
        let (epoch, server) = (self.epoch, self.server_clock());
        let clock_steps = self.judge.clock_steps();
        let connection = if renewal {
            &mut process.link
        } else {
            &mut process.pool
        };
        if connection
            .as_ref()
            .is_none_or(|connection| connection.epoch != epoch)
        {
            // The handshake takes no time here, and tells the server's.
            let anchor = Anchor {
                server,
                sent,
                received: sent,
            };
            *connection = is_reachable.then_some(Connection {
                epoch,
                anchor,
                clock_steps,
            });
        }
        let Some(connection) = connection else {
            let fault = || {
                if resent.times > 0 {
                    StoreFault::InDoubt(Box::new(no_connection()))
                } else {
                    no_connection()
                }
            };
            return self.complete(process, flight, &fault);
        };
        let timeout = self.setting.config.command_timeout;
        let slack = if self.defect == Some(Defect::R5) {
            timeout.as_micros() as u64 * 2
        } else {
            0
        };
        let not_after = connection.anchor.server_time_at_least(sent + timeout) + slack;
        let dated_after = connection.clock_steps;
        if let Some(flight) = process.flights.get_mut(&flight) {
            flight.not_after = flight.not_after.max(not_after);
        }
        let give_up = process.moment(self.now, sent + timeout);
        let mishap = process.mishaps.pop_front();
        if mishap.is_some() {
            process.mishap_until = process.mishap_until.max(give_up);
        }
        if let Some(
            Mishap::Delay { by } | Mishap::DelayReply { by } | Mishap::Reset { late: Some(by) },
        ) = mishap
        {
            process.troubled_until = process.troubled_until.max(self.now + by * MS);
        }
        let struck = process.chance.below(calls.len() as u64) as usize;
        let mut arrives = self.now;
        let mut reply_after = Some(process.way());
        let mut order: Vec<usize> = (0..calls.len()).collect();
        if self.defect == Some(Defect::R4) {
            order.reverse();
        }
        for index in order {
            let call = &calls[index];
            arrives += process.way();
            let mut lost = false;
            match mishap.filter(|_| index == struck) {
                None => {}
                Some(Mishap::Lose | Mishap::Reset { late: None }) => lost = true,
                Some(Mishap::LoseReply) => reply_after = None,
                Some(Mishap::Delay { by }) => arrives += by * MS,
                Some(Mishap::DelayReply { by }) => {
                    reply_after = reply_after.map(|after| after + by * MS)
                }
                Some(Mishap::Reset { late: Some(by) }) => {
                    (arrives, reply_after) = (arrives + by * MS, None)
                }
            }
            if lost {
                break;
            }
            if process.flights[&flight].answers[index].is_some() {
                continue;
            }
            let token_age = match call.verb {
                Verb::Acquire { token, .. } => {
                    self.now - *self.first_sent.entry(token).or_insert(self.now)
                }
                _ => 0,
            };
            let words = words_of(&call.command(&process.caller_id, Form::default(), not_after));
            let sent = Sent {
                process: process.number,
                manager: process.caller_id.manager.clone(),
                flight,
                calls: Arc::clone(&calls),
                index,
                words,
                epoch,
                sent_at: self.now,
                reply_after,
                given_up_at: (give_up + MS) / 1000,
                dated_after,
                token_age,
                by_renewal: renewal,
            };
            self.at(arrives, Event::Arrive(Box::new(sent)));
        }
        match mishap {
            Some(Mishap::Reset { .. }) => {
                self.at(
                    self.now + 200_000,
                    Event::Reset {
                        process: process.number,
                        flight,
                    },
                );
            }
            _ => self.at(
                give_up,
                Event::GiveUp {
                    process: process.number,
                    flight,
                },
            ),
        }
        self.complete_if_answered(process, flight);
    }

    /// R13 left out: what is not wanted is not given back. Or checks are left out, as if all were well.
    pub(super) fn unsent(&self, call: &Call, sent: Time) -> Option<Answer> {
        if let (Verb::Sync { .. }, Some(Defect::Checks)) = (&call.verb, self.defect) {
            let (left, served) = (Duration::from_secs(1), 0);
            let outcome = Outcome::Synced {
                owner: None,
                owner_waited_here: false,
                left,
                since: 0,
                newest_known: true,
                served,
            };
            let reply = Reply {
                now: Some(self.server_clock()),
                more: false,
                outcome,
                grants: Vec::new(),
            };
            return Some(Answer {
                reply,
                sent,
                resent: false,
            });
        }
        let given_back = matches!(
            call.verb,
            Verb::Release {
                mode: Mode::Unused,
                ..
            }
        );
        let reply = || Reply {
            now: Some(u64::MAX),
            more: false,
            outcome: Outcome::Released,
            grants: Vec::new(),
        };
        (given_back && self.defect == Some(Defect::R13)).then(|| Answer {
            reply: reply(),
            sent,
            resent: false,
        })
    }

    pub(super) fn arrive(&mut self, sent: Box<Sent>) -> Result<(), Broken> {
        let cut = self
            .process(sent.process)
            .map_or(0, |process| process.cut_until);
        let held_back = self.hangs_until.max(cut);
        if sent.epoch != self.epoch || self.now < self.down_until {
            return Ok(());
        }
        if held_back > self.now {
            self.at(held_back, Event::Arrive(sent));
            return Ok(());
        }
        let clock = self.server_clock();
        let value = self.server.run(clock, &sent.words);
        self.watch.hear_of(&sent.manager);
        let call = &sent.calls[sent.index];
        let reply = match &value {
            Ok(value) => Reply::parse(call, value).map_err(|malformed| malformed.to_string()),
            Err(error) => Err(error.clone()),
        };
        let reply = reply.map_err(|error| (Promise::BadInput, format!("{call:?}: {error}")))?;
        if let Some(told) = &mut self.told {
            let ms = self.now as f64 / MS as f64;
            let mut line = format!(
                "{ms:>10.3} ms  {} of {}: {:?}",
                sent.index, sent.manager, call.verb
            );
            if let Some(at) = line.find(", params: ") {
                line.replace_range(at.., " }");
            }
            told.push(format!("{line} -> {:?}", reply.outcome));
        }
        let ran = Ran {
            call,
            manager: &sent.manager,
            outcome: &reply.outcome,
            more: reply.more,
            given_up_at: sent.given_up_at,
            dated_after: sent.dated_after,
        };
        self.judge
            .ran(self.now / 1000, clock, &self.server.state().keyspace, &ran)?;
        if let (Verb::Acquire { token, .. }, Outcome::Waiting { .. } | Outcome::Granted(_)) =
            (&call.verb, &reply.outcome)
        {
            self.look_at_order(&sent, *token)?;
        }
        // R6: a token that nobody gives back any more could be taken by a copy that comes later. What is sent again
        // on another connection has two command timeouts for that.
        let config = &self.setting.config;
        if sent.token_age > (self.setting.ttl + config.command_timeout * 2).as_nanos() as u64 {
            return Err((
                Promise::OneGrant,
                format!(
                    "{call:?} was sent {} ms after its first",
                    sent.token_age / MS
                ),
            ));
        }
        for message in self.server.published() {
            let to = self
                .processes
                .iter_mut()
                .flatten()
                .find(|p| p.caller_id.channel().as_bytes() == message.channel);
            let Some(process) =
                to.filter(|process| process.subscribed && process.deaf_until <= self.now)
            else {
                continue;
            };
            let Some(late) = process.late_messages.pop_front().unwrap_or(Some(0)) else {
                continue;
            };
            let text = String::from_utf8_lossy(&message.text).into_owned();
            let (at, subscription) = (self.now + late + process.way(), process.subscription);
            let process = process.number;
            self.at(
                at,
                Event::Message {
                    process,
                    subscription,
                    text,
                },
            );
        }
        let is_heard = self
            .process(sent.process)
            .is_none_or(|process| process.deaf_until <= self.now);
        if let Some(after) = sent.reply_after.filter(|_| is_heard) {
            let Sent {
                process,
                flight,
                index,
                epoch,
                ..
            } = *sent;
            let (ran_at, clock_steps) = (self.now, self.judge.clock_steps());
            let reply = Replied {
                process,
                flight,
                index,
                epoch,
                ran_at,
                clock_steps,
                value,
            };
            self.at(self.now + after, Event::Reply(Box::new(reply)));
        }
        Ok(())
    }

    /// P3, R4: the places of a process that were lost are taken again in the order in which they came.
    fn look_at_order(&mut self, sent: &Sent, token: Token) -> Result<(), Broken> {
        let process = self
            .processes
            .iter_mut()
            .flatten()
            .find(|process| process.number == sent.process);
        let Some(process) = process else {
            return Ok(());
        };
        let has_token = |caller: &Caller| {
            caller
                .place
                .as_ref()
                .is_some_and(|place| place.token() == token)
        };
        let Some((at, caller)) = process
            .callers
            .iter_mut()
            .find(|(_, caller)| has_token(caller))
        else {
            return Ok(());
        };
        let (at, was_lost) = (*at, caller.lost.take());
        // A check that was sent before somebody heard that he stands, or that came before the loss, tells nothing of him.
        let (checked, ran_at) = process.checked;
        let is_told =
            |caller: &Caller| process.local(caller.since) < checked && Some(ran_at) > was_lost;
        let is_lost = |caller: &Caller| {
            caller.lost == was_lost && matches!(caller.doing, Doing::Waiting) && is_told(caller)
        };
        let earlier = process
            .callers
            .range(..at)
            .find(|(_, caller)| is_lost(caller));
        // A copy from before the loss takes nothing again.
        let takes_again = sent.by_renewal && was_lost.is_some_and(|lost| lost < sent.sent_at);
        match earlier.filter(|_| takes_again) {
            Some((_, earlier)) => {
                let token_of = earlier.place.as_ref().map(|place| place.token());
                Err((
                    Promise::Order,
                    format!("{token:?} took a place again before {token_of:?}, which came first"),
                ))
            }
            None => Ok(()),
        }
    }

    pub(super) fn process(&self, number: u64) -> Option<&Process> {
        self.processes
            .iter()
            .flatten()
            .find(|process| process.number == number)
    }

    // What the processes do.

    pub(super) fn replied(&mut self, process: &mut Process, reply: Replied) {
        let Replied {
            flight,
            index,
            ran_at,
            clock_steps,
            value,
            ..
        } = reply;
        let local = process.local(self.now);
        let Some(under_way) = process.flights.get_mut(&flight) else {
            return;
        };
        let call = &under_way.calls[index];
        let parsed = value.ok().and_then(|value| Reply::parse(call, &value).ok());
        let mut reply = parsed.expect("it was read when it was sent");
        let renewal = matches!(under_way.whose, Whose::Renewal(_));
        if let Some(server) = reply.now {
            let anchor = Anchor {
                server,
                sent: under_way.sent,
                received: local,
            };
            let connection = if renewal {
                &mut process.link
            } else {
                &mut process.pool
            };
            if let Some(connection) = connection {
                (connection.anchor, connection.clock_steps) = (anchor, clock_steps);
            }
            *process.newest.lock() = Some(anchor);
            process.newest_after = clock_steps;
        }
        if matches!(call.verb, Verb::Sync { .. }) {
            process.checked = (under_way.sent, ran_at);
        }
        if renewal && self.defect == Some(Defect::R7) && matches!(call.verb, Verb::Release { .. }) {
            reply.now = Some(u64::MAX);
        }
        under_way.answers[index] = Some(Answer {
            reply,
            sent: under_way.sent,
            resent: under_way.resent.times > 0,
        });
        self.complete_if_answered(process, flight);
    }

    /// The connection has ended. A caller's call is sent again on another, twice at most.
    pub(super) fn reset(&mut self, process: &mut Process, flight: u64) {
        let Some(under_way) = process.flights.get(&flight) else {
            return;
        };
        // Not after it was asleep: a call and what is sent again for it has two command timeouts.
        if let Whose::Caller(caller) = under_way.whose
            && under_way.resent.times < 2
            && process.local(self.now) < under_way.sent + self.setting.config.command_timeout * 2
        {
            let calls = Arc::clone(&under_way.calls);
            let resent = Resent {
                times: under_way.resent.times + 1,
                not_after: under_way.not_after,
            };
            process.flights.remove(&flight);
            process.pool = None;
            return self.send(process, Whose::Caller(caller), calls, resent);
        }
        self.complete(process, flight, &no_reply);
    }

    pub(super) fn complete_if_answered(&mut self, process: &mut Process, flight: u64) {
        if process
            .flights
            .get(&flight)
            .is_some_and(|flight| flight.answers.iter().all(Option::is_some))
        {
            self.complete(process, flight, &no_reply);
        }
    }

    /// Whoever sent it goes on; calls without an answer have this fault.
    pub(super) fn complete(
        &mut self,
        process: &mut Process,
        flight: u64,
        fault: &dyn Fn() -> StoreFault,
    ) {
        let Some(Flight {
            whose,
            calls,
            answers,
            not_after,
            ..
        }) = process.flights.remove(&flight)
        else {
            return;
        };
        let unanswered = answers.iter().any(Option::is_none);
        let mut answers: Vec<_> = answers
            .into_iter()
            .map(|answer| CallResult {
                answer: answer.ok_or_else(fault),
                not_after,
            })
            .collect();
        match whose {
            Whose::Renewal(tasks) => {
                if unanswered {
                    process.link = None;
                }
                process.link_busy = false;
                process.engine.on_replies(tasks, &calls, answers);
            }
            Whose::Caller(caller) => {
                if unanswered {
                    process.pool = None;
                }
                if let Some(answer) = answers.pop() {
                    self.answered(process, caller, calls, answer);
                }
            }
        }
    }
}
