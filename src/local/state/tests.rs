use super::*;
use std::time::Duration;

/// A line whose members 1, 2, … wait for its place, which is number 9.
fn waiting(members: u64, max: u32) -> LineState<u64, &'static str> {
    let mut line = LineState::new(max);
    for number in 1..=members {
        let joined = line.join(number, number);
        assert_eq!(joined == Joined::NeedsPlace, number == 1);
        if number == 1 {
            line.set_place(9, 9);
        }
    }
    line
}

fn begin(line: &mut LineState<u64, &'static str>) {
    line.begin_tenure("grant", false, false);
}

fn give_turn(line: &mut LineState<u64, &'static str>) -> Option<u64> {
    let (number, member) = line.next_member()?;
    line.set_turn(Turn {
        member: Some((number, member)),
        lease: "turn",
    });
    Some(number)
}

/// The members that have a turn, one after the other, until the line leaves.
fn turns(line: &mut LineState<u64, &'static str>, may_go_on: bool) -> Vec<u64> {
    begin(line);
    let mut turns = vec![give_turn(line).expect("somebody waits")];
    while line.end_turn(TurnEnd::Finished, may_go_on, false) == AfterTurn::Pass {
        turns.push(give_turn(line).expect("it said that somebody waits"));
    }
    assert_eq!(line.tenure().map(Tenure::turns), Some(turns.len() as u64));
    turns
}

fn last_end(line: &mut LineState<u64, &'static str>) -> Option<TurnEnd> {
    let tenure = line.end_tenure().expect("it has one");
    tenure.last_end()
}

/// A tenure without members, about which others tell this process. Its first turn is out.
fn alone(is_wanted: bool) -> LineState<u64, &'static str> {
    let mut line = waiting(1, 2);
    line.begin_tenure("grant", true, is_wanted);
    assert_eq!(give_turn(&mut line), Some(1));
    line
}

#[test]
fn members_have_their_turns_in_the_order_in_which_they_came() {
    assert_eq!(turns(&mut waiting(4, 100), true), [1, 2, 3, 4]);
}

#[test]
fn tenure_has_no_more_hand_overs_than_the_option_says() {
    let mut line = waiting(4, 2);
    assert_eq!(turns(&mut line, true), [1, 2, 3]);
    assert_eq!(last_end(&mut line), Some(TurnEnd::Finished));
    assert!(line.has_members() && !line.is_idle());
    line.set_place(10, 10);
    assert_eq!(turns(&mut line, true), [4]);
}

#[test]
fn grant_is_not_passed_on_if_its_lease_may_not_be_lent() {
    assert_eq!(turns(&mut waiting(2, 9), false), [1]);
}

#[test]
fn last_member_that_leaves_takes_the_place_along() {
    let mut line = waiting(2, 9);
    assert_eq!(line.leave(1), None);
    assert_eq!(line.leave(2), Some(9));
    assert!(line.is_idle());
    let mut held = waiting(2, 9);
    begin(&mut held);
    assert_eq!(give_turn(&mut held), Some(1));
    assert_eq!(
        held.leave(2),
        None,
        "a turn is held, and no place is queued"
    );
}

#[test]
fn unused_turn_does_not_change_how_the_last_guard_ended() {
    for end in [TurnEnd::Finished, TurnEnd::Unfinished] {
        let mut line = waiting(3, 9);
        begin(&mut line);
        for end in [end, TurnEnd::Unused] {
            let _ = give_turn(&mut line);
            assert_eq!(line.end_turn(end, true, false), AfterTurn::Pass);
        }
        assert_eq!(last_end(&mut line), Some(end));
    }
    let mut unused = waiting(1, 9);
    begin(&mut unused);
    let _ = give_turn(&mut unused);
    let next = unused.end_turn(TurnEnd::Unused, true, true);
    assert_eq!(next, AfterTurn::Leave);
    assert_eq!(last_end(&mut unused), None);
}

