//! Several mutexes at once, when requests, time or Redis are lost.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, MultiGuard, PreviousHolder, Result};

use super::faults::{asks_for_rights, call_unanswered, call_with_fault, quiet};
use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{P, Record, SOON, T, TTL, build, builder, manager, warm_up, with_ttl};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    p6_a_grant_after_an_earlier_loss_is_released_and_reported,
    p6_a_long_outage_ends_a_group_wait_with_the_loss,
    remaining_of_a_group_is_the_shortest_of_all,
    p8_one_deadline_covers_all_names_together,
    p8_calls_for_several_names_keep_their_bounds_in_silence,
    group_locks_requested_in_an_outage_succeed_afterwards,
    a_short_outage_ends_no_group_wait,
}

on_both_stores! {
    redis_with_faults:
    p7_an_unanswered_group_request_is_granted_once_or_not,
    p7_a_group_wait_is_granted_once_despite_an_unanswered_request,
    p7_an_unanswered_group_release_frees_every_name,
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

/// A group checks its earlier locks once per check period. That period is so long here that the
/// grant arrives before the group has looked.
fn p6_a_grant_after_an_earlier_loss_is_released_and_reported(backend: &Backend) {
    let ours = quiet(backend);
    let theirs = manager(backend);
    let taken = theirs.lock("b").unwrap();
    let fence = taken.fence();
    let brief = ours.with(LockOptions::new().max_hold(T));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| brief.lock_all(["a", "b"]));
        waits_for(&theirs, "b");
        until(SOON, "the first lock is lost and released", || {
            theirs.inspect("a").unwrap().is_none()
        });
        assert!(!waiting.is_finished(), "the group has not looked yet");
        taken.unlock().unwrap();
        let end = waiting.join().unwrap();
        assert!(
            matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.lock == "a" && loss.reason == LossReason::MaxHold),
            "{end:?}"
        );
    });
    assert!(
        Record::of(backend, "b").number("f") > fence,
        "it was granted"
    );
    assert_eq!(
        (
            ours.stats().held,
            ours.stats().waiting,
            ours.stats().losses()
        ),
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
            "{name} was never used"
        );
    }
}

fn p6_a_long_outage_ends_a_group_wait_with_the_loss(backend: &Backend) {
    let ours = build(builder(backend).outage_limit(Duration::MAX));
    // The fixed lease outlasts the whole test, and so does its holder's own deadline.
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
            matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.lock == "a" && loss.reason == LossReason::Expired),
            "{end:?}"
        );
        backend.come_back();
    });
    until(SOON, "its queue entry is removed", || {
        Record::of(backend, "b").number("r") == 0
    });
    taken.unlock().unwrap();
    come_to_rest(backend);
}

fn remaining_of_a_group_is_the_shortest_of_all(backend: &Backend) {
    const LATER: Duration = Duration::from_secs(1);
    // So long a ttl that nothing is renewed during the test.
    let ttl = Duration::from_secs(60);
    let ours = build(with_ttl(backend, ttl));
    let theirs = manager(backend);
    let taken = theirs.lock("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).unwrap());
        waits_for(&theirs, "b");
        backend.pass(LATER);
        taken.unlock().unwrap();
        let guard = waiting.join().unwrap();
        // A fresh lease already has the safety margin of 1 % subtracted.
        let remaining = guard.remaining();
        let fresh = ttl - ttl / 100;
        assert!(
            remaining <= fresh - LATER && remaining > fresh / 2,
            "{remaining:?}"
        );
        guard.unlock().unwrap();
    });
    assert_eq!(ours.stats().renewals_confirmed, 0);
}

fn p8_one_deadline_covers_all_names_together(backend: &Backend) {
    const TTL: Duration = Duration::from_secs(2);
    const WAIT: Duration = Duration::from_millis(2500);
    let timeout = managers::command_timeout(TTL);
    let ours = managers::manager(backend, TTL);
    let theirs = manager(backend);
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
        // Time itself is under test: a second full wait from here on would show.
        thread::sleep(WAIT * 9 / 10);
        first.unlock().unwrap();
        let (none, took) = waiting.join().unwrap();
        assert!(
            none && took >= WAIT && took < WAIT + 2 * timeout + SLACK,
            "{took:?}"
        );
    });
    let again = theirs.try_lock("a").unwrap().expect("it was released");
    assert_eq!(again.previous_holder(), PreviousHolder::Released);
    assert_eq!((ours.stats().held, ours.stats().waiting), (0, 0));
}

