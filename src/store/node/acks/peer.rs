//! The renewal thread's connections to a node whose replicas must acknowledge renewals.

use std::sync::Arc;
use std::time::Duration;

use super::batch::Batch;
use crate::config::ReplicaAcks;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::node::link::NodeLink;
use crate::store::node::owed::{LinkCall, LinkReply, not_sent, run_in_rounds};
use crate::store::node::{Node, Role};
use crate::store::{CallResult, Link, StoreFault};

/// If the other calls have taken all the time, the replies to renewals may have arrived meanwhile.
/// This is the time to read them.
const TO_READ_ARRIVED: Duration = Duration::from_millis(2);

/// A link to a node, for renewals alone. It sends renewals with one `WAIT` behind them, and reads the
/// replies later. So a node whose replicas are slow delays only its own renewals.
pub(in crate::store) struct AckedPeer {
    node: Arc<Node>,
    acks: ReplicaAcks,
    link: NodeLink,
    batch: Option<Batch>,
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
        let reply_by = self.node.clock.now() + self.node.command_timeout;
        self.send_until(calls, reply_by)
    }

    /// The same. The replies are awaited until `reply_by` at most.
    fn send_until(&mut self, calls: Vec<LinkCall>, reply_by: Time) -> Vec<LinkReply> {
        if calls.is_empty() {
            return Vec::new();
        }
        if self.owes_replies() {
            return not_sent(&calls, &StoreFault::NotReady);
        }
        let connection = match self.link.connection() {
            Ok(connection) => connection,
            Err(fault) => return not_sent(&calls, &fault),
        };
        let sent = self.node.clock.now();
        match Batch::send(&self.node, connection, calls, (self.acks, reply_by)) {
            Ok(batch) => {
                self.batch = Some(batch);
                Vec::new()
            }
            Err(failed) => self.link.after_replies(failed, sent, reply_by),
        }
    }

    /// Reads what comes until `until`. After the command timeout the connection ends, and the
    /// renewals fail.
    pub(in crate::store) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        let Some(batch) = self.batch.take() else {
            return Vec::new();
        };
        let (sent, reply_by) = (batch.sent, batch.reply_by);
        let replies = match self.link.open_connection() {
            None => Ok(batch.fail(&StoreFault::NotReady)),
            Some(connection) => batch.receive(&self.node, connection, until),
        };
        match replies {
            Ok(replies) => self.link.after_replies(replies, sent, reply_by),
            Err(batch) => {
                self.batch = Some(batch);
                Vec::new()
            }
        }
    }

    /// Reads all replies. They are awaited until `reply_by` at least.
    fn receive_all(&mut self, reply_by: Time) -> Vec<LinkReply> {
        if let Some(batch) = &mut self.batch {
            batch.reply_by = batch.reply_by.max(reply_by);
        }
        let mut replies = Vec::new();
        while self.owes_replies() {
            replies.extend(self.receive(Time::NEVER));
        }
        replies
    }
}

/// Two connections of the renewal thread to the one node that there is. An extension counts only if it
/// is acknowledged, so renewals go over one of them, with `WAIT`. All other calls go over the other one.
pub(in crate::store::node) struct AckedLink {
    renewals: AckedPeer,
    others: NodeLink,
}

impl AckedLink {
    /// `None` if the node needs no acknowledgements.
    pub(in crate::store::node) fn new(
        node: &Arc<Node>,
        on_ready: &Arc<dyn Fn() + Send + Sync>,
        back_off: Duration,
    ) -> Option<AckedLink> {
        Some(AckedLink {
            renewals: AckedPeer::new(node, Arc::clone(on_ready), back_off)?,
            others: NodeLink::new(node, Role::Renewal, Arc::clone(on_ready), back_off),
        })
    }
}

impl Link for AckedLink {
    /// Sends on both connections before it waits on either, so it blocks no longer than a link with
    /// one connection.
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let (renewals, others): (Vec<Call>, Vec<Call>) =
            calls.iter().cloned().partition(Call::is_renewal);
        let peer = &mut self.renewals;
        let clock = peer.node.clock.clone();
        let reply_by = clock.now() + peer.node.command_timeout;
        // The first question makes the link open the connection.
        let _ = peer.link.connection();
        let mut other_results = None;
        let mut run_others = || match others.is_empty() {
            true => Vec::new(),
            false => self.others.run(&others),
        };
        let renewed = run_in_rounds(LinkCall::numbered(&renewals), |calls| {
            let mut replies = peer.send_until(calls, reply_by);
            other_results.get_or_insert_with(&mut run_others);
            replies.extend(peer.receive_all(clock.now() + TO_READ_ARRIVED));
            replies
        });
        in_order(calls, renewed, other_results.unwrap_or_else(run_others))
    }

    fn log_in_anew(&mut self) {
        self.renewals.log_in_anew();
        self.others.log_in_anew();
    }
}

/// The results in the order of their calls.
fn in_order(calls: &[Call], renewed: Vec<CallResult>, others: Vec<CallResult>) -> Vec<CallResult> {
    let mut renewed = renewed.into_iter();
    let mut others = others.into_iter();
    let next = |call: &Call| {
        let results = if call.is_renewal() {
            &mut renewed
        } else {
            &mut others
        };
        results.next()
    };
    calls.iter().filter_map(next).collect()
}
