//! The same with permits: readers and writers, and those who ask for several of a semaphore's.

use super::tests::{NONE, assert_found, assert_holds, most};
use super::{Budget, Setting};
use crate::sim::mutation::ScriptMutation;

/// Worlds of each setting and each fault that are looked at, unless the environment says otherwise.
const MOST: usize = 300;

const ONE_OF_EACH: [Budget; 7] = [
    Budget {
        messages: 1,
        ..NONE
    },
    Budget { resends: 1, ..NONE },
    Budget {
        give_ups: 1,
        ..NONE
    },
    Budget { crashes: 1, ..NONE },
    Budget {
        requests: 1,
        ..NONE
    },
    Budget { replies: 1, ..NONE },
    Budget { delays: 1, ..NONE },
];

#[test]
fn permits_without_any_fault_break_nothing() {
    for setting in [
        Setting::readers_and_writers(0),
        Setting::readers_and_writers(3),
        Setting::semaphore(2, [1, 1, 1]),
        Setting::semaphore(2, [1, 2, 2]),
    ] {
        assert_holds(setting, NONE, usize::MAX);
    }
    for setting in [
        // 11,092
        Setting::readers_and_writers(1),
        // 7,180
        Setting::readers_and_writers(2),
        // 3,850
        Setting::semaphore(2, [1, 1, 2]),
        // 5,496
        Setting::semaphore(3, [1, 2, 2]),
    ] {
        assert_holds(setting, NONE, most(MOST));
    }
}

/// Complete with 137,722 worlds at most, and with a delay with 638,850.
#[test]
fn readers_and_writers_with_one_fault_break_nothing_as_far_as_is_looked() {
    for budget in ONE_OF_EACH {
        for writers in 0..=3 {
            assert_holds(Setting::readers_and_writers(writers), budget, most(MOST));
        }
    }
}

/// Complete with 59,924 worlds at most, and with a delay with 348,354.
#[test]
fn permits_of_a_semaphore_with_one_fault_break_nothing_as_far_as_is_looked() {
    for budget in ONE_OF_EACH {
        for setting in [
            Setting::semaphore(2, [1, 1, 1]),
            Setting::semaphore(2, [1, 1, 2]),
            Setting::semaphore(2, [1, 2, 2]),
            Setting::semaphore(3, [1, 2, 2]),
        ] {
            assert_holds(setting, budget, most(MOST));
        }
    }
}

/// With several, places are lost and taken again while others hold permits, and a lease is given its grace. Two crashes are
/// complete with 120,502 worlds at most; a lost message, a give-up and a crash, of a semaphore, with 117,774.
#[test]
fn permits_with_several_faults_break_nothing_as_far_as_is_looked() {
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
        Budget {
            messages: 1,
            give_ups: 1,
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
        for setting in [
            Setting::readers_and_writers(1),
            Setting::readers_and_writers(2),
            Setting::semaphore(2, [1, 1, 1]),
            Setting::semaphore(2, [1, 1, 2]),
            Setting::semaphore(2, [1, 2, 2]),
        ] {
            assert_holds(setting, budget, most(MOST / 3));
        }
    }
}

/// It left, and a copy of its acquire came late: its second place must not be another.
#[test]
fn a_token_that_stands_twice_in_the_queue_and_is_granted_twice_is_found() {
    let mutation = ScriptMutation {
        line: "local waiter = head ~= removed_token and not queue_forgotten and not skip[head]",
        instead: "local waiter = head ~= removed_token and not queue_forgotten",
    };
    let budget = Budget {
        delays: 1,
        give_ups: 1,
        ..NONE
    };
    assert_found(
        Setting::readers_and_writers(1),
        mutation,
        budget,
        "count as taken",
    );
    assert_holds(Setting::readers_and_writers(1), budget, most(1_000));
}

