//! Tests of the model itself: what it allows and what it forbids.

use super::model::{Attempt, Likelihood, ModelKind, ModelOutcome, Op, PossibleStates, Promise};
use super::model::{LeaseTerm, Observation};

const A: Attempt = attempt(1, 0, LeaseTerm::Fixed);
const B: Attempt = attempt(2, 1, LeaseTerm::Fixed);
const C: Attempt = attempt(3, 2, LeaseTerm::Fixed);

const fn attempt(number: u16, client: u8, lease: LeaseTerm) -> Attempt {
    Attempt {
        number,
        client,
        lease,
        permits: 1,
        spare: 0,
    }
}

fn granted(fence: u64) -> ModelOutcome {
    ModelOutcome::Granted { fence }
}

fn waiting(position: u64) -> ModelOutcome {
    ModelOutcome::Waiting {
        position: Some(position),
    }
}

/// The model allows all observations but the last, and the last breaks this promise.
#[track_caller]
fn assert_breaks(seen: &[(Op, ModelOutcome)], promise: Promise) {
    assert_breaks_of(ModelKind::Mutex, seen, promise);
}

#[track_caller]
fn allowed(seen: &[(Op, ModelOutcome)]) -> PossibleStates {
    allowed_of(ModelKind::Mutex, seen)
}

