//! The model itself: what it allows and what it forbids.

use super::model::{Attempt, Chance, Kind, Op, Outcome, Promise, Worlds};
use super::model::{Lease, Sight};

const A: Attempt = attempt(1, 0, Lease::Fixed);
const B: Attempt = attempt(2, 1, Lease::Fixed);
const C: Attempt = attempt(3, 2, Lease::Fixed);

const fn attempt(number: u16, client: u8, lease: Lease) -> Attempt {
    Attempt {
        number,
        client,
        lease,
        permits: 1,
    }
}

fn granted(fence: u64) -> Outcome {
    Outcome::Granted { fence }
}

fn waiting(position: u64) -> Outcome {
    Outcome::Waiting {
        position: Some(position),
    }
}

/// What was seen up to the last is allowed, and the last breaks this.
#[track_caller]
fn assert_breaks(seen: &[(Op, Outcome)], promise: Promise) {
    assert_breaks_of(Kind::Mutex, seen, promise);
}

#[track_caller]
fn allowed(seen: &[(Op, Outcome)]) -> Worlds {
    allowed_of(Kind::Mutex, seen)
}

#[track_caller]
fn allowed_of(kind: Kind, seen: &[(Op, Outcome)]) -> Worlds {
    let mut worlds = Worlds::new(kind);
    for (op, outcome) in seen {
        worlds
            .observe(op, outcome)
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
    worlds
}

#[track_caller]
fn assert_breaks_of(kind: Kind, seen: &[(Op, Outcome)], promise: Promise) {
    let (last, before) = seen.split_last().unwrap();
    let mut worlds = allowed_of(kind, before);
    let violation = worlds.observe(&last.0, &last.1).unwrap_err();
    assert_eq!(violation.broken, [promise].into(), "{violation}");
}

/// A holds it, B and C wait.
fn line() -> Vec<(Op, Outcome)> {
    vec![
        (Op::TryLock(A), granted(10)),
        (Op::Enqueue(B), waiting(1)),
        (Op::Enqueue(C), waiting(2)),
    ]
}

fn after_line(more: &[(Op, Outcome)]) -> Vec<(Op, Outcome)> {
    [line(), more.to_vec()].concat()
}

#[test]
fn two_holders_break_exclusion() {
    assert_breaks(
        &[(Op::TryLock(A), granted(10)), (Op::TryLock(B), granted(11))],
        Promise::Exclusion,
    );
    assert_breaks(
        &after_line(&[(Op::Claim(B), granted(11))]),
        Promise::Exclusion,
    );
    assert_breaks(
        &after_line(&[(Op::Unlock(A), Outcome::Lost)]),
        Promise::Exclusion,
    );
}

#[test]
fn a_fence_that_does_not_rise_breaks_fencing() {
    for fence in [9, 10] {
        let last = [
            (Op::Unlock(A), Outcome::Released),
            (Op::Claim(B), granted(fence)),
        ];
        assert_breaks(&after_line(&last), Promise::Fencing);
    }
}

#[test]
fn a_late_look_at_an_earlier_grant_bounds_its_fence_from_above() {
    let lost = |fence| {
        after_line(&[
            (Op::Unlock(A), Outcome::Released),
            (Op::Lapse, Outcome::Released),
            (Op::Claim(C), granted(20)),
            (Op::Claim(B), granted(fence)),
        ])
    };
    allowed(&lost(15));
    // It can also have waited again, and then there is no grant that it could have.
    assert_breaks(
        &[lost(15), vec![(Op::Unlock(B), Outcome::Released)]].concat(),
        Promise::Exclusion,
    );
    let mut worlds = allowed(&lost(15)[..6]);
    assert!(
        worlds
            .observe(&Op::Claim(B), &granted(25))
            .unwrap_err()
            .broken
            .contains(&Promise::Fencing)
    );
}

#[test]
fn overtaking_breaks_the_order() {
    let last = [
        (Op::Unlock(A), Outcome::Released),
        (Op::Claim(C), granted(11)),
    ];
    assert_breaks(&after_line(&last), Promise::Order);
    let shown = Sight {
        holders: [(A.number, 10)].into(),
        queue: vec![C.number, B.number],
    };
    assert_breaks(
        &after_line(&[(Op::Inspect, Outcome::Seen(Some(shown)))]),
        Promise::Order,
    );
    assert_breaks(
        &[&line()[..2], &[(Op::Enqueue(C), waiting(1))]].concat(),
        Promise::Order,
    );
    let barging = [
        (Op::Unlock(A), Outcome::Released),
        (Op::TryLock(attempt(4, 0, Lease::Fixed)), granted(11)),
    ];
    assert_breaks(&after_line(&barging), Promise::Order);
}

#[test]
fn a_free_lock_that_is_refused_breaks_the_wake_up() {
    assert_breaks(&[(Op::TryLock(A), Outcome::Busy)], Promise::WakeUp);
    assert_breaks(&[(Op::Enqueue(A), waiting(1))], Promise::WakeUp);
}

#[test]
fn a_second_fence_for_one_request_breaks_one_grant() {
    assert_breaks(
        &[
            (Op::TryLock(A), granted(10)),
            (Op::Repeat(Some(A.number)), granted(11)),
        ],
        Promise::OneGrant,
    );
    let twice = Sight {
        holders: [(A.number, 10)].into(),
        queue: vec![B.number, B.number],
    };
    assert_breaks(
        &after_line(&[(Op::Inspect, Outcome::Seen(Some(twice)))]),
        Promise::OneGrant,
    );
}

#[test]
fn misuse_that_is_granted_breaks_bad_input() {
    assert_breaks(&[(Op::Misuse, granted(1))], Promise::BadInput);
}

#[test]
fn a_fixed_lease_that_lapses_costs_its_process_no_place() {
    let again = attempt(4, 0, Lease::Fixed);
    let seen = after_line(&[(Op::Leave(B), Outcome::Done), (Op::Leave(C), Outcome::Done)]);
    let seen = [
        seen,
        vec![
            (Op::Enqueue(again), waiting(3)),
            (Op::Lapse, Outcome::Released),
        ],
    ]
    .concat();
    assert_eq!(
        allowed(&[&line()[..1], &seen[5..]].concat()).chance(again),
        Chance::Certain
    );
    assert_eq!(
        allowed(&seen).chance(C),
        Chance::Some,
        "its leave may still be under way"
    );
}

#[test]
fn a_renewed_lease_that_lapses_can_cost_its_process_the_place() {
    let dead = attempt(1, 0, Lease::Renewed);
    let its_other = attempt(2, 0, Lease::Renewed);
    let seen = [
        (Op::TryLock(dead), granted(10)),
        (Op::Enqueue(its_other), waiting(1)),
        (Op::Enqueue(C), waiting(2)),
        (Op::RunOut, Outcome::Done),
    ];
    let worlds = allowed(&seen);
    assert_eq!(
        (worlds.chance(its_other), worlds.chance(C)),
        (Chance::Some, Chance::Some)
    );
    // Passed over, it comes after C, and not before.
    let passed = [
        &seen[..],
        &[
            (Op::Claim(C), granted(11)),
            (Op::Unlock(C), Outcome::Released),
        ],
    ]
    .concat();
    assert_eq!(allowed(&passed).chance(its_other), Chance::Some);
    assert_breaks(
        &[&passed[..5], &[(Op::Claim(its_other), granted(12))]].concat(),
        Promise::Exclusion,
    );
}

#[test]
fn a_lapse_that_nobody_noticed_leaves_the_holder_its_release() {
    let seen = after_line(&[
        (Op::RunOut, Outcome::Done),
        (Op::Unlock(A), Outcome::Released),
    ]);
    assert_eq!(allowed(&seen).chance(B), Chance::Certain);
    let noticed = after_line(&[
        (Op::RunOut, Outcome::Done),
        (Op::TryLock(attempt(4, 1, Lease::Fixed)), Outcome::Busy),
    ]);
    assert_breaks(
        &[noticed, vec![(Op::Unlock(A), Outcome::Released)]].concat(),
        Promise::Exclusion,
    );
}
const TWO: Kind = Kind::Semaphore(2);
const HEAVY: Attempt = Attempt {
    permits: 2,
    ..attempt(4, 3, Lease::Fixed)
};

#[test]
fn more_permits_than_there_are_break_exclusion() {
    let both = [(Op::TryLock(A), granted(10)), (Op::TryLock(B), granted(11))];
    allowed_of(TWO, &both);
    assert_breaks_of(
        TWO,
        &[&both[..], &[(Op::TryLock(C), granted(12))]].concat(),
        Promise::Exclusion,
    );
    let one = [
        (Op::TryLock(A), granted(10)),
        (Op::TryLock(HEAVY), granted(11)),
    ];
    assert_breaks_of(TWO, &one, Promise::Exclusion);
}

#[test]
fn one_who_asks_for_few_and_overtakes_one_who_asks_for_many_breaks_the_order() {
    let heavy_waits = [
        (Op::TryLock(A), granted(10)),
        (Op::Enqueue(HEAVY), waiting(1)),
    ];
    let light_waits = [&heavy_waits[..], &[(Op::Enqueue(C), waiting(2))]].concat();
    assert_eq!(allowed_of(TWO, &light_waits).chance(C), Chance::None);
    assert_breaks_of(
        TWO,
        &[&heavy_waits[..], &[(Op::TryLock(C), granted(11))]].concat(),
        Promise::Order,
    );
    let shown = Sight {
        holders: [(A.number, 10), (C.number, 11)].into(),
        queue: vec![HEAVY.number],
    };
    let seen = [
        &light_waits[..],
        &[(Op::Inspect, Outcome::Seen(Some(shown)))],
    ]
    .concat();
    assert_breaks_of(TWO, &seen, Promise::Order);
    let served = [&light_waits[..], &[(Op::Unlock(A), Outcome::Released)]].concat();
    let worlds = allowed_of(TWO, &served);
    assert_eq!(
        (worlds.chance(HEAVY), worlds.chance(C)),
        (Chance::Certain, Chance::None)
    );
}

#[test]
fn permits_that_stay_free_while_somebody_waits_for_no_more_break_the_wake_up() {
    let seen = [(Op::TryLock(A), granted(10)), (Op::Enqueue(B), waiting(1))];
    assert_breaks_of(TWO, &seen, Promise::WakeUp);
    assert_breaks_of(
        TWO,
        &[
            (Op::TryLock(A), granted(10)),
            (Op::TryLock(B), Outcome::Busy),
        ],
        Promise::WakeUp,
    );
}

#[test]
fn a_guard_that_is_lost_may_be_dropped_without_a_request() {
    let [lost, next] = [attempt(1, 0, Lease::Fixed), attempt(2, 1, Lease::Fixed)];
    let told = [
        (Op::RunOut, Outcome::Done),
        (Op::TryLock(next), granted(11)),
        (Op::Renew(lost), Outcome::Lost),
    ];
    // Nobody has noticed that the next one's time is over, too.
    let dropped = [(Op::RunOut, Outcome::Done), (Op::Drop(lost), Outcome::Done)];
    let forced = Op::ForceRelease {
        client: 2,
        fence: 11,
    };
    let seen = [
        &[(Op::TryLock(lost), granted(10))][..],
        &told,
        &dropped,
        &[(forced, Outcome::Released)],
    ]
    .concat();
    allowed_of(Kind::Semaphore(1), &seen);
}

const READ_WRITE: Kind = Kind::ReadWrite(100);
const WRITER: Attempt = Attempt {
    permits: 100,
    ..attempt(5, 4, Lease::Fixed)
};

#[test]
fn readers_have_the_fence_of_the_last_writer_and_writers_a_larger_one() {
    let first = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Unlock(WRITER), Outcome::Released),
    ];
    let read = |fence| [&first[..], &[(Op::TryLock(A), granted(fence))]].concat();
    allowed_of(
        READ_WRITE,
        &[read(10), vec![(Op::TryLock(B), granted(10))]].concat(),
    );
    for fence in [9, 11] {
        assert_breaks_of(READ_WRITE, &read(fence), Promise::OneGrant);
    }
    let again = Attempt {
        number: 6,
        ..WRITER
    };
    let write = |fence| {
        [
            read(10),
            vec![
                (Op::Unlock(A), Outcome::Released),
                (Op::TryLock(again), granted(fence)),
            ],
        ]
    };
    allowed_of(READ_WRITE, &write(11).concat());
    assert_breaks_of(READ_WRITE, &write(10).concat(), Promise::Fencing);
}

#[test]
fn readers_who_are_handed_it_together_tell_each_other_s_fence() {
    let waits = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Enqueue(A), waiting(1)),
        (Op::Enqueue(B), waiting(2)),
    ];
    let both = |fence| {
        let served = [
            (Op::Downgrade(WRITER), Outcome::Downgraded),
            (Op::Claim(A), granted(10)),
        ];
        [&waits[..], &served, &[(Op::Claim(B), granted(fence))]].concat()
    };
    allowed_of(READ_WRITE, &both(10));
    assert_breaks_of(READ_WRITE, &both(11), Promise::OneGrant);
}

#[test]
fn a_writer_that_is_let_in_beside_readers_breaks_exclusion() {
    let again = Attempt {
        number: 6,
        ..WRITER
    };
    let shared = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Downgrade(WRITER), Outcome::Downgraded),
    ];
    allowed_of(
        READ_WRITE,
        &[&shared[..], &[(Op::TryLock(A), granted(10))]].concat(),
    );
    assert_breaks_of(
        READ_WRITE,
        &[&shared[..], &[(Op::TryLock(again), granted(11))]].concat(),
        Promise::Exclusion,
    );
}
