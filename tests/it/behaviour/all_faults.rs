//! Several mutexes, all or none, when requests, time or Redis are lost.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, MultiGuard, PreviousHolder, Result};

use super::faults::{calm, meet};
use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{P, Record, SOON, T, TTL, build, builder, manager, warm_up, with_ttl};
use crate::managers;
use crate::support::{SLACK, until};

on_both_stores! {
    p6_one_that_is_granted_after_an_earlier_one_was_lost_is_given_back_and_the_loss_is_told,
    p6_an_outage_longer_than_the_leases_ends_a_wait_for_several_with_the_loss,
    what_remains_is_the_least_of_all,
    p8_a_deadline_for_several_names_is_one_and_not_one_for_each,
    p8_in_a_black_hole_calls_for_several_names_end_within_their_bounds,
    several_asked_for_in_an_outage_are_taken_when_it_is_over,
    a_short_outage_ends_no_wait_for_several,
}

on_both_stores! {
    redis_with_faults:
    p7_several_in_one_request_that_is_not_answered_are_taken_once_or_by_nobody,
    p7_several_that_are_waited_for_are_taken_once_though_the_request_is_not_answered,
    p7_the_release_of_several_that_is_not_answered_frees_them_all,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

#[track_caller]
fn come_to_rest(backend: &Backend) {
    NAMES
        .iter()
        .for_each(|name| Record::of(backend, name).comes_to_rest());
}

#[track_caller]
fn waits_for(mgr: &LockManager, name: &str) {
    until(SOON, "it waits", || {
        mgr.inspect(name)
            .unwrap()
            .is_some_and(|seen| seen.waiters == 1)
    });
}

/// It looks after those that it has once per check period, which is so far off here that the grant finds it asleep.
fn p6_one_that_is_granted_after_an_earlier_one_was_lost_is_given_back_and_the_loss_is_told(
    backend: &Backend,
) {
    let ours = calm(backend);
    let theirs = manager(backend);
    let taken = theirs.lock("b").unwrap();
    let fence = taken.fence();
    let brief = ours.with(LockOptions::new().max_hold(T));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| brief.lock_all(["a", "b"]));
        waits_for(&theirs, "b");
        until(SOON, "the first is lost, and given up", || {
            theirs.inspect("a").unwrap().is_none()
        });
        assert!(!waiting.is_finished(), "nobody has looked yet");
        taken.unlock().unwrap();
        let end = waiting.join().unwrap();
        assert!(
            matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.name == "a" && loss.reason == LossReason::MaxHold),
            "{end:?}"
        );
    });
    assert!(
        Record::of(backend, "b").number("f") > fence,
        "it was granted"
    );
    assert_eq!(
        (ours.stats().held, ours.stats().waiting, ours.stats().lost),
        (0, 0, 0)
    );
    come_to_rest(backend);
    for (name, before) in [
        ("a", PreviousHolder::Unknown),
        ("b", PreviousHolder::Released),
    ] {
        assert_eq!(
            theirs.lock(name).unwrap().previous_holder(),
            before,
            "nobody ever used {name}"
        );
    }
}

fn p6_an_outage_longer_than_the_leases_ends_a_wait_for_several_with_the_loss(backend: &Backend) {
    let ours = build(builder(backend).outage_limit(Duration::MAX));
    // Its lease outlasts all this, and so does its own belief in it.
    let theirs = manager(backend).with(LockOptions::new().fixed_lease(20 * TTL));
    let taken = theirs.lock("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]));
        waits_for(&theirs, "b");
        backend.go_away();
        let start = Instant::now();
        let end = waiting.join().unwrap();
        assert!(
            start.elapsed() <= TTL + P + 2 * T + SLACK,
            "{:?}",
            start.elapsed()
        );
        assert!(
            matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.name == "a" && loss.reason == LossReason::Expired),
            "{end:?}"
        );
        backend.come_back();
    });
    until(SOON, "its place is given up", || {
        Record::of(backend, "b").number("r") == 0
    });
    taken.unlock().unwrap();
    come_to_rest(backend);
}

