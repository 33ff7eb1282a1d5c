//! For each exception of the checker, a history of the shipped engine and scripts that needs it,
//! and what the exception does not cover.

use super::defect::Defect;
use super::model::ModelKind;
use super::model::Promise;
use super::plan::{Action, LeaseKind, NetworkFault};
use super::scenarios::{SEMAPHORE, crash, fault, lock, lock_permits, pause, play_of, try_lock};

/// The checker accepts these actions, and some run shows what the exception is for.
#[track_caller]
fn assert_accepted(kind: ModelKind, actions: &[(u64, Action)], shown_by: &str) {
    let runs = play_of(kind, actions, None);
    assert!(
        runs.iter().any(|run| run.transcript.contains(shown_by)),
        "no run has {shown_by}: {}",
        runs[0].transcript
    );
    for run in runs {
        run.assert_keeps_promises();
    }
}

/// With this defect every run breaks the promise.
#[track_caller]
fn assert_refused(kind: ModelKind, actions: &[(u64, Action)], defect: Defect, promise: Promise) {
    for run in play_of(kind, actions, Some(defect)) {
        let breach = &run.breach;
        assert!(
            breach
                .as_ref()
                .is_some_and(|breach| breach.promise == promise),
            "{breach:?}\n{}",
            run.transcript
        );
    }
}

/// A caller takes one permit for a fixed lease.
fn lock_fixed(process: u8, hold: u64) -> Action {
    Action::Lock {
        process,
        timeout: None,
        hold,
        lease_kind: LeaseKind::Fixed,
        permits: 1,
    }
}

/// P3, R4 (lost places): the waiter learned of its place after the process sent the check that
/// finds the loss. So the check says nothing about that waiter, and it takes its place again later.
#[test]
fn check_says_nothing_about_a_later_place() {
    let actions = [
        (1, lock(0, 6_000)),
        (50, try_lock(1, 1, 1)),
        (99, fault(1, NetworkFault::LoseReply)),
        (100, lock(1, 50)),
        (110, lock(1, 50)),
    ];
    let check = [
        (430, fault(1, NetworkFault::DelayReply { by: 100 })),
        (470, fault(1, NetworkFault::DelayRequest { by: 150 })),
        (600, Action::DropRecord),
    ];
    assert_accepted(
        ModelKind::Mutex,
        &[&actions[..], &check].concat(),
        "-> Absent",
    );
    // If it learned of its place before, it takes it again first.
    assert_accepted(
        ModelKind::Mutex,
        &[&actions[..], &[(450, Action::DropRecord)]].concat(),
        "-> Absent",
    );
}

/// The same exception, for a check that came before the loss and found an earlier one: the first
/// waiter had its place again by then, and the second did not know yet that it had lost its own.
#[test]
fn check_says_nothing_about_a_later_loss() {
    let late_reply = |by| fault(1, NetworkFault::DelayReply { by });
    let actions = [
        (1, lock(0, 6_000)),
        (100, lock(1, 500)),
        (399, late_reply(150)),
        (400, lock(1, 500)),
        (440, Action::DropQueue),
        // The check, and the lookup that follows it.
        (840, late_reply(1)),
        (840, late_reply(100)),
        (900, Action::DropQueue),
    ];
    assert_accepted(ModelKind::Mutex, &actions, "waiting: [true, false]");
}

/// The same exception, for a waiter that took its place before the loss. A copy of its request
/// comes after the loss.
#[test]
fn late_copy_from_before_a_loss_takes_no_place_again() {
    let waiters = (0..4).map(|waiter| (500 + waiter, lock(1, 500)));
    let found = [
        (1_900, Action::FlushAll),
        // The check, and then what the process sends when the check has found the loss.
        (1_950, fault(1, NetworkFault::DelayRequest { by: 1 })),
        (1_951, fault(1, NetworkFault::Reset { late: Some(270) })),
    ];
    // The process checks again before the next loss.
    let check_again = Action::Unsubscribe {
        process: 1,
        pause: 3,
    };
    let lost = [(2_015, check_again), (2_030, Action::DropQueue)];
    let actions: Vec<_> = [(1, lock(0, 6_000))]
        .into_iter()
        .chain(waiters)
        .chain(found)
        .chain(lost)
        .collect();
    assert_accepted(ModelKind::Mutex, &actions, "Absent");
}

/// P7, one grant for each token: the process never learned of the first grant, which lapsed. A
/// request that it sent before, within its time, comes after that.
#[test]
fn request_may_come_after_an_unknown_grant_has_lapsed() {
    let deaf = Action::LoseInbound {
        process: 0,
        pause: 3_300,
    };
    let mut actions = vec![(1, lock(0, 1)), (50, deaf), (60, lock(0, 5))];
    // Each of these makes it send the request again at once.
    let reset = fault(0, NetworkFault::Reset { late: None });
    actions.extend((0..21).map(|_| (2_700, reset)));
    let late = fault(0, NetworkFault::DelayRequest { by: 200 });
    actions.extend([(2_701, late), (3_100, try_lock(1, 9, 1))]);
    assert_accepted(ModelKind::Mutex, &actions, "mode: Unused } -> Released");
}

