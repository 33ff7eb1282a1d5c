//! Commands that are no scripts. One that belongs to no name travels on the first lane.

use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::{Lanes, NodeGuard, NodeLane};
use crate::store::clock::Time;
use crate::store::node::connection::refusal;
use crate::store::node::lane::{LaneReply, Ticket};
use crate::store::node::pipeline::{Hop, Pending};
use crate::store::{ConnectionWait, RESENDS_WHEN_CLOSED, StoreFault};

impl Lanes {
    /// Asks for the rights that a call needs.
    pub(super) fn ask_for_rights(
        &self,
        lane: &NodeLane,
        mut guard: NodeGuard<'_>,
        pending: &Pending<'_>,
        is_first: bool,
        reply_by: Time,
    ) -> LaneReply {
        let command = self.node.rights_command(pending.call);
        if pending.hop == Hop::AskTarget {
            guard.append_asking();
        }
        let ticket = self.send_command(guard, &command);
        self.wait(lane, &ticket, is_first, reply_by)
    }

    /// Runs one command that is not a script. If the connection turns out to be closed or dead, runs
    /// it again on another. Blocks until `reply_by` at most.
    pub(in crate::store) fn request(
        &self,
        command: &Cmd,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let lane = &self.lanes[0];
        let mut open_by = (self.node.clock.now() + self.node.command_timeout).min(reply_by);
        let mut closed = 0;
        let mut was_late = false;
        let result = loop {
            let guard = match self.open_lane(lane, ConnectionWait::Until(open_by)) {
                Ok(guard) => guard,
                Err(fault) => break Err(fault),
            };
            let ticket = self.send_command(guard, command);
            let reply = self.wait(lane, &ticket, !was_late, reply_by);
            let is_again = if reply.is_late {
                !std::mem::replace(&mut was_late, true)
            } else {
                closed += 1;
                closed <= RESENDS_WHEN_CLOSED
                    && reply.outcome.as_ref().is_err_and(StoreFault::is_closed)
            };
            if !is_again || self.node.clock.now() >= reply_by {
                break reply.outcome.and_then(refusal);
            }
            self.node.note_retries(1);
            open_by = reply_by;
        };
        self.node.outcome(result)
    }

    pub(super) fn send_command(&self, mut guard: NodeGuard<'_>, command: &Cmd) -> Ticket {
        let ticket = guard.append(0, self.quiet_limit, |_, bytes| {
            self.node.counts.requests.fetch_add(1, Ordering::Relaxed);
            command.write_packed_command(bytes);
        });
        guard.write();
        ticket
    }

    /// Publishes an empty message. See [`Store::poke`](crate::store::Store::poke).
    pub(in crate::store) fn poke(&self, channel: &str, by: Time) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg("");
        // The reply shows whether the connection was open. On one that the server had closed, the
        // message would be lost without a word.
        let _ = self.request(&publish, by);
    }
}
