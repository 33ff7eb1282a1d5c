//! The renewal thread's connection for renewals to one node of several.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::store::clock::Time;
use crate::store::node::connection::{Connection, fault};
use crate::store::node::link::{LinkState, NodeLink};
use crate::store::node::owed::{LinkCall, LinkReply, OwedCall, not_sent};
use crate::store::node::{Node, Role};
use crate::store::{CallResult, Link, StoreFault};

/// A link to one node of several, for renewals alone. It sends renewals with one `WAIT` behind them,
/// and reads the replies later. So a node whose replicas are slow delays only its own renewals.
pub(in crate::store) struct AckedPeer {
    node: Arc<Node>,
    acks: ReplicaAcks,
    link: NodeLink,
    batch: Option<Batch>,
}

/// Renewals on their way. None of them has a result before the reply to `WAIT` has come.
struct Batch {
    calls: Vec<OwedCall>,
    /// The replies that have come.
    values: Vec<Value>,
    /// How many replies there are to be, with that to `WAIT`.
    expected: usize,
    sent: Time,
    reply_by: Time,
}

impl AckedPeer {
    /// `None` if the node needs no acknowledgements.
    pub(in crate::store) fn new(
        node: &Arc<Node>,
        on_ready: Arc<dyn Fn() + Send + Sync>,
        back_off: Duration,
    ) -> Option<AckedPeer> {
        Some(AckedPeer {
            node: Arc::clone(node),
            acks: node.replica_acks?,
            link: NodeLink::new(node, Role::Acks, on_ready, back_off),
            batch: None,
        })
    }

    pub(in crate::store) fn owes_replies(&self) -> bool {
        self.batch.is_some()
    }

    /// See [`Link::log_in_anew`].
    pub(in crate::store) fn log_in_anew(&mut self) {
        self.link.log_in_anew();
    }

    /// Sends renewals in one write, and reads no reply. Never blocks. Returns the renewals that were
    /// not sent. While it owes replies, it takes no more renewals.
    pub(in crate::store) fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        if calls.is_empty() {
            return Vec::new();
        }
        if self.owes_replies() {
            return not_sent(&calls, &StoreFault::NotReady);
        }
        let node = Arc::clone(&self.node);
        let connection = match self.link.connection() {
            Ok(connection) => connection,
            Err(fault) => return not_sent(&calls, &fault),
        };
        let sent = node.clock.now();
        let reply_by = sent + node.command_timeout;
        let owed = |mut call: LinkCall| {
            // The WAIT behind a renewal that is refused would take all its time for nothing.
            call.form = connection.scripts.form_for(&call.call, call.form);
            OwedCall::new(call, sent, reply_by)
        };
        let calls: Vec<OwedCall> = calls.into_iter().map(owed).collect();
        let mut commands = OwedCall::commands(&calls, &node);
        commands.push(self.acks.command());
        let written = connection
            .limit_writes(node.command_timeout)
            .and_then(|()| connection.send(&commands).map_err(|e| fault(e, Step::Send)));
        let batch = Batch {
            calls,
            values: Vec::new(),
            expected: commands.len(),
            sent,
            reply_by,
        };
        match written {
            Ok(()) => {
                self.batch = Some(batch);
                Vec::new()
            }
            Err(fault) => {
                connection.broken = true;
                self.end(batch, Vec::new(), &fault)
            }
        }
    }

    /// Reads what comes until `until`. After the command timeout the connection ends, and the
    /// renewals fail.
    pub(in crate::store) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        let Some(mut batch) = self.batch.take() else {
            return Vec::new();
        };
        let node = Arc::clone(&self.node);
        let Some(connection) = self.link.open_connection() else {
            return self.end(batch, Vec::new(), &StoreFault::NotReady);
        };
        while batch.values.len() < batch.expected {
            let left = until.min(batch.reply_by) - node.clock.now();
            let fault = match connection.receive_within(left) {
                Ok(Some(value)) => {
                    batch.values.push(value);
                    continue;
                }
                Ok(None) if node.clock.now() < batch.reply_by => {
                    self.batch = Some(batch);
                    return Vec::new();
                }
                Ok(None) => StoreFault::timed_out(Step::Reply),
                Err(fault) => fault,
            };
            connection.broken = true;
            return self.end(batch, Vec::new(), &fault);
        }
        self.read(batch)
    }

    /// All replies have come.
    fn read(&mut self, mut batch: Batch) -> Vec<LinkReply> {
        let node = Arc::clone(&self.node);
        let Some(connection) = self.link.open_connection() else {
            return self.end(batch, Vec::new(), &StoreFault::NotReady);
        };
        let count = batch.values.pop().unwrap_or_default();
        let count = node.read_count(connection, count);
        let mut values = std::mem::take(&mut batch.values).into_iter();
        let mut replies = Vec::new();
        for mut owed in std::mem::take(&mut batch.calls) {
            if owed.takes_asking() {
                values.next();
            }
            let script = owed.sent_call.call.script_id();
            match owed.read(&node, connection, values.next().unwrap_or_default()) {
                LinkReply::Result(number, mut result) => {
                    if result.answer.is_ok() {
                        connection.scripts.note(script, true);
                    }
                    let answer = result.answer;
                    result.answer = answer.and_then(|answer| self.acks.confirm(answer, &count));
                    replies.push(LinkReply::Result(number, result));
                }
                other => {
                    connection.scripts.note(script, false);
                    replies.push(other);
                }
            }
        }
        self.end(batch, replies, &StoreFault::NotReady)
    }

    /// The results that there are, and this fault for the rest.
    fn end(&mut self, batch: Batch, replies: Vec<LinkReply>, fault: &StoreFault) -> Vec<LinkReply> {
        let mut others = Vec::new();
        let mut numbers = Vec::new();
        let mut results: Vec<CallResult> = Vec::new();
        for reply in replies {
            match reply {
                LinkReply::Result(number, result) => {
                    numbers.push(number);
                    results.push(result);
                }
                other => others.push(other),
            }
        }
        for owed in batch.calls {
            let (number, result) = owed.fail(fault);
            numbers.push(number);
            results.push(result);
        }
        self.link
            .after_exchange(&mut results, batch.sent, batch.reply_by);
        let results = numbers.into_iter().zip(results);
        others.extend(results.map(|(number, result)| LinkReply::Result(number, result)));
        others
    }
}

impl NodeLink {
    /// The connection over which calls were sent, if it is still the link's.
    fn open_connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            LinkState::Up(connection) => Some(connection),
            _ => None,
        }
    }
}
