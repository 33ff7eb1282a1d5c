//! The nodes that vote on who gets a lock, and the fences that this manager proposes to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Step;
use crate::script::{Call, Verb};
use crate::store::clock::{Clock, Time};
use crate::store::node::{Identities, Node};
use crate::store::{Anchor, CallResult, StoreFault};
use crate::time_text;

/// Which nodes vote.
pub(super) struct Voters {
    clock: Clock,
    nodes: Vec<Arc<Node>>,
    /// A server that two addresses lead to has one vote.
    identities: Arc<Identities>,
    /// The longest lease. A server that has run for less may have forgotten one.
    ttl: Duration,
    fences: Fences,
}

impl Voters {
    pub(super) fn new(
        clock: Clock,
        nodes: Vec<Arc<Node>>,
        identities: Arc<Identities>,
        ttl: Duration,
    ) -> Voters {
        Voters {
            clock,
            nodes,
            identities,
            ttl,
            fences: Fences::default(),
        }
    }

    /// Two addresses that lead to the same server, if any do.
    pub(super) fn any_twins(&self) -> Option<[Arc<str>; 2]> {
        self.identities.any_twins()
    }

    /// A fence above `reported` and above all proposals before.
    pub(super) fn propose(&self, reported: u64) -> u64 {
        self.fences.propose(self.largest_clock(), reported)
    }

    /// The largest clock of the nodes whose clocks agree.
    fn largest_clock(&self) -> u64 {
        let clocks = self.clocks();
        let agree = agreeing(&clocks, self.ttl.as_micros() as u64);
        let voters = clocks.iter().zip(agree).filter(|(_, agrees)| *agrees);
        voters.filter_map(|(clock, _)| *clock).max().unwrap_or(0)
    }

    fn clocks(&self) -> Vec<Option<u64>> {
        let now = self.clock.now();
        let clock = |node: &Arc<Node>| node.anchor().map(|anchor| clock_at_most(&anchor, now));
        self.nodes.iter().map(clock).collect()
    }

    /// A server may have restarted after it was found to be a voter. A new connection knows that
    /// before it is used, so before its answers come.
    pub(super) fn refuse_fresh(&self, node: usize, call: &Call, result: &mut CallResult) {
        if matches!(call.verb, Verb::Propose { .. }) && result.answer.is_ok() && self.is_fresh(node)
        {
            let why = "it restarted just now";
            result.answer = Err(StoreFault::unavailable(Step::Majority, why));
        }
    }

    /// An address may lead to another server than before. A new connection knows that before it is
    /// used. If it is the server of another node, that node has its vote, on every call.
    pub(super) fn refuse_twin(&self, node: usize, result: &mut CallResult) {
        if result.answer.is_ok()
            && let Some(twin) = self.identities.twin_of(node)
        {
            result.answer = Err(no_vote(&twin));
        }
    }

    fn is_fresh(&self, node: usize) -> bool {
        self.clock.now() < self.nodes[node].is_up_long_enough_at()
    }

    /// Why nodes are refused as voters, for each node.
    pub(super) fn refusals(&self) -> Vec<Option<StoreFault>> {
        let agree = agreeing(&self.clocks(), self.ttl.as_micros() as u64);
        let ttl = time_text::setting(self.ttl);
        let refusal = |(node, agrees): (usize, bool)| {
            if let Some(twin) = self.identities.twin_of(node) {
                return Some(no_vote(&twin));
            }
            let why = if self.is_fresh(node) {
                format!("refused: it has run for less than the ttl, {ttl}")
            } else if !agrees {
                format!("refused: its clock differs from the others' by more than the ttl, {ttl}")
            } else {
                return None;
            };
            Some(StoreFault::unavailable(Step::Majority, why))
        };
        agree.into_iter().enumerate().map(refusal).collect()
    }
}

fn no_vote(twin: &str) -> StoreFault {
    let why = format!("refused: it is the same server as {twin}");
    StoreFault::unavailable(Step::Majority, why)
}

/// P2 (rising fences): a fence is at least the largest server clock. So a majority that has
/// forgotten a fence by the time that its TTL is over still gets a larger one.
#[derive(Default)]
pub(super) struct Fences {
    /// The newest proposal that no node had to raise.
    last: AtomicU64,
}

impl Fences {
    /// A fence above `reported` and above all proposals before.
    pub(super) fn propose(&self, clock: u64, reported: u64) -> u64 {
        let last = self.last.fetch_max(clock, Ordering::AcqRel);
        let mut fence = clock;
        if last >= clock {
            fence = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        }
        fence.max(reported + 1)
    }
}

/// The latest time that a server's clock can show now.
pub(super) fn clock_at_most(anchor: &Anchor, now: Time) -> u64 {
    let age = (now - anchor.sent).as_micros() as u64;
    anchor.server + age + age / 2000
}

/// The nodes that are not refused for their clocks. P2 (rising fences) counts on clocks that differ
/// by less than `limit`: so these are the most nodes of which no two differ by more. A node whose
/// clock is not known is not refused.
pub(super) fn agreeing(clocks: &[Option<u64>], limit: u64) -> Vec<bool> {
    let mut known: Vec<u64> = clocks.iter().flatten().copied().collect();
    known.sort_unstable();
    let windows = known.iter().map(|&first| {
        let is_near = |clock: &&u64| (first..first.saturating_add(limit)).contains(*clock);
        (known.iter().filter(is_near).count(), first)
    });
    // If two are equally large, the earlier counts.
    let best = windows.max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)));
    let first = best.map_or(0, |(_, first)| first);
    let agrees = |clock: &Option<u64>| {
        clock.is_none_or(|clock| (first..first.saturating_add(limit)).contains(&clock))
    };
    clocks.iter().map(agrees).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_rise_although_the_clock_does_not() {
        let fences = Fences::default();
        assert_eq!(fences.propose(100, 0), 100);
        assert_eq!(fences.propose(100, 0), 101);
        assert_eq!(fences.propose(90, 0), 102);
        assert_eq!(fences.propose(200, 0), 200);
        // A node that is far ahead for one name does not drive up the fences of others.
        assert_eq!(fences.propose(200, 5000), 5001);
        assert!(fences.propose(210, 0) <= 210);
    }

    #[test]
    fn node_with_another_clock_is_refused() {
        let agree = |clocks: &[Option<u64>]| agreeing(clocks, 100);
        assert_eq!(agree(&[Some(0), Some(50), Some(99)]), [true, true, true]);
        assert_eq!(agree(&[Some(0), Some(50), Some(149)]), [true, true, false]);
        assert_eq!(agree(&[Some(500), Some(50), Some(60)]), [false, true, true]);
        assert_eq!(agree(&[None, Some(50), Some(500)]), [true, true, false]);
        assert_eq!(agree(&[None, None, None]), [true, true, true]);
        let spread = [Some(0), Some(60), Some(120), Some(130), Some(140)];
        assert_eq!(agree(&spread), [false, true, true, true, true]);
    }
}