/// P1: a forced release ended the grant before the holder learned of it. The holder learns of that
/// by its first renewal.
#[test]
fn forced_grant_is_believed_in_until_its_first_renewal() {
    let late = Action::DelayMessage {
        process: 0,
        by: 1_200,
    };
    let force = Action::Force {
        process: 2,
        stale: false,
    };
    let actions = [
        (1, lock(1, 4_000)),
        (100, lock(0, 2_000)),
        (105, lock(1, 6_000)),
        (110, lock(0, 50)),
        (200, late),
        (300, force),
        (400, force),
    ];
    assert_accepted(ModelKind::Mutex, &actions, "Gone");
}

/// P6: a mutex has room for nine leases that ended without a release.
#[test]
fn mutex_reports_only_its_last_nine_lapses() {
    let force = Action::Force {
        process: 2,
        stale: false,
    };
    let forced = |times| {
        let again = |i: u64| [(3_300 + 40 * i, lock(1, 9_000)), (3_320 + 40 * i, force)];
        (0..times).flat_map(again)
    };
    let actions = |times| {
        let lapse = [
            (1, lock_fixed(0, 9_000)),
            (50, pause(0, 8_000)),
            (3_200, lock(1, 50)),
        ];
        lapse.into_iter().chain(forced(times)).collect::<Vec<_>>()
    };
    assert_accepted(ModelKind::Mutex, &actions(9), "mode: Lost } -> Unknown");
    assert_accepted(ModelKind::Mutex, &actions(8), "mode: Lost } -> Lapsed");
    for defect in [Defect::Unknown, Defect::EndsForgotten] {
        let times = if defect == Defect::Unknown { 0 } else { 8 };
        let promise = Promise::Exclusion;
        assert_refused(ModelKind::Mutex, &actions(times), defect, promise);
    }
}

/// P6: the server knows of a lapsed lease for one ttl from when the clock went back, and no longer.
#[test]
fn lapse_is_known_for_a_ttl_after_a_clock_step() {
    let actions = |paused| {
        [
            (1, lock(2, 6_000)),
            (1, lock_fixed(0, 9_000)),
            (50, pause(0, paused)),
            (100, lock_permits(1, 50, 2)),
            (1_100, Action::StepClock { by: -2_000 }),
            (1_150, lock(1, 1)),
            (2_400, lock(1, 1)),
        ]
    };
    assert_accepted(SEMAPHORE, &actions(3_400), "-> Already");
    assert_accepted(SEMAPHORE, &actions(1_600), "-> Lapsed");
    assert_refused(
        SEMAPHORE,
        &actions(1_600),
        Defect::TombstoneStep,
        Promise::Exclusion,
    );
    // The server does not remember it, though its clock shows that time again.
    let actions = [
        (1, lock(2, 6_000)),
        (1, lock_fixed(0, 9_000)),
        (50, pause(0, 2_700)),
        (100, lock_permits(1, 50, 2)),
        (1_500, lock(1, 1)),
        (2_500, lock(1, 1)),
        (2_600, Action::StepClock { by: -2_000 }),
    ];
    assert_accepted(SEMAPHORE, &actions, "-> Already");
}

/// P5: the clock went back. A lease that lapses soon keeps scripts from looking at leases that last
/// too long.
#[test]
fn too_long_lease_is_seen_when_one_beside_it_ends() {
    let actions = [
        (1, lock(0, 1)),
        (50, lock(0, 5_000)),
        (300, lock_fixed(1, 9_000)),
        (1_100, Action::StepClock { by: -200 }),
        (1_120, lock_permits(2, 50, 3)),
    ];
    assert_accepted(SEMAPHORE, &actions, "Waiting");
    assert_refused(SEMAPHORE, &actions, Defect::Shortest, Promise::Service);
}

/// P5: the same for a dead holder. Others wait for its lease longer than without the step.
#[test]
fn too_long_lease_of_the_dead_is_waited_for() {
    let actions = [
        (1, lock(0, 2_895)),
        (2_880, lock(1, 9_000)),
        (2_910, Action::StepClock { by: -2_880 }),
        (2_915, crash(1)),
        (2_930, lock_permits(2, 50, 3)),
    ];
    assert_accepted(SEMAPHORE, &actions, "Waiting");
}

/// P7, R5 (dated requests): a reply from before a step of the clock arrives after the step, and
/// dates the next request.
#[test]
fn request_dated_before_a_clock_step_may_come_too_late() {
    let actions = [
        (1, lock(1, 9_000)),
        (100, lock(0, 50)),
        (299, fault(0, NetworkFault::DelayReply { by: 200 })),
        (300, lock(0, 50)),
        (400, Action::StepClock { by: -4_000 }),
        (599, fault(0, NetworkFault::DelayRequest { by: 2_000 })),
        (600, lock(0, 50)),
    ];
    assert_accepted(ModelKind::Mutex, &actions, "Waiting { ticket: 3");
}