#[test]
fn a_grant_of_more_permits_than_there_are_is_found() {
    let mutation = ScriptMutation {
        line: "and permits_taken + weight <= capacity then",
        instead: "then",
    };
    assert_found(Setting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(Setting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn a_hand_over_of_more_permits_than_there_are_is_found() {
    let mutation = ScriptMutation {
        line: "if is_alive and permits_taken + weight > capacity then break end",
        instead: "",
    };
    assert_found(Setting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(Setting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn a_reader_that_overtakes_a_writer_who_waits_is_found() {
    let mutation = ScriptMutation {
        line: "if not own_grant and more == 0 and kind == wanted_kind and entries == 0",
        instead: "if not own_grant and more == 0 and kind == wanted_kind",
    };
    assert_found(Setting::readers_and_writers(1), mutation, NONE, "P3");
    assert_found(Setting::semaphore(3, [1, 2, 2]), mutation, NONE, "P3");
}

#[test]
fn a_grant_of_permits_that_does_not_raise_the_fence_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then fence = math.max(fence + 1, now) end",
        instead: "",
    };
    assert_found(Setting::readers_and_writers(2), mutation, NONE, "P2");
    assert_found(Setting::semaphore(2, [1, 1, 1]), mutation, NONE, "P2");
}

#[test]
fn a_reader_with_a_fence_of_his_own_is_found() {
    let mutation = ScriptMutation {
        line: "if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then fence = math.max(fence + 1, now) end",
        instead: "fence = math.max(fence + 1, now)",
    };
    assert_found(Setting::readers_and_writers(0), mutation, NONE, "one fence");
}

/// R10
#[test]
fn a_lapse_of_permits_that_does_not_void_the_places_of_the_dead_is_found() {
    let mutation = ScriptMutation {
        line: "if holder_died and not skip[holder_manager] then",
        instead: "if false then",
    };
    assert_found(
        Setting::readers_and_writers(3),
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
fn a_hand_over_of_permits_that_does_not_skip_a_dead_head_is_found() {
    let mutation = ScriptMutation {
        line: "local is_alive = waiter_manager == live_manager",
        instead: "local is_alive = true",
    };
    assert_found(
        Setting::readers_and_writers(3),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P3",
    );
}

/// R5
#[test]
fn a_request_that_takes_permits_too_late_is_found() {
    let mutation = ScriptMutation {
        line: "if now > not_after then return { 'late', now, 0 } end",
        instead: "",
    };
    assert_found(
        Setting::readers_and_writers(1),
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
fn a_renewal_of_permits_that_does_not_renew_is_found() {
    let mutation = ScriptMutation {
        line: "lease_end = math.max(math.min(lease_end, latest_end), now + 1000 * ttl)",
        instead: "",
    };
    assert_found(Setting::readers_and_writers(0), mutation, NONE, "P6");
}

#[test]
fn a_downgrade_that_gives_back_the_last_permit_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken, weight = permits_taken - weight + 1, 1",
        instead: "permits_taken, weight = 0, 1",
    };
    assert_found(Setting::readers_and_writers(2), mutation, NONE, "P1");
}

#[test]
fn a_downgrade_that_keeps_more_than_one_permit_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken, weight = permits_taken - weight + 1, 1",
        instead: "permits_taken, weight = permits_taken - weight + 2, 2",
    };
    assert_found(Setting::readers_and_writers(2), mutation, NONE, "P1");
}

#[test]
fn a_downgrade_that_gives_back_again_when_it_arrives_twice_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken, weight = permits_taken - weight + 1, 1",
        instead: "permits_taken = permits_taken - weight + 1",
    };
    assert_found(
        Setting::readers_and_writers(2),
        mutation,
        Budget { resends: 1, ..NONE },
        "P1",
    );
}

#[test]
fn a_release_that_gives_back_what_others_hold_is_found() {
    let mutation = ScriptMutation {
        line: "kept_field, permits_taken = nil, permits_taken - weight",
        instead: "kept_field, permits_taken = nil, 0",
    };
    assert_found(Setting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(Setting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn a_holder_who_lapses_before_anybody_looks_is_found() {
    let mutation = ScriptMutation {
        line: "next_lapse = next_lapse > 0 and math.min(next_lapse, now + lease_us) or now + lease_us",
        instead: "next_lapse = now + lease_us",
    };
    assert_found(Setting::readers_and_writers(0), mutation, NONE, "P5");
    assert_found(Setting::semaphore(2, [1, 1, 1]), mutation, NONE, "P5");
}

#[test]
fn a_look_at_holders_that_forgets_the_first_who_lapses_is_found() {
    let mutation = ScriptMutation {
        line: "first_end = math.min(first_end or lease_end, lease_end)",
        instead: "first_end = math.max(first_end or lease_end, lease_end)",
    };
    assert_found(Setting::readers_and_writers(0), mutation, NONE, "P5");
}

/// R9
#[test]
fn a_holder_who_finds_that_his_own_permits_lapsed_is_found() {
    let mutation = ScriptMutation {
        line: "elseif lease_end <= now and holder_token ~= token then",
        instead: "elseif lease_end <= now then",
    };
    assert_found(
        Setting::semaphore(2, [1, 1, 2]),
        mutation,
        Budget {
            requests: 3,
            ..NONE
        },
        "P1",
    );
}

#[test]
fn a_lookup_that_does_not_tell_of_a_grant_is_found() {
    let mutation = ScriptMutation {
        line: "found = { holder_fence + 0, granted_at + 0, math.max(0, lease_end - now), holder_previous }",
        instead: "",
    };
    assert_found(
        Setting::readers_and_writers(1),
        mutation,
        Budget {
            messages: 1,
            ..NONE
        },
        "P4",
    );
}

#[test]
fn a_lapsed_holder_who_is_forgotten_at_once_is_found() {
    let mutation = ScriptMutation {
        line: "ends = 3",
        instead: "ends = true",
    };
    assert_found(
        Setting::semaphore(2, [1, 1, 2]),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P6",
    );
}

/// What readers leave is never half done.
#[test]
fn a_reader_whose_lapse_is_told_to_who_comes_next_is_found() {
    let mutation = ScriptMutation {
        line: "if may_leave_half_done then previous = ends - 2 end",
        instead: "previous = ends - 2",
    };
    assert_found(
        Setting::readers_and_writers(1),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P6",
    );
}

#[test]
fn a_writer_whose_lapse_is_not_told_to_who_comes_next_is_found() {
    let mutation = ScriptMutation {
        line: "if may_leave_half_done then previous = ends - 2 end",
        instead: "",
    };
    assert_found(
        Setting::readers_and_writers(1),
        mutation,
        Budget { crashes: 1, ..NONE },
        "P6",
    );
}

#[test]
fn an_abandon_that_forgets_a_grant_of_permits_is_found() {
    let mutation = ScriptMutation {
        line: "if phase < 2 and mode == 'keep_if_owner' then",
        instead: "if phase < 2 and (mode == 'keep_if_owner' or mode == 'unused') then",
    };
    assert_found(
        Setting::readers_and_writers(1),
        mutation,
        Budget {
            messages: 1,
            give_ups: 1,
            ..NONE
        },
        "P7",
    );
}
