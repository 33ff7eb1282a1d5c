//! The decision about each call, for every set of answers.

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
        waiting: None,
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
    let Decision::Decided(Outcome::Granted(grant)) = of(&verb, &[held(9), held(9)], 1, 0) else {
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
        waiting: false,
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
    assert_eq!(split, Decision::Decided(busy_for(50)));
    let taken = of(&verb, &[busy(70), busy(50)], 1, 0);
    assert_eq!(taken, Decision::Decided(busy_for(70)));
    assert_eq!(of(&verb, &[busy(70)], 0, 2), Decision::NoMajority);
    assert_eq!(of(&verb, &[busy(70)], 1, 1), Decision::Open);
}

fn busy_for(left: u64) -> Outcome {
    Outcome::Busy {
        left: ms(left),
        told: false,
    }
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
        waiting: false,
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
        last: None,
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

fn seen(fence: u64, manager: &str, left: u64, ended: (u64, PreviousHolder)) -> Outcome {
    Outcome::Inspection(Box::new(Inspection {
        seen_at: 1_000_000 - left,
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
        previous: ended.1,
        ended: ended.0,
        served: 0,
    }))
}

#[test]
fn inspection_shows_the_holder_that_a_majority_names() {
    let verb = Verb::Inspect {
        waiters: 0,
        from: 0,
    };
    let (released, lapsed) = ((5, PreviousHolder::Released), (7, PreviousHolder::Lapsed));
    // The node of another holder has no say, and the first one has missed an end.
    let forced = (8, PreviousHolder::Forced);
    let all = [
        seen(9, "m", 30, lapsed),
        seen(9, "m", 20, released),
        seen(9, "other", 20, forced),
    ];
    let Decision::Decided(Outcome::Inspection(shown)) = of(&verb, &all, 0, 0) else {
        panic!("two of three name m");
    };
    assert_eq!(shown.holders[0].left, ms(20));
    assert_eq!(shown.seen_at, 1_000_000 - 20, "by the clock of that node");
    assert_eq!(shown.previous, PreviousHolder::Lapsed);
    let split = [
        seen(9, "m", 30, released),
        seen(8, "n", 20, released),
        Outcome::Absent,
    ];
    let absent = Decision::Decided(Outcome::Absent);
    assert_eq!(of(&verb, &split, 0, 0), absent);
    assert_eq!(of(&verb, &[Outcome::Absent, Outcome::Absent], 1, 0), absent);
    assert_eq!(of(&verb, &[Outcome::Absent], 1, 1), Decision::Open);
    assert_eq!(of(&verb, &[Outcome::Absent], 0, 2), Decision::NoMajority);
}

/// No set of answers leaves a decision open once no answer is due.
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
