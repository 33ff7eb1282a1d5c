//! The lane of a process: one connection that all its callers share. It is a FIFO in both
//! directions: requests arrive in the order in which they were sent, and so do their replies.
//!
//! A drop may leave: its release is written, and nobody waits for the reply. That is read by the
//! next caller that waits for a reply on the lane, before the next request is written, or by the
//! renewal thread a command timeout later.

use std::collections::VecDeque;
use std::sync::Arc;

use super::network::Way;
use super::{ReplyInFlight, Run, SimEvent};
use crate::engine::Lease;
use crate::script::{Call, Outcome, ScriptReply, Token, Verb};
use crate::sim::defect::Defect;
use crate::sim::plan::NetworkFault;
use crate::sim::process::{CallerState, Resent, SimCaller, SimConnection, SimProcess};
use crate::sim::process::{no_connection, no_reply};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

/// How often a call is sent again after its connection has ended.
const RESENDS: u32 = 2;

/// Times are in ns of the run, unless they are of the type [`Time`]: those are by the clock of the
/// process.
pub(in crate::sim) struct SimLane {
    /// `None`: there was none yet, or the last one broke.
    connection: Option<LaneConnection>,
    /// The calls without a result, in the order in which they were sent. Without a connection, they
    /// are releases that wait for the next one.
    slots: VecDeque<LaneSlot>,
    /// When the process last read a reply, the handshake's included.
    last_reply_at: Time,
    /// When the process last wrote a request.
    last_sent_at: Time,
}

struct LaneConnection {
    /// It tells this connection from those before it.
    number: u64,
    peer: SimConnection,
    /// When the last request arrives. Those behind it arrive later.
    last_arrival: u64,
    /// When the last reply arrives. Those behind it arrive later.
    last_reply: u64,
    /// From here on, no request arrives.
    requests_lost: bool,
    /// From here on, no reply arrives.
    replies_lost: bool,
    /// It has ended, and the process finds that out when it next reads or writes.
    is_closed: bool,
}

/// A call on the lane.
struct LaneSlot {
    number: u64,
    owner: SlotOwner,
    calls: Arc<Vec<Call>>,
    sent: Time,
    /// When nobody waits for the reply any more.
    due: Time,
    /// R7 (late copies): the largest bound that was sent with the call.
    not_after: u64,
    resent: Resent,
    /// It has arrived, and nobody has read it yet.
    reply: Option<ReplyInFlight>,
    /// A release before it was refused. So its answer says nothing, and it is sent again.
    is_void: bool,
}

enum SlotOwner {
    /// This caller waits for the reply.
    Caller(u64),
    /// The caller has dropped its guard and left.
    Left(LeftRelease),
}

/// A release that nobody waits for.
#[derive(Clone)]
struct LeftRelease {
    lease: Arc<Lease>,
    started: Time,
    /// When it was written.
    written_at: u64,
    /// No caller waited for a reply on the lane then.
    was_alone: bool,
}

impl LaneSlot {
    fn left(&self) -> Option<&LeftRelease> {
        match &self.owner {
            SlotOwner::Caller(_) => None,
            SlotOwner::Left(left) => Some(left),
        }
    }
}

impl SimLane {
    pub(in crate::sim) fn new() -> SimLane {
        SimLane {
            connection: None,
            slots: VecDeque::new(),
            last_reply_at: Time::from_nanos(0),
            last_sent_at: Time::from_nanos(0),
        }
    }

    /// Whether a caller waits for a reply: it also reads the replies before its own.
    fn has_reader(&self) -> bool {
        self.slots.iter().any(|slot| slot.left().is_none())
    }

    /// The releases that nobody waits for: their tokens, and when they were written.
    pub(super) fn left(&self) -> impl Iterator<Item = (Token, u64)> {
        let left = self.slots.iter().filter_map(LaneSlot::left);
        left.map(|left| (left.lease.token, left.written_at))
    }

    pub(super) fn connection_number(&self) -> Option<u64> {
        self.connection.as_ref().map(|connection| connection.number)
    }

