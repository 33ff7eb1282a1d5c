//! The lane of a process: one connection that all its callers share. It is a FIFO in both
//! directions: requests arrive in the order in which they were sent, and so do their replies.
//!
//! A drop may leave: its release is written, and nobody waits for the reply. The next caller that
//! waits for a reply on the lane reads it, or the next release before it is written, or the renewal
//! thread a command timeout later. This file does what `store::node::lane` does with threads.

use std::sync::Arc;

use super::network::Way;
use super::{Run, SimEvent};
use crate::script::{Call, Outcome, ScriptReply, Token, Verb};
use crate::sim::defect::Defect;
use crate::sim::lane::{LaneConnection, LaneEnd, LaneSlot, LeftRelease, ReplyInFlight};
use crate::sim::lane::{Resent, SimLane, SlotOwner};
use crate::sim::plan::NetworkFault;
use crate::sim::process::{CallerState, SimCaller, SimProcess};
use crate::sim::process::{closed, no_connection, no_reply};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, OnResult, StoreFault};

/// How often a call is sent again after its connection was closed.
const RESENDS: u32 = 2;

impl Run<'_> {
    /// Sends a caller's call. It ends at once if there is no connection.
    pub(super) fn send_on_lane(
        &mut self,
        process: &mut SimProcess,
        caller: u64,
        calls: Arc<Vec<Call>>,
        reply_by: Time,
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
        self.open_lane(process);
        let resent = Resent {
            reply_by: Some(reply_by),
            ..Resent::default()
        };
        self.write(process, SlotOwner::Caller(caller), calls, resent);
        // The caller reads, also what has arrived before.
        self.read_lane(process);
        if process.lane.connection.is_some() && !process.lane.is_open() {
            self.end_connection(process, LaneEnd::Closed);
        }
    }

    /// Writes a release that nobody waits for, on an open lane.
    pub(super) fn send_left(
        &mut self,
        process: &mut SimProcess,
        token: Token,
        on_result: OnResult,
        call: Call,
    ) {
        let was_alone = !process.lane.has_reader();
        let owner = SlotOwner::Left(LeftRelease {
            on_result,
            token,
            written_at: self.now,
            was_alone,
        });
        self.write(process, owner, Arc::new(vec![call]), Resent::default());
    }

    /// Opens the lane's connection, if it has none. Releases that nobody waits for are sent again
    /// first.
    fn open_lane(&mut self, process: &mut SimProcess) {
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

    /// Sends a call again whose connection was closed.
    fn write_again(&mut self, process: &mut SimProcess, slot: LaneSlot) {
        let resent = Resent {
            times: slot.resent.times + 1,
            not_after: slot.not_after,
            has_copies: true,
            ..slot.resent
        };
        self.write(process, slot.owner, slot.calls, resent);
    }

    /// Puts a call on its way.
    fn write(
        &mut self,
        process: &mut SimProcess,
        owner: SlotOwner,
        calls: Arc<Vec<Call>>,
        resent: Resent,
    ) {
        let number = self.number();
        let sent = process.local(self.now);
        let mut slot = LaneSlot {
            number,
            owner,
            calls,
            sent,
            reply_by: resent.reply_by.unwrap_or(Time::NEVER),
            not_after: resent.not_after,
            resent: Resent {
                first: resent.first.or(Some(number)),
                ..resent
            },
            reply: None,
            is_void: false,
        };
        let Some(connection) = &process.lane.connection else {
            let fault = slot.fault(no_connection());
            return self.end_slot(process, slot, Err(fault));
        };
        let due = if slot.is_awaited() {
            slot.reply_by
        } else {
            Time::NEVER
        };
        let dates = self.dates(process, &connection.peer, due);
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
            connection.requests_lost |= !arrives || connection.is_closed;
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
        if slot.is_awaited() {
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
            // The process is gone. Its socket answers a reply by RST, and then the server loses
            // what it has not read yet.
            if let Some(after) = after {
                self.reset_lane_of_the_dead(number, lane, now + after);
            }
            return None;
        };
        let is_delivered = process.inbound_lost_until <= now;
        let connection = process.lane.connection(lane)?;
        connection.replies_lost |= !is_delivered || after.is_none();
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
    pub(super) fn read_lane(&mut self, process: &mut SimProcess) {
        let has_reply = |slot: &LaneSlot| slot.reply.is_some();
        while process.lane.slots.front().is_some_and(has_reply)
            && let Some(slot) = process.lane.slots.pop_front()
        {
            self.on_slot_reply(process, slot);
        }
    }

    fn on_slot_reply(&mut self, process: &mut SimProcess, mut slot: LaneSlot) {
        process.lane.last_reply_at = process.local(self.now);
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
        let call = &slot.calls[0];
        let (parsed, anchor) = if slot.is_awaited() {
            self.read_reply(process, call, sent, &reply)
        } else {
            // Nobody knows how long ago it came.
            (reply.parse(call), None)
        };
        let clock_steps = process.newest_after;
        if let (Some(connection), Some(anchor)) = (&mut process.lane.connection, anchor) {
            connection.peer.anchor = anchor;
            connection.peer.clock_steps = clock_steps;
        }
        if slot.is_void && slot.is_awaited() {
            let resent = Resent {
                not_after: slot.not_after,
                has_copies: true,
                ..slot.resent
            };
            return self.write_after_reply(process, slot, resent);
        }
        self.check_overtaking(process, &slot, &reply.own_holders);
        if matches!(slot.calls[0].verb, Verb::Acquire { .. }) {
            let ago = (process.local(self.now) - slot.sent).as_nanos() as u64;
            self.check_let_go(process, self.now.saturating_sub(ago), &reply.own_holders);
        }
        let answer = Answer {
            reply: parsed,
            sent,
            resent: slot.resent.has_copies,
        };
        self.end_slot(process, slot, Ok(answer));
    }

    /// NOSCRIPT: the call is sent again at once, by its source. If it is a release that nobody
    /// waits for, the callers behind it got answers that say nothing.
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
                behind.is_void = self.defect != Some(Defect::RefusedIsOvertaken);
            }
        }
        let resent = Resent {
            not_after: slot.not_after,
            by_source: true,
            ..slot.resent
        };
        self.write_after_reply(process, slot, resent);
    }

    /// Sends a call again whose reply came, if anybody wants its result and has time left.
    fn write_after_reply(&mut self, process: &mut SimProcess, slot: LaneSlot, resent: Resent) {
        if slot.is_awaited() && slot.reply_by <= process.local(self.now) {
            let fault = slot.fault(no_reply());
            return self.end_slot(process, slot, Err(fault));
        }
        if !matches!(slot.owner, SlotOwner::Nobody) {
            self.write(process, slot.owner, slot.calls, resent);
        }
    }

    /// A connection of the lane was closed. A caller that waits for a reply finds that out.
    pub(super) fn on_lane_closed(&mut self, process: &mut SimProcess, lane: u64) {
        let Some(connection) = process.lane.connection(lane) else {
            return;
        };
        connection.is_closed = true;
        if process.lane.has_reader() {
            self.read_lane(process);
            self.end_connection(process, LaneEnd::Closed);
        }
    }

    /// A caller has waited for its reply for long enough. If it is late by the command timeout, the
    /// lane is not used again.
    pub(super) fn on_lane_timeout(&mut self, process: &mut SimProcess, number: u64) {
        let timed_out = process.local(self.now) - self.setting.config.command_timeout;
        let Some(slot) = process.lane.slot(number).filter(|slot| slot.is_awaited()) else {
            return;
        };
        if slot.sent <= timed_out {
            return self.end_connection(process, LaneEnd::Late(number));
        }
        let owner = std::mem::replace(&mut slot.owner, SlotOwner::Nobody);
        let result = CallResult {
            answer: Err(slot.fault(no_reply())),
            not_after: slot.not_after,
        };
        let calls = Arc::clone(&slot.calls);
        if let SlotOwner::Caller(caller) = owner {
            self.on_call_result(process, caller, calls, result);
        }
    }

    /// When the renewal thread must read what nobody waits for.
    pub(super) fn note_unread_due(&self, process: &SimProcess) {
        let SimLane {
            connection, slots, ..
        } = &process.lane;
        let due = match slots.front() {
            _ if slots.iter().all(LaneSlot::is_awaited) => Time::NEVER,
            Some(oldest) if connection.is_some() => {
                oldest.sent + self.setting.config.command_timeout
            }
            _ => Time::from_nanos(0),
        };
        process.unread.set_due(due);
    }

    /// The renewal thread reads what has arrived. If a reply is late, the lane is not used again.
    /// Releases that still wait for the next connection fail.
    pub(super) fn read_unread(&mut self, process: &mut SimProcess) {
        self.read_lane(process);
        let timed_out = process.local(self.now) - self.setting.config.command_timeout;
        let SimLane {
            connection, slots, ..
        } = &process.lane;
        if connection.as_ref().is_some_and(|open| open.is_closed) {
            self.end_connection(process, LaneEnd::Closed);
        } else if let Some(oldest) = slots.front().filter(|slot| slot.sent <= timed_out)
            && slots.iter().any(|slot| !slot.is_awaited())
        {
            self.end_connection(process, LaneEnd::Late(oldest.number));
        }
        self.fail_resends(process);
    }

    /// Fails the releases that nobody waits for and that wait for the next connection, if nobody
    /// has opened one.
    fn fail_resends(&mut self, process: &mut SimProcess) {
        if process.lane.connection.is_some() {
            return;
        }
        for slot in std::mem::take(&mut process.lane.slots) {
            let fault = StoreFault::InDoubt(Box::new(closed()));
            self.end_slot(process, slot, Err(fault));
        }
    }

    /// The connection is not used any more, and each call without a reply is in doubt. Those that
    /// have time left are sent again on the next connection: first the releases that nobody waits
    /// for, and then each caller, in any order. A caller that only releases opens no connection.
    fn end_connection(&mut self, process: &mut SimProcess, end: LaneEnd) {
        process.lane.connection = None;
        process.note_trouble(self.now);
        let now = process.local(self.now);
        let slots = std::mem::take(&mut process.lane.slots);
        let oldest = slots.front().map(|slot| slot.number);
        let (mut left, mut awaited, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for slot in slots {
            let is_late = match end {
                LaneEnd::Closed => false,
                LaneEnd::Late(late) => late == slot.number || oldest == Some(slot.number),
            };
            match slot.owner {
                SlotOwner::Nobody => {}
                _ if is_late => over.push((slot, no_reply())),
                _ if slot.resent.times >= RESENDS => over.push((slot, closed())),
                SlotOwner::Left(_) => left.push(slot),
                SlotOwner::Caller(_) if slot.reply_by <= now => over.push((slot, closed())),
                SlotOwner::Caller(_) => awaited.push(slot),
            }
        }
        // Each caller is a thread, and any of them comes first.
        for at in (1..awaited.len()).rev() {
            awaited.swap(at, process.rng.below(at as u64 + 1) as usize);
        }
        let has_awaited = !awaited.is_empty() || over.iter().any(|(slot, _)| slot.is_awaited());
        self.send_again(process, left, awaited, &mut over);
        for (slot, fault) in over {
            let fault = slot.fault(fault);
            self.end_slot(process, slot, Err(fault));
        }
        if has_awaited {
            // The last thing that each of these callers does.
            self.fail_resends(process);
        }
    }

    fn send_again(
        &mut self,
        process: &mut SimProcess,
        left: Vec<LaneSlot>,
        awaited: Vec<LaneSlot>,
        over: &mut Vec<(LaneSlot, StoreFault)>,
    ) {
        let opens = |slot: &LaneSlot| !is_guard_release(process, slot);
        let opener = awaited.iter().position(opens);
        if self.defect == Some(Defect::ResendOrder) && opener.is_some() {
            self.open_lane(process);
            for slot in awaited.into_iter().chain(left) {
                self.write_again(process, slot);
            }
            return;
        }
        process.lane.slots.extend(left);
        for (at, slot) in awaited.into_iter().enumerate() {
            if opener.is_some_and(|opener| opener <= at) {
                self.open_lane(process);
            }
            if process.lane.connection.is_some() {
                self.write_again(process, slot);
            } else if is_guard_release(process, &slot) {
                over.push((slot, closed()));
            } else {
                over.push((slot, StoreFault::InDoubt(Box::new(no_connection()))));
            }
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
            SlotOwner::Left(left) => (left.on_result)(result),
            SlotOwner::Nobody => {}
        }
    }

    /// A caller that has just written the release of its guard leaves without the reply, if it may.
    pub(super) fn leave(&mut self, process: &mut SimProcess, id: u64) {
        let Some(SimCaller {
            state: CallerState::Releasing(lease, started),
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        let (lease, started) = (Arc::clone(lease), *started);
        let is_own = |slot: &LaneSlot| matches!(slot.owner, SlotOwner::Caller(own) if own == id);
        let Some(at) = process.lane.slots.iter().position(is_own) else {
            return;
        };
        let before = || process.lane.slots.iter().take(at);
        let was_alone = !before().any(LaneSlot::is_awaited);
        let is_unread = was_alone && at > 0 && self.defect != Some(Defect::LeavesUnread);
        let silent_since = process.lane.last_reply_at + self.setting.config.check_period;
        if is_unread || silent_since <= process.local(self.now) {
            return;
        }
        let slot = &mut process.lane.slots[at];
        let call = &slot.calls[0];
        let on_result = match self.defect {
            Some(Defect::LeavesWaiters) => Some(process.engine.leave_anyway(&lease, call, started)),
            _ => process.engine.leave(&lease, call, started),
        };
        if let Some(on_result) = on_result {
            slot.owner = SlotOwner::Left(LeftRelease {
                on_result,
                token: lease.token,
                written_at: self.now,
                was_alone,
            });
            process.callers.remove(&id);
        }
    }

    /// A process crashes. Its kernel sends what was written, unless it resets the connection
    /// because replies have arrived that nobody has read.
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
        let by = self.now.max(process.cut_until).max(connection.last_arrival);
        let written = lane.slots.iter().filter(|slot| slot.reply.is_none());
        let left = written.filter_map(LaneSlot::left);
        for left in left.filter(|left| left.was_alone) {
            self.watch.note_last_drop(left.token, by);
        }
    }

    fn reset_lane_of_the_dead(&mut self, process: u64, lane: u64, at: u64) {
        let reset_at = self.resets_of_the_dead.entry((process, lane));
        let reset_at = reset_at.or_insert(at);
        *reset_at = at.min(*reset_at);
    }

    /// The drop of a guard is ordered before all that its process sends for the name afterwards. So
    /// no answer that counts says that the guard's token still has the lock.
    fn check_overtaking(&mut self, process: &SimProcess, slot: &LaneSlot, holders: &[Token]) {
        if !matches!(slot.calls[0].verb, Verb::Acquire { .. }) {
            return;
        }
        let overtaken = process.lane.slots.iter().find_map(|earlier| {
            let token = earlier.left()?.token;
            (earlier.resent.first < slot.resent.first && holders.contains(&token)).then_some(token)
        });
        self.watch.overtaken = self.watch.overtaken.or(overtaken);
    }
}

/// Whether a caller waits for the release of its guard. It is sent on an open connection alone.
fn is_guard_release(process: &SimProcess, slot: &LaneSlot) -> bool {
    let SlotOwner::Caller(caller) = slot.owner else {
        return false;
    };
    let caller = process.callers.get(&caller);
    caller.is_some_and(|caller| matches!(caller.state, CallerState::Releasing(..)))
}

fn released() -> ScriptReply {
    ScriptReply::of(Outcome::Released, Some(u64::MAX))
}
