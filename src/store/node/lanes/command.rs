//! Commands that are no scripts. One that belongs to no name travels on the first lane.

use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::{Lanes, NodeGuard, NodeLane};
use crate::script::rights_command;
use crate::store::clock::Time;
use crate::store::node::connection::refusal;
use crate::store::node::lane::Ticket;
use crate::store::node::pipeline::{Hop, Pending};
use crate::store::{ConnectionWait, RESENDS_WHEN_CLOSED, StoreFault};

impl Lanes {
    /// Asks for the rights. An error if a call that needs them must not be sent.
    pub(super) fn check_rights(
        &self,
        lane: &NodeLane,
        mut guard: NodeGuard<'_>,
        pending: &Pending<'_>,
        reply_by: Time,
    ) -> Result<(), StoreFault> {
        let call = pending.call;
        let command = rights_command(call, &self.node.caller_id);
        if pending.hop == Hop::AskTarget {
            guard.append_asking();
        }
        let ticket = self.send_command(guard, &command);
        let until = (ticket.sent + self.node.command_timeout).min(reply_by);
        let reply = refusal(lane.wait(&ticket, until).outcome?);
        let reply = reply.map_err(StoreFault::of_script)?;
        self.node.note_rights(call, reply)
    }

    /// Runs one command that is not a script. If the connection turns out to be closed, runs it
    /// again on another. Blocks until `reply_by` at most.
    pub(in crate::store) fn request(
        &self,
        command: &Cmd,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let open_by = (self.node.clock.now() + self.node.command_timeout).min(reply_by);
        let mut result = self.request_once(command, open_by, reply_by);
        for _ in 0..RESENDS_WHEN_CLOSED {
            if !result.as_ref().is_err_and(StoreFault::is_closed) {
                break;
            }
            self.node.note_retries(1);
            result = self.request_once(command, reply_by, reply_by);
        }
        self.node.outcome(result)
    }

    fn request_once(
        &self,
        command: &Cmd,
        open_by: Time,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let lane = &self.lanes[0];
        let guard = self.open_lane(lane, ConnectionWait::Until(open_by))?;
        let ticket = self.send_command(guard, command);
        let until = (ticket.sent + self.node.command_timeout).min(reply_by);
        refusal(lane.wait(&ticket, until).outcome?)
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
