//! The same with permits: readers and writers, and a semaphore of which a process takes several
//! permits.

use super::{Budget, SmallSetting};

use super::tests::{NONE, assert_found, assert_holds, limit_or};
use crate::sim::mutation::ScriptMutation;

/// How many worlds of each setting and each fault a test visits, unless the environment says
/// otherwise.
const LIMIT: usize = 300;

const ONE_OF_EACH: [Budget; 7] = [
    Budget {
        messages: 1,
        ..NONE
    },
    Budget { resends: 1, ..NONE },
    Budget { cancels: 1, ..NONE },
    Budget { crashes: 1, ..NONE },
    Budget {
        requests: 1,
        ..NONE
    },
    Budget { replies: 1, ..NONE },
    Budget { delays: 1, ..NONE },
];

/// A request may come late, and its caller may have given up.
pub(super) const LATE_COPY: Budget = Budget {
    delays: 1,
    cancels: 1,
    ..NONE
};
pub(super) const ONE_CRASH: Budget = Budget { crashes: 1, ..NONE };

#[test]
fn permits_without_faults_break_nothing() {
    for setting in [
        SmallSetting::readers_and_writers(0),
        SmallSetting::readers_and_writers(3),
        SmallSetting::semaphore(2, [1, 1, 1]),
        SmallSetting::semaphore(2, [1, 2, 2]),
    ] {
        assert_holds(setting, NONE, usize::MAX);
    }
    for setting in [
        // 11,092
        SmallSetting::readers_and_writers(1),
        // 7,180
        SmallSetting::readers_and_writers(2),
        // 3,850
        SmallSetting::semaphore(2, [1, 1, 2]),
        // 5,496
        SmallSetting::semaphore(3, [1, 2, 2]),
    ] {
        assert_holds(setting, NONE, limit_or(LIMIT));
    }
}

/// Complete with 137,722 worlds at most, and with a delay with 638,850.
#[test]
fn readers_and_writers_with_one_fault_break_nothing() {
    for budget in ONE_OF_EACH {
        for writers in 0..=3 {
            assert_holds(
                SmallSetting::readers_and_writers(writers),
                budget,
                limit_or(LIMIT),
            );
        }
    }
}

/// Complete with 59,924 worlds at most, and with a delay with 348,354.
#[test]
fn semaphore_permits_with_one_fault_break_nothing() {
    for budget in ONE_OF_EACH {
        for setting in [
            SmallSetting::semaphore(2, [1, 1, 1]),
            SmallSetting::semaphore(2, [1, 1, 2]),
            SmallSetting::semaphore(2, [1, 2, 2]),
            SmallSetting::semaphore(3, [1, 2, 2]),
        ] {
            assert_holds(setting, budget, limit_or(LIMIT));
        }
    }
}

/// With several faults, clients lose places and take them again while others hold permits, and a
/// lease gets its grace. Two crashes are complete with 120,502 worlds at most. A lost message, a
/// give-up and a crash are complete with 117,774 for a semaphore.
#[test]
fn permits_with_several_faults_break_nothing() {
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
        Budget {
            messages: 1,
            cancels: 1,
            crashes: 1,
            ..NONE
        },
        Budget {
            messages: 1,
            requests: 1,
            crashes: 1,
            ..NONE
        },
        Budget { crashes: 2, ..NONE },
        Budget {
            requests: 3,
            ..NONE
        },
        Budget {
            delays: 1,
            crashes: 1,
            ..NONE
        },
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
        for setting in [
            SmallSetting::readers_and_writers(1),
            SmallSetting::readers_and_writers(2),
            SmallSetting::semaphore(2, [1, 1, 1]),
            SmallSetting::semaphore(2, [1, 1, 2]),
            SmallSetting::semaphore(2, [1, 2, 2]),
        ] {
            assert_holds(setting, budget, limit_or(LIMIT / 3));
        }
    }
}

/// A waiter is cancelled, and then a late copy of its acquire arrives. The token is queued twice,
/// but must be granted once.
#[test]
fn double_grant_to_a_token_queued_twice_is_found() {
    let mutation = ScriptMutation {
        line: "local waiter = head ~= removed_token and not queue_forgotten and not skip[head]",
        instead: "local waiter = head ~= removed_token and not queue_forgotten",
    };
    let budget = LATE_COPY;
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        budget,
        "count as taken",
    );
    assert_holds(
        SmallSetting::readers_and_writers(1),
        budget,
        limit_or(1_000),
    );
}

