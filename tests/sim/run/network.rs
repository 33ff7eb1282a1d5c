//! Pipelines: how a process sends them, and what it does when they end.

use std::sync::Arc;
use std::time::Duration;

use super::{MS, ReplyInFlight, RequestInFlight, Run, SimEvent};
use crate::script::{Call, Form, Mode, Outcome, ScriptReply, Verb};
use crate::sim::defect::Defect;
use crate::sim::plan::NetworkFault;
use crate::sim::process::{
    FlightOwner, LastCheck, Resent, SimConnection, SimFlight, SimProcess, no_connection, no_reply,
};
use crate::store::memory::server::words_of;
use crate::store::{Anchor, Answer, CallResult, StoreFault};

/// How a pipeline was dated when it was sent.
struct Dates {
    not_after: u64,
    /// How many steps the server's clock had made at the anchor.
    dated_after: u32,
    /// When the sender stops waiting for its replies, in ns of the run.
    times_out_at: u64,
}

/// When the next request of a pipeline arrives, and how long its reply takes.
struct Way {
    arrives: u64,
    /// `None`: the replies of this request and of those behind it are lost.
    reply_after: Option<u64>,
}

impl Way {
    /// Applies the fault to this request and to those behind it. `false`: they are lost.
    fn disturb(&mut self, fault: Option<NetworkFault>) -> bool {
        match fault {
            None => {}
            Some(NetworkFault::LoseRequest | NetworkFault::Reset { late: None }) => return false,
            Some(NetworkFault::LoseReply) => self.reply_after = None,
            Some(NetworkFault::DelayRequest { by }) => self.arrives += by * MS,
            Some(NetworkFault::DelayReply { by }) => {
                self.reply_after = self.reply_after.map(|after| after + by * MS);
            }
            Some(NetworkFault::Reset { late: Some(by) }) => {
                self.arrives += by * MS;
                self.reply_after = None;
            }
        }
        true
    }
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
        let mut way = Way {
            arrives: self.now,
            reply_after: Some(process.latency()),
        };
        let mut order: Vec<usize> = (0..calls.len()).collect();
        if self.defect == Some(Defect::R4) {
            order.reverse();
        }
        for index in order {
            way.arrives += process.latency();
            if index == hit && !way.disturb(network_fault) {
                break;
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
                reply_after: way.reply_after,
                times_out_at: (dates.times_out_at + MS) / 1000,
                dated_after: dates.dated_after,
                token_age: self.token_age(call),
                by_renewal: matches!(under_way.owner, FlightOwner::Renewal(_)),
            };
            self.at(way.arrives, SimEvent::Arrive(Box::new(request)));
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
    fn answer_of_defect(&self, call: &Call) -> Option<ScriptReply> {
        match (&call.verb, self.defect) {
            (Verb::Sync { .. }, Some(Defect::Checks)) => Some(ScriptReply {
                now: Some(self.server_clock()),
                more: false,
                next_page: 0,
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
            ) => Some(ScriptReply {
                now: Some(u64::MAX),
                more: false,
                next_page: 0,
                outcome: Outcome::Released,
                grants: Vec::new(),
            }),
            _ => None,
        }
    }

    /// A reply reaches its process.
    pub(super) fn on_reply(&mut self, process: &mut SimProcess, reply: ReplyInFlight) {
        let received = process.local(self.now);
        let Some(under_way) = process.flights.get_mut(&reply.flight) else {
            return;
        };
        let call = &under_way.calls[reply.index];
        let value = reply.value.ok();
        let parsed = value.and_then(|value| ScriptReply::parse(call, &value).ok());
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