fn what_remains_is_the_least_of_all(backend: &Backend) {
    const LATER: Duration = Duration::from_secs(1);
    // Nothing is renewed meanwhile.
    let ttl = Duration::from_secs(60);
    let (ours, theirs) = (build(with_ttl(backend, ttl)), manager(backend));
    let taken = theirs.lock("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).unwrap());
        waits_for(&theirs, "b");
        backend.pass(LATER);
        taken.unlock().unwrap();
        let guard = waiting.join().unwrap();
        // What one lease has from its grant on is less by a margin already.
        let (remaining, fresh) = (guard.remaining(), ttl - ttl / 100);
        assert!(
            remaining <= fresh - LATER && remaining > fresh / 2,
            "{remaining:?}"
        );
        guard.unlock().unwrap();
    });
    assert_eq!(ours.stats().renewed, 0);
}

fn p8_a_deadline_for_several_names_is_one_and_not_one_for_each(backend: &Backend) {
    const TTL: Duration = Duration::from_secs(2);
    const WAIT: Duration = Duration::from_millis(2500);
    let timeout = managers::command_timeout(TTL);
    let (ours, theirs) = (managers::manager(backend, TTL), manager(backend));
    let [first, _second] = ["a", "b"].map(|name| theirs.lock(name).unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let start = Instant::now();
            (
                ours.try_lock_all_for(NAMES, WAIT).unwrap().is_none(),
                start.elapsed(),
            )
        });
        waits_for(&theirs, "a");
        // Late enough that another whole wait from here on would show.
        thread::sleep(WAIT * 9 / 10);
        first.unlock().unwrap();
        let (none, took) = waiting.join().unwrap();
        assert!(
            none && took >= WAIT && took < WAIT + 2 * timeout + SLACK,
            "{took:?}"
        );
    });
    let again = theirs.try_lock("a").unwrap().expect("it was given back");
    assert_eq!(again.previous_holder(), PreviousHolder::Released);
    assert_eq!((ours.stats().held, ours.stats().waiting), (0, 0));
}

fn p8_in_a_black_hole_calls_for_several_names_end_within_their_bounds(backend: &Backend) {
    // T is longer than the slack, so that a call that waited twice would show.
    const T: Duration = Duration::from_millis(1600);
    const OUTAGE: Duration = Duration::from_secs(2);
    type Verb = fn(&LockManager) -> Result<Option<MultiGuard>>;
    let period = Duration::from_millis(500);
    let mgr = LockManager::builder(backend)
        .command_timeout(T)
        .check_period(period)
        .horizon(period + 3 * T);
    let mgr = mgr.outage_limit(OUTAGE).pool_size(16).build().unwrap();
    warm_up(&mgr);
    let [dropped, unlocked] = [["d", "e"], ["f", "g"]].map(|names| mgr.lock_all(names).unwrap());
    backend.go_away();
    let verbs: [(&str, Duration, Verb); 3] = [
        ("try_lock_all", 3 * T, |m| m.try_lock_all(NAMES)),
        ("try_lock_all_for", T / 2 + 2 * T, |m| {
            m.try_lock_all_for(NAMES, T / 2)
        }),
        ("lock_all", OUTAGE + 2 * T, |m| m.lock_all(NAMES).map(Some)),
    ];
    thread::scope(|scope| {
        for (what, bound, call) in verbs {
            let mgr = &mgr;
            scope.spawn(move || {
                let start = Instant::now();
                let end = call(mgr);
                assert!(
                    start.elapsed() <= bound + SLACK,
                    "{what} took {:?}",
                    start.elapsed()
                );
                assert!(
                    matches!(end, Err(Error::Unavailable { .. })),
                    "{what} ended with {end:?}"
                );
            });
        }
        scope.spawn(|| {
            let start = Instant::now();
            drop(dropped);
            assert!(
                start.elapsed() <= T + SLACK,
                "the drop took {:?}",
                start.elapsed()
            );
        });
        scope.spawn(|| {
            let start = Instant::now();
            let end = unlocked.unlock();
            assert!(
                start.elapsed() <= T + SLACK,
                "unlock took {:?}",
                start.elapsed()
            );
            assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
        });
    });
    backend.come_back();
    come_to_rest(backend);
    ["d", "e", "f", "g"]
        .iter()
        .for_each(|name| Record::of(backend, name).comes_to_rest());
}

