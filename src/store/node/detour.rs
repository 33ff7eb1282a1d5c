//! The way of the renewal thread's calls while it can have no connection of its own: over a lane that
//! is open. Whatever stops new connections, the locks are kept for as long as one of them works.

use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use redis::Value;

use super::Node;
use super::batch::{LinkCall, LinkReply};
use super::connection::refusal;
use super::pool::{NodeGuard, NodeLane, number_of_name};
use super::unread::{PostedCommand, UnreadCall};
use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// Calls that are on their way over a lane.
pub(super) struct Detour {
    lanes: Arc<[NodeLane]>,
    lane: usize,
    /// The numbers of the calls without a result, each with its date.
    open: Vec<(u64, u64)>,
    arrived: Receiver<Arrival>,
    /// R18 (replica acks): a `WAIT` is behind the calls. None of them has a result before its reply.
    acks: Option<ReplicaAcks>,
    /// The results before that to `WAIT`.
    held: Vec<(u64, CallResult)>,
    reply_by: Time,
}

enum Arrival {
    Result(u64, CallResult),
    /// The reply to `WAIT`.
    Count(Result<u32, StoreFault>),
}

impl Detour {
    /// Sends calls over a lane, and waits for no reply, but for the one about rights that are not known
    /// yet. Gives the calls back if the lane is closed.
    pub(super) fn send(
        node: &Arc<Node>,
        lane: usize,
        mut calls: Vec<LinkCall>,
        (acks, reply_by): (Option<ReplicaAcks>, Time),
    ) -> Result<(Detour, Vec<LinkReply>), Vec<LinkCall>> {
        let Some(lanes) = node.lanes() else {
            return Err(calls);
        };
        let mut replies = Vec::new();
        if let Err(fault) = node.check_rights_on(&lanes[lane], &calls, reply_by) {
            let lacking = calls.extract_if(.., |sent| sent.call.needs_rights());
            let refused = |sent: LinkCall| {
                (
                    sent.number,
                    CallResult::not_sent(fault.clone()).at(node.name()),
                )
            };
            let refused = lacking.map(refused);
            replies.extend(refused.map(|(number, result)| LinkReply::Result(number, result)));
        }
        let Some(mut guard) = node.open_now(&lanes[lane]) else {
            return Err(calls);
        };
        let (arrivals, arrived) = unbounded();
        let mut open = Vec::with_capacity(calls.len());
        for call in &calls {
            let not_after = node.post(&mut guard, call, reply_by, &arrivals);
            open.push((call.number, not_after));
        }
        if let Some(acks) = acks {
            let (of_node, age) = (Arc::clone(node), guard.connected().age);
            let on_reply = move |reply: Result<Value, StoreFault>| {
                let count = reply.and_then(|reply| of_node.read_count(age, reply));
                let _ = arrivals.send(Arrival::Count(count));
            };
            guard.post(
                0,
                PostedCommand::new(acks.command(), &node.counts, on_reply),
            );
        }
        guard.write();
        let detour = Detour {
            lanes,
            lane,
            open,
            arrived,
            acks,
            held: Vec::new(),
            reply_by,
        };
        Ok((detour, replies))
    }

    /// Whether results are still to come.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty() || !self.held.is_empty()
    }

    /// Replies are awaited until `reply_by` at least.
    pub(super) fn extend(&mut self, reply_by: Time) {
        self.reply_by = self.reply_by.max(reply_by);
    }

    /// The results that come until `until`. After the time for replies all other calls fail.
    pub(super) fn receive(&mut self, node: &Node, until: Time) -> Vec<LinkReply> {
        let lanes = Arc::clone(&self.lanes);
        let lane = &lanes[self.lane];
        let mut replies = Vec::new();
        loop {
            lane.read_all();
            let is_late = node.clock.now() >= self.reply_by;
            if is_late {
                lane.end_overdue();
            }
            while let Ok(arrival) = self.arrived.try_recv() {
                self.take(arrival, &mut replies);
            }
            if is_late {
                self.fail(&StoreFault::timed_out(Step::Reply), &mut replies);
            }
            if !self.is_open() || node.clock.now() >= until {
                return replies;
            }
            self.wait(node, lane, until.min(self.reply_by), &mut replies);
        }
    }

    /// Waits for all that was sent, and reads for the lane's callers meanwhile.
    fn wait(&mut self, node: &Node, lane: &NodeLane, until: Time, replies: &mut Vec<LinkReply>) {
        if let Some(mut guard) = node.open_now(lane) {
            // Replies come in order, so the reply to a PING comes behind all others.
            let ticket = guard.append(0, node.config.check_period, |_, bytes| {
                redis::cmd("PING").write_packed_command(bytes);
            });
            guard.write();
            lane.wait(&ticket, until);
        } else if let Some(arrival) = node.clock.receive(&self.arrived, until) {
            // The lane has ended, and another thread tells each call so.
            self.take(arrival, replies);
        }
    }

    fn take(&mut self, arrival: Arrival, replies: &mut Vec<LinkReply>) {
        match arrival {
            Arrival::Result(number, result) => {
                // After the reply to WAIT, none is acknowledged.
                let before = self.open.len();
                self.open.retain(|(open, _)| *open != number);
                if self.open.len() == before {
                    return;
                }
                match self.acks {
                    Some(_) => self.held.push((number, result)),
                    None => replies.push(LinkReply::Result(number, result)),
                }
            }
            Arrival::Count(count) => {
                self.confirm(&count, replies);
                // Sent again behind the WAIT.
                self.fail(&StoreFault::NotReady, replies);
            }
        }
    }

    /// The results of the calls that have a reply, given the reply to `WAIT`.
    fn confirm(&mut self, count: &Result<u32, StoreFault>, replies: &mut Vec<LinkReply>) {
        let Some(acks) = self.acks else { return };
        for (number, CallResult { answer, not_after }) in self.held.drain(..) {
            let answer = answer.and_then(|answer| acks.confirm(answer, count));
            replies.push(LinkReply::Result(number, CallResult { answer, not_after }));
        }
    }

    fn fail(&mut self, fault: &StoreFault, replies: &mut Vec<LinkReply>) {
        self.confirm(&Err(fault.clone()), replies);
        for (number, not_after) in self.open.drain(..) {
            let answer = Err(fault.clone());
            replies.push(LinkReply::Result(number, CallResult { answer, not_after }));
        }
    }
}

