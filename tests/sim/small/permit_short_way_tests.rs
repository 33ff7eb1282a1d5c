//! Errors in the short ways of permits: the acquire of permits that nobody waits for, and their
//! release. Each test also shows that the search reaches the mutated line.

use super::{Budget, SmallSetting};

use super::permit_tests::{LATE_COPY, ONE_CRASH};
use super::tests::{NONE, assert_found};
use crate::sim::mutation::ScriptMutation;

#[test]
fn short_way_that_grants_more_permits_than_exist_is_found() {
    let mutation = ScriptMutation {
        line: "if permits_taken + weight <= wanted_capacity and fence < now",
        instead: "if fence < now",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P1");
    assert_found(SmallSetting::semaphore(2, [1, 1, 2]), mutation, NONE, "P1");
}

#[test]
fn short_way_that_overtakes_a_waiter_is_found() {
    let mutation = ScriptMutation {
        line: "and now <= not_after and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then",
        instead: "and now <= not_after then",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P3");
    assert_found(SmallSetting::semaphore(3, [1, 2, 2]), mutation, NONE, "P3");
}

#[test]
fn short_way_that_leaves_a_writer_the_old_fence_is_found() {
    let mutation = ScriptMutation {
        line: "if weight < capacity and wanted_name == 'rw/1 ' then",
        instead: "if wanted_name == 'rw/1 ' then",
    };
    assert_found(SmallSetting::readers_and_writers(2), mutation, NONE, "P2");
}

#[test]
fn short_way_that_raises_the_fence_for_a_reader_is_found() {
    let mutation = ScriptMutation {
        line: "if weight < capacity and wanted_name == 'rw/1 ' then",
        instead: "if false then",
    };
    assert_found(
        SmallSetting::readers_and_writers(0),
        mutation,
        NONE,
        "one fence",
    );
}

#[test]
fn short_way_of_a_late_request_is_found() {
    let mutation = ScriptMutation {
        line: "and now <= not_after and (not packed_queue",
        instead: "and (not packed_queue",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        LATE_COPY,
        "P7",
    );
}

#[test]
fn short_way_that_grants_a_token_again_is_found() {
    let mutation = ScriptMutation {
        line: "and #packed_state == 46 and not packed_holder",
        instead: "and #packed_state == 46",
    };
    assert_found(
        SmallSetting::semaphore(2, [1, 1, 1]),
        mutation,
        Budget { replies: 1, ..NONE },
        "count as taken",
    );
}

#[test]
fn short_way_that_delays_the_next_look_is_found() {
    let mutation = ScriptMutation {
        line: "math.min(shortest, shortest_lease), math.min(look_at, next_lapse)",
        instead: "math.min(shortest, shortest_lease), look_at",
    };
    assert_found(SmallSetting::readers_and_writers(0), mutation, NONE, "P5");
    assert_found(SmallSetting::semaphore(2, [1, 1, 1]), mutation, NONE, "P5");
}

#[test]
fn short_way_that_counts_no_permits_is_found() {
    let mutation = ScriptMutation {
        line: "permits_taken + weight, previous, look_outage),",
        instead: "permits_taken, previous, look_outage),",
    };
    assert_found(
        SmallSetting::semaphore(2, [1, 1, 2]),
        mutation,
        NONE,
        "count as taken",
    );
}

#[test]
fn short_release_that_ignores_waiters_is_found() {
    let mutation = ScriptMutation {
        line:
            "if mode == 'used' and kind and packed_state and #packed_state == 46 and packed_holder
  and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then",
        instead: "if mode == 'used' and kind and packed_state and packed_holder then",
    };
    assert_found(SmallSetting::readers_and_writers(1), mutation, NONE, "P4");
    assert_found(SmallSetting::semaphore(2, [1, 2, 2]), mutation, NONE, "P4");
}

#[test]
fn short_release_of_permits_that_others_hold_is_found() {
    let mutation = ScriptMutation {
        line: "    permits_taken = permits_taken - weight\n",
        instead: "    permits_taken = 0\n",
    };
    assert_found(
        SmallSetting::semaphore(3, [1, 2, 2]),
        mutation,
        NONE,
        "count as taken",
    );
}

#[test]
fn short_release_that_notices_no_lapse_of_others_is_found() {
    let mutation = ScriptMutation {
        line: "may_lapse = now >= next_lapse or 1000 * shortest_lease < next_lapse - now",
        instead: "may_lapse = false",
    };
    assert_found(
        SmallSetting::readers_and_writers(1),
        mutation,
        ONE_CRASH,
        "P7",
    );
}
