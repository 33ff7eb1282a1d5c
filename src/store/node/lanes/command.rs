//! Commands that are no scripts. One that belongs to no name travels on the first lane. AUTH goes
//! over each lane before its credentials end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::Lanes;
use crate::key::Key;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::node::connection::refusal;
use crate::store::node::lane::Ticket;
use crate::store::node::pipeline::Hop;
use crate::store::node::pool::{NodeGuard, NodeLane};
use crate::store::node::unread::PostedCommand;
use crate::store::node::{Counts, Node};
use crate::store::{ConnectionWait, Deadlines, StoreFault};

/// How many keys the server looks at for one page. It is kept from other clients for that long.
const PAGE: u32 = 512;

impl Lanes {
    /// Runs one command that is not a script, on the first lane. Blocks until `reply_by` at most.
    pub(in crate::store) fn request(
        &self,
        command: &Cmd,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let mut attempts = Attempts::default();
        let deadlines = Deadlines {
            connection: ConnectionWait::Until(reply_by),
            reply_by,
        };
        let lane = &self.lanes[0];
        let result = self.run_command(lane, (command, Hop::Only), &mut attempts, deadlines);
        self.node.note_retries(attempts.ended_connections());
        self.node.outcome(result)
    }

    /// Runs one command that is not a script. If the connection turns out to be closed or dead, runs
    /// it again on another.
    pub(super) fn run_command(
        &self,
        lane: &NodeLane,
        (command, hop): (&Cmd, Hop),
        attempts: &mut Attempts,
        deadlines: Deadlines,
    ) -> Result<Value, StoreFault> {
        let mut connection = deadlines.connection;
        let reply_by = deadlines.reply_by;
        loop {
            let mut guard = self.open_lane(lane, connection)?;
            if hop == Hop::AskTarget {
                guard.append_asking();
            }
            let ticket = self.send_command(guard, command);
            let is_first = attempts.was_never_silent();
            let reply = self.wait(lane, &ticket, is_first, reply_by);
            let next = attempts.after(Ending::of(&reply.outcome, reply.is_late));
            if next == Next::Done || self.node.clock.now() >= reply_by {
                return reply.outcome.and_then(refusal);
            }
            if next == Next::Elsewhere {
                connection = ConnectionWait::Until(reply_by);
            }
        }
    }

    pub(super) fn send_command(&self, mut guard: NodeGuard<'_>, command: &Cmd) -> Ticket {
        let ticket = guard.append(0, self.quiet_limit(), |_, bytes| {
            self.node.counts.requests.fetch_add(1, Ordering::Relaxed);
            command.write_packed_command(bytes);
        });
        guard.write();
        ticket
    }

    /// Publishes an empty message. See [`Store::poke`](crate::store::Store::poke).
    pub(in crate::store) fn poke(&self, channel: &str, by: Time) {
        // The reply shows whether the connection was open. On one that the server had closed, the
        // message would be lost without a word.
        let _ = self.request(&empty_message(channel), by);
    }

    /// Publishes an empty message. See [`Store::post_poke`](crate::store::Store::post_poke).
    pub(in crate::store) fn post_poke(&self, channel: &str, key: &Key) {
        let (lane, _) = self.lane_of(key);
        if let Ok(mut guard) = self.open_lane(lane, ConnectionWait::Never) {
            let command = empty_message(channel);
            guard.post(0, PostedCommand::new(command, &self.node.counts, |_| {}));
            guard.write();
        }
    }

    /// The cursor of the next page (0 after the last page), and the keys of hashes that match.
    pub(in crate::store) fn scan(
        &self,
        cursor: u64,
        pattern: &str,
    ) -> Result<(u64, Vec<String>), StoreFault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(PAGE)
            .arg("TYPE")
            .arg("hash");
        let timeouts = self.node.config.command_timeout * 2;
        let page = self.request(&scan, self.node.clock.now() + timeouts);
        let page = page.map_err(|fault| fault.of_command("SCAN", "which a list of locks needs"));
        self.node.outcome(page.and_then(parse_page))
    }
}

fn empty_message(channel: &str) -> Cmd {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(channel).arg("");
    publish
}

/// The reply to SCAN: the next cursor, and keys.
pub(in crate::store::node) fn parse_page(reply: Value) -> Result<(u64, Vec<String>), StoreFault> {
    let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply).map_err(|error| {
        let error = error.to_string();
        StoreFault::protocol(format!(
            "expected a cursor and keys as the reply to SCAN: {error:.100}"
        ))
    })?;
    // The keys of locks are UTF-8. Any other key is not one.
    let keys = keys
        .into_iter()
        .filter_map(|key| String::from_utf8(key).ok());
    Ok((next, keys.collect()))
}

/// Has these lanes log in anew, each time the login of their node is renewed.
pub(super) fn log_in_with_node(node: &Node, lanes: &Arc<[NodeLane]>) {
    let lanes = Arc::downgrade(lanes);
    let counts = Arc::clone(&node.counts);
    node.login.on_renewal(move || {
        let Some(lanes) = lanes.upgrade() else {
            return false;
        };
        lanes.iter().for_each(|lane| log_in_anew(lane, &counts));
        true
    });
}

/// Sends newer credentials over a lane. They go between two calls, and nobody waits for the reply.
fn log_in_anew(lane: &NodeLane, counts: &Arc<Counts>) {
    let Some(mut guard) = lane.if_open() else {
        return;
    };
    let Some(login) = &mut guard.connected().login else {
        return;
    };
    let Some(auth) = login.take_anew() else {
        return;
    };
    let on_reply = login.on_reply();
    // If the connection ends, the next one logs in by itself.
    let on_reply = move |outcome: Result<Value, StoreFault>| {
        if let Ok(reply) = outcome {
            on_reply(refusal(reply));
        }
    };
    guard.post(0, PostedCommand::new(auth, counts, on_reply));
    guard.write();
}