    /// When the renewal thread must read what nobody waits for.
    pub(super) fn unread_due(&self) -> Time {
        if self.has_reader() {
            return Time::NEVER;
        }
        let due = self.slots.iter().map(|slot| slot.due);
        due.min().unwrap_or(Time::NEVER)
    }

    fn slot(&mut self, number: u64) -> Option<&mut LaneSlot> {
        self.slots.iter_mut().find(|slot| slot.number == number)
    }

    /// The connection of this number, if it has not broken since.
    fn connection(&mut self, number: u64) -> Option<&mut LaneConnection> {
        self.connection
            .as_mut()
            .filter(|connection| connection.number == number)
    }
}

impl Run<'_> {
    /// Writes a caller's call, once all replies that have arrived are read. The call ends at once
    /// if there is no connection.
    pub(super) fn send_on_lane(
        &mut self,
        process: &mut SimProcess,
        caller: u64,
        calls: Arc<Vec<Call>>,
        resent: Resent,
    ) {
        if let Some(reply) = self.answer_of_defect(&calls[0]) {
            let answer = Answer {
                reply,
                sent: process.local(self.now),
                resent: false,
            };
            let result = CallResult {
                answer: Ok(answer),
                not_after: 0,
            };
            return self.on_call_result(process, caller, calls, result);
        }
        self.read_lane(process);
        self.open_lane(process);
        self.write(process, SlotOwner::Caller(caller), calls, resent, None);
    }

    /// Opens the lane's connection, if it has none. Releases that nobody waits for are sent again
    /// first.
    fn open_lane(&mut self, process: &mut SimProcess) {
        if (process.lane.connection.as_ref()).is_some_and(|connection| connection.is_closed) {
            self.break_lane(process);
        }
        if process.lane.connection.is_some() {
            return;
        }
        let Some(peer) = self.open_connection(process) else {
            return;
        };
        process.lane.connection = Some(LaneConnection {
            number: self.number(),
            peer,
            last_arrival: self.now,
            last_reply: self.now,
            requests_lost: false,
            replies_lost: false,
            is_closed: false,
        });
        process.lane.last_reply_at = process.local(self.now);
        let again = std::mem::take(&mut process.lane.slots);
        for slot in again {
            self.write_again(process, slot);
        }
    }

    fn write_again(&mut self, process: &mut SimProcess, slot: LaneSlot) {
        let resent = Resent {
            times: slot.resent.times + 1,
            not_after: slot.not_after,
            has_copies: true,
            ..slot.resent
        };
        self.write(process, slot.owner, slot.calls, resent, Some(slot.due));
    }

    /// Puts a call on its way. A call that was sent before keeps the time when it is `due`.
    fn write(
        &mut self,
        process: &mut SimProcess,
        owner: SlotOwner,
        calls: Arc<Vec<Call>>,
        resent: Resent,
        due: Option<Time>,
    ) {
        let number = self.number();
        let sent = process.local(self.now);
        let timeout = self.setting.config.command_timeout;
        let mut slot = LaneSlot {
            number,
            owner,
            calls,
            sent,
            due: due.unwrap_or(sent + timeout),
            not_after: resent.not_after,
            resent: Resent {
                first: resent.first.or(Some(number)),
                ..resent
            },
            reply: None,
            is_void: false,
        };
        let Some(connection) = &process.lane.connection else {
            let fault = match resent.has_copies {
                true => StoreFault::InDoubt(Box::new(no_connection())),
                false => no_connection(),
            };
            return self.end_slot(process, slot, Err(fault));
        };
        let dates = self.dates(process, &connection.peer, slot.due);
        slot.not_after = slot.not_after.max(dates.not_after);
        process.lane.last_sent_at = sent;
        let network_fault = process.network_faults.pop_front();
        self.note_network_fault(process, network_fault, &dates);
        let mut request = self.request_in_flight(process, &slot.calls, 0, &dates);
        request.flight = number;
        request.by_source = resent.by_source;
        let mut way = Way {
            arrives: self.now + process.latency(),
            reply_after: Some(process.latency()),
        };
        let arrives = way.disturb(network_fault);
        if let Some(connection) = &mut process.lane.connection {
            connection.requests_lost |= !arrives;
            connection.last_arrival = way.arrives.max(connection.last_arrival);
            request.lane = Some(connection.number);
            request.epoch = connection.peer.epoch;
            request.reply_after = way.reply_after;
            let closed = SimEvent::LaneClosed {
                process: process.number,
                lane: connection.number,
            };
            if !connection.requests_lost {
                self.put_arrival(connection.last_arrival, request);
            }
            if matches!(network_fault, Some(NetworkFault::Reset { .. })) {
                self.at(self.now + 200_000, closed);
            }
        }
        if slot.left().is_none() {
            let time_out = SimEvent::TimeOut {
                process: process.number,
                flight: number,
            };
            self.at(dates.times_out_at, time_out);
        }
        process.lane.slots.push_back(slot);
    }

    /// The server has run a request of a lane: when its reply arrives. `None`: it is lost, like all
    /// behind it.
    pub(super) fn reply_arrives_at(
        &mut self,
        number: u64,
        lane: u64,
        after: Option<u64>,
    ) -> Option<u64> {
        let now = self.now;
        let Some(process) = self.process_mut(number) else {
            // The process is gone. Its socket answers a reply by RST.
            if let Some(after) = after {
                self.reset_lane_of_the_dead(number, lane, now + 2 * after);
            }
            return None;
        };
        let is_heard = process.inbound_lost_until <= now;
        let connection = process.lane.connection(lane)?;
        connection.replies_lost |= !is_heard || after.is_none();
        if connection.replies_lost {
            return None;
        }
        connection.last_reply = connection.last_reply.max(now + after?);
        Some(connection.last_reply)
    }

    /// A reply arrives on the lane. It is read now if somebody reads.
    pub(super) fn on_lane_reply(&mut self, process: &mut SimProcess, reply: ReplyInFlight) {
        let lane = &mut process.lane;
        let Some(slot) = lane.slot(reply.flight) else {
            return;
        };
        slot.reply = Some(reply);
        if lane.has_reader() {
            self.read_lane(process);
        }
    }

    /// Reads the replies that have arrived.
    fn read_lane(&mut self, process: &mut SimProcess) {
        while let Some(slot) = process.lane.slots.pop_front_if(|slot| slot.reply.is_some()) {
            self.on_slot_reply(process, slot);
        }
    }

    fn on_slot_reply(&mut self, process: &mut SimProcess, mut slot: LaneSlot) {
        let now = process.local(self.now);
        process.lane.last_reply_at = now;
        let Some(reply) = slot.reply.take() else {
            return;
        };
        if reply.is_unknown_script {
            return self.on_unknown_script(process, slot);
        }
        let sent = match self.defect {
            // Dated by the last request of the lane.
            Some(Defect::LaneDate) => process.lane.last_sent_at,
            _ => slot.sent,
        };
        let (parsed, anchor) = self.read_reply(process, &slot.calls[0], sent, &reply);
        let clock_steps = process.newest_after;
        if let (Some(connection), Some(anchor)) = (&mut process.lane.connection, anchor) {
            connection.peer.anchor = anchor;
            connection.peer.clock_steps = clock_steps;
        }
        if slot.is_void {
            slot.is_void = false;
            let resent = Resent {
                not_after: slot.not_after,
                has_copies: true,
                ..slot.resent
            };
            return self.write_after_reply(process, slot, resent);
        }
        self.check_overtaking(process, &slot, &reply.own_holders);
        let answer = Answer {
            reply: parsed,
            sent,
            resent: slot.resent.has_copies,
        };
        self.end_slot(process, slot, Ok(answer));
    }

    /// NOSCRIPT: the call is sent again at once, by its source. If it is a release that nobody waits
    /// for, the callers behind it got answers that say nothing.
    fn on_unknown_script(&mut self, process: &mut SimProcess, slot: LaneSlot) {
        if slot.left().is_some() {
            if self.defect == Some(Defect::RefusedIsDone) {
                let answer = Answer {
                    reply: released(),
                    sent: slot.sent,
                    resent: false,
                };
                return self.end_slot(process, slot, Ok(answer));
            }
            for behind in &mut process.lane.slots {
                behind.is_void = behind.left().is_none();
            }
        }
        let resent = Resent {
            not_after: slot.not_after,
            by_source: true,
            ..slot.resent
        };
        self.write_after_reply(process, slot, resent);
    }

    /// Sends a call again on the connection on which its reply came.
    fn write_after_reply(&mut self, process: &mut SimProcess, slot: LaneSlot, resent: Resent) {
        // Nobody waits for a release that was left: it gets the full time again.
        let due = slot.left().is_none().then_some(slot.due);
        if due.is_some_and(|due| due <= process.local(self.now)) {
            return self.end_slot(process, slot, Err(no_reply()));
        }
        self.write(process, slot.owner, slot.calls, resent, due);
    }

    /// A connection of the lane has ended. A caller that waits for a reply finds that out.
    pub(super) fn on_lane_closed(&mut self, process: &mut SimProcess, lane: u64) {
        let Some(connection) = process.lane.connection(lane) else {
            return;
        };
        connection.is_closed = true;
        if process.lane.has_reader() {
            self.read_lane(process);
            self.break_lane(process);
        }
    }

    /// A caller has waited for its reply for long enough. A lane that is late is not used again.
    pub(super) fn on_lane_timeout(&mut self, process: &mut SimProcess, number: u64) {
        let is_waiting = |slot: &LaneSlot| slot.number == number && slot.left().is_none();
        if process.lane.slots.iter().any(is_waiting) {
            self.break_lane(process);
        }
    }

    /// The renewal thread reads what has arrived and nobody waits for. What is overdue fails.
    pub(super) fn read_unread(&mut self, process: &mut SimProcess) {
        self.read_lane(process);
        let now = process.local(self.now);
        if process.lane.slots.iter().any(|slot| slot.due <= now) {
            self.break_lane(process);
        }
    }

    /// The connection is not used again. Each call without a reply is in doubt. Those that have
    /// time left are sent again on the next connection, in their order, but first those that
    /// nobody waits for. They wait for that connection if nobody can open it now.
    fn break_lane(&mut self, process: &mut SimProcess) {
        process.lane.connection = None;
        let now = process.local(self.now);
        let slots = std::mem::take(&mut process.lane.slots);
        let is_over =
            |slot: &LaneSlot| slot.due <= now || slot.resent.times >= RESENDS;
        let (over, again): (Vec<_>, Vec<_>) = slots.into_iter().partition(is_over);
        let (mut left, mut awaited): (Vec<_>, Vec<_>) =
            again.into_iter().partition(|slot| slot.left().is_some());
        if self.defect == Some(Defect::ResendOrder) && !awaited.is_empty() {
            std::mem::swap(&mut left, &mut awaited);
        }
        if awaited.is_empty() {
            // The next caller opens the next connection.
            process.lane.slots.extend(left);
        } else {
            self.open_lane(process);
            if process.lane.connection.is_some() {
                left.append(&mut awaited);
                for slot in left {
                    self.write_again(process, slot);
                }
            } else {
                process.lane.slots.extend(left);
                for slot in awaited {
                    let fault = StoreFault::InDoubt(Box::new(no_connection()));
                    self.end_slot(process, slot, Err(fault));
                }
            }
        }
        for slot in over {
            self.end_slot(process, slot, Err(no_reply()));
        }
    }

    /// A call of the lane has its result.
    fn end_slot(
        &mut self,
        process: &mut SimProcess,
        slot: LaneSlot,
        answer: Result<Answer, StoreFault>,
    ) {
        let not_after = slot.not_after;
        let result = CallResult { answer, not_after };
        match slot.owner {
            SlotOwner::Caller(caller) => self.on_call_result(process, caller, slot.calls, result),
            SlotOwner::Left(left) => {
                let LeftRelease { lease, started, .. } = left;
                let call = &slot.calls[0];
                process.engine.on_release_reply(&lease, call, started, result);
            }
        }
    }

    /// Whether a release can be written at once.
    pub(super) fn is_lane_open(&self, process: &SimProcess) -> bool {
        (process.lane.connection.as_ref()).is_some_and(|connection| !connection.is_closed)
    }

    /// A process crashes. Its kernel sends what was written, unless it resets the connection
    /// because replies have arrived that nobody has read (rule 7).
    pub(super) fn on_crash(&mut self, process: &SimProcess) {
        let SimProcess { number, lane, .. } = process;
        self.cuts_of_the_dead.insert(*number, process.cut_until);
        let Some(connection) = &lane.connection else {
            return;
        };
        let is_unread = lane.slots.iter().any(|slot| slot.reply.is_some());
        if is_unread && self.rng.below(2) == 0 {
            self.reset_lane_of_the_dead(*number, connection.number, self.now);
        }
        let is_alive = connection.peer.epoch == self.epoch && !connection.is_closed;
        if !is_alive || connection.requests_lost {
            return;
        }
        let since = self.now.max(process.cut_until).max(connection.last_arrival);
        let written = lane.slots.iter().filter(|slot| slot.reply.is_none());
        let left = written.filter_map(LaneSlot::left);
        for left in left.filter(|left| left.was_alone) {
            self.watch.note_last_drop(left.lease.token, since);
        }
    }

    fn reset_lane_of_the_dead(&mut self, process: u64, lane: u64, at: u64) {
        let reset_at = self.resets_of_the_dead.entry((process, lane));
        let reset_at = reset_at.or_insert(at);
        *reset_at = at.min(*reset_at);
    }

    /// The guard of a caller is dropped. It leaves without the reply if it may.
    pub(super) fn leave(&mut self, process: &mut SimProcess, id: u64) {
        let must_wait = self.must_wait(process);
        let Some(SimCaller {
            state: CallerState::Releasing(lease, started),
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        let (lease, started) = (Arc::clone(lease), *started);
        let ignores_waiters = self.defect == Some(Defect::LeavesWaiters);
        if must_wait || !(ignores_waiters || process.engine.may_leave(&lease)) {
            return;
        }
        let lane = &mut process.lane;
        let is_own = |slot: &LaneSlot| matches!(slot.owner, SlotOwner::Caller(own) if own == id);
        let others = lane.slots.iter().filter(|slot| !is_own(slot));
        let was_alone = others.clone().all(|slot| slot.left().is_some());
        let written_at = self.now;
        if let Some(slot) = lane.slots.iter_mut().find(|slot| is_own(slot)) {
            slot.owner = SlotOwner::Left(LeftRelease {
                lease,
                started,
                written_at,
                was_alone,
            });
            process.callers.remove(&id);
        }
    }

    /// Whether the lane keeps a drop that was just written: nobody has had a reply for long, or
    /// nobody reads the replies before this one.
    fn must_wait(&self, process: &SimProcess) -> bool {
        let SimLane {
            connection,
            slots,
            last_reply_at,
            ..
        } = &process.lane;
        let silent_since = *last_reply_at + self.setting.config.check_period;
        let mut before = slots.iter().rev().skip(1).peekable();
        let is_unread = before.peek().is_some() && before.all(|slot| slot.left().is_some());
        let is_unread = is_unread && self.defect != Some(Defect::LeavesUnread);
        connection.is_none() || silent_since < process.local(self.now) || is_unread
    }

    /// The drop of a guard is ordered before all that its process sends for the name afterwards. So
    /// no answer that counts says that the guard's token still has the lock.
    fn check_overtaking(&mut self, process: &SimProcess, slot: &LaneSlot, holders: &[Token]) {
        if !matches!(slot.calls[0].verb, Verb::Acquire { .. }) {
            return;
        }
        let overtaken = process.lane.slots.iter().find_map(|earlier| {
            let left = earlier.left()?;
            let token = left.lease.token;
            (earlier.resent.first < slot.resent.first && holders.contains(&token)).then_some(token)
        });
        self.watch.overtaken = self.watch.overtaken.or(overtaken);
    }
}

fn released() -> ScriptReply {
    ScriptReply {
        now: Some(u64::MAX),
        more: false,
        next_page: 0,
        outcome: Outcome::Released,
        grants: Vec::new(),
    }
}
