//! Every world of three processes and one name that a few faults can lead to: the shipped scripts in the in-memory
//! store, whose worlds can be copied, and a small model of the client. `fairlock::sim::small` says what is explored.
//!
//! `FAIRLOCK_WORLDS=1000000 cargo test --release --features sim --test small_worlds -- --nocapture` looks at so many
//! worlds of each of the larger sets of faults, too, and tells what it saw: the worlds, the time and, for scripts that
//! were broken on purpose, the shortest way to what that breaks.

use std::env;
use std::time::Instant;

use super::{Budget, Report, Setting, Violation, explore};
use crate::sim::mutation::ScriptMutation;

/// Worlds of the larger sets of faults that are looked at, unless the environment says otherwise.
const MOST: usize = 2_000;

pub(crate) const NONE: Budget = Budget {
    messages: 0,
    requests: 0,
    replies: 0,
    resends: 0,
    delays: 0,
    give_ups: 0,
    crashes: 0,
};

#[test]
fn three_clients_without_any_fault_break_nothing() {
    assert_all_hold(NONE);
}

#[test]
fn three_clients_with_one_lost_message_break_nothing() {
    assert_all_hold(Budget {
        messages: 1,
        ..NONE
    });
}

#[test]
fn three_clients_with_one_request_that_arrives_twice_break_nothing() {
    assert_all_hold(Budget { resends: 1, ..NONE });
}

#[test]
fn three_clients_of_which_one_gives_up_break_nothing() {
    assert_all_hold(Budget {
        give_ups: 1,
        ..NONE
    });
}

#[test]
fn three_clients_of_which_one_crashes_break_nothing() {
    assert_all_hold(Budget { crashes: 1, ..NONE });
}

/// Complete with as many worlds as it takes, where a number is given. With three lost requests, and with those of
/// several kinds, places are lost and taken again, grants are confirmed by a renewal, and a lease is given its grace.
#[test]
fn three_clients_with_several_faults_break_nothing_as_far_as_is_looked() {
    let most = most(MOST);
    let one_of_each = Budget {
        messages: 1,
        requests: 1,
        replies: 1,
        resends: 1,
        delays: 1,
        give_ups: 1,
        crashes: 1,
    };
    for budget in [
        // 6,590
        Budget {
            requests: 1,
            ..NONE
        },
        // 6,344
        Budget { replies: 1, ..NONE },
        // 38,802
        Budget { delays: 1, ..NONE },
        // 21,225
        Budget {
            messages: 1,
            give_ups: 1,
            crashes: 1,
            ..NONE
        },
        // 56,179
        Budget {
            messages: 1,
            requests: 1,
            crashes: 1,
            ..NONE
        },
        // 105,071
        Budget {
            requests: 3,
            ..NONE
        },
        // 157,833
        Budget {
            delays: 1,
            crashes: 1,
            ..NONE
        },
        // 140,122
        Budget {
            delays: 1,
            give_ups: 1,
            ..NONE
        },
        Budget {
            requests: 2,
            replies: 2,
            ..NONE
        },
        Budget { delays: 2, ..NONE },
        one_of_each,
    ] {
        assert_holds(Setting::mutex(), budget, most);
    }
}

#[test]
fn a_release_without_the_owner_check_is_found() {
    let mutation = ScriptMutation {
        line: "elseif owner == token then",
        instead: "elseif owner then",
    };
    assert_found(
        Setting::mutex(),
        mutation,
        Budget {
            give_ups: 1,
            ..NONE
        },
        "P1",
    );
}

#[test]
fn a_hand_over_that_forgets_the_head_of_the_queue_is_found() {
    let mutation = ScriptMutation {
        line: "local waiter = head ~= removed_token and not queue_forgotten and not skip[head]",
        instead: "local waiter = heads_popped > 0",
    };
    assert_found(Setting::mutex(), mutation, NONE, "stand in the queue");
}

#[test]
fn a_hand_over_that_does_not_raise_the_fence_is_found() {
    let mutation = ScriptMutation {
        line: "fence, granted_at = math.max((fence or 0) + 1, now), now",
        instead: "fence, granted_at = math.max(fence or 0, fence and 0 or now), now",
    };
    assert_found(Setting::mutex(), mutation, NONE, "P2");
}

