//! The lanes to one node: a few connections that all short calls share.
//!
//! All calls about a name travel on one lane, so the server runs them in the order in which they were
//! sent. A call whose connection turns out to be closed is sent again on the lane's next one.

pub(super) mod command;
mod left;

use std::sync::Arc;
use std::time::Duration;

use super::Node;
use super::acks::{Confirmer, confirm_grants};
use super::age::Age;
use super::batch::LinkCall;
use super::connection::Connection;
use super::hello::Role;
use super::lane::{Lane, LaneReply, Ticket};
use super::pipeline::{Hop, Meaning, Pending, Received};
use super::pool::{ConnectionPool, NodeGuard, NodeLane, hash_of_name};
use crate::error::Step;
use crate::key::Key;
use crate::script::Call;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::{CallResult, ConnectionWait, Deadlines, StoreFault};
use command::log_in_with_node;

/// A call that is on its way, or why it could not be sent.
pub(in crate::store) type Begun<'a> = Result<InFlight<'a>, StoreFault>;

/// The lanes to one node.
pub(crate) struct Lanes {
    pub(super) node: Arc<Node>,
    pool: ConnectionPool,
    pub(super) lanes: Arc<[NodeLane]>,
    /// R18 (replica acks): `None` if grants need none.
    confirmer: Option<Confirmer>,
}

/// A call that is on its way.
pub(in crate::store) struct InFlight<'a> {
    lane: &'a NodeLane,
    pending: Pending<'a>,
    ticket: Ticket,
    age: Age,
    /// The server has run the call's script for this connection.
    is_script_known: bool,
}

impl Lanes {
    /// Opens the first connection and fails if it cannot be opened until `until`.
    pub(in crate::store) fn open(node: &Arc<Node>, until: Time) -> Result<Lanes, StoreFault> {
        let first = node.connect_until(Role::Lane, until)?;
        Lanes::pooled(node, Some(first)).with_right_to_wait()
    }

    /// R18 (replica acks): a user without the right to `WAIT` learns of it at once. This `WAIT` waits
    /// for nothing.
    fn with_right_to_wait(self) -> Result<Lanes, StoreFault> {
        if self.confirmer.is_some() {
            let mut wait = redis::cmd("WAIT");
            wait.arg(0).arg(0);
            self.request(
                &wait,
                self.node.clock.now() + self.node.config.command_timeout,
            )
            .map_err(|fault| fault.of_command("WAIT", "which acknowledged locks need"))?;
        }
        Ok(self)
    }

    /// Lanes that open their first connection when it is needed. Never blocks.
    pub(in crate::store) fn closed(node: &Arc<Node>) -> Lanes {
        Lanes::pooled(node, None)
    }

    fn pooled(node: &Arc<Node>, first: Option<Connection>) -> Lanes {
        let count = node.config.lanes;
        Lanes::over(ConnectionPool::new(node, count, first), node, count)
    }

    /// Lanes that threads open in the background. They have no pool.
    pub(in crate::store) fn posted(node: &Arc<Node>, role: Role, count: u32) -> Lanes {
        Lanes::over(ConnectionPool::direct(node, role), node, count)
    }

    fn over(pool: ConnectionPool, node: &Arc<Node>, count: u32) -> Lanes {
        let lane = |_| Lane::new(node.clock.clone(), node.config.command_timeout);
        let lanes: Arc<[NodeLane]> = (0..count).map(lane).collect();
        log_in_with_node(node, &lanes);
        // Those of callers come first.
        let _ = node.lanes.set(Arc::downgrade(&lanes));
        Lanes {
            node: Arc::clone(node),
            pool,
            lanes,
            confirmer: node
                .config
                .replica_acks
                .map(|acks| Confirmer::new(node, acks)),
        }
    }

