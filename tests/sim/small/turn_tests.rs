//! The same with local hand-overs: each grant reserves fences for further turns, of which the guards
//! of its process use some.

use super::tests::{NONE, assert_found, assert_holds, limit_or};
use super::{Budget, SmallSetting};
use crate::sim::mutation::ScriptMutation;

/// How many worlds of the larger sets of faults a test visits, unless the environment says
/// otherwise.
const LIMIT: usize = 1_000;

/// The next fence is the next number, so the clock hides nothing.
fn ahead() -> SmallSetting {
    SmallSetting::mutex().with_turns(2).with_fences_ahead()
}

#[test]
fn turns_without_faults_break_nothing() {
    assert_holds(ahead(), NONE, usize::MAX);
    assert_holds(SmallSetting::mutex().with_turns(1), NONE, usize::MAX);
}

#[test]
fn turns_with_one_fault_break_nothing() {
    for budget in [
        Budget { forces: 1, ..NONE },
        Budget { crashes: 1, ..NONE },
        Budget { resends: 1, ..NONE },
        Budget { replies: 1, ..NONE },
        Budget {
            requests: 1,
            ..NONE
        },
        Budget {
            messages: 1,
            ..NONE
        },
        Budget { cancels: 1, ..NONE },
        Budget { delays: 1, ..NONE },
    ] {
        assert_holds(ahead(), budget, limit_or(LIMIT));
    }
}

#[test]
fn turns_with_several_faults_break_nothing() {
    for budget in [
        Budget {
            forces: 1,
            crashes: 1,
            ..NONE
        },
        Budget {
            forces: 1,
            resends: 1,
            delays: 1,
            ..NONE
        },
    ] {
        assert_holds(ahead(), budget, limit_or(LIMIT));
    }
}

#[track_caller]
fn assert_line_is_found(line: &'static str, instead: &'static str, budget: Budget, what: &str) {
    assert_found(ahead(), ScriptMutation { line, instead }, budget, what);
}

#[test]
fn release_that_forgets_the_last_fence_used_is_found() {
    let line = "previous, fence = 0, (ARGV[8] or fence) + 0";
    assert_line_is_found(line, "previous = 0", NONE, "P2");
    let short = "mode == 'used' and not ARGV[8]";
    assert_line_is_found(short, "mode == 'used'", NONE, "P2");
}

#[test]
fn lapse_that_gives_reserved_fences_back_is_found() {
    let crash = Budget { crashes: 1, ..NONE };
    assert_line_is_found("fence = fence + spare", "", crash, "P2");
    let line = "spare = math.max(0, math.min(";
    assert_line_is_found(line, "spare = 0 * math.max(0, math.min(", crash, "P2");
}

#[test]
fn forced_release_that_gives_reserved_fences_back_is_found() {
    let force = Budget { forces: 1, ..NONE };
    assert_line_is_found("fence = fence + spare", "", force, "P2");
}

#[test]
fn forced_release_that_takes_the_first_fence_only_is_found() {
    let force = Budget { forces: 1, ..NONE };
    let line = "callers_fence <= fence + spare";
    assert_line_is_found(line, "callers_fence <= fence", force, "P2");
}

#[test]
fn hand_over_that_forgets_the_reserve_is_found() {
    let line = "'^((%d+) %d+ (%S+) (%d+) %d (%d+)[%d ]*) (.*)$'";
    let instead = "'^((%d+) %d+ (%S+) (%d+) %d (%d+))[%d ]* (.*)$'";
    assert_line_is_found(line, instead, NONE, "P2");
}
