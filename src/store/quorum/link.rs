//! The renewal thread's own connections to the nodes of a quorum.

use std::sync::Arc;

use super::decision::majority_of;
use super::member::Way;
use super::panel::{Panel, Unreachable};
use super::shared::Shared;
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// One lane to each node. All requests are sent before any reply is read, and a node that hangs
/// keeps nobody waiting as long as a majority answers.
pub(super) struct QuorumLink {
    pub(super) shared: Arc<Shared>,
    pub(super) panel: Arc<Panel>,
    /// When it first waited for some node, while a majority was connected.
    pub(super) first_wait: Option<Time>,
}

impl Link for QuorumLink {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        if let Err(fault) = self.check_connections(calls) {
            return CallResult::none_sent(calls, &fault);
        }
        let until = self.shared.clock.now() + self.shared.command_timeout;
        let left_out = Unreachable::AreLeftOut;
        self.panel.run(&self.shared, calls, until, left_out)
    }
}

impl QuorumLink {
    /// Opens what is closed, in the background. An error if no majority is open now.
    fn check_connections(&mut self, calls: &[Call]) -> Result<(), StoreFault> {
        let Some(call) = calls.first() else {
            return Ok(());
        };
        let (mut open, mut opening, mut failed) = (0, 0, None);
        for member in &self.panel.members {
            match member.way(call, None) {
                Way::Open | Way::NeedsRights => open += 1,
                Way::Opening => opening += 1,
                Way::Suspect(fault, _) => failed = Some(fault),
            }
        }
        if open >= majority_of(self.panel.members.len()) {
            // The first renewal waits for the other nodes, for a command timeout: a lock that a node
            // has missed is taken there, too.
            let now = self.shared.clock.now();
            let is_over = |since: Time| now >= since + self.shared.command_timeout;
            if opening == 0 || is_over(*self.first_wait.get_or_insert(now)) {
                return Ok(());
            }
            return Err(StoreFault::NotReady);
        }
        match failed.filter(|_| opening == 0) {
            None => Err(StoreFault::NotReady),
            Some(fault) if fault.is_transient() => Err(StoreFault::unavailable(
                Step::Majority,
                format!(
                    "{open} of {} nodes are connected: {fault}",
                    self.panel.members.len()
                ),
            )),
            Some(fault) => Err(fault),
        }
    }
}