#[test]
fn member_that_comes_back_is_the_first_again() {
    let mut line = waiting(3, 9);
    begin(&mut line);
    assert_eq!(give_turn(&mut line), Some(1));
    let tenure = line.end_tenure().expect("it has one");
    let turn = tenure.into_turn().expect("it had a turn");
    let (number, member) = turn.member.expect("a member had it");
    assert_eq!(line.join(number, member), Joined::NeedsPlace);
    line.set_place(10, 10);
    assert_eq!(line.members_before(1), Some(0));
    assert_eq!(line.members_before(3), Some(2));
    assert_eq!(turns(&mut line, true), [1, 2, 3]);
}

#[test]
fn grant_is_kept_only_if_nobody_wants_it_and_the_work_is_done() {
    let next =
        |is_wanted, end, may_go_on, may_keep| alone(is_wanted).end_turn(end, may_go_on, may_keep);
    use TurnEnd::{Finished, Unfinished, Unused};
    assert_eq!(next(false, Finished, true, true), AfterTurn::Keep);
    assert_eq!(next(true, Finished, true, true), AfterTurn::Leave);
    assert_eq!(next(false, Unfinished, true, true), AfterTurn::Leave);
    assert_eq!(next(false, Unused, true, true), AfterTurn::Leave);
    assert_eq!(next(false, Finished, false, true), AfterTurn::Leave);
    assert_eq!(next(false, Finished, true, false), AfterTurn::Leave);
    let mut unheard = waiting(1, 2);
    begin(&mut unheard);
    let _ = give_turn(&mut unheard);
    assert_eq!(unheard.end_turn(Finished, true, true), AfterTurn::Leave);
}

#[test]
fn kept_grant_is_lent_to_the_next_caller() {
    let mut line = alone(false);
    for turns in 1..20 {
        let next = line.end_turn(TurnEnd::Finished, true, true);
        assert_eq!(next, AfterTurn::Keep);
        line.keep((), Time::default());
        assert!(line.kept().is_some() && !line.is_idle());
        assert_eq!(line.join(7, 7), Joined::FindsKept);
        assert_eq!(line.lend_kept(), Some(()));
        assert_eq!(give_turn(&mut line), Some(7));
        assert_eq!(line.tenure().map(Tenure::turns), Some(turns + 1));
    }
    line.note_wanted();
    let next = line.end_turn(TurnEnd::Finished, true, true);
    assert_eq!(next, AfterTurn::Leave);
}

#[test]
fn hand_overs_count_from_the_moment_at_which_others_want_the_lock() {
    let mut line = alone(false);
    for number in 2..9 {
        assert_eq!(line.join(number, number), Joined::Waits);
    }
    for _ in 2..6 {
        let next = line.end_turn(TurnEnd::Finished, true, true);
        assert_eq!(next, AfterTurn::Pass);
        let _ = give_turn(&mut line);
    }
    line.note_wanted();
    for expected in [AfterTurn::Pass, AfterTurn::Pass, AfterTurn::Leave] {
        assert_eq!(line.end_turn(TurnEnd::Finished, true, true), expected);
        let _ = give_turn(&mut line);
    }
}

#[test]
fn kept_grant_is_unused_since_its_last_guard() {
    let mut line = alone(false);
    let at = |ms| Time::default() + Duration::from_millis(ms);
    assert_eq!(line.kept_since(), None, "a guard");
    for ms in [3, 14] {
        let _ = line.end_turn(TurnEnd::Finished, true, true);
        line.keep((), at(ms));
        assert_eq!(line.kept_since(), Some(at(ms)));
        let _ = line.lend_kept();
        assert_eq!(line.kept_since(), None, "a guard");
    }
}

#[test]
fn members_that_come_during_a_try_need_a_place_when_it_fails() {
    let mut line: LineState<u64, &str> = LineState::new(0);
    assert!(line.begin_try());
    assert!(!line.begin_try(), "one thread tries");
    assert_eq!(line.join(1, 1), Joined::Waits);
    assert!(line.end_try());
    line.set_place(9, 9);
    assert!(!line.begin_try(), "a member waits");
    let mut alone: LineState<u64, &str> = LineState::new(0);
    assert!(alone.begin_try());
    assert!(!alone.end_try() && alone.is_idle());
}
