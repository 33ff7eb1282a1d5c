//! The same with two processes that keep the lock after its guard was dropped, until the third wants it
//! or each other does. It tells them that it waits.

use super::tests::{NONE, assert_found, assert_holds, limit_or};
use super::{Budget, SmallSetting};
use crate::sim::mutation::ScriptMutation;

/// How many worlds of the larger sets of faults a test visits, unless the environment says
/// otherwise.
const LIMIT: usize = 500;

/// Two keepers and one plain process.
fn keepers() -> SmallSetting {
    SmallSetting::mutex()
        .with_turns(1)
        .with_keepers(2)
        .with_fences_ahead()
}

#[test]
fn keepers_without_faults_break_nothing() {
    assert_holds(keepers(), NONE, usize::MAX);
}

#[test]
fn keepers_with_one_fault_break_nothing() {
    for budget in [
        Budget {
            messages: 1,
            ..NONE
        },
        Budget { delays: 1, ..NONE },
        Budget { cancels: 1, ..NONE },
        Budget { crashes: 1, ..NONE },
        Budget { forces: 1, ..NONE },
        Budget { resends: 1, ..NONE },
        Budget { replies: 1, ..NONE },
        Budget {
            requests: 1,
            ..NONE
        },
        Budget { losses: 1, ..NONE },
    ] {
        assert_holds(keepers(), budget, limit_or(LIMIT));
    }
}

#[test]
fn keepers_with_several_faults_break_nothing() {
    for budget in [
        Budget {
            messages: 2,
            cancels: 1,
            ..NONE
        },
        Budget {
            messages: 1,
            crashes: 1,
            forces: 1,
            ..NONE
        },
        Budget {
            messages: 1,
            delays: 2,
            ..NONE
        },
    ] {
        assert_holds(keepers(), budget, limit_or(LIMIT));
    }
}

#[track_caller]
fn assert_line_is_found(line: &'static str, instead: &'static str) {
    assert_found(keepers(), ScriptMutation { line, instead }, NONE, "P3");
}

#[test]
fn owner_that_nobody_tells_is_found() {
    assert_line_is_found("if not is_told then", "if false then");
}

#[test]
fn grant_that_hides_those_behind_it_is_found() {
    assert_line_is_found(
        "waiters_left = math.max(0, waiter_records)\n  if waiters_left > 0 and",
        "waiters_left = 0\n  if waiter_records > 0 and",
    );
}

#[test]
fn owner_that_each_waiter_tells_is_found() {
    assert_line_is_found(
        "local is_told = told_fence == fence and math.abs(now - told_at) < ARGV[2] / 2",
        "local is_told = false",
    );
}

#[test]
fn owner_that_counts_as_told_when_the_last_one_was_is_found() {
    assert_line_is_found("local is_told = told_fence == fence and", "local is_told =");
}
