//! Every world of three processes and one name that a few faults can lead to.
//!
//! The server is the shipped scripts on the in-memory store, and a client is a small model. The
//! module `small` says what is explored and what is checked.
//!
//! `FAIRLOCK_WORLDS=1000000 cargo test --release --all-features --lib sim::small -- --nocapture`
//! looks at this number of worlds for each of the larger sets of faults. It prints what it saw: the
//! worlds and the time and, for scripts that are broken on purpose, a shortest trace to the
//! violation.

use std::env;
use std::time::Instant;

use super::{Budget, Report, SmallSetting, SmallViolation, explore};
use crate::sim::mutation::{COUNTS_WHAT_IS_LEFT, ScriptMutation};

/// How many worlds of the larger sets of faults a test visits, unless the environment says
/// otherwise.
const LIMIT: usize = 2_000;

pub(crate) const NONE: Budget = Budget {
    messages: 0,
    requests: 0,
    replies: 0,
    resends: 0,
    delays: 0,
    cancels: 0,
    crashes: 0,
    forces: 0,
    losses: 0,
};

#[test]
fn three_clients_without_faults_break_nothing() {
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
fn three_clients_with_one_request_sent_twice_break_nothing() {
    assert_all_hold(Budget { resends: 1, ..NONE });
}

#[test]
fn three_clients_with_one_cancelled_waiter_break_nothing() {
    assert_all_hold(Budget { cancels: 1, ..NONE });
}

#[test]
fn three_clients_with_one_crash_break_nothing() {
    assert_all_hold(Budget { crashes: 1, ..NONE });
}

/// Where a number is given, the search is complete with that many worlds. With three lost requests,
/// and with faults of several kinds, clients lose places and take them again, confirm grants by a
/// renewal, and a lease gets its grace.
#[test]
fn three_clients_with_several_faults_break_nothing() {
    let limit = limit_or(LIMIT);
    let one_of_each = Budget {
        messages: 1,
        requests: 1,
        replies: 1,
        resends: 1,
        delays: 1,
        cancels: 1,
        crashes: 1,
        ..NONE
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
            cancels: 1,
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
            cancels: 1,
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
        assert_holds(SmallSetting::mutex(), budget, limit);
    }
}

/// The list is lost at every step of every world, also where a waiter leaves that has it written
/// anew. For a mutex, the searches are complete with 2,019, 14,081 and 12,451 worlds.
#[test]
fn queue_lost_at_any_step_breaks_nothing() {
    let limit = limit_or(LIMIT);
    for setting in [
        SmallSetting::mutex(),
        SmallSetting::mutex().rewriting_early(),
        SmallSetting::semaphore(1, [1; 3]).rewriting_early(),
        SmallSetting::readers_and_writers(2).rewriting_early(),
    ] {
        for (losses, cancels) in [(1, 0), (1, 2), (2, 1)] {
            let budget = Budget {
                losses,
                cancels,
                ..NONE
            };
            assert_holds(setting, budget, limit);
        }
    }
}

#[test]
fn r11_lost_list_that_is_written_anew_is_found() {
    let budget = Budget {
        losses: 1,
        cancels: 2,
        ..NONE
    };
    for setting in [SmallSetting::mutex(), SmallSetting::semaphore(1, [1; 3])] {
        assert_all_found(
            setting.rewriting_early(),
            &COUNTS_WHAT_IS_LEFT,
            budget,
            "not in the queue",
        );
    }
}

#[test]
fn release_without_the_owner_check_is_found() {
    let mutation = ScriptMutation {
        line: "elseif owner == token and not is_stray then",
        instead: "elseif owner then",
    };
    assert_found(
        SmallSetting::mutex(),
        mutation,
        Budget { cancels: 1, ..NONE },
        "P1",
    );
}

/// A late copy of the acquire takes the lock again after the release.
#[test]
fn release_that_ignores_the_fence_is_found() {
    for (line, instead) in [
        (
            "owner == token and callers_fence > 0 and callers_fence ~= fence",
            "false",
        ),
        (
            "if hold == 0 and fence == callers_fence then",
            "if hold == 0 then",
        ),
    ] {
        let mutation = ScriptMutation { line, instead };
        let budget = Budget { delays: 1, ..NONE };
        assert_found(SmallSetting::mutex(), mutation, budget, "P1");
    }
}

#[test]
fn hand_over_that_forgets_the_queue_head_is_found() {
    let mutation = ScriptMutation {
        line: "local waiter = head ~= removed_token and not queue_forgotten and not skip[head]",
        instead: "local waiter = heads_popped > 0",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "not in the queue");
}

#[test]
fn hand_over_without_a_new_fence_is_found() {
    let mutation = ScriptMutation {
        line: "fence, granted_at = math.max((fence or 0) + 1, now), now",
        instead: "fence, granted_at = math.max(fence or 0, fence and 0 or now), now",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "P2");
}

#[test]
fn hand_over_to_a_dead_head_is_found() {
    let mutation = ScriptMutation {
        line: "local is_alive = waiter_manager == live_manager",
        instead: "local is_alive = true",
    };
    assert_found(
        SmallSetting::mutex(),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P3",
    );
}

#[test]
fn abandon_that_keeps_a_grant_is_found() {
    let mutation = ScriptMutation {
        line: "elseif owner == token and mode == 'keep_if_owner' then",
        instead: "elseif owner == token and (mode == 'keep_if_owner' or mode == 'unused') then",
    };
    assert_found(
        SmallSetting::mutex(),
        mutation,
        Budget {
            messages: 1,
            cancels: 1,
            ..NONE
        },
        "P7",
    );
}

#[test]
fn r5_grant_to_a_late_request_is_found() {
    let mutation = ScriptMutation {
        line: "if now > not_after then return { 'late', now, 0 } end",
        instead: "",
    };
    assert_found(
        SmallSetting::mutex(),
        mutation,
        Budget {
            delays: 1,
            cancels: 1,
            ..NONE
        },
        "P7",
    );
}

#[test]
fn renewal_that_extends_nothing_is_found() {
    let mutation = ScriptMutation {
        line: "lease_end, state_changed = math.max(lease_end, now + 1000 * ttl), true",
        instead: "",
    };
    assert_found(SmallSetting::mutex().renewing_alone(), mutation, NONE, "P6");
    let mutation = ScriptMutation {
        line: "lease_end = now + left",
        instead: "",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "P6");
}

#[test]
fn r2_served_time_that_never_grows_is_found() {
    let mutation = ScriptMutation {
        line: "served_time = served_time + math.max(0, math.min(elapsed, step))",
        instead: "",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "R2");
}

/// These lines are in the script of renewals that come together, and in no other.
#[test]
fn r2_batched_renewal_that_counts_no_served_time_is_found() {
    for (line, instead) in [
        (
            "served_time = served_time + math.max(0, math.min(now - looked_at, ARGV[2] + 0))",
            "",
        ),
        (
            "pack('<dd', now, served_time)",
            "pack('<dd', looked_at, served_time)",
        ),
    ] {
        let mutation = ScriptMutation { line, instead };
        assert_found(SmallSetting::mutex(), mutation, NONE, "R2");
    }
}

/// A copy that comes when its sender has given up.
#[test]
fn r5_late_renewal_that_extends_a_lease_is_found() {
    let budget = Budget { delays: 1, ..NONE };
    let alone = ScriptMutation {
        line: "if now > ARGV[6] + 0 then return { 'late', now, 0 } end",
        instead: "",
    };
    for setting in [
        SmallSetting::mutex().renewing_alone(),
        SmallSetting::semaphore(2, [1, 1, 2]),
        SmallSetting::readers_and_writers(1),
    ] {
        assert_found(setting, alone, budget, "P7");
    }
    let together = ScriptMutation {
        line: "as in mutex_renew.lua.\nif now > ARGV[5] + 0 then return { 'late', now, 0 } end",
        instead: "\n",
    };
    assert_found(SmallSetting::mutex(), together, budget, "P7");
}

#[test]
fn r5_late_release_by_force_is_found() {
    let budget = Budget {
        delays: 1,
        forces: 1,
        ..NONE
    };
    let mutation = ScriptMutation {
        line: "if mode == 'forced' and now > ARGV",
        instead: "if false and now > ARGV",
    };
    assert_found(SmallSetting::mutex(), mutation, budget, "P7");
}

#[test]
fn batched_renewal_of_another_s_lease_is_found() {
    let mutation = ScriptMutation {
        line: "fields[3] == tokens[5 + i] and",
        instead: "fields[3] and",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "not held");
}

#[test]
fn r13_sync_that_claims_a_foreign_owner_is_found() {
    let mutation = ScriptMutation {
        line: "local owner_waited_here = ticket and ticket ~= '0' and owner_manager == manager",
        instead: "local owner_waited_here = ticket and ticket ~= '0'",
    };
    assert_found(SmallSetting::mutex(), mutation, NONE, "P1");
}

#[test]
fn r10_lapse_that_keeps_places_of_the_dead_is_found() {
    let mutation = ScriptMutation {
        line: "skip[holder_manager] = true",
        instead: "",
    };
    assert_found(
        SmallSetting::mutex(),
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
    let report = explore_and_print(SmallSetting::mutex(), budget, usize::MAX, &[]);
    assert!(report.violation.is_none(), "{report}");
    assert!(report.is_complete, "{report}");
}

/// Nothing is broken in all worlds, or in the first `limit` worlds.
#[track_caller]
pub(crate) fn assert_holds(setting: SmallSetting, budget: Budget, limit: usize) {
    let report = explore_and_print(setting, budget, limit, &[]);
    assert!(
        report.violation.is_none(),
        "{setting:?}, {budget:?}: {report}"
    );
    assert!(
        report.is_complete || report.worlds >= limit,
        "{setting:?}, {budget:?}: {report}"
    );
}

#[track_caller]
pub(crate) fn assert_found(
    setting: SmallSetting,
    mutation: ScriptMutation,
    budget: Budget,
    what: &str,
) -> SmallViolation {
    assert_all_found(setting, &[mutation], budget, what)
}

#[track_caller]
fn assert_all_found(
    setting: SmallSetting,
    mutations: &[ScriptMutation],
    budget: Budget,
    what: &str,
) -> SmallViolation {
    let report = explore_and_print(setting, budget, 200_000, mutations);
    let violation = report
        .violation
        .unwrap_or_else(|| panic!("{mutations:?} was not found in {} worlds", report.worlds));
    assert!(
        violation.what.contains(what),
        "another check found it: {violation}"
    );
    violation
}

/// The limit from the environment, or else this one.
pub(crate) fn limit_or(default: usize) -> usize {
    env::var("FAIRLOCK_WORLDS").map_or(default, |limit| limit.parse().expect("a number of worlds"))
}

fn explore_and_print(
    setting: SmallSetting,
    budget: Budget,
    limit: usize,
    mutations: &[ScriptMutation],
) -> Report {
    let started = Instant::now();
    let report = explore(setting, budget, limit, mutations);
    println!(
        "{:.1} s, {setting}, {budget:?}: {report}",
        started.elapsed().as_secs_f64()
    );
    report
}