    /// Runs calls, each on the lane of its name. All are sent before the first reply is awaited. A
    /// call whose connection turns out to be closed is sent again on the next.
    ///
    /// R18 (replica acks): if replicas must acknowledge grants, this blocks for one more command
    /// timeout and the replicas' time, at most. A lane is not blocked meanwhile.
    pub(in crate::store) fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        match &self.confirmer {
            None => self.run_unconfirmed(calls, deadlines),
            Some(confirmer) => {
                let renew = |renewals: &[Call]| {
                    let renewals = renewals.iter().map(Pending::undated);
                    self.renew(renewals, confirmer.reply_by())
                };
                if calls.iter().all(Call::is_renewal) {
                    return renew(calls);
                }
                let mut results = self.run_unconfirmed(calls, deadlines);
                confirm_grants(calls, &mut results, renew);
                results
            }
        }
    }

    /// R18 (replica acks): runs renewals that count only when enough replicas have acknowledged
    /// them. Blocks until `reply_by` at most.
    pub(in crate::store) fn renew<'a>(
        &self,
        renewals: impl Iterator<Item = Pending<'a>>,
        reply_by: Time,
    ) -> Vec<CallResult> {
        let renewals = LinkCall::routed(renewals);
        match &self.confirmer {
            Some(confirmer) => self.node.results(confirmer.renew(renewals, reply_by)),
            None => Vec::new(),
        }
    }

    fn run_unconfirmed(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let begun = self.begin_all(calls.iter().map(Pending::undated), deadlines);
        let finish = |begun| self.finish(begun, deadlines);
        begun.into_iter().map(finish).collect()
    }

    /// Ends the node: closes all its connections at once, also for threads that use them just now.
    /// Each call without a reply learns that its connection was closed.
    pub(in crate::store) fn end(&self) {
        self.node.troubles.note();
        self.node.ages.end();
        for lane in self.lanes.iter() {
            if let Some(guard) = lane.if_open() {
                guard.retire();
            }
            lane.fail_resends();
        }
    }

    /// Sends calls, each on the lane of its name: with one write for each lane, if nobody writes.
    pub(in crate::store) fn begin_all<'a>(
        &'a self,
        mut calls: impl ExactSizeIterator<Item = Pending<'a>> + Clone,
        deadlines: Deadlines,
    ) -> Vec<Begun<'a>> {
        if calls.len() == 1 {
            let one = calls.next().map(|pending| self.begin(pending, deadlines));
            return one.into_iter().collect();
        }
        // To open a lane can take long, and so can the question for rights. So no call is appended,
        // and waits unwritten, before that is done for all.
        let ready: Vec<_> = calls
            .clone()
            .map(|pending| self.make_ready(&pending, deadlines))
            .collect();
        let append = |(mut pending, ready): (Pending<'a>, Result<(), StoreFault>)| {
            ready?;
            let call = pending.call;
            let mut guard = self.open_lane(self.lane_of(&call.key).0, deadlines.connection)?;
            // If the server does not know the script, one source is for all that follow. Otherwise
            // each would be refused, and take a round trip of its own.
            pending.form = guard.connected().scripts.form_for(call, pending.form);
            Ok(self.append(pending, guard, deadlines).0)
        };
        let begun: Vec<_> = calls.zip(ready).map(append).collect();
        for lane in self.lanes.iter() {
            if let Some(guard) = lane.if_open() {
                guard.write();
            }
        }
        begun
    }

    /// Opens the lane of a call, and sees that the user has the rights that the call needs.
    pub(in crate::store) fn make_ready(
        &self,
        pending: &Pending<'_>,
        deadlines: Deadlines,
    ) -> Result<(), StoreFault> {
        let lane = self.lane_of(&pending.call.key).0;
        let opened = self.open_with_rights(lane, pending, deadlines);
        self.node.outcome(opened.map(drop))
    }

    /// Sends a call on the lane of its name.
    fn begin<'a>(
        &'a self,
        pending: Pending<'a>,
        deadlines: Deadlines,
    ) -> Result<InFlight<'a>, StoreFault> {
        let call = pending.call;
        let guard = self.open_with_rights(self.lane_of(&call.key).0, &pending, deadlines)?;
        let (flight, guard) = self.append(pending, guard, deadlines);
        guard.write();
        Ok(flight)
    }

    /// Appends a call to its lane, which is open.
    fn append<'a>(
        &'a self,
        mut pending: Pending<'a>,
        mut guard: NodeGuard<'a>,
        deadlines: Deadlines,
    ) -> (InFlight<'a>, NodeGuard<'a>) {
        let call = pending.call;
        let (lane, name) = self.lane_of(&call.key);
        let age = guard.connected().age;
        let is_script_known = guard.connected().scripts.knows(call);
        let reply_by =
            (self.node.clock.now() + self.node.config.command_timeout).min(deadlines.reply_by);
        pending.undate_on(guard.epoch());
        let scripts = &mut guard.connected().scripts;
        pending.number = scripts.number(call, &mut pending.form, pending.number);
        if pending.hop == Hop::AskTarget {
            guard.append_asking();
        }
        let ticket = guard.append(name, self.quiet_limit(), |connection, bytes| {
            pending.date(&connection.anchor, reply_by);
            pending.write(&self.node, bytes);
        });
        let flight = InFlight {
            lane,
            pending,
            ticket,
            age,
            is_script_known,
        };
        (flight, guard)
    }

    /// The lane of a call, open, once the user is known to have the rights that the call needs.
    fn open_with_rights<'a>(
        &self,
        lane: &'a NodeLane,
        pending: &Pending<'_>,
        deadlines: Deadlines,
    ) -> Result<NodeGuard<'a>, StoreFault> {
        let mut attempts = Attempts::default();
        loop {
            let guard = self.open_lane(lane, deadlines.connection)?;
            let Some(question) = self.node.rights_question(pending.call) else {
                return Ok(guard);
            };
            drop(guard);
            let question = (&question, pending.hop);
            let reply = self.run_command(lane, question, &mut attempts, deadlines);
            let noted = self.node.note_rights(pending.call, reply);
            // The reply may say that the login of the connection has ended.
            if attempts.after(Ending::of(&noted, false)) == Next::Done {
                noted?;
                return self.open_lane(lane, deadlines.connection);
            }
        }
    }

    /// Waits for the answer to a call, and sends the call again for as long as that helps.
    pub(in crate::store) fn finish(&self, begun: Begun<'_>, deadlines: Deadlines) -> CallResult {
        self.await_answer(begun, deadlines).at(self.node.name())
    }

    fn await_answer(&self, begun: Begun<'_>, deadlines: Deadlines) -> CallResult {
        let mut flight = match begun {
            Ok(flight) => flight,
            Err(fault) => return CallResult::not_sent(fault),
        };
        let mut again = deadlines.of_retry();
        let mut before: Option<CallResult> = None;
        let mut attempts = Attempts::default();
        loop {
            let is_first = attempts.was_never_silent();
            let reply = self.wait(flight.lane, &flight.ticket, is_first, deadlines.reply_by);
            let is_void = reply.is_void;
            let is_late_reply = reply.is_late;
            let outcome = match self.read(&mut flight, reply) {
                Meaning::OtherForm => None,
                Meaning::Answer(answer) => Some(answer),
            };
            let InFlight { lane, pending, .. } = flight;
            let not_after = pending.not_after;
            let is_late = self.node.clock.now() >= deadlines.reply_by;
            // No time is left for another form.
            let outcome =
                outcome.or_else(|| is_late.then(|| Err(StoreFault::timed_out(Step::Reply))));
            // Another form of the call is no retry.
            let is_retry = outcome.is_some();
            if let Some(answer) = outcome {
                let ending = match is_void && answer.is_ok() {
                    true => Ending::TooEarly,
                    false => Ending::of(&answer, is_late_reply),
                };
                let next = attempts.after(ending);
                let result = CallResult { answer, not_after }.after(before.take());
                if next == Next::Done || is_late {
                    lane.fail_resends();
                    return result;
                }
                if next == Next::Elsewhere {
                    // All connections may be dead, the renewal thread's too. So this caller opens
                    // one in the rest of its time, even if it would not wait for one otherwise.
                    again.connection = ConnectionWait::Until(deadlines.reply_by);
                }
                before = Some(result);
            }
            flight = match self.begin(pending, again) {
                Ok(flight) => {
                    self.node.note_retries(usize::from(is_retry));
                    flight
                }
                Err(fault) => {
                    // A release that finds no connection goes to the renewal thread, which looks at
                    // what was left, too. Another caller may be about to open one.
                    if !matches!(fault, StoreFault::NotReady) {
                        lane.fail_resends();
                    }
                    let not_sent = CallResult {
                        answer: Err(fault),
                        not_after,
                    };
                    return not_sent.after(before);
                }
            };
        }
    }

    /// Waits for the reply to a request, at most for a command timeout and until `reply_by`.
    ///
    /// A connection can die in silence: the request gets no reply, and no error either. The call is
    /// sent again on another one if time is left for that. So if the first wait, which this may be,
    /// would leave less than a quarter of a command timeout, it ends early, where nothing at all
    /// comes and replies took much less before.
    pub(super) fn wait(
        &self,
        lane: &NodeLane,
        ticket: &Ticket,
        is_first: bool,
        reply_by: Time,
    ) -> LaneReply {
        let timeout = self.node.config.command_timeout;
        let time = reply_by - ticket.sent;
        let patience = timeout.min(time) / 2;
        if is_first && ticket.round_trip <= patience / 8 {
            // All calls have this step. Otherwise the socket would need another timeout each time.
            let ends_if_silent = time < timeout * 5 / 4;
            if let Some(reply) = lane.wait_first(ticket, ticket.sent + patience, ends_if_silent) {
                return reply;
            }
        }
        lane.wait(ticket, (ticket.sent + timeout).min(reply_by))
    }

    /// Reads a reply, and what it says about the connection.
    fn read(&self, flight: &mut InFlight<'_>, reply: LaneReply) -> Meaning {
        let value = match reply.outcome {
            Ok(value) => value,
            Err(fault) => return Meaning::Answer(Err(fault)),
        };
        let received = Received {
            value,
            sent: flight.ticket.sent,
            received: reply.received,
            age: flight.age,
        };
        let read = self.node.read_reply(&mut flight.pending, received);
        let is_forgotten = matches!(read.meaning, Meaning::OtherForm);
        let has_run = matches!(read.meaning, Meaning::Answer(Ok(_)));
        if read.anchor.is_some() || is_forgotten || (has_run && !flight.is_script_known) {
            let script = flight.pending.call.script_id();
            flight.lane.with_connected(&flight.ticket, |connection| {
                connection.scripts.note(script, !is_forgotten);
                connection.anchor = read.anchor.unwrap_or(connection.anchor);
            });
        }
        if let Some(anchor) = read.anchor {
            self.node.note_anchor(anchor);
        }
        read.meaning
    }

    /// P: a lane that had no reply for this long may be dead.
    pub(super) fn quiet_limit(&self) -> Duration {
        self.node.config.check_period
    }

    /// The lane of a name, and a number of the name that is not 0.
    pub(super) fn lane_of(&self, key: &Key) -> (&NodeLane, u64) {
        let hash = hash_of_name(key);
        let lane = (hash % self.lanes.len() as u64) as usize;
        (&self.lanes[lane], hash | 1)
    }

    /// The lane with a connection that can be used.
    pub(super) fn open_lane<'a>(
        &self,
        lane: &'a NodeLane,
        connection: ConnectionWait,
    ) -> Result<NodeGuard<'a>, StoreFault> {
        let started = self.node.clock.now();
        let mut has_waited = false;
        loop {
            let open = match (self.node.open_now(lane), connection) {
                (Some(guard), _) => Some(guard),
                (None, ConnectionWait::Never) => None,
                (None, ConnectionWait::Until(until)) => {
                    let until = until.min(started + self.node.config.command_timeout);
                    let opened = lane.open(until, || self.pool.connect(until));
                    if !std::mem::replace(&mut has_waited, true) {
                        self.node.note_connection_wait(started);
                    }
                    opened.inspect_err(|_| lane.fail_resends())?
                }
            };
            let Some(mut guard) = open else {
                return Err(match connection {
                    ConnectionWait::Never => StoreFault::NotReady,
                    ConnectionWait::Until(_) => self
                        .pool
                        .no_connection(started, "no connection could be opened in time"),
                });
            };
            if !self.node.ages.is_retired_from_pool(guard.connected().age) {
                return Ok(guard);
            }
        }
    }
}
