//! The pipelines of the renewal thread: how they are sent, and what happens when they end. And what
//! they have in common with the requests of a lane.

use std::sync::Arc;
use std::time::Duration;

use super::{MS, RequestInFlight, Run, SimEvent};
use crate::engine::Tasks;
use crate::script::{Call, Form, Mode, Outcome, ScriptReply, Verb};
use crate::sim::defect::Defect;
use crate::sim::lane::{ReplyInFlight, SimConnection};
use crate::sim::plan::NetworkFault;
use crate::sim::process::{LastCheck, SimFlight, SimProcess, no_connection, no_reply};
use crate::store::clock::Time;
use crate::store::memory::server::words_of;
use crate::store::{Anchor, Answer, CallResult, StoreFault};

/// How a pipeline was dated when it was sent.
pub(super) struct Dates {
    pub(super) not_after: u64,
    /// How many steps the server's clock had made at the anchor.
    pub(super) dated_after: u32,
    /// When the sender stops waiting for its replies, in ns of the run.
    pub(super) times_out_at: u64,
}

/// When the next request of a pipeline arrives, and how long its reply takes.
pub(super) struct Way {
    pub(super) arrives: u64,
    /// `None`: the replies of this request and of those behind it are lost.
    pub(super) reply_after: Option<u64>,
}

impl Way {
    /// Applies the fault to this request and to those behind it. `false`: they are lost.
    pub(super) fn disturb(&mut self, fault: Option<NetworkFault>) -> bool {
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
    pub(super) fn put_arrival(&mut self, at: u64, request: RequestInFlight) {
        let key = (at, request.order);
        self.events.insert(key, SimEvent::Arrive(Box::new(request)));
    }

    pub(super) fn is_reachable(&self, process: &SimProcess) -> bool {
        self.now >= self.down_until.max(self.hangs_until).max(process.cut_until)
    }

    /// Puts a pipeline of the renewal thread on its way, or ends it at once if there is no
    /// connection.
    pub(super) fn send_pipeline(
        &mut self,
        process: &mut SimProcess,
        tasks: Tasks,
        calls: Arc<Vec<Call>>,
    ) {
        let sent = process.local(self.now);
        let flight = self.number();
        process.link_busy = true;
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
        self.connect_link(process);
        let dates = process
            .link
            .as_ref()
            .map(|link| self.dates(process, link, Time::NEVER));
        process.flights.insert(
            flight,
            SimFlight {
                tasks,
                calls,
                answers,
                sent,
                not_after: dates.as_ref().map_or(0, |dates| dates.not_after),
            },
        );
        let Some(dates) = dates else {
            return self.complete(process, flight, &no_connection);
        };
        self.put_on_the_way(process, flight, &dates);
        self.complete_if_answered(process, flight);
    }

    /// Makes sure that the link has a connection to the server of this epoch, unless the server
    /// cannot be reached.
    fn connect_link(&self, process: &mut SimProcess) {
        let is_current = |link: &SimConnection| link.epoch == self.epoch;
        if !process.link.as_ref().is_some_and(is_current) {
            process.link = self.open_connection(process);
        }
    }

    /// Opens a connection, unless the server cannot be reached. The handshake takes no time here.
    /// It reports the server's time.
    pub(super) fn open_connection(&self, process: &SimProcess) -> Option<SimConnection> {
        let now = process.local(self.now);
        self.is_reachable(process).then(|| SimConnection {
            epoch: self.epoch,
            anchor: Anchor {
                server: self.server_clock(),
                sent: now,
                received: now,
            },
            clock_steps: self.checker.clock_steps(),
        })
    }

    /// Dates what is sent now on a connection, for a sender that waits until `due` at most.
    pub(super) fn dates(
        &self,
        process: &SimProcess,
        connection: &SimConnection,
        due: Time,
    ) -> Dates {
        let timeout = self.setting.config.command_timeout;
        let slack = if self.defect == Some(Defect::R5) {
            timeout.as_micros() as u64 * 2
        } else {
            0
        };
        let timed_out = due.min(process.local(self.now) + timeout);
        Dates {
            not_after: connection.anchor.server_time_at_least(timed_out) + slack,
            dated_after: connection.clock_steps,
            times_out_at: process.moment(self.now, timed_out),
        }
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
            let mut request = self.request_in_flight(process, &calls, index, dates);
            request.flight = flight;
            request.reply_after = way.reply_after;
            self.put_arrival(way.arrives, request);
        }
        let process = process.number;
        if matches!(network_fault, Some(NetworkFault::Reset { .. })) {
            self.at(self.now + 200_000, SimEvent::Reset { process, flight });
        } else {
            self.at(dates.times_out_at, SimEvent::TimeOut { process, flight });
        }
    }

