//! The renewal thread's own connections to the nodes of a quorum.

use std::sync::Arc;

use super::decision::majority_of;
use super::member::Way;
use super::panel::{Panel, Unreachable};
use super::shared::Shared;
use crate::error::Step;
use crate::script::Call;
use crate::store::{CallResult, Link, StoreFault};

/// One lane to each node. All requests are sent before any reply is read, and a node that hangs
/// keeps nobody waiting as long as a majority answers.
pub(super) struct QuorumLink {
    pub(super) shared: Arc<Shared>,
    pub(super) panel: Arc<Panel>,
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
    fn check_connections(&self, calls: &[Call]) -> Result<(), StoreFault> {
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
        // The first renewal goes to all nodes, if they can be reached at all: a lock that a node has
        // missed is taken there, too.
        if opening > 0 {
            return Err(StoreFault::NotReady);
        }
        if open >= majority_of(self.panel.members.len()) {
            return Ok(());
        }
        match failed {
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
