//! Turns what the nodes of a quorum answered to one call into one outcome. Pure: no I/O, no clock.

use std::time::Duration;

use crate::loss::PreviousHolder;
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
        // A quorum has no queue.
        Verb::Acquire { .. } | Verb::Sync { .. } | Verb::Vacate | Verb::Lookup { .. } => {
            Decision::NoMajority
        }
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
        return Decision::Decided(Outcome::Busy { left });
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
            Outcome::Renewed { left, fence } if *fence == own => lefts.push(*left),
            Outcome::Gone { stored, ended, how } => gone.push((*stored, *ended, *how)),
            // Another token has the name there for a moment, or the request was late. The next
            // renewal asks again.
            _ => {}
        }
    }
    if lefts.len() >= majority {
        let left = nth_longest(lefts, majority);
        return Decision::Decided(Outcome::Renewed { left, fence: own });
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
    let settled = released + count(&Outcome::Already);
    if settled >= majority {
        return Decision::Decided(Outcome::Already);
    }
    if due > 0 {
        return Decision::Open;
    }
    // P7 (one grant for one request): a silent node may have had the token to the end. So the lease
    // was lost only if the nodes that did not have it leave no majority.
    if all.len() - settled <= nodes.len() - majority {
        return Decision::NoMajority;
    }
    let ends = [Outcome::Forced, Outcome::Lapsed, Outcome::Lost];
    let most = ends.into_iter().max_by_key(|end| count(end));
    let most = most.filter(|end| count(end) > 0);
    Decision::Decided(most.unwrap_or(Outcome::Unknown))
}

