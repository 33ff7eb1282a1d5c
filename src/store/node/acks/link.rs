//! The renewal thread's connections to a node, with one of its own for renewals if replicas must
//! acknowledge them.

use std::sync::Arc;
use std::time::Duration;

use crate::script::Call;
use crate::store::clock::Time;
use crate::store::node::batch::{LinkCall, LinkReply, run_in_rounds};
use crate::store::node::link::NodeLink;
use crate::store::node::{Node, Role};
use crate::store::{CallResult, Link};

/// If the other calls have taken all the time, the replies to renewals may have arrived meanwhile.
/// This is the time to read them.
const TO_READ_ARRIVED: Duration = Duration::from_millis(2);

/// The renewal thread's one or two connections to a node. R18 (replica acks): an extension counts only
/// if it is acknowledged, so renewals go over one of them, with `WAIT`. All other calls go over the
/// other one.
pub(in crate::store) struct AckedLink {
    node: Arc<Node>,
    /// `None`: replicas need not acknowledge anything.
    renewals: Option<NodeLink>,
    others: NodeLink,
}

impl AckedLink {
    /// It calls `on_ready` when it can be used again after it could not.
    pub(in crate::store) fn new(
        node: &Arc<Node>,
        on_ready: Arc<dyn Fn() + Send + Sync>,
    ) -> AckedLink {
        AckedLink {
            node: Arc::clone(node),
            renewals: NodeLink::with_acks(node, Arc::clone(&on_ready)),
            others: NodeLink::new(node, Role::Renewal, on_ready),
        }
    }

    /// Whether replies are still to come.
    pub(in crate::store) fn owes_replies(&self) -> bool {
        self.others.owes_replies() || self.renewals.as_ref().is_some_and(NodeLink::owes_replies)
    }

    /// Sends calls in one write on each connection, and reads no reply. See [`NodeLink::send`].
    pub(in crate::store) fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        let Some(renewals) = &mut self.renewals else {
            return self.others.send(calls);
        };
        let (renewed, others): (Vec<LinkCall>, Vec<LinkCall>) =
            calls.into_iter().partition(|sent| sent.call.is_renewal());
        let mut replies = renewals.send(renewed);
        replies.extend(self.others.send(others));
        replies
    }

    /// Reads the replies that come until `until`. See [`NodeLink::receive`].
    pub(in crate::store) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        let mut replies = self.others.receive(until);
        if let Some(renewals) = &mut self.renewals {
            replies.extend(renewals.receive(until));
        }
        replies
    }
}

impl Link for AckedLink {
    /// Sends on both connections before it waits on either, so it blocks no longer than a link with
    /// one connection.
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let Some(peer) = &mut self.renewals else {
            return self.others.run(calls);
        };
        let (renewals, others): (Vec<Call>, Vec<Call>) =
            calls.iter().cloned().partition(Call::is_renewal);
        let clock = &self.node.clock;
        let reply_by = clock.now() + self.node.config.command_timeout;
        // The first question makes the link open the connection.
        let _ = peer.connection();
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
        self.others.log_in_anew();
        if let Some(renewals) = &mut self.renewals {
            renewals.log_in_anew();
        }
    }
}

/// The results in the order of their calls.
fn in_order(calls: &[Call], renewed: Vec<CallResult>, others: Vec<CallResult>) -> Vec<CallResult> {
    let mut renewed = renewed.into_iter();
    let mut others = others.into_iter();
    let next = |call: &Call| match call.is_renewal() {
        true => renewed.next(),
        false => others.next(),
    };
    calls.iter().filter_map(next).collect()
}
