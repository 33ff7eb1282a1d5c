//! The renewal thread's own connections to the nodes of a quorum.

use std::sync::Arc;

use super::decision::majority_of;
use super::member::{Member, Reach};
use super::nodes::{Nodes, Unreachable};
use super::shared::Shared;
use crate::error::Step;
use crate::script::{Call, Token};
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// One lane to each node. All requests are sent before any reply is read, and a node that hangs
/// keeps nobody waiting as long as a majority answers.
pub(super) struct QuorumLink {
    pub(super) shared: Arc<Shared>,
    pub(super) nodes: Arc<Nodes>,
    /// The lanes of the callers.
    pub(super) callers: Arc<Nodes>,
    /// When it first waited for some node, while a majority was connected.
    pub(super) first_wait: Option<Time>,
    /// When the nodes that are away are looked for next.
    pub(super) look_at: Time,
}

impl Link for QuorumLink {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        if let Err(fault) = self.check_connections(calls) {
            return CallResult::none_sent(calls, &fault);
        }
        let until = self.shared.clock.now() + self.shared.config.command_timeout;
        let left_out = Unreachable::AreLeftOut;
        self.nodes.run(&self.shared, calls, until, left_out)
    }

    fn check_due(&self) -> Time {
        let gap = self.shared.gaps.next_due();
        if self.away().next().is_some() {
            gap.min(self.look_at)
        } else {
            gap
        }
    }

    /// Reads the answers that came after their majority, and looks for the nodes that are away.
    fn check(&mut self) {
        let now = self.shared.clock.now();
        self.callers.read_unread();
        self.nodes.read_unread();
        self.shared.gaps.end_look(now);
        if now < self.look_at {
            return;
        }
        let mut look_at = now + self.shared.config.back_off;
        for (_, member) in self.away().filter(|(_, member)| !member.lanes.is_open(0)) {
            // A call may have begun an attempt since the last look. The next one counts from that.
            if let Reach::Suspect(_, again_at) = member.begin_opening(0, None) {
                look_at = look_at.min(again_at);
            }
        }
        self.look_at = look_at;
    }

    /// A node that is back lacks the leases that were granted meanwhile, and may have forgotten the
    /// others. The servers are the same: this has all leases renewed at once.
    fn has_moved(&mut self) -> bool {
        let back: Vec<usize> = self
            .away()
            .filter(|(node, member)| self.shared.may_be_back(*node) && member.lanes.is_open(0))
            .map(|(node, _)| node)
            .collect();
        back.iter().for_each(|node| self.shared.note_back(*node));
        !back.is_empty()
    }

    fn due_again(&mut self) -> Vec<Token> {
        self.shared.gaps.take_due(self.shared.clock.now())
    }
}

impl QuorumLink {
    fn away(&self) -> impl Iterator<Item = (usize, &Arc<Member>)> {
        let nodes = self.nodes.members.iter().enumerate();
        nodes.filter(|(node, _)| self.shared.is_away(*node))
    }

    /// Opens what is closed, in the background. An error if no majority is open now.
    fn check_connections(&mut self, calls: &[Call]) -> Result<(), StoreFault> {
        let Some(call) = calls.first() else {
            return Ok(());
        };
        let (mut open, mut opening, mut failed) = (0, Vec::new(), None);
        for node in 0..self.nodes.members.len() {
            match self.nodes.reach_for_link(node, call) {
                Reach::Open | Reach::NeedsRights => open += 1,
                Reach::Opening => opening.push(node),
                Reach::Suspect(fault, _) => {
                    self.shared.note_away(node);
                    failed = Some(fault);
                }
            }
        }
        if open >= majority_of(self.nodes.members.len()) {
            // The first renewal waits for the other nodes, for a command timeout: a lock that a node
            // has missed is taken there, too.
            let now = self.shared.clock.now();
            let is_over = |since: Time| now >= since + self.shared.config.command_timeout;
            if opening.is_empty() || is_over(*self.first_wait.get_or_insert(now)) {
                opening.iter().for_each(|node| self.shared.note_away(*node));
                return Ok(());
            }
            return Err(StoreFault::NotReady);
        }
        match failed.filter(|_| opening.is_empty()) {
            None => Err(StoreFault::NotReady),
            Some(fault) if fault.is_transient() => Err(StoreFault::unavailable(
                Step::Majority,
                format!(
                    "{open} of {} nodes are connected: {fault}",
                    self.nodes.members.len()
                ),
            )),
            Some(fault) => Err(fault),
        }
    }
}