#[test]
fn grant_of_more_permits_than_exist_is_found() {
    let mutation = ScriptMutation {
        line: "and permits_taken + weight <= wanted_capacity then",
        instead: "then",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(SmallSetting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn hand_over_of_more_permits_than_exist_is_found() {
    let mutation = ScriptMutation {
        line: "if is_alive and permits_taken + weight > waiter_capacity + 0 then break end",
        instead: "",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(SmallSetting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn reader_that_overtakes_a_waiting_writer_is_found() {
    let mutation = ScriptMutation {
        line: "if not own_grant and more == 0 and is_wanted_kind and entries == 0",
        instead: "if not own_grant and more == 0 and is_wanted_kind",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P3");
    assert_found(SmallSetting::semaphore(3, [1, 2, 2]), mutation, NONE, "P3");
}

#[test]
fn permit_grant_without_a_new_fence_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then fence = math.max(fence + 1, now) end",
        instead: "",
    };
    assert_found(SmallSetting::readers_and_writers(2), mutation, NONE, "P2");
    assert_found(SmallSetting::semaphore(2, [1, 1, 1]), mutation, NONE, "P2");
}

#[test]
fn reader_with_its_own_fence_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then fence = math.max(fence + 1, now) end",
        instead: "fence = math.max(fence + 1, now)",
    };
    assert_found(
        SmallSetting::readers_and_writers(0),
        mutation,
        NONE,
        "one fence",
    );
}

#[test]
fn r10_permit_lapse_that_keeps_places_of_the_dead_is_found() {
    let mutation = ScriptMutation {
        line: "if holder_died and not skip[holder_manager] then",
        instead: "if false then",
    };
    assert_found(
        SmallSetting::readers_and_writers(3),
        mutation,
        Budget {
            delays: 1,
            crashes: 1,
            ..NONE
        },
        "P3",
    );
}

#[test]
fn permit_hand_over_to_a_dead_head_is_found() {
    let mutation = ScriptMutation {
        line: "local is_alive = waiter_manager == live_manager",
        instead: "local is_alive = true",
    };
    assert_found(
        SmallSetting::readers_and_writers(3),
        mutation,
        ONE_CRASH,
        "P3",
    );
}

#[test]
fn r5_permit_grant_to_a_late_request_is_found() {
    let mutation = ScriptMutation {
        line: "if now > not_after then return { 'late', now, 0 } end",
        instead: "",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        LATE_COPY,
        "P7",
    );
}

#[test]
fn permit_renewal_that_extends_nothing_is_found() {
    let mutation = ScriptMutation {
        line: "lease_end = math.max(math.min(lease_end, latest_end), now + 1000 * ttl)",
        instead: "",
    };
    assert_found(SmallSetting::readers_and_writers(0), mutation, NONE, "P6");
}

#[test]
fn downgrade_that_releases_the_last_permit_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken, weight = permits_taken - weight + kept, kept",
        instead: "permits_taken, weight = 0, kept",
    };
    assert_found(SmallSetting::readers_and_writers(2), mutation, NONE, "P1");
}

#[test]
fn downgrade_that_keeps_two_permits_is_found() {
    let mutation = ScriptMutation {
        line: "local kept = math.min(weight, ARGV[8] + 0)",
        instead: "local kept = math.min(weight, ARGV[8] + 1)",
    };
    assert_found(SmallSetting::readers_and_writers(2), mutation, NONE, "P1");
}

#[test]
fn downgrade_that_releases_again_on_its_second_arrival_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken, weight = permits_taken - weight + kept, kept",
        instead: "permits_taken = permits_taken - weight + kept",
    };
    assert_found(
        SmallSetting::readers_and_writers(2),
        mutation,
        Budget { resends: 1, ..NONE },
        "P1",
    );
}

#[test]
fn release_of_permits_that_others_hold_is_found() {
    let mutation = ScriptMutation {
        line: "kept_field, permits_taken = nil, permits_taken - weight",
        instead: "kept_field, permits_taken = nil, 0",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(SmallSetting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn lapse_before_the_noted_next_lapse_is_found() {
    let mutation = ScriptMutation {
        line: "math.min(next_lapse, now + 1000 * look_in) or now + 1000 * look_in",
        instead: "now + 1000 * look_in or now + 1000 * look_in",
    };
    assert_found(SmallSetting::readers_and_writers(0), mutation, NONE, "P5");
    assert_found(SmallSetting::semaphore(2, [1, 1, 1]), mutation, NONE, "P5");
}

#[test]
fn recount_that_forgets_the_first_lapse_is_found() {
    let mutation = ScriptMutation {
        line: "math.min(next_lapse, look_at) or look_at",
        instead: "math.max(next_lapse, look_at) or look_at",
    };
    assert_found(SmallSetting::readers_and_writers(0), mutation, NONE, "P5");
}

#[test]
fn r9_holder_that_notices_its_own_lapse_is_found() {
    let mutation = ScriptMutation {
        line: "elseif lease_end <= now and field ~= token then",
        instead: "elseif lease_end <= now then",
    };
    assert_found(
        SmallSetting::semaphore(2, [1, 1, 2]),
        mutation,
        Budget {
            requests: 3,
            ..NONE
        },
        "P1",
    );
}

#[test]
fn lookup_that_omits_a_grant_is_found() {
    let mutation = ScriptMutation {
        line: "= grant or (values",
        instead: "= (values",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        Budget {
            messages: 1,
            ..NONE
        },
        "P4",
    );
}

#[test]
fn lapsed_holder_that_is_deleted_at_once_is_found() {
    let mutation = ScriptMutation {
        line: "ends = 3",
        instead: "ends = true",
    };
    assert_found(
        SmallSetting::semaphore(2, [1, 1, 2]),
        mutation,
        ONE_CRASH,
        "P6",
    );
}

/// Readers never leave work half done, so their lapse is not reported.
#[test]
fn reported_lapse_of_a_reader_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then previous = ends - 2 end",
        instead: "previous = ends - 2",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        ONE_CRASH,
        "P6",
    );
}

#[test]
fn unreported_lapse_of_a_writer_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then previous = ends - 2 end",
        instead: "",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        ONE_CRASH,
        "P6",
    );
}

#[test]
fn abandon_that_keeps_granted_permits_is_found() {
    let mutation = ScriptMutation {
        line: "if grant and mode == 'keep_if_owner' then",
        instead: "if grant and (mode == 'keep_if_owner' or mode == 'unused') then",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        Budget {
            messages: 1,
            cancels: 1,
            ..NONE
        },
        "P7",
    );
}
