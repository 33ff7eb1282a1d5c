//! Requests, replies and messages on their way.

use std::sync::Arc;
use std::time::Duration;

use super::{MS, ReplyInFlight, RequestInFlight, Run, SimEvent};
use crate::script::{Call, Form, Mode, Outcome, Reply, Token, Verb};
use crate::sim::breach::Breach;
use crate::sim::defect::Defect;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::Promise;
use crate::sim::plan::NetworkFault;
use crate::sim::process::{
    CallerState, FlightOwner, LastCheck, Resent, SimCaller, SimConnection, SimFlight, SimProcess,
    no_connection, no_reply,
};
use crate::store::memory::words_of;
use crate::store::{Anchor, Answer, CallResult, StoreFault};

/// How a pipeline was dated when it was sent.
struct Dates {
    not_after: u64,
    /// How many steps the server's clock had made at the anchor.
    dated_after: u32,
    /// When the sender stops waiting for its replies, in ns of the run.
    times_out_at: u64,
}

impl Run<'_> {
    pub(super) fn is_reachable(&self, process: &SimProcess) -> bool {
        self.now >= self.down_until.max(self.hangs_until).max(process.cut_until)
    }

    /// Puts a pipeline on its way, or ends it at once if there is no connection.
    pub(super) fn send(
        &mut self,
        process: &mut SimProcess,
        owner: FlightOwner,
        calls: Arc<Vec<Call>>,
        resent: Resent,
    ) {
        let sent = process.local(self.now);
        let flight = self.number();
        process.link_busy |= matches!(owner, FlightOwner::Renewal(_));
        let answers = calls
            .iter()
            .map(|call| self.answer_of_defect(call))
            .map(|reply| {
                reply.map(|reply| Answer {
                    reply,
                    sent,
                    resent: false,
                })
            })
            .collect();
        let dates = self.connect(process, &owner);
        let not_after = dates.as_ref().map_or(0, |dates| dates.not_after);
        process.flights.insert(
            flight,
            SimFlight {
                owner,
                calls,
                answers,
                sent,
                resent,
                not_after: resent.not_after.max(not_after),
            },
        );
        let Some(dates) = dates else {
            let fault = || {
                if resent.times > 0 {
                    StoreFault::InDoubt(Box::new(no_connection()))
                } else {
                    no_connection()
                }
            };
            return self.complete(process, flight, &fault);
        };
        self.put_on_the_way(process, flight, &dates);
        self.complete_if_answered(process, flight);
    }

    /// Makes sure that there is a connection to the server of this epoch, and dates what is sent
    /// on it now. `None`: the server cannot be reached.
    fn connect(&self, process: &mut SimProcess, owner: &FlightOwner) -> Option<Dates> {
        let sent = process.local(self.now);
        let is_reachable = self.is_reachable(process);
        let connection = process.connection_of(owner);
        if connection
            .as_ref()
            .is_none_or(|connection| connection.epoch != self.epoch)
        {
            // The handshake takes no time here. It reports the server's time.
            *connection = is_reachable.then_some(SimConnection {
                epoch: self.epoch,
                anchor: Anchor {
                    server: self.server_clock(),
                    sent,
                    received: sent,
                },
                clock_steps: self.checker.clock_steps(),
            });
        }
        let connection = connection.as_ref()?;
        let timeout = self.setting.config.command_timeout;
        let slack = if self.defect == Some(Defect::R5) {
            timeout.as_micros() as u64 * 2
        } else {
            0
        };
        Some(Dates {
            not_after: connection.anchor.server_time_at_least(sent + timeout) + slack,
            dated_after: connection.clock_steps,
            times_out_at: process.moment(self.now, sent + timeout),
        })
    }

    /// Schedules the arrivals of a pipeline's requests, and what ends it if replies are missing.
    /// The process's next network fault hits one of its requests.
    fn put_on_the_way(&mut self, process: &mut SimProcess, flight: u64, dates: &Dates) {
        let network_fault = process.network_faults.pop_front();
        self.note_network_fault(process, network_fault, dates);
        let calls = Arc::clone(&process.flights[&flight].calls);
        let hit = process.rng.below(calls.len() as u64) as usize;
        let mut arrives = self.now;
        let mut reply_after = Some(process.latency());
        let mut order: Vec<usize> = (0..calls.len()).collect();
        if self.defect == Some(Defect::R4) {
            order.reverse();
        }
        for index in order {
            arrives += process.latency();
            match network_fault.filter(|_| index == hit) {
                None => {}
                Some(NetworkFault::LoseRequest | NetworkFault::Reset { late: None }) => break,
                Some(NetworkFault::LoseReply) => reply_after = None,
                Some(NetworkFault::DelayRequest { by }) => arrives += by * MS,
                Some(NetworkFault::DelayReply { by }) => {
                    reply_after = reply_after.map(|after| after + by * MS)
                }
                Some(NetworkFault::Reset { late: Some(by) }) => {
                    arrives += by * MS;
                    reply_after = None;
                }
            }
            let under_way = &process.flights[&flight];
            if under_way.answers[index].is_some() {
                continue;
            }
            let call = &calls[index];
            let request = RequestInFlight {
                process: process.number,
                manager: process.caller_id.manager.clone(),
                flight,
                calls: Arc::clone(&calls),
                index,
                words: words_of(&call.command(
                    &process.caller_id,
                    Form::default(),
                    dates.not_after,
                )),
                epoch: self.epoch,
                sent_at: self.now,
                reply_after,
                times_out_at: (dates.times_out_at + MS) / 1000,
                dated_after: dates.dated_after,
                token_age: self.token_age(call),
                by_renewal: matches!(under_way.owner, FlightOwner::Renewal(_)),
            };
            self.at(arrives, SimEvent::Arrive(Box::new(request)));
        }
        let process = process.number;
        if matches!(network_fault, Some(NetworkFault::Reset { .. })) {
            self.at(self.now + 200_000, SimEvent::Reset { process, flight });
        } else {
            self.at(dates.times_out_at, SimEvent::TimeOut { process, flight });
        }
    }

    /// Notes until when a network fault excuses the process from the bounds of time.
    fn note_network_fault(
        &self,
        process: &mut SimProcess,
        network_fault: Option<NetworkFault>,
        dates: &Dates,
    ) {
        if network_fault.is_some() {
            process.fault_known_by = process.fault_known_by.max(dates.times_out_at);
        }
        if let Some(
            NetworkFault::DelayRequest { by }
            | NetworkFault::DelayReply { by }
            | NetworkFault::Reset { late: Some(by) },
        ) = network_fault
        {
            process.troubled_until = process.troubled_until.max(self.now + by * MS);
        }
    }

    /// How long ago the token of an acquire was sent first.
    fn token_age(&mut self, call: &Call) -> u64 {
        match call.verb {
            Verb::Acquire { token, .. } => {
                self.now - *self.first_sent.entry(token).or_insert(self.now)
            }
            _ => 0,
        }
    }

    /// The answer that a defect gives instead of the server. Without R13 the client never releases
    /// an unwanted grant. Without checks every check finds that all is well.
    fn answer_of_defect(&self, call: &Call) -> Option<Reply> {
        match (&call.verb, self.defect) {
            (Verb::Sync { .. }, Some(Defect::Checks)) => Some(Reply {
                now: Some(self.server_clock()),
                more: false,
                outcome: Outcome::Synced {
                    owner: None,
                    owner_waited_here: false,
                    left: Duration::from_secs(1),
                    since: 0,
                    newest_known: true,
                    served: 0,
                },
                grants: Vec::new(),
            }),
            (
                Verb::Release {
                    mode: Mode::Unused, ..
                },
                Some(Defect::R13),
            ) => Some(Reply {
                now: Some(u64::MAX),
                more: false,
                outcome: Outcome::Released,
                grants: Vec::new(),
            }),
            _ => None,
        }
    }

    /// A request reaches the server.
    pub(super) fn arrive(&mut self, request: Box<RequestInFlight>) -> Result<(), Breach> {
        let cut_until = self
            .process(request.process)
            .map_or(0, |process| process.cut_until);
        let held_back_until = self.hangs_until.max(cut_until);
        if request.epoch != self.epoch || self.now < self.down_until {
            return Ok(());
        }
        if held_back_until > self.now {
            self.at(held_back_until, SimEvent::Arrive(request));
            return Ok(());
        }
        let clock = self.server_clock();
        let value = self.server.run(clock, &request.words);
        self.watch.on_sign_of_life(&request.manager);
        let call = &request.calls[request.index];
        let reply = match &value {
            Ok(value) => Reply::parse(call, value).map_err(|malformed| malformed.to_string()),
            Err(error) => Err(error.clone()),
        };
        let reply =
            reply.map_err(|error| Breach::new(Promise::BadInput, format!("{call:?}: {error}")))?;
        self.check_request(&request, &reply)?;
        self.send_messages();
        let is_heard = self
            .process(request.process)
            .is_none_or(|process| process.inbound_lost_until <= self.now);
        if let Some(after) = request.reply_after.filter(|_| is_heard) {
            let reply = ReplyInFlight {
                process: request.process,
                flight: request.flight,
                index: request.index,
                epoch: request.epoch,
                ran_at: self.now,
                clock_steps: self.checker.clock_steps(),
                value,
            };
            self.at(self.now + after, SimEvent::Reply(Box::new(reply)));
        }
        Ok(())
    }

    /// What must hold of a request that the server has run.
    fn check_request(&mut self, request: &RequestInFlight, reply: &Reply) -> Result<(), Breach> {
        let call = &request.calls[request.index];
        self.record_in_transcript(request, &reply.outcome);
        let executed = ExecutedCall {
            call,
            manager: &request.manager,
            outcome: &reply.outcome,
            more: reply.more,
            times_out_at: request.times_out_at,
            dated_after: request.dated_after,
        };
        let at = self.ran_at();
        self.checker
            .on_executed(at, &self.server.state().keyspace, &executed)?;
        if let (Verb::Acquire { token, .. }, Outcome::Waiting { .. } | Outcome::Granted(_)) =
            (&call.verb, &reply.outcome)
        {
            self.check_order(request, *token)?;
        }
        // R6 (token lifetime): the client releases a token only for so long. A copy of a later
        // request could take the lock for good. A request that is sent again on another connection
        // has two command timeouts.
        let config = &self.setting.config;
        if request.token_age > (self.setting.ttl + config.command_timeout * 2).as_nanos() as u64 {
            return Err(Breach::new(
                Promise::OneGrant,
                format!(
                    "{call:?} was sent {} ms after its first",
                    request.token_age / MS
                ),
            ));
        }
        Ok(())
    }

    fn record_in_transcript(&mut self, request: &RequestInFlight, outcome: &Outcome) {
        let Some(transcript) = &mut self.transcript else {
            return;
        };
        let ms = self.now as f64 / MS as f64;
        let mut line = format!(
            "{ms:>10.3} ms  {} of {}: {:?}",
            request.index, request.manager, request.calls[request.index].verb
        );
        if let Some(at) = line.find(", params: ") {
            line.replace_range(at.., " }");
        }
        transcript.push(format!("{line} -> {outcome:?}"));
    }

    /// Puts on their way the messages that the last request published.
    fn send_messages(&mut self) {
        for message in self.server.published() {
            let to = self
                .processes
                .iter_mut()
                .flatten()
                .find(|p| p.caller_id.channel().as_bytes() == message.channel);
            let Some(process) =
                to.filter(|process| process.subscribed && process.inbound_lost_until <= self.now)
            else {
                continue;
            };
            let Some(late) = process.late_messages.pop_front().unwrap_or(Some(0)) else {
                continue;
            };
            let at = self.now + late + process.latency();
            let event = SimEvent::Message {
                process: process.number,
                subscription: process.subscription,
                text: String::from_utf8_lossy(&message.text).into_owned(),
            };
            self.at(at, event);
        }
    }

    /// P3, R4 (lost places): a process takes its lost places again in the order in which its
    /// callers came.
    fn check_order(&mut self, request: &RequestInFlight, token: Token) -> Result<(), Breach> {
        let process = self
            .processes
            .iter_mut()
            .flatten()
            .find(|process| process.number == request.process);
        let Some(process) = process else {
            return Ok(());
        };
        let Some((id, caller)) = process
            .callers
            .iter_mut()
            .find(|(_, caller)| caller.waits_by(token))
        else {
            return Ok(());
        };
        let id = *id;
        let lost_at = caller.lost_at.take();
        // The last check says nothing about a waiter that learned of its place after the check was
        // sent, nor about a loss that came after the check.
        let LastCheck { sent, ran_at } = process.last_check;
        let is_known_lost = |caller: &SimCaller| {
            caller.lost_at == lost_at
                && matches!(caller.state, CallerState::Waiting)
                && process.local(caller.since) < sent
                && Some(ran_at) > lost_at
        };
        let earlier = process
            .callers
            .range(..id)
            .find(|(_, caller)| is_known_lost(caller));
        // A copy from before the loss does not take a place again.
        let takes_again = request.by_renewal && lost_at.is_some_and(|lost| lost < request.sent_at);
        match earlier.filter(|_| takes_again) {
            Some((_, earlier)) => {
                let earlier = earlier.waiter.as_ref().map(|waiter| waiter.token());
                Err(Breach::new(
                    Promise::Order,
                    format!("{token:?} took a place again before {earlier:?}, which came first"),
                ))
            }
            None => Ok(()),
        }
    }

    fn process(&self, number: u64) -> Option<&SimProcess> {
        self.processes
            .iter()
            .flatten()
            .find(|process| process.number == number)
    }

    /// A reply reaches its process.
    pub(super) fn on_reply(&mut self, process: &mut SimProcess, reply: ReplyInFlight) {
        let received = process.local(self.now);
        let Some(under_way) = process.flights.get_mut(&reply.flight) else {
            return;
        };
        let call = &under_way.calls[reply.index];
        let value = reply.value.ok();
        let parsed = value.and_then(|value| Reply::parse(call, &value).ok());
        let mut parsed = parsed.expect("the server's answer was parsed when it was sent");
        let is_renewal = matches!(under_way.owner, FlightOwner::Renewal(_));
        let sent = under_way.sent;
        if let Some(server) = parsed.now {
            let anchor = Anchor {
                server,
                sent,
                received,
            };
            let connection = if is_renewal {
                &mut process.link
            } else {
                &mut process.pool
            };
            if let Some(connection) = connection {
                connection.anchor = anchor;
                connection.clock_steps = reply.clock_steps;
            }
            *process.newest.lock() = Some(anchor);
            process.newest_after = reply.clock_steps;
        }
        if matches!(call.verb, Verb::Sync { .. }) {
            process.last_check = LastCheck {
                sent,
                ran_at: reply.ran_at,
            };
        }
        let is_release = matches!(call.verb, Verb::Release { .. });
        if is_renewal && is_release && self.defect == Some(Defect::R7) {
            parsed.now = Some(u64::MAX);
        }
        under_way.answers[reply.index] = Some(Answer {
            reply: parsed,
            sent,
            resent: under_way.resent.times > 0,
        });
        self.complete_if_answered(process, reply.flight);
    }

    /// The connection has ended. A caller's call is sent again on another, twice at most.
    pub(super) fn on_reset(&mut self, process: &mut SimProcess, flight: u64) {
        let Some(under_way) = process.flights.get(&flight) else {
            return;
        };
        // Not after the process was paused for long: a call, with what is sent again for it, has
        // two command timeouts.
        if let FlightOwner::Caller(caller) = under_way.owner
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
            return self.send(process, FlightOwner::Caller(caller), calls, resent);
        }
        self.complete(process, flight, &no_reply);
    }

    fn complete_if_answered(&mut self, process: &mut SimProcess, flight: u64) {
        if process
            .flights
            .get(&flight)
            .is_some_and(|flight| flight.answers.iter().all(Option::is_some))
        {
            self.complete(process, flight, &no_reply);
        }
    }

    /// The sender of a pipeline goes on. Calls without an answer end with this fault.
    pub(super) fn complete(
        &mut self,
        process: &mut SimProcess,
        flight: u64,
        fault: &dyn Fn() -> StoreFault,
    ) {
        let Some(SimFlight {
            owner,
            calls,
            answers,
            not_after,
            ..
        }) = process.flights.remove(&flight)
        else {
            return;
        };
        if answers.iter().any(Option::is_none) {
            *process.connection_of(&owner) = None;
        }
        let mut results: Vec<_> = answers
            .into_iter()
            .map(|answer| CallResult {
                answer: answer.ok_or_else(fault),
                not_after,
            })
            .collect();
        match owner {
            FlightOwner::Renewal(tasks) => {
                process.link_busy = false;
                process.engine.on_replies(tasks, &calls, results);
            }
            FlightOwner::Caller(caller) => {
                if let Some(result) = results.pop() {
                    self.on_call_result(process, caller, calls, result);
                }
            }
        }
    }
}
