//! The renewal thread's link to the one node that there is, with a connection of its own for renewals.

use std::sync::Arc;
use std::time::Duration;

use crate::script::Call;
use crate::store::node::batch::{LinkCall, run_in_rounds};
use crate::store::node::link::NodeLink;
use crate::store::node::{Node, Role};
use crate::store::{CallResult, Link};

/// If the other calls have taken all the time, the replies to renewals may have arrived meanwhile.
/// This is the time to read them.
const TO_READ_ARRIVED: Duration = Duration::from_millis(2);

/// Two connections of the renewal thread to the one node that there is. An extension counts only if it
/// is acknowledged, so renewals go over one of them, with `WAIT`. All other calls go over the other one.
pub(in crate::store::node) struct AckedLink {
    node: Arc<Node>,
    renewals: NodeLink,
    others: NodeLink,
}

impl AckedLink {
    /// `None` if the node needs no acknowledgements.
    pub(in crate::store::node) fn new(
        node: &Arc<Node>,
        on_ready: &Arc<dyn Fn() + Send + Sync>,
    ) -> Option<AckedLink> {
        Some(AckedLink {
            node: Arc::clone(node),
            renewals: NodeLink::with_acks(node, Arc::clone(on_ready))?,
            others: NodeLink::new(node, Role::Renewal, Arc::clone(on_ready)),
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