fn p8_calls_for_several_names_keep_their_bounds_in_silence(backend: &Backend) {
    // T is longer than the slack, so a call that waited twice would show.
    const T: Duration = Duration::from_millis(1600);
    const OUTAGE: Duration = Duration::from_secs(2);
    type Verb = fn(&LockManager) -> Result<Option<MultiGuard>>;
    let period = Duration::from_millis(500);
    let mgr = LockManager::builder(backend)
        .command_timeout(T)
        .check_period(period)
        .horizon(period + 3 * T);
    let mgr = mgr.outage_limit(OUTAGE).lanes(16).build().unwrap();
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

fn group_locks_requested_in_an_outage_succeed_afterwards(backend: &Backend) {
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

fn a_short_outage_ends_no_group_wait(backend: &Backend) {
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
        let before = ours.stats().renewals_confirmed;
        until(TTL, "the first lock is renewed", || {
            ours.stats().renewals_confirmed > before
        });
        taken.unlock().unwrap();
        let guard = waiting.join().unwrap().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    assert_eq!(ours.stats().requeues, 0);
    come_to_rest(backend);
}

fn p7_an_unanswered_group_request_is_granted_once_or_not(backend: &Backend) {
    meets_each_fault(backend, |ours| ours.try_lock_all(NAMES));
}

fn p7_a_group_wait_is_granted_once_despite_an_unanswered_request(backend: &Backend) {
    meets_each_fault(backend, |ours| {
        let end = ours.lock_all(NAMES);
        assert!(end.is_ok(), "{end:?}");
        end.map(Some)
    });
}

fn meets_each_fault(backend: &Backend, take: impl Fn(&LockManager) -> Result<Option<MultiGuard>>) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        // A new manager for each fault: otherwise the fault could hit background work of the last
        // one.
        let (ours, other) = (quiet(backend), quiet(backend));
        let (end, requests) = call_with_fault(backend, fault, &ours, || take(&ours));
        assert!(
            requests > NAMES.len() as u64 || end.is_err(),
            "{fault:?} did not happen"
        );
        let again = 2 * NAMES.len() as u64 + asks_for_rights(backend);
        assert!(
            requests <= again || !matches!(fault, InjectedFault::Disconnect),
            "{requests}: the retry was not answered with the same grants"
        );
        match end {
            Ok(Some(guard)) => {
                let fences = NAMES.map(|name| Record::of(backend, name).number("f"));
                assert_eq!(
                    NAMES.map(|name| guard.fence(name).unwrap()),
                    fences,
                    "{fault:?}: the fences are those of the grants"
                );
                guard.check().unwrap();
                guard.unlock().unwrap();
            }
            Err(Error::Unavailable { .. }) if !matches!(fault, InjectedFault::Disconnect) => {}
            other => panic!("{fault:?}: {other:?}"),
        }
        // Everything is released, well before it would lapse.
        come_to_rest(backend);
        assert_eq!(
            (
                ours.stats().held,
                ours.stats().waiting,
                ours.stats().losses()
            ),
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

fn p7_an_unanswered_group_release_frees_every_name(backend: &Backend) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        let (ours, other) = (quiet(backend), quiet(backend));
        let guard = ours.lock_all(NAMES).unwrap();
        let start = Instant::now();
        let before = ours.stats().background_releases;
        let end = match fault {
            InjectedFault::Disconnect => {
                call_with_fault(backend, fault, &ours, || guard.unlock()).0
            }
            _ => call_unanswered(backend, fault, || guard.unlock()),
        };
        assert!(
            start.elapsed() <= crate::fixtures::STEADY_T + SLACK,
            "{:?}",
            start.elapsed()
        );
        match end {
            Ok(()) => assert!(matches!(fault, InjectedFault::Disconnect), "{fault:?}"),
            Err(Error::Unavailable { .. }) => {
                until(SOON, "the background release is done", || {
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
            .expect("a late copy of the release does not hit the successor");
        come_to_rest(backend);
    }
}
