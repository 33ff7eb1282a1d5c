//! Turns what the nodes of a quorum answered to one call into one outcome. Pure: no I/O, no clock.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::loss::PreviousHolder;
use crate::script::params::without_times;
use crate::script::{Grant, InspectedHolder, Inspection, Mode, Outcome, Verb, Vote};

/// One node's answer, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NodeAnswer<'a> {
    /// It may still come.
    Due,
    /// It will not come in time, or the node is refused as a voter.
    None,
    Some(&'a Outcome),
}

/// The meaning of all answers together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Another answer may change it.
    Open,
    Decided(Outcome),
    /// A majority may grant the lock once the client proposes a fence above this one to all nodes,
    /// with the same token and a new date.
    Outbid {
        fence: u64,
    },
    /// Fewer than a majority answered.
    NoMajority,
}

/// How many nodes decide for all: more than half of them, whether they answer or not.
pub(crate) fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Decides a call by the answers of all nodes, one for each. Never [`Decision::Open`] if none is
/// due.
pub(crate) fn decide(verb: &Verb, nodes: &[NodeAnswer<'_>]) -> Decision {
    match verb {
        Verb::Propose { fence, .. } => proposal(*fence, nodes),
        Verb::Renew { fence, .. } => renewal(*fence, nodes),
        Verb::Release {
            mode: Mode::Forced(_),
            ..
        } => forced_release(nodes),
        Verb::Release { .. } => release(nodes),
        Verb::Inspect { .. } => inspection(nodes),
        // A quorum has no queue, keeps no permits, passes no lock on and deletes no names.
        Verb::Acquire { .. }
        | Verb::Pass { .. }
        | Verb::Sync { .. }
        | Verb::Vacate
        | Verb::Delete
        | Verb::Lookup { .. } => Decision::NoMajority,
    }
}

/// The answers that came.
fn answers<'a>(nodes: &'a [NodeAnswer<'a>]) -> impl Iterator<Item = &'a Outcome> {
    nodes.iter().filter_map(|node| match node {
        NodeAnswer::Some(outcome) => Some(*outcome),
        NodeAnswer::Due | NodeAnswer::None => None,
    })
}

fn count_due(nodes: &[NodeAnswer<'_>]) -> usize {
    let is_due = |node: &&NodeAnswer<'_>| matches!(node, NodeAnswer::Due);
    nodes.iter().filter(is_due).count()
}

/// The `nth` longest of these, counted from 1: as much is left on that many nodes.
fn nth_longest(mut lefts: Vec<Duration>, nth: usize) -> Duration {
    lefts.sort_unstable_by(|a, b| b.cmp(a));
    lefts.get(nth - 1).copied().unwrap_or_default()
}

/// P1 (one holder): two majorities have a node in common, and a node has one holder. So the lock is
/// held when a majority has acknowledged exactly this token and this fence.
fn proposal(proposed: u64, nodes: &[NodeAnswer<'_>]) -> Decision {
    let majority = majority_of(nodes.len());
    let due = count_due(nodes);
    let mut granted: Vec<(Grant, u64)> = Vec::new();
    let mut busy = Vec::new();
    // Nodes that may grant the next proposal, and the largest fence that they reported.
    let (mut outbid, mut largest) = (0, proposed);
    for outcome in answers(nodes) {
        match outcome {
            Outcome::Vote(Vote::Granted { grant, ended }) if grant.fence == proposed => {
                granted.push((*grant, *ended));
            }
            // The node has the token under another fence: a copy of another proposal.
            Outcome::Vote(Vote::Granted { grant, .. }) => {
                outbid += 1;
                largest = largest.max(grant.fence);
            }
            Outcome::Vote(Vote::Outbid { fence }) => {
                outbid += 1;
                largest = largest.max(*fence);
            }
            Outcome::Vote(Vote::Busy { left, fence }) => {
                busy.push(*left);
                largest = largest.max(*fence);
            }
            // R5 (dated requests): the next proposal has another date.
            Outcome::Late => outbid += 1,
            _ => {}
        }
    }
    if granted.len() >= majority {
        return Decision::Decided(Outcome::Granted(joint_grant(&granted, majority)));
    }
    if granted.len() + due >= majority {
        return Decision::Open;
    }
    if granted.len() + outbid >= majority {
        return Decision::Outbid { fence: largest };
    }
    if granted.len() + outbid + due >= majority {
        return Decision::Open;
    }
    if granted.len() + outbid + busy.len() >= majority {
        // This many nodes must become free before a majority can grant it.
        let needed = majority - granted.len() - outbid;
        busy.sort_unstable();
        let left = busy[needed - 1];
        return Decision::Decided(Outcome::Busy { left, told: false });
    }
    if due > 0 {
        Decision::Open
    } else {
        Decision::NoMajority
    }
}

/// The grant of a majority. It lasts for as long as a majority of the nodes keeps it. The node that
/// saw the newest guard end says how that one ended.
fn joint_grant(granted: &[(Grant, u64)], majority: usize) -> Grant {
    let lefts = granted.iter().map(|(grant, _)| grant.left).collect();
    let newest_end = granted.iter().max_by_key(|(_, ended)| *ended);
    let granted_at = granted.iter().map(|(grant, _)| grant.granted_at).max();
    Grant {
        left: nth_longest(lefts, majority),
        granted_at: granted_at.unwrap_or_default(),
        previous: newest_end.map_or(PreviousHolder::Unknown, |(grant, _)| grant.previous),
        ..granted[0].0
    }
}

/// A renewal counts if a majority has the token under its fence. The lease is gone if no
/// majority is left without the nodes that granted a larger fence or ended this one.
fn renewal(own: u64, nodes: &[NodeAnswer<'_>]) -> Decision {
    let majority = majority_of(nodes.len());
    let mut lefts = Vec::new();
    let mut gone = Vec::new();
    for outcome in answers(nodes) {
        match outcome {
            Outcome::Renewed { left, fence, .. } if *fence == own => lefts.push(*left),
            Outcome::Gone { stored, ended, how } => gone.push((*stored, *ended, *how)),
            // Another token has the name there for a moment, or the request was late. The next
            // renewal asks again.
            _ => {}
        }
    }
    if lefts.len() >= majority {
        let left = nth_longest(lefts, majority);
        return Decision::Decided(Outcome::Renewed {
            left,
            fence: own,
            waiting: false,
        });
    }
    if gone.len() > nodes.len() - majority {
        // A node that saw this very lease end knows most.
        let newest = gone
            .into_iter()
            .max_by_key(|(stored, ended, _)| (*ended == own, *stored));
        let (stored, ended, how) = newest.unwrap_or((0, 0, PreviousHolder::Unknown));
        return Decision::Decided(Outcome::Gone { stored, ended, how });
    }
    if count_due(nodes) > 0 {
        Decision::Open
    } else {
        Decision::NoMajority
    }
}

/// The lock was held until this release if a majority still had the token.
fn release(nodes: &[NodeAnswer<'_>]) -> Decision {
    let majority = majority_of(nodes.len());
    let due = count_due(nodes);
    let all: Vec<&Outcome> = answers(nodes).collect();
    let count = |wanted: &Outcome| all.iter().filter(|outcome| **outcome == wanted).count();
    let released = count(&Outcome::Released);
    if released >= majority {
        return Decision::Decided(Outcome::Released);
    }
    if due > 0 && released + due >= majority {
        return Decision::Open;
    }
    // A resent release finds its first copy's work: `already` counts as `released` then.
    let released_in_all = released + count(&Outcome::Already);
    if released_in_all >= majority {
        return Decision::Decided(Outcome::Already);
    }
    if due > 0 {
        return Decision::Open;
    }
    // P7 (one grant for one request): a silent node may have had the token to the end. So the lease
    // was lost only if the nodes that did not have it leave no majority.
    if all.len() - released_in_all <= nodes.len() - majority {
        return Decision::NoMajority;
    }
    let ends = [Outcome::Forced, Outcome::Lapsed, Outcome::Lost];
    let most = ends.into_iter().max_by_key(count);
    let most = most.filter(|end| count(end) > 0);
    Decision::Decided(most.unwrap_or(Outcome::Unknown))
}

/// The holder has lost the lock if the nodes on which it may still have it are no majority.
fn forced_release(nodes: &[NodeAnswer<'_>]) -> Decision {
    // R5 (dated requests): a node that the request reached too late has done nothing.
    let answered = answers(nodes)
        .filter(|outcome| **outcome != Outcome::Late)
        .count();
    let is_decided = answered >= majority_of(nodes.len());
    let has = |wanted: &Outcome| answers(nodes).any(|outcome| outcome == wanted);
    if is_decided && has(&Outcome::Released) {
        return Decision::Decided(Outcome::Released);
    }
    if count_due(nodes) > 0 {
        return Decision::Open;
    }
    if !is_decided {
        return Decision::NoMajority;
    }
    Decision::Decided(if has(&Outcome::Already) {
        Outcome::Already
    } else {
        Outcome::Refused
    })
}

/// Shows the holder that a majority names.
fn inspection(nodes: &[NodeAnswer<'_>]) -> Decision {
    let majority = majority_of(nodes.len());
    let due = count_due(nodes);
    let all: Vec<&Outcome> = answers(nodes).collect();
    let inspections = all.iter().filter_map(|outcome| match outcome {
        Outcome::Inspection(seen) => Some(&**seen),
        _ => None,
    });
    let holders: Vec<&InspectedHolder> = inspections
        .clone()
        .filter_map(|seen| seen.holders.first())
        .collect();
    let is_same = |a: &InspectedHolder, b: &InspectedHolder| {
        a.fence == b.fence && without_times(&a.request) == without_times(&b.request)
    };
    for holder in &holders {
        let mut same = holders.clone();
        same.retain(|other| is_same(holder, other));
        if same.len() >= majority {
            same.sort_by_key(|holder| {
                (holder.lapsed_for.is_some(), std::cmp::Reverse(holder.left))
            });
            let shown = same[majority - 1].clone();
            // The time of the grant is by the clock of the node that says it.
            let its_node = inspections
                .clone()
                .find(|seen| seen.holders.first() == Some(&shown));
            // A node that was away may have missed the newest end.
            let newest_end = inspections
                .filter(|seen| seen.holders.first().is_some_and(|h| is_same(holder, h)))
                .max_by_key(|seen| seen.ended);
            return Decision::Decided(Outcome::Inspection(Box::new(Inspection {
                seen_at: its_node.map_or(shown.granted_at, |seen| seen.seen_at),
                kind: "mutex/1".to_owned(),
                fence: shown.fence,
                holders: vec![shown],
                waiters: 0,
                queue: Vec::new(),
                previous: newest_end.map_or(PreviousHolder::Unknown, |seen| seen.previous),
                ended: newest_end.map_or(0, |seen| seen.ended),
                served: 0,
            })));
        }
    }
    let most = holders.iter().map(|holder| {
        let same = holders.iter().filter(|other| is_same(holder, other));
        same.count()
    });
    if due > 0 && (most.max().unwrap_or(0) + due >= majority || all.len() < majority) {
        return Decision::Open;
    }
    if all.len() < majority {
        return Decision::NoMajority;
    }
    Decision::Decided(Outcome::Absent)
}
