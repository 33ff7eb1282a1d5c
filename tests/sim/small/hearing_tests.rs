//! The same with owners that want to hear that somebody waits.

use super::tests::{NONE, assert_found, assert_holds, limit_or};
use super::{Budget, SmallSetting};
use crate::sim::mutation::ScriptMutation;

/// How many worlds of the larger sets of faults a test visits, unless the environment says
/// otherwise.
const LIMIT: usize = 1_000;

const RESENT: Budget = Budget { resends: 1, ..NONE };

#[test]
fn owners_hear_without_faults() {
    assert_holds(SmallSetting::mutex().hearing(), NONE, usize::MAX);
    assert_holds(
        SmallSetting::mutex().with_turns(2).hearing(),
        NONE,
        usize::MAX,
    );
}

#[test]
fn owners_hear_whatever_goes_wrong() {
    for budget in [
        RESENT,
        Budget { forces: 1, ..NONE },
        Budget { crashes: 1, ..NONE },
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
        Budget { losses: 1, ..NONE },
    ] {
        let setting = SmallSetting::mutex().with_turns(2).hearing();
        assert_holds(setting, budget, limit_or(LIMIT));
    }
}

#[track_caller]
fn assert_line_is_found(line: &'static str, instead: &'static str, budget: Budget, what: &str) {
    let setting = SmallSetting::mutex().with_turns(2).hearing();
    assert_found(setting, ScriptMutation { line, instead }, budget, what);
}

#[test]
fn scripts_that_tell_nobody_are_found() {
    assert_line_is_found(
        "if not is_told then",
        "if false then",
        NONE,
        "does not hear",
    );
    let message = "redis.pcall('PUBLISH', wanted_channel, wanted)";
    assert_line_is_found(message, "", NONE, "does not hear");
}

#[test]
fn grant_that_does_not_say_who_waits_is_found() {
    let line = "waiters_left = math.max(0, waiter_records)";
    assert_line_is_found(line, "waiters_left = 0", NONE, "something else");
    assert_line_is_found(line, "waiters_left = 1", NONE, "something else");
    let line = "previous, waiters_left }\nelseif";
    assert_line_is_found(line, "previous, 1 }\nelseif", NONE, "something else");
    assert_line_is_found(line, "previous }\nelseif", NONE, "unexpected shape");
}

#[test]
fn message_that_nobody_needs_is_found() {
    let line = "if waiter_records <= 0 then wanted = nil end";
    assert_line_is_found(
        line,
        "",
        Budget {
            messages: 1,
            ..NONE
        },
        "nobody waits for",
    );
    let line = "local wanted_channel, wanted, keeper_knows\nif owner and owner ~= token and";
    let instead = "local wanted_channel, wanted, keeper_knows\nif owner and";
    assert_line_is_found(line, instead, NONE, "nobody waits for");
}