    /// One of these calls, as a request to a server of the epoch of now. The caller says where its
    /// reply goes.
    pub(super) fn request_in_flight(
        &mut self,
        process: &SimProcess,
        calls: &Arc<Vec<Call>>,
        index: usize,
        dates: &Dates,
    ) -> RequestInFlight {
        let call = &calls[index];
        let command = call.command(&process.caller_id, Form::default(), dates.not_after);
        RequestInFlight {
            process: process.number,
            manager: process.caller_id.manager.clone(),
            flight: 0,
            lane: None,
            order: self.number(),
            calls: Arc::clone(calls),
            index,
            words: words_of(&command),
            by_source: true,
            epoch: self.epoch,
            sent_at: self.now,
            reply_after: None,
            not_after: dates.not_after,
            times_out_at: (dates.times_out_at + MS) / 1000,
            dated_after: dates.dated_after,
            token_age: self.token_age(call),
        }
    }

    /// Notes until when a network fault excuses the process from the bounds of time.
    pub(super) fn note_network_fault(
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
    pub(super) fn answer_of_defect(&self, call: &Call) -> Option<ScriptReply> {
        match (&call.verb, self.defect) {
            (Verb::Sync { .. }, Some(Defect::Checks)) => Some(ScriptReply {
                now: Some(self.server_clock()),
                more: false,
                dead_waiters: 0,
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
            ) => Some(ScriptReply::of(Outcome::Released, Some(u64::MAX))),
            _ => None,
        }
    }

    /// A reply reaches its process.
    pub(super) fn on_reply(&mut self, process: &mut SimProcess, reply: ReplyInFlight) {
        if reply.lane.is_some() {
            return self.on_lane_reply(process, reply);
        }
        let Some(under_way) = process.flights.get(&reply.flight) else {
            return;
        };
        let calls = Arc::clone(&under_way.calls);
        let call = &calls[reply.index];
        let sent = under_way.sent;
        let (mut parsed, anchor) = self.read_reply(process, call, sent, &reply);
        if matches!(call.verb, Verb::Release { .. }) && self.defect == Some(Defect::R7) {
            parsed.now = Some(u64::MAX);
        }
        if let (Some(link), Some(anchor)) = (&mut process.link, anchor) {
            link.anchor = anchor;
            link.clock_steps = process.newest_after;
        }
        if let Some(under_way) = process.flights.get_mut(&reply.flight) {
            under_way.answers[reply.index] = Some(Answer {
                reply: parsed,
                sent,
                resent: false,
            });
        }
        self.complete_if_answered(process, reply.flight);
    }

    /// Parses a reply, and notes what it says about the time.
    pub(super) fn read_reply(
        &self,
        process: &mut SimProcess,
        call: &Call,
        sent: Time,
        reply: &ReplyInFlight,
    ) -> (ScriptReply, Option<Anchor>) {
        let parsed = reply.parse(call);
        let anchor = parsed.now.map(|server| Anchor {
            server,
            sent,
            received: process.local(self.now),
        });
        if anchor.is_some() {
            *process.newest.lock() = anchor;
            process.newest_after = reply.clock_steps;
        }
        if matches!(call.verb, Verb::Sync { .. }) {
            process.last_check = LastCheck {
                sent,
                ran_at: reply.ran_at,
            };
        }
        (parsed, anchor)
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

    /// The renewal thread goes on. Calls without an answer end with this fault.
    pub(super) fn complete(
        &mut self,
        process: &mut SimProcess,
        flight: u64,
        fault: &dyn Fn() -> StoreFault,
    ) {
        let Some(SimFlight {
            tasks,
            calls,
            answers,
            not_after,
            ..
        }) = process.flights.remove(&flight)
        else {
            return;
        };
        if answers.iter().any(Option::is_none) {
            process.link = None;
            process.note_trouble(self.now);
        }
        let results = answers
            .into_iter()
            .map(|answer| CallResult {
                answer: answer.ok_or_else(fault),
                not_after,
            })
            .collect();
        process.link_busy = false;
        process.engine.on_replies(tasks, &calls, results);
    }
}