/// The holder has lost the lock if the nodes on which it may still have it are no majority.
fn forced_release(nodes: &[NodeAnswer<'_>]) -> Decision {
    let answered = answers(nodes).count();
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
    let holders: Vec<&InspectedHolder> = all
        .iter()
        .filter_map(|outcome| match outcome {
            Outcome::Inspection(seen) => seen.holders.first(),
            _ => None,
        })
        .collect();
    let is_same =
        |a: &InspectedHolder, b: &InspectedHolder| a.fence == b.fence && identity(a) == identity(b);
    for holder in &holders {
        let mut same = holders.clone();
        same.retain(|other| is_same(holder, other));
        if same.len() >= majority {
            same.sort_by_key(|holder| {
                (holder.lapsed_for.is_some(), std::cmp::Reverse(holder.left))
            });
            let shown = same[majority - 1].clone();
            return Decision::Decided(Outcome::Inspection(Box::new(Inspection {
                kind: "mutex/1".to_owned(),
                fence: shown.fence,
                holders: vec![shown],
                waiters: 0,
                queue: Vec::new(),
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

/// The part that is the same on all nodes that granted one proposal: the request without the time
/// of the grant. It is `ticket granted-at manager ttl fixed hold label`.
fn identity(holder: &InspectedHolder) -> Option<&str> {
    holder.request.splitn(3, ' ').nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Token;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn propose(fence: u64) -> Verb {
        Verb::Propose {
            token: Token::new(),
            fence,
            params: "".into(),
        }
    }

    fn granted(fence: u64, left: u64, ended: u64, previous: PreviousHolder) -> Outcome {
        let grant = Grant {
            token: Token::new(),
            fence,
            granted_at: fence,
            left: ms(left),
            previous,
        };
        Outcome::Vote(Vote::Granted { grant, ended })
    }

    fn held(fence: u64) -> Outcome {
        granted(fence, 100, 0, PreviousHolder::Released)
    }

    fn busy(left: u64) -> Outcome {
        Outcome::Vote(Vote::Busy {
            left: ms(left),
            fence: 1,
        })
    }

    fn outbid(fence: u64) -> Outcome {
        Outcome::Vote(Vote::Outbid { fence })
    }

    /// Decides with these answers, and then with nodes whose answers are due, and with silent ones.
    fn of(verb: &Verb, outcomes: &[Outcome], due: usize, silent: usize) -> Decision {
        let mut nodes: Vec<_> = outcomes.iter().map(NodeAnswer::Some).collect();
        nodes.extend((0..due).map(|_| NodeAnswer::Due));
        nodes.extend((0..silent).map(|_| NodeAnswer::None));
        decide(verb, &nodes)
    }

    #[test]
    fn lock_is_held_once_a_majority_has_token_and_fence() {
        let verb = propose(9);
        assert_eq!(of(&verb, &[held(9)], 2, 0), Decision::Open);
        assert_eq!(of(&verb, &[held(9)], 1, 1), Decision::Open);
        assert_eq!(of(&verb, &[held(9)], 0, 2), Decision::NoMajority);
        let Decision::Decided(Outcome::Granted(grant)) = of(&verb, &[held(9), held(9)], 1, 0)
        else {
            panic!("two of three");
        };
        assert_eq!(grant.fence, 9);
        // A grant under another fence is none.
        let mixed = of(&verb, &[held(9), held(8)], 0, 1);
        assert_eq!(mixed, Decision::Outbid { fence: 9 });
    }

    #[test]
    fn lease_lasts_as_long_as_a_majority_keeps_it() {
        let outcomes = [30, 10, 20].map(|left| granted(9, left, left, PreviousHolder::Released));
        let Decision::Decided(Outcome::Granted(grant)) = of(&propose(9), &outcomes, 0, 0) else {
            panic!("all grant");
        };
        assert_eq!(grant.left, ms(20));
        let renewed = [30, 10, 20].map(|left| Outcome::Renewed {
            left: ms(left),
            fence: 9,
        });
        let verb = renew(9);
        let Decision::Decided(Outcome::Renewed { left, .. }) = of(&verb, &renewed, 0, 0) else {
            panic!("all renew");
        };
        assert_eq!(left, ms(20));
    }

    #[test]
    fn newest_end_says_how_the_previous_guard_ended() {
        let outcomes = [
            granted(9, 10, 3, PreviousHolder::Released),
            granted(9, 10, 5, PreviousHolder::Lapsed),
            granted(9, 10, 0, PreviousHolder::Unknown),
        ];
        let Decision::Decided(Outcome::Granted(grant)) = of(&propose(9), &outcomes, 0, 0) else {
            panic!("all grant");
        };
        assert_eq!(grant.previous, PreviousHolder::Lapsed);
    }

    #[test]
    fn refused_fence_is_raised_above_all_that_were_reported() {
        let verb = propose(9);
        let raised = of(&verb, &[held(9), outbid(20), outbid(30)], 0, 0);
        assert_eq!(raised, Decision::Outbid { fence: 30 });
        // The client need not wait for the third: no majority can grant this fence.
        let raised = of(&verb, &[outbid(20), outbid(30)], 1, 0);
        assert_eq!(raised, Decision::Outbid { fence: 30 });
        let late = of(&verb, &[Outcome::Late, held(9)], 0, 1);
        assert_eq!(late, Decision::Outbid { fence: 9 });
    }

    #[test]
    fn split_vote_is_busy_only_until_enough_nodes_are_free() {
        let verb = propose(9);
        let split = of(&verb, &[held(9), busy(70), busy(50)], 0, 0);
        assert_eq!(split, Decision::Decided(Outcome::Busy { left: ms(50) }));
        let taken = of(&verb, &[busy(70), busy(50)], 1, 0);
        assert_eq!(taken, Decision::Decided(Outcome::Busy { left: ms(70) }));
        assert_eq!(of(&verb, &[busy(70)], 0, 2), Decision::NoMajority);
        assert_eq!(of(&verb, &[busy(70)], 1, 1), Decision::Open);
    }

    fn renew(fence: u64) -> Verb {
        Verb::Renew {
            token: Token::new(),
            fence,
            params: "".into(),
        }
    }

    fn gone(stored: u64, ended: u64, how: PreviousHolder) -> Outcome {
        Outcome::Gone { stored, ended, how }
    }

    #[test]
    fn lease_is_gone_once_no_majority_can_have_it() {
        let verb = renew(9);
        let renewed = Outcome::Renewed {
            left: ms(10),
            fence: 9,
        };
        let other = gone(12, 3, PreviousHolder::Released);
        let forced = gone(9, 9, PreviousHolder::Forced);
        assert_eq!(
            of(&verb, std::slice::from_ref(&other), 2, 0),
            Decision::Open
        );
        assert_eq!(
            of(&verb, &[other.clone(), forced.clone()], 1, 0),
            Decision::Decided(forced)
        );
        // One node has it and one does not: the third, which is silent, decides.
        let torn = of(&verb, &[renewed.clone(), other], 0, 1);
        assert_eq!(torn, Decision::NoMajority);
        let blocked = of(&verb, &[renewed, busy(5), busy(5)], 0, 0);
        assert_eq!(blocked, Decision::NoMajority);
    }

    fn release(mode: Mode) -> Verb {
        Verb::Release {
            token: Token::new(),
            fence: 9,
            mode,
        }
    }

    #[test]
    fn release_is_clean_if_a_majority_had_the_token() {
        use Outcome::{Already, Forced, Lapsed, Lost, Released, Unknown};
        let verb = release(Mode::Used);
        let decided = |outcome| Decision::Decided(outcome);
        assert_eq!(of(&verb, &[Released, Released], 1, 0), decided(Released));
        assert_eq!(of(&verb, &[Released, Lost], 1, 0), Decision::Open);
        assert_eq!(of(&verb, &[Released, Lost, Lost], 0, 0), decided(Lost));
        assert_eq!(of(&verb, &[Forced, Forced, Unknown], 0, 0), decided(Forced));
        assert_eq!(of(&verb, &[Lapsed, Unknown], 0, 1), decided(Lapsed));
        assert_eq!(of(&verb, &[Unknown, Unknown], 0, 1), decided(Unknown));
        assert_eq!(of(&verb, &[Released, Already], 0, 1), decided(Already));
        assert_eq!(of(&verb, &[Released], 0, 2), Decision::NoMajority);
        // The silent nodes may have had it.
        assert_eq!(of(&verb, &[Released, Unknown], 0, 1), Decision::NoMajority);
        let two_of_five = [Released, Released, Lost];
        assert_eq!(of(&verb, &two_of_five, 0, 2), Decision::NoMajority);
        let none_left = [Released, Released, Unknown, Unknown, Unknown];
        assert_eq!(of(&verb, &none_left, 0, 0), decided(Unknown));
    }

    #[test]
    fn forced_release_ends_what_a_majority_could_hold() {
        use Outcome::{Already, Refused, Released};
        let verb = release(Mode::Forced(crate::script::Page::default()));
        let decided = |outcome| Decision::Decided(outcome);
        assert_eq!(of(&verb, &[Released, Refused], 1, 0), decided(Released));
        assert_eq!(of(&verb, &[Refused, Refused], 1, 0), Decision::Open);
        assert_eq!(of(&verb, &[Refused, Refused], 0, 1), decided(Refused));
        assert_eq!(of(&verb, &[Already, Refused], 0, 1), decided(Already));
        assert_eq!(of(&verb, &[Released], 0, 2), Decision::NoMajority);
    }

    fn seen(fence: u64, manager: &str, left: u64) -> Outcome {
        Outcome::Inspection(Box::new(Inspection {
            kind: "mutex/1".to_owned(),
            fence,
            holders: vec![InspectedHolder {
                cools: false,
                fence,
                granted_at: left,
                left: ms(left),
                lapsed_for: None,
                permits: 1,
                request: format!("0 {left} {manager} 30000 0 0 host"),
            }],
            waiters: 0,
            queue: Vec::new(),
        }))
    }

    #[test]
    fn inspection_shows_the_holder_that_a_majority_names() {
        let verb = Verb::Inspect {
            waiters: 0,
            from: 0,
        };
        let all = [seen(9, "m", 30), seen(9, "m", 20), seen(9, "other", 20)];
        let Decision::Decided(Outcome::Inspection(shown)) = of(&verb, &all, 0, 0) else {
            panic!("two of three name m");
        };
        assert_eq!(shown.holders[0].left, ms(20));
        let split = [seen(9, "m", 30), seen(8, "n", 20), Outcome::Absent];
        let absent = Decision::Decided(Outcome::Absent);
        assert_eq!(of(&verb, &split, 0, 0), absent);
        assert_eq!(of(&verb, &[Outcome::Absent, Outcome::Absent], 1, 0), absent);
        assert_eq!(of(&verb, &[Outcome::Absent], 1, 1), Decision::Open);
        assert_eq!(of(&verb, &[Outcome::Absent], 0, 2), Decision::NoMajority);
    }

    /// Whatever the answers are, there is a decision once none is due.
    #[test]
    fn nothing_stays_open_when_no_answer_is_due() {
        let kinds = [held(9), held(8), busy(5), outbid(20), Outcome::Late];
        for n in [3_u32, 5] {
            for mix in 0..6_usize.pow(n) {
                let nodes: Vec<NodeAnswer<'_>> = (0..n)
                    .map(|at| kinds.get(mix / 6_usize.pow(at) % 6))
                    .map(|kind| kind.map_or(NodeAnswer::None, NodeAnswer::Some))
                    .collect();
                assert_ne!(decide(&propose(9), &nodes), Decision::Open, "{nodes:?}");
            }
        }
    }
}
