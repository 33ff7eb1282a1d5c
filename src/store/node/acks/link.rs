//! The renewal thread's link, with a connection of its own for renewals.

use std::sync::Arc;
use std::time::Duration;

use super::{AckedExchange, Renewal};
use crate::config::ReplicaAcks;
use crate::script::Call;
use crate::store::node::link::NodeLink;
use crate::store::node::{Node, Role};
use crate::store::{CallResult, Link};

/// If the other calls have taken all the time, the replies to renewals may have arrived meanwhile.
/// This is the time to read them.
const TO_READ_ARRIVED: Duration = Duration::from_millis(2);

/// Two connections of the renewal thread to one node. An extension counts only if it is
/// acknowledged, so renewals go over one of them, with `WAIT`. All other calls go over the other one.
pub(in crate::store::node) struct AckedLink {
    node: Arc<Node>,
    acks: ReplicaAcks,
    renewals: NodeLink,
    others: NodeLink,
}

impl AckedLink {
    pub(in crate::store::node) fn new(
        node: &Arc<Node>,
        acks: ReplicaAcks,
        on_ready: Arc<dyn Fn() + Send + Sync>,
        back_off: Duration,
    ) -> AckedLink {
        AckedLink {
            node: Arc::clone(node),
            acks,
            renewals: NodeLink::new(node, Role::Acks, Arc::clone(&on_ready), back_off),
            others: NodeLink::new(node, Role::Renewal, on_ready, back_off),
        }
    }
}

impl Link for AckedLink {
    /// Sends on both connections before it waits on either, so it blocks no longer than a link with
    /// one connection.
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let (renewals, others): (Vec<Call>, Vec<Call>) =
            calls.iter().cloned().partition(Call::is_renewal);
        let started = self.node.clock.now();
        let reply_by = started + self.node.command_timeout;
        let mut run_others = || match others.is_empty() {
            true => Vec::new(),
            false => self.others.run(&others),
        };
        let (renewed, other_results) = match self.renewals.connection() {
            // The first question makes the link open the connection.
            Err(fault) => (CallResult::none_sent(&renewals, &fault), run_others()),
            Ok(_) if renewals.is_empty() => (Vec::new(), run_others()),
            Ok(connection) => {
                let renewals: Vec<Renewal> = renewals.iter().map(Renewal::of).collect();
                let mut exchange =
                    AckedExchange::begin(&self.node, connection, &renewals, self.acks, reply_by);
                let other_results = run_others();
                exchange.allow_until(self.node.clock.now() + TO_READ_ARRIVED);
                let mut renewed = exchange.finish(&self.node, connection);
                self.renewals
                    .after_exchange(&mut renewed, started, reply_by);
                (renewed, other_results)
            }
        };
        in_order(calls, renewed, other_results)
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
