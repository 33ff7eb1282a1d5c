//! Calls that their callers leave before the reply comes.

use super::{Begun, InFlight, Lanes};
use crate::script::{Call, Form};
use crate::store::clock::Time;
use crate::store::node::lane::Lane;
use crate::store::node::pipeline::{Hop, Pending};
use crate::store::node::unread::UnreadCall;
use crate::store::{CallResult, Deadlines, Leave, OnResult, StoreFault};

impl Lanes {
    /// Sends calls on open lanes. See [`Store::send`](crate::store::Store::send).
    pub(in crate::store) fn send(
        &self,
        calls: &[Call],
        reply_by: Time,
        leave: &Leave<'_>,
    ) -> Vec<Option<CallResult>> {
        let begun = self.begin_send(calls.iter().map(Pending::undated), reply_by);
        self.finish_send(begun, calls.iter(), reply_by, leave)
    }

    /// The first half of [`Lanes::send`]: sends the calls, and waits for no reply.
    pub(in crate::store) fn begin_send<'a>(
        &'a self,
        calls: impl ExactSizeIterator<Item = Pending<'a>> + Clone,
        reply_by: Time,
    ) -> Vec<Begun<'a>> {
        let deadlines = Deadlines::at_once(reply_by);
        for pending in calls.clone() {
            // A process that exits closes its sockets. If one has unread bytes then, the peer gets a
            // reset, and may lose what is behind it. So this reads first.
            self.lane_of(&pending.call.key).0.read_arrived();
        }
        self.begin_all(calls, deadlines)
    }

    /// The second half of [`Lanes::send`].
    pub(in crate::store) fn finish_send<'a>(
        &'a self,
        begun: Vec<Begun<'a>>,
        calls: impl Iterator<Item = &'a Call>,
        reply_by: Time,
        leave: &Leave<'_>,
    ) -> Vec<Option<CallResult>> {
        let deadlines = Deadlines::at_once(reply_by);
        let may_leave: Vec<bool> = begun
            .iter()
            .map(|flight| {
                flight
                    .as_ref()
                    .is_ok_and(|flight| may_leave(flight, &begun))
            })
            .collect();
        let end = |(index, (begun, call)): (usize, (Begun<'a>, &Call))| {
            if let Ok(flight) = &begun
                && may_leave[index]
                && let Some(on_result) = leave(index)
            {
                let sent = flight.ticket.sent;
                let age = flight.age;
                let unread = UnreadCall::new(&self.node, &flight.pending, sent, age, on_result);
                flight.lane.yield_to_writer(&flight.ticket);
                // Nothing comes back if the caller may leave.
                flight.lane.leave(&flight.ticket, unread)?;
            }
            if begun.is_err() {
                // This caller opens no connection for what others have left.
                self.lane_of(&call.key).0.fail_resends();
            }
            Some(self.finish(begun, deadlines))
        };
        begun.into_iter().zip(calls).enumerate().map(end).collect()
    }

    /// Sends a call that its caller has left at another node, in this form. Returns whether it was
    /// sent now: if not, somebody must call [`Lanes::read_unread`].
    pub(in crate::store) fn take_over(
        &self,
        call: &Call,
        (form, hop): (Form, Hop),
        on_result: OnResult,
    ) -> bool {
        // The reply may lie unread for a while, so it must not be that the script is unknown.
        let form = Form {
            by_source: true,
            ..form
        };
        let pending = Pending::routed(call, form, hop);
        let now = self.node.clock.now();
        let unread = UnreadCall::new(&self.node, &pending, now, self.node.ages.now(), on_result);
        let (lane, name) = self.lane_of(&call.key);
        lane.take_over(name, unread)
    }

    /// See [`Store::unread_due`](crate::store::Store::unread_due).
    pub(in crate::store) fn unread_due(&self) -> Time {
        let due = self.lanes.iter().map(Lane::unread_due);
        due.min().unwrap_or(Time::NEVER)
    }

    /// See [`Store::read_unread`](crate::store::Store::read_unread).
    pub(in crate::store) fn read_unread(&self) {
        for lane in self.lanes.iter() {
            lane.read_arrived();
            lane.end_overdue();
            lane.fail_resends();
        }
    }

    /// See [`Store::read_all_unread`](crate::store::Store::read_all_unread).
    pub(in crate::store) fn read_all_unread(&self, until: Time) {
        for lane in self.lanes.iter() {
            while lane.has_unread() && self.node.clock.now() < until {
                lane.await_opening(until);
                // Replies come in order, so the reply to a PING comes behind all others.
                if let Some(guard) = lane.if_open() {
                    let ticket = self.send_command(guard, &redis::cmd("PING"));
                    lane.wait(&ticket, until);
                }
                lane.fail_resends();
            }
        }
    }

    /// Whether some call has no reply although its caller has left.
    pub(in crate::store) fn has_unread(&self) -> bool {
        self.lanes.iter().any(Lane::has_unread)
    }
}

/// Whether a caller may leave one of the calls that it has just sent.
fn may_leave(flight: &InFlight<'_>, sent: &[Result<InFlight<'_>, StoreFault>]) -> bool {
    // These calls were appended one after the other, and all of them may be left. So only what was
    // on the lane before the first of them counts.
    let mut on_its_lane = sent
        .iter()
        .flatten()
        .filter(|other| std::ptr::eq(other.lane, flight.lane));
    let first = on_its_lane.next().unwrap_or(flight);
    // A server may refuse a script that it has not run for this connection. Nobody might read the
    // refusal for a command timeout, and the release would not run until then.
    first.ticket.may_leave && flight.is_script_known
}