#[track_caller]
fn allowed_of(kind: ModelKind, seen: &[(Op, ModelOutcome)]) -> PossibleStates {
    let mut states = PossibleStates::new(kind);
    for (op, outcome) in seen {
        states
            .observe(op, outcome)
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
    states
}

#[track_caller]
fn assert_breaks_of(kind: ModelKind, seen: &[(Op, ModelOutcome)], promise: Promise) {
    let (last, before) = seen.split_last().unwrap();
    let mut states = allowed_of(kind, before);
    let violation = states.observe(&last.0, &last.1).unwrap_err();
    assert_eq!(violation.broken, [promise].into(), "{violation}");
}

/// A holds the lock, and B and C wait.
fn a_holds_b_and_c_wait() -> Vec<(Op, ModelOutcome)> {
    vec![
        (Op::TryLock(A), granted(10)),
        (Op::Enqueue(B), waiting(1)),
        (Op::Enqueue(C), waiting(2)),
    ]
}

fn then(more: &[(Op, ModelOutcome)]) -> Vec<(Op, ModelOutcome)> {
    [a_holds_b_and_c_wait(), more.to_vec()].concat()
}

#[test]
fn two_holders_break_exclusion() {
    assert_breaks(
        &[(Op::TryLock(A), granted(10)), (Op::TryLock(B), granted(11))],
        Promise::Exclusion,
    );
    assert_breaks(
        &then(&[(Op::TakeGrant(B), granted(11))]),
        Promise::Exclusion,
    );
    assert_breaks(
        &then(&[(Op::Unlock(A), ModelOutcome::Lost)]),
        Promise::Exclusion,
    );
}

#[test]
fn fence_that_does_not_rise_breaks_fencing() {
    for fence in [9, 10] {
        let last = [
            (Op::Unlock(A), ModelOutcome::Released),
            (Op::TakeGrant(B), granted(fence)),
        ];
        assert_breaks(&then(&last), Promise::Fencing);
    }
}

#[test]
fn late_look_at_an_old_grant_bounds_its_fence() {
    let lost = |fence| {
        then(&[
            (Op::Unlock(A), ModelOutcome::Released),
            (Op::Lapse, ModelOutcome::Released),
            (Op::TakeGrant(C), granted(20)),
            (Op::TakeGrant(B), granted(fence)),
        ])
    };
    allowed(&lost(15));
    // B may also have waited again. Then it has no grant, and its release cannot succeed.
    assert_breaks(
        &[lost(15), vec![(Op::Unlock(B), ModelOutcome::Released)]].concat(),
        Promise::Exclusion,
    );
    let mut states = allowed(&lost(15)[..6]);
    assert!(
        states
            .observe(&Op::TakeGrant(B), &granted(25))
            .unwrap_err()
            .broken
            .contains(&Promise::Fencing)
    );
}

#[test]
fn overtaking_breaks_the_order() {
    let last = [
        (Op::Unlock(A), ModelOutcome::Released),
        (Op::TakeGrant(C), granted(11)),
    ];
    assert_breaks(&then(&last), Promise::Order);
    let shown = Observation {
        holders: [(A.number, 10)].into(),
        queue: vec![C.number, B.number],
        last_fence: None,
    };
    assert_breaks(
        &then(&[(Op::Inspect, ModelOutcome::Seen(Some(shown)))]),
        Promise::Order,
    );
    assert_breaks(
        &[
            &a_holds_b_and_c_wait()[..2],
            &[(Op::Enqueue(C), waiting(1))],
        ]
        .concat(),
        Promise::Order,
    );
    let barging = [
        (Op::Unlock(A), ModelOutcome::Released),
        (Op::TryLock(attempt(4, 0, LeaseTerm::Fixed)), granted(11)),
    ];
    assert_breaks(&then(&barging), Promise::Order);
}

#[test]
fn refusing_a_free_lock_breaks_the_wake_up() {
    assert_breaks(&[(Op::TryLock(A), ModelOutcome::Busy)], Promise::WakeUp);
    assert_breaks(&[(Op::Enqueue(A), waiting(1))], Promise::WakeUp);
}

#[test]
fn second_fence_for_one_request_breaks_one_grant() {
    assert_breaks(
        &[
            (Op::TryLock(A), granted(10)),
            (Op::Repeat(Some(A.number)), granted(11)),
        ],
        Promise::OneGrant,
    );
    let twice = Observation {
        holders: [(A.number, 10)].into(),
        queue: vec![B.number, B.number],
        last_fence: None,
    };
    assert_breaks(
        &then(&[(Op::Inspect, ModelOutcome::Seen(Some(twice)))]),
        Promise::OneGrant,
    );
}

#[test]
fn misuse_that_is_granted_breaks_bad_input() {
    assert_breaks(&[(Op::Misuse, granted(1))], Promise::BadInput);
}

#[test]
fn lapse_of_a_fixed_lease_costs_no_place() {
    let again = attempt(4, 0, LeaseTerm::Fixed);
    let seen = then(&[
        (Op::Cancel(B), ModelOutcome::Done),
        (Op::Cancel(C), ModelOutcome::Done),
    ]);
    let seen = [
        seen,
        vec![
            (Op::Enqueue(again), waiting(3)),
            (Op::Lapse, ModelOutcome::Released),
        ],
    ]
    .concat();
    assert_eq!(
        allowed(&[&a_holds_b_and_c_wait()[..1], &seen[5..]].concat()).likelihood(again),
        Likelihood::Certain
    );
    assert_eq!(
        allowed(&seen).likelihood(C),
        Likelihood::Possible,
        "the release of C may still be under way"
    );
}

#[test]
fn lapse_of_a_renewed_lease_can_cost_a_place() {
    let dead = attempt(1, 0, LeaseTerm::Renewed);
    let its_other = attempt(2, 0, LeaseTerm::Renewed);
    let seen = [
        (Op::TryLock(dead), granted(10)),
        (Op::Enqueue(its_other), waiting(1)),
        (Op::Enqueue(C), waiting(2)),
        (Op::Expire, ModelOutcome::Done),
    ];
    let states = allowed(&seen);
    assert_eq!(
        (states.likelihood(its_other), states.likelihood(C)),
        (Likelihood::Possible, Likelihood::Possible)
    );
    // If the server passed it over, it comes after C and not before.
    let passed = [
        &seen[..],
        &[
            (Op::TakeGrant(C), granted(11)),
            (Op::Unlock(C), ModelOutcome::Released),
        ],
    ]
    .concat();
    assert_eq!(allowed(&passed).likelihood(its_other), Likelihood::Possible);
    assert_breaks(
        &[&passed[..5], &[(Op::TakeGrant(its_other), granted(12))]].concat(),
        Promise::Exclusion,
    );
}

#[test]
fn unnoticed_lapse_still_allows_a_release() {
    let seen = then(&[
        (Op::Expire, ModelOutcome::Done),
        (Op::Unlock(A), ModelOutcome::Released),
    ]);
    assert_eq!(allowed(&seen).likelihood(B), Likelihood::Certain);
    let noticed = then(&[
        (Op::Expire, ModelOutcome::Done),
        (
            Op::TryLock(attempt(4, 1, LeaseTerm::Fixed)),
            ModelOutcome::Busy,
        ),
    ]);
    assert_breaks(
        &[noticed, vec![(Op::Unlock(A), ModelOutcome::Released)]].concat(),
        Promise::Exclusion,
    );
}

const TWO: ModelKind = ModelKind::Semaphore(2);
const HEAVY: Attempt = Attempt {
    permits: 2,
    ..attempt(4, 3, LeaseTerm::Fixed)
};

#[test]
fn more_permits_than_exist_break_exclusion() {
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
fn small_request_that_overtakes_a_large_one_breaks_the_order() {
    let heavy_waits = [
        (Op::TryLock(A), granted(10)),
        (Op::Enqueue(HEAVY), waiting(1)),
    ];
    let light_waits = [&heavy_waits[..], &[(Op::Enqueue(C), waiting(2))]].concat();
    assert_eq!(
        allowed_of(TWO, &light_waits).likelihood(C),
        Likelihood::Impossible
    );
    assert_breaks_of(
        TWO,
        &[&heavy_waits[..], &[(Op::TryLock(C), granted(11))]].concat(),
        Promise::Order,
    );
    let shown = Observation {
        holders: [(A.number, 10), (C.number, 11)].into(),
        queue: vec![HEAVY.number],
        last_fence: None,
    };
    let seen = [
        &light_waits[..],
        &[(Op::Inspect, ModelOutcome::Seen(Some(shown)))],
    ]
    .concat();
    assert_breaks_of(TWO, &seen, Promise::Order);
    let served = [&light_waits[..], &[(Op::Unlock(A), ModelOutcome::Released)]].concat();
    let states = allowed_of(TWO, &served);
    assert_eq!(
        (states.likelihood(HEAVY), states.likelihood(C)),
        (Likelihood::Certain, Likelihood::Impossible)
    );
}

#[test]
fn free_permits_beside_a_small_waiter_break_the_wake_up() {
    let seen = [(Op::TryLock(A), granted(10)), (Op::Enqueue(B), waiting(1))];
    assert_breaks_of(TWO, &seen, Promise::WakeUp);
    assert_breaks_of(
        TWO,
        &[
            (Op::TryLock(A), granted(10)),
            (Op::TryLock(B), ModelOutcome::Busy),
        ],
        Promise::WakeUp,
    );
}

#[test]
fn dropping_a_lost_guard_needs_no_request() {
    let [lost, next] = [
        attempt(1, 0, LeaseTerm::Fixed),
        attempt(2, 1, LeaseTerm::Fixed),
    ];
    let loses_lease = [
        (Op::Expire, ModelOutcome::Done),
        (Op::TryLock(next), granted(11)),
        (Op::Renew(lost), ModelOutcome::Lost),
    ];
    // The lease of the next holder has expired too, and nobody has noticed.
    let dropped = [
        (Op::Expire, ModelOutcome::Done),
        (Op::Drop(lost), ModelOutcome::Done),
    ];
    let forced = Op::ForceRelease {
        client: 2,
        fence: 11,
    };
    let seen = [
        &[(Op::TryLock(lost), granted(10))][..],
        &loses_lease,
        &dropped,
        &[(forced, ModelOutcome::Released)],
    ]
    .concat();
    allowed_of(ModelKind::Semaphore(1), &seen);
}

const READ_WRITE: ModelKind = ModelKind::ReadWrite(100);
const WRITER: Attempt = Attempt {
    permits: 100,
    ..attempt(5, 4, LeaseTerm::Fixed)
};

#[test]
fn readers_share_a_fence_and_writers_raise_it() {
    let first = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Unlock(WRITER), ModelOutcome::Released),
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
                (Op::Unlock(A), ModelOutcome::Released),
                (Op::TryLock(again), granted(fence)),
            ],
        ]
    };
    allowed_of(READ_WRITE, &write(11).concat());
    assert_breaks_of(READ_WRITE, &write(10).concat(), Promise::Fencing);
}

#[test]
fn readers_of_one_turn_share_a_fence() {
    let waits = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Enqueue(A), waiting(1)),
        (Op::Enqueue(B), waiting(2)),
    ];
    let both = |fence| {
        let served = [
            (Op::Downgrade(WRITER), ModelOutcome::Downgraded),
            (Op::TakeGrant(A), granted(10)),
        ];
        [&waits[..], &served, &[(Op::TakeGrant(B), granted(fence))]].concat()
    };
    allowed_of(READ_WRITE, &both(10));
    assert_breaks_of(READ_WRITE, &both(11), Promise::OneGrant);
}

#[test]
fn writer_beside_readers_breaks_exclusion() {
    let again = Attempt {
        number: 6,
        ..WRITER
    };
    let shared = [
        (Op::TryLock(WRITER), granted(10)),
        (Op::Downgrade(WRITER), ModelOutcome::Downgraded),
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