/// Whether a lane works: a PING, for whose reply nobody waits.
pub(super) struct LaneProbe {
    pub(super) lane: usize,
    pub(super) sent: Time,
    answer: Receiver<()>,
    has_answer: bool,
}

impl LaneProbe {
    /// Asks the first lane that is open, if one is.
    pub(super) fn send(node: &Node) -> Option<LaneProbe> {
        let lane = node.any_open_lane()?;
        let lanes = node.lanes()?;
        let mut guard = node.open_now(&lanes[lane])?;
        let sent = node.clock.now();
        let (answered, answer) = unbounded();
        let on_reply = move |reply: Result<Value, StoreFault>| {
            if reply.is_ok() {
                let _ = answered.send(());
            }
        };
        guard.post(
            0,
            PostedCommand::new(redis::cmd("PING"), &node.counts, on_reply),
        );
        guard.write();
        Some(LaneProbe {
            lane,
            sent,
            answer,
            has_answer: false,
        })
    }

    /// Whether it has a reply. `None`: its lane has ended. Never waits.
    pub(super) fn has_answer(&mut self, node: &Node) -> Option<bool> {
        let lanes = node.lanes()?;
        let lane = &lanes[self.lane];
        lane.read_all();
        match self.answer.try_recv() {
            Ok(()) => self.has_answer = true,
            Err(TryRecvError::Disconnected) if !self.has_answer => return None,
            Err(_) => {}
        }
        node.open_now(lane).map(|_| self.has_answer)
    }
}

impl Node {
    fn lanes(&self) -> Option<Arc<[NodeLane]>> {
        self.lanes.get().and_then(Weak::upgrade)
    }

    /// The number of the first lane that is open.
    pub(super) fn any_open_lane(&self) -> Option<usize> {
        let is_open = |lane: &NodeLane| self.open_now(lane).is_some();
        self.lanes()?.iter().position(is_open)
    }

    /// Appends a call to a lane. Returns its date.
    fn post(
        self: &Arc<Self>,
        guard: &mut NodeGuard<'_>,
        sent: &LinkCall,
        reply_by: Time,
        arrivals: &Sender<Arrival>,
    ) -> u64 {
        let now = self.clock.now();
        let connection = guard.connected();
        let mut pending = sent.pending(0);
        let reply_by = reply_by.min(now + self.config.command_timeout);
        // Nobody may have called over this lane for long, and its own anchor may be too old.
        let newest = self.anchor().unwrap_or(connection.anchor);
        pending.date(&newest, reply_by);
        // The first copy brings the source, so that no later one is refused for the lack of it.
        pending.form.by_source = true;
        pending.number = connection.scripts.number(&sent.call, &mut pending.form, 0);
        let (number, arrivals) = (sent.number, arrivals.clone());
        let on_result = Box::new(move |result| {
            let _ = arrivals.send(Arrival::Result(number, result));
        });
        let age = connection.age;
        let unread = UnreadCall::new(self, &pending, now, age, on_result);
        guard.post(number_of_name(&sent.call.key), Box::new(unread.posted()));
        pending.not_after
    }

    /// Asks over a lane for the rights that some call needs, if they are not known.
    fn check_rights_on(
        &self,
        lane: &NodeLane,
        calls: &[LinkCall],
        reply_by: Time,
    ) -> Result<(), StoreFault> {
        let needing = calls.iter().find(|sent| sent.call.needs_rights());
        let Some(sent) = needing else { return Ok(()) };
        let Some(question) = self.rights_question(&sent.call) else {
            return Ok(());
        };
        let mut guard = self.open_now(lane).ok_or(StoreFault::NotReady)?;
        if sent.is_asking() {
            guard.append_asking();
        }
        let ticket = guard.append(0, self.config.check_period, |_, bytes| {
            question.write_packed_command(bytes);
        });
        guard.write();
        let reply = lane.wait(&ticket, reply_by);
        self.note_rights(&sent.call, reply.outcome.and_then(refusal))
    }
}