fn several_asked_for_in_an_outage_are_taken_when_it_is_over(backend: &Backend) {
    let ours = manager(backend);
    backend.go_away();
    thread::scope(|scope| {
        let calls = [&NAMES[..], &["c", "d"]].map(|names| {
            let ours = &ours;
            scope.spawn(move || ours.lock_all(names).unwrap().unlock())
        });
        backend.pass(3 * T);
        backend.come_back();
        for call in calls {
            call.join().unwrap().unwrap();
        }
    });
    come_to_rest(backend);
}

fn a_short_outage_ends_no_wait_for_several(backend: &Backend) {
    const TTL: Duration = Duration::from_secs(6);
    let ours = build(with_ttl(backend, TTL).command_timeout(T).check_period(P));
    let theirs = manager(backend).with(LockOptions::new().fixed_lease(20 * TTL));
    let taken = theirs.lock("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(NAMES));
        waits_for(&theirs, "b");
        backend.go_away();
        backend.pass(2 * T);
        backend.come_back();
        let before = ours.stats().renewed;
        until(TTL, "the first one is renewed", || {
            ours.stats().renewed > before
        });
        taken.unlock().unwrap();
        let guard = waiting.join().unwrap().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    assert_eq!(ours.stats().requeued, 0);
    come_to_rest(backend);
}

fn p7_several_in_one_request_that_is_not_answered_are_taken_once_or_by_nobody(backend: &Backend) {
    meets_each_mishap(backend, |ours| ours.try_lock_all(NAMES));
}

fn p7_several_that_are_waited_for_are_taken_once_though_the_request_is_not_answered(
    backend: &Backend,
) {
    meets_each_mishap(backend, |ours| {
        let end = ours.lock_all(NAMES);
        assert!(end.is_ok(), "{end:?}");
        end.map(Some)
    });
}

fn meets_each_mishap(backend: &Backend, take: impl Fn(&LockManager) -> Result<Option<MultiGuard>>) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        // New ones each time: the mishap is not for what the last ones still do in the background.
        let (ours, other) = (calm(backend), calm(backend));
        let (end, requests) = meet(backend, fault, &ours, || take(&ours));
        assert!(
            requests > NAMES.len() as u64 || end.is_err(),
            "{fault:?} did not strike"
        );
        let again = 2 * NAMES.len() as u64;
        assert!(
            requests <= again || !matches!(fault, InjectedFault::Disconnect),
            "{requests}: not the same grants again"
        );
        match end {
            Ok(Some(guard)) => {
                let fences = NAMES.map(|name| Record::of(backend, name).number("f"));
                assert_eq!(
                    NAMES.map(|name| guard.fence(name).unwrap()),
                    fences,
                    "{fault:?}: as they were granted"
                );
                guard.check().unwrap();
                guard.unlock().unwrap();
            }
            Err(Error::Unavailable { .. }) if !matches!(fault, InjectedFault::Disconnect) => {}
            other => panic!("{fault:?}: {other:?}"),
        }
        // Given back well before they would lapse.
        come_to_rest(backend);
        assert_eq!(
            (ours.stats().held, ours.stats().waiting, ours.stats().lost),
            (0, 0, 0)
        );
        other
            .try_lock_all(NAMES)
            .unwrap()
            .expect("they are free")
            .unlock()
            .unwrap();
    }
}

fn p7_the_release_of_several_that_is_not_answered_frees_them_all(backend: &Backend) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        let (ours, other) = (calm(backend), calm(backend));
        let guard = ours.lock_all(NAMES).unwrap();
        let (start, before) = (Instant::now(), ours.stats().background_releases);
        let (end, _) = meet(backend, fault, &ours, || guard.unlock());
        assert!(
            start.elapsed() <= crate::fixtures::STEADY_T + SLACK,
            "{:?}",
            start.elapsed()
        );
        match end {
            Ok(()) => assert!(matches!(fault, InjectedFault::Disconnect), "{fault:?}"),
            Err(Error::Unavailable { .. }) => {
                until(SOON, "the background is done", || {
                    ours.stats().background_releases > before
                });
            }
            Err(other) => panic!("{fault:?}: {other:?}"),
        }
        let next = other
            .try_lock_all_for(NAMES, SOON)
            .unwrap()
            .expect("they are released");
        assert!(
            NAMES
                .iter()
                .all(|name| next.previous_holder(name) == Some(PreviousHolder::Released)),
            "{fault:?}"
        );
        next.unlock()
            .expect("what comes late is not the successor's");
        come_to_rest(backend);
    }
}