#[test]
fn a_hand_over_that_does_not_skip_a_dead_head_is_found() {
    let mutation = ScriptMutation {
        line: "local is_alive = waiter_manager == live_manager",
        instead: "local is_alive = true",
    };
    assert_found(
        Setting::mutex(),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P3",
    );
}

#[test]
fn an_abandon_that_forgets_a_grant_is_found() {
    let mutation = ScriptMutation {
        line: "elseif owner == token and mode == 'keep_if_owner' then",
        instead: "elseif owner == token and (mode == 'keep_if_owner' or mode == 'unused') then",
    };
    assert_found(
        Setting::mutex(),
        mutation,
        Budget {
            messages: 1,
            give_ups: 1,
            ..NONE
        },
        "P7",
    );
}

/// R5
#[test]
fn a_request_that_takes_something_too_late_is_found() {
    let mutation = ScriptMutation {
        line: "if now > not_after then return { 'late', now, 0 } end",
        instead: "",
    };
    assert_found(
        Setting::mutex(),
        mutation,
        Budget {
            delays: 1,
            give_ups: 1,
            ..NONE
        },
        "P7",
    );
}

#[test]
fn a_renewal_that_does_not_renew_is_found() {
    let mutation = ScriptMutation {
        line: "lease_end, state_changed = math.max(lease_end, now + 1000 * ttl), true",
        instead: "",
    };
    assert_found(Setting::mutex(), mutation, NONE, "P6");
}

/// R2
#[test]
fn a_served_time_that_stands_still_is_found() {
    let mutation = ScriptMutation {
        line: "served_time = served_time + math.max(0, math.min(elapsed, step))",
        instead: "",
    };
    assert_found(Setting::mutex(), mutation, NONE, "R2");
}

/// R13
#[test]
fn a_check_that_takes_owners_of_others_for_its_own_is_found() {
    let mutation = ScriptMutation {
        line: "local owner_waited_here = ticket and ticket ~= '0' and owner_manager == manager",
        instead: "local owner_waited_here = ticket and ticket ~= '0'",
    };
    assert_found(Setting::mutex(), mutation, NONE, "P1");
}

/// R10
#[test]
fn a_lapse_that_does_not_void_the_places_of_the_dead_is_found() {
    let mutation = ScriptMutation {
        line: "skip[holder_manager] = true",
        instead: "",
    };
    assert_found(
        Setting::mutex(),
        mutation,
        Budget {
            delays: 1,
            crashes: 1,
            ..NONE
        },
        "P3",
    );
}

#[track_caller]
fn assert_all_hold(budget: Budget) {
    let report = told(Setting::mutex(), budget, usize::MAX, None);
    assert!(report.violation.is_none(), "{report}");
    assert!(report.is_complete, "{report}");
}

/// Complete, or as far as so many worlds go.
#[track_caller]
pub(crate) fn assert_holds(setting: Setting, budget: Budget, most: usize) {
    let report = told(setting, budget, most, None);
    assert!(
        report.violation.is_none(),
        "{setting:?}, {budget:?}: {report}"
    );
    assert!(
        report.is_complete || report.worlds >= most,
        "{setting:?}, {budget:?}: {report}"
    );
}

#[track_caller]
pub(crate) fn assert_found(
    setting: Setting,
    mutation: ScriptMutation,
    budget: Budget,
    what: &str,
) -> Violation {
    let report = told(setting, budget, 200_000, Some(&mutation));
    let violation = report
        .violation
        .unwrap_or_else(|| panic!("{mutation:?} was not found in {} worlds", report.worlds));
    assert!(
        violation.what.contains(what),
        "found by something else: {violation}"
    );
    violation
}

/// So many worlds, unless the environment says how many.
pub(crate) fn most(otherwise: usize) -> usize {
    env::var("FAIRLOCK_WORLDS").map_or(otherwise, |most| most.parse().expect("a number of worlds"))
}

fn told(
    setting: Setting,
    budget: Budget,
    most: usize,
    mutation: Option<&ScriptMutation>,
) -> Report {
    let started = Instant::now();
    let report = explore(setting, budget, most, mutation);
    println!(
        "{:.1} s, {setting}, {budget:?}: {report}",
        started.elapsed().as_secs_f64()
    );
    report
}
