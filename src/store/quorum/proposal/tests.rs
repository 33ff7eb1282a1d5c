//! A proposal, answer by answer.

use super::*;
use crate::key::Key;
use crate::script::LockSpec;

fn release(mode: Mode) -> Proposal {
    proposal(Verb::Release {
        token: Token::new(),
        fence: 9,
        last: None,
        mode,
    })
}

fn proposal(verb: Verb) -> Proposal {
    let call = Call {
        spec: LockSpec::QUORUM,
        key: Key::new("fairlock", "name").expect("a good name"),
        verb,
    };
    let addresses = ["a", "b", "c", "d", "e"].map(Arc::from);
    Proposal::new(call, &addresses)
}

fn send(proposal: &mut Proposal, node: usize) {
    proposal.note_sent(node, Time::from_nanos(1));
}

fn answer(proposal: &mut Proposal, node: usize, outcome: Outcome) {
    let answer = Answer {
        reply: ScriptReply::of(outcome, None),
        sent: Time::from_nanos(1),
        resent: false,
    };
    fail_or_answer(proposal, node, Ok(answer));
}

fn fail_or_answer(proposal: &mut Proposal, node: usize, answer: Result<Answer, StoreFault>) {
    let result = CallResult {
        answer,
        not_after: 0,
    };
    proposal.on_result(node, 0, result);
}

/// The node may have run the release, and its reply is lost.
fn close(proposal: &mut Proposal, node: usize) {
    let end = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    fail_or_answer(
        proposal,
        node,
        Err(StoreFault::unavailable(Step::Reply, end)),
    );
}

/// The first copy went to these nodes, and only the answers of `a` and `b` came. `d` and `e`
/// could not be reached.
fn cut_off(mode: Mode) -> Proposal {
    let mut proposal = release(mode);
    for node in 0..3 {
        send(&mut proposal, node);
    }
    for node in 3..5 {
        proposal.note_failed(node, StoreFault::NotReady);
    }
    answer(&mut proposal, 0, Outcome::Released);
    answer(&mut proposal, 1, Outcome::Released);
    close(&mut proposal, 2);
    proposal
}

fn decided(outcome: Outcome) -> Decision {
    Decision::Decided(outcome)
}

#[test]
fn second_copy_finds_the_work_of_the_first() {
    let mut proposal = cut_off(Mode::Used);
    send(&mut proposal, 2);
    answer(&mut proposal, 2, Outcome::Already);
    assert_eq!(proposal.decision(), decided(Outcome::Released));
    // A mutex that was left unfinished lapses at its release.
    let mut proposal = cut_off(Mode::Unfinished);
    send(&mut proposal, 2);
    answer(&mut proposal, 2, Outcome::Lapsed);
    assert_eq!(proposal.decision(), decided(Outcome::Released));
}

#[test]
fn second_copy_that_finds_later_holders_proves_nothing() {
    let mut proposal = cut_off(Mode::Used);
    for node in 2..5 {
        send(&mut proposal, node);
        answer(&mut proposal, node, Outcome::Unknown);
    }
    // `d` and `e` never had it.
    assert_eq!(proposal.decision(), Decision::NoMajority);
}

/// The next holder has come and gone before the second attempt.
#[test]
fn second_attempt_goes_on_from_the_votes_of_the_first() {
    let mut first = cut_off(Mode::Used);
    first.end();
    assert_eq!(first.decision(), Decision::NoMajority);
    let mut second = release(Mode::Used);
    second.resume(first.release_votes());
    assert_eq!(second.unsent().collect::<Vec<_>>(), [2, 3, 4]);
    for node in 2..5 {
        send(&mut second, node);
        answer(&mut second, node, Outcome::Unknown);
    }
    // Two nodes never had it, two had it, and one may have had it.
    assert_eq!(second.decision(), Decision::NoMajority);
    let mut third = release(Mode::Used);
    third.resume(first.release_votes());
    send(&mut third, 2);
    answer(&mut third, 2, Outcome::Already);
    assert_eq!(third.decision(), decided(Outcome::Released));
}

/// P6 (losses are reported): nodes of which each has answered its first copy.
#[test]
fn lock_that_others_took_is_lost_whatever_was_resent() {
    // Another token had the same fence there, if it says `already` to the first copy.
    for found in [Outcome::Unknown, Outcome::Already, Outcome::Lapsed] {
        let mut proposal = cut_off(Mode::Used);
        for node in 2..5 {
            proposal.note_not_sent(node);
            send(&mut proposal, node);
        }
        for node in 3..5 {
            answer(&mut proposal, node, found.clone());
        }
        // Another token took this lease as it had lapsed, so no copy had released it.
        answer(&mut proposal, 2, Outcome::Lapsed);
        assert_eq!(proposal.decision(), decided(Outcome::Lapsed), "{found:?}");
    }
    let mut proposal = release(Mode::Used);
    for node in 0..5 {
        send(&mut proposal, node);
        let outcome = [Outcome::Released, Outcome::Unknown, Outcome::Already];
        answer(&mut proposal, node, outcome[node.min(2)].clone());
    }
    assert_eq!(proposal.decision(), decided(Outcome::Unknown));
}

#[test]
fn copy_that_could_not_be_sent_is_none() {
    let mut proposal = release(Mode::Used);
    send(&mut proposal, 0);
    proposal.note_not_sent(0);
    assert_eq!(proposal.not_sent_to(), [0, 1, 2, 3, 4]);
}

/// A majority has renewed a lease; `d` was to be asked for rights first, and `e` has not answered.
fn renewed_by_a_majority() -> Proposal {
    let mut proposal = proposal(Verb::Renew {
        token: Token::new(),
        fence: 9,
        params: "".into(),
    });
    for node in [0, 1, 2, 4] {
        send(&mut proposal, node);
    }
    proposal.note_asks_for_rights(3);
    for node in 0..3 {
        let renewed = Outcome::Renewed {
            left: Duration::from_secs(60),
            fence: 9,
            waiting: false,
        };
        answer(&mut proposal, node, renewed);
    }
    proposal
}

#[test]
fn node_that_was_still_to_be_asked_gets_the_lease_soon() {
    let back_off = Duration::from_millis(400);
    let mut proposal = renewed_by_a_majority();
    // Somebody may still send it.
    assert_eq!(proposal.gap(back_off), None);
    let token = proposal.token().expect("a renewal has one");
    let soon = Some((token, Duration::from_millis(100)));
    assert_eq!(proposal.last_gap(back_off), soon);
    proposal.on_rights(3, Ok(()));
    assert_eq!(proposal.last_gap(back_off), soon);
}

#[test]
fn connection_that_closes_after_the_end_leaves_a_gap() {
    let back_off = Duration::from_millis(400);
    let mut proposal = renewed_by_a_majority();
    proposal.stop_sending();
    close(&mut proposal, 4);
    let gap = proposal.gap(back_off).map(|(_, again_in)| again_in);
    assert_eq!(gap, Some(back_off));
}

/// The manager was idle for so long that the date of the first copy had passed.
#[test]
fn forced_release_that_comes_too_late_is_sent_again() {
    let mut proposal = release(Mode::Forced(crate::script::Page::default()));
    for node in 0..5 {
        send(&mut proposal, node);
        answer(&mut proposal, node, Outcome::Late);
    }
    assert_eq!(proposal.decision(), Decision::Open);
    for node in 0..5 {
        assert!(proposal.is_to_retry(node));
        send(&mut proposal, node);
        answer(&mut proposal, node, Outcome::Released);
    }
    assert_eq!(proposal.decision(), decided(Outcome::Released));
}
