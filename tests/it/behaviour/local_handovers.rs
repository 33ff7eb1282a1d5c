//! Local hand-overs: the waiters of one manager have a lock one after the other, without Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::unbounded;
use fairlock::{
    Error, LockGuard, LockManager, LockOptions, LossReason, Misuse, PreviousHolder, Waiter,
    inspect::LockState,
};

use crate::backend::{Backend, on_both_stores};
use crate::managers::{self, patient};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    waiters_of_a_manager_hand_over_without_a_request,
    a_lock_without_waiters_is_released_as_always,
    each_tenure_shows_the_label_of_its_first_guard,
    a_tenure_ends_after_the_most_hand_overs,
    waiters_with_other_options_wait_in_another_line,
    fences_rise_over_turns_tenures_and_managers,
    positions_count_the_members_before,
    a_member_that_times_out_leaves_only_the_line,
    the_last_member_takes_the_place_along,
    a_member_that_is_passed_the_lock_and_dropped_passes_it_on,
    a_turn_that_nobody_takes_is_released_as_unused,
    the_next_turn_alone_learns_of_unfinished_work,
    the_next_holder_learns_of_unfinished_work_in_the_last_turn,
    max_hold_ends_a_turn_and_its_tenure,
    a_forced_release_is_reported_to_the_current_turn,
    a_turn_that_ended_reports_no_loss,
    a_lost_turn_that_nobody_took_goes_back_to_its_line,
    a_lost_turn_that_nobody_took_says_how_the_last_guard_ended,
    a_line_takes_a_name_that_became_another_kind,
    a_shutdown_ends_the_waits_of_all_members,
    a_shutdown_ends_the_current_turn,
    a_reentrant_mutex_is_handed_over,
    one_thread_beside_many_gets_its_share,
    try_lock_and_lock_all_ask_redis_themselves,
    options_that_do_not_fit_are_refused,
    a_wait_behind_a_turn_of_this_process_outlasts_an_outage,
}

/// A handle of this manager with so many local hand-overs.
fn local(mgr: &LockManager, max: u32) -> LockManager {
    mgr.with(LockOptions::new().local_handovers(max))
}

/// The guard of a waiter that has the lock by now, or will have it at once.
#[track_caller]
fn granted(waiter: Waiter) -> LockGuard {
    let mut waiter = waiter;
    let guard = waiter.wait_for(SLACK).unwrap();
    guard.expect("it is the next")
}

/// The number of waiters for `n`, as Redis counts them.
fn waiters(mgr: &LockManager) -> u64 {
    mgr.inspect("n").unwrap().map_or(0, |info| info.waiters)
}

fn waiters_of_a_manager_hand_over_without_a_request(backend: &Backend) {
    let mgr = local(&patient(backend), 10);
    let first = mgr.lock("n").unwrap();
    let waiting: Vec<Waiter> = (0..3).map(|_| mgr.enqueue("n").unwrap()).collect();
    assert_eq!(waiters(&mgr), 0, "only this process knows of them");
    let before = mgr.stats();
    let mut guard = first;
    for waiter in waiting {
        let fence = guard.fence();
        guard.unlock().unwrap();
        guard = granted(waiter);
        guard.check().unwrap();
        assert_eq!(guard.fence(), fence + 1);
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
    let after = mgr.stats();
    assert_eq!(after.requests, before.requests);
    assert_eq!(after.local_handovers, before.local_handovers + 3);
    assert_eq!(after.granted(), before.granted() + 3);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert_eq!((mgr.stats().held, mgr.stats().waiting), (0, 0));
    assert!(mgr.try_lock("n").unwrap().is_some());
}

fn a_lock_without_waiters_is_released_as_always(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 10), patient(backend));
    for _ in 0..3 {
        mgr.lock("n").unwrap().unlock().unwrap();
        let theirs = other.try_lock("n").unwrap().expect("it is free");
        assert_eq!(theirs.previous_holder(), PreviousHolder::Released);
        theirs.unlock().unwrap();
        drop(mgr.lock("n").unwrap());
    }
    assert_eq!(mgr.stats().local_handovers, 0);
}

/// The queue of Redis has the line's place, which the member that is next shows.
fn each_tenure_shows_the_label_of_its_first_guard(backend: &Backend) {
    let mgr = local(&patient(backend), 1);
    let labelled = |label: &str| mgr.with(LockOptions::new().label(label));
    let shown = || mgr.inspect("n").unwrap().unwrap().holders[0].label.clone();
    let first = labelled("first").lock("n").unwrap();
    assert_eq!(shown(), "first");
    let [second, third] = ["second", "third"].map(|label| labelled(label).enqueue("n").unwrap());
    first.unlock().unwrap();
    let second = granted(second);
    assert_eq!(shown(), "first", "it is the same tenure");
    second.unlock().unwrap();
    let _third = granted(third);
    assert_eq!(shown(), "third");
}

fn a_tenure_ends_after_the_most_hand_overs(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 2), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let [a, b, c] = [(); 3].map(|()| mgr.enqueue("n").unwrap());
    let theirs = other.enqueue("n").unwrap();
    guard.unlock().unwrap();
    granted(a).unlock().unwrap();
    granted(b).unlock().unwrap();
    // The third member queues behind the waiter that was there before.
    let theirs = granted(theirs);
    assert!(c.position().is_some(), "it waits in Redis's queue");
    theirs.unlock().unwrap();
    granted(c).unlock().unwrap();
    assert_eq!(mgr.stats().local_handovers, 2);
}

fn waiters_with_other_options_wait_in_another_line(backend: &Backend) {
    let mgr = patient(backend);
    let guard = local(&mgr, 5).lock("n").unwrap();
    let other = local(&mgr, 6).enqueue("n").unwrap();
    let plain = mgr.enqueue("n").unwrap();
    let same = local(&mgr, 5).enqueue("n").unwrap();
    assert_eq!(waiters(&mgr), 2);
    guard.unlock().unwrap();
    granted(same).unlock().unwrap();
    granted(other).unlock().unwrap();
    granted(plain).unlock().unwrap();
}

fn fences_rise_over_turns_tenures_and_managers(backend: &Backend) {
    let managers = [local(&patient(backend), 3), local(&patient(backend), 3)];
    let (sender, fences) = unbounded();
    thread::scope(|scope| {
        for mgr in &managers {
            for _ in 0..4 {
                let sender = sender.clone();
                scope.spawn(move || {
                    for _ in 0..25 {
                        let guard = mgr.lock("n").unwrap();
                        sender.send(guard.fence()).unwrap();
                        guard.unlock().unwrap();
                    }
                });
            }
        }
    });
    let fences: Vec<u64> = fences.try_iter().collect();
    assert_eq!(fences.len(), 200);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let passed: u64 = managers.iter().map(|m| m.stats().local_handovers).sum();
    assert!(passed > 0, "the threads never waited for each other");
}

fn positions_count_the_members_before(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    assert_eq!([a.position(), b.position()], [Some(1), Some(2)]);
    guard.unlock().unwrap();
    assert_eq!([a.position(), b.position()], [None, Some(1)]);
    drop((a, b));
    // Behind others, the line has one position, and each member one more.
    let theirs = other.lock("n").unwrap();
    let before = other.enqueue("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    assert_eq!([a.position(), b.position()], [Some(2), Some(3)]);
    assert_eq!(waiters(&mgr), 2);
    theirs.unlock().unwrap();
    granted(before).unlock().unwrap();
    granted(a).unlock().unwrap();
    granted(b).unlock().unwrap();
}

fn a_member_that_times_out_leaves_only_the_line(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    for holder in [&mgr, &other] {
        let guard = holder.lock("n").unwrap();
        let stays = mgr.enqueue("n").unwrap();
        let timeout = Duration::from_millis(20);
        assert!(mgr.try_lock_for("n", timeout).unwrap().is_none());
        assert_eq!(stays.position(), Some(1));
        assert_eq!(mgr.stats().waiting, 1);
        guard.unlock().unwrap();
        granted(stays).unlock().unwrap();
    }
}

fn the_last_member_takes_the_place_along(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = other.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    assert_eq!(waiters(&other), 1);
    drop(a);
    assert_eq!(b.position(), Some(1));
    drop(b);
    until(SLACK, "the place is cancelled", || waiters(&other) == 0);
    guard.unlock().unwrap();
    // A new line takes a new place.
    granted(mgr.enqueue("n").unwrap()).unlock().unwrap();
}

fn a_member_that_is_passed_the_lock_and_dropped_passes_it_on(backend: &Backend) {
    let mgr = local(&patient(backend), 9);
    let guard = mgr.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    let fence = guard.fence();
    guard.abandon().unwrap();
    assert_eq!(a.position(), None, "it was passed the lock");
    drop(a);
    let guard = granted(b);
    assert!(guard.fence() > fence);
    let previous = guard.previous_holder();
    assert_eq!(previous, PreviousHolder::Lapsed, "nobody has seen it yet");
}

fn a_turn_that_nobody_takes_is_released_as_unused(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let a = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    drop(a);
    until(SLACK, "it is free", || {
        other.try_lock("n").unwrap().is_some_and(|guard| {
            assert_eq!(guard.previous_holder(), PreviousHolder::Released);
            true
        })
    });
    // A grant that no guard had at all.
    let guard = other.lock("n").unwrap();
    let a = mgr.enqueue("n").unwrap();
    guard.abandon().unwrap();
    until(SLACK, "it is granted", || a.position().is_none());
    drop(a);
    until(SLACK, "it is free", || {
        other.try_lock("n").unwrap().is_some_and(|guard| {
            assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
            true
        })
    });
}

fn the_next_turn_alone_learns_of_unfinished_work(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    guard.abandon().unwrap();
    let guard = granted(a);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    let guard = granted(b);
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    guard.unlock().unwrap();
    let theirs = other.lock("n").unwrap();
    assert_eq!(theirs.previous_holder(), PreviousHolder::Released);
}

fn the_next_holder_learns_of_unfinished_work_in_the_last_turn(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let a = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    let guard = granted(a);
    let fence = guard.fence();
    guard.abandon().unwrap();
    let theirs = other.lock("n").unwrap();
    assert_eq!(theirs.previous_holder(), PreviousHolder::Lapsed);
    assert!(theirs.fence() > fence);
}

fn max_hold_ends_a_turn_and_its_tenure(backend: &Backend) {
    let mgr = local(&patient(backend), 9);
    let losses = Arc::new(AtomicU64::new(0));
    let lost_fence = Arc::clone(&losses);
    let short = mgr.with(
        LockOptions::new()
            .max_hold(Duration::from_millis(150))
            .on_lost(move |loss| lost_fence.store(loss.fence, Ordering::SeqCst)),
    );
    let guard = mgr.lock("n").unwrap();
    let a = short.enqueue("n").unwrap();
    let b = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    let a = granted(a);
    let fence = a.fence();
    backend.pass(Duration::from_millis(200));
    let loss = a.lost().recv_timeout(SLACK).unwrap();
    assert_eq!((loss.fence, loss.reason), (fence, LossReason::MaxHold));
    assert!(!a.is_held());
    until(SLACK, "the callback is called", || {
        losses.load(Ordering::SeqCst) == fence
    });
    let b = granted(b);
    assert!(b.fence() > fence);
    assert_eq!(b.previous_holder(), PreviousHolder::Lapsed);
    b.check().unwrap();
    assert!(matches!(a.unlock(), Err(Error::Lost { .. })));
    b.unlock().unwrap();
    assert_eq!((mgr.stats().losses(), mgr.stats().local_handovers), (1, 1));
}

fn a_forced_release_is_reported_to_the_current_turn(backend: &Backend) {
    let mgr = local(&managers::manager(backend, Duration::from_secs(2)), 9);
    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    guard.unlock().unwrap();
    let a = granted(a);
    assert!(mgr.force_release("n", fence).unwrap());
    let loss = a
        .lost()
        .recv_timeout(Duration::from_secs(2) + SLACK)
        .unwrap();
    assert_eq!((loss.fence, loss.reason), (fence + 1, LossReason::Forced));
    let b = granted(b);
    assert!(b.fence() > fence + 1);
    assert_eq!(b.previous_holder(), PreviousHolder::Forced);
}

fn a_turn_that_ended_reports_no_loss(backend: &Backend) {
    let mgr = local(&patient(backend), 9);
    let guard = mgr.lock("n").unwrap();
    let (lost, fence) = (guard.lost().clone(), guard.fence());
    let a = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    assert!(lost.recv().is_err(), "the channel is disconnected at once");
    let a = granted(a);
    assert!(a.fence() > fence);
    assert!(mgr.force_release("n", fence).unwrap());
    assert!(a.renew().is_err());
    a.lost().recv_timeout(SLACK).unwrap();
    assert!(lost.recv().is_err());
    assert_eq!(mgr.stats().losses(), 1);
}

fn a_lost_turn_that_nobody_took_goes_back_to_its_line(backend: &Backend) {
    let mgr = local(&managers::manager(backend, Duration::from_secs(2)), 9);
    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    let a = mgr.enqueue("n").unwrap();
    let b = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    assert_eq!([a.position(), b.position()], [None, Some(1)]);
    assert!(mgr.force_release("n", fence).unwrap());
    until(
        Duration::from_secs(4),
        "the line is granted it again",
        || {
            let seen = mgr.inspect("n").unwrap();
            seen.is_some_and(|info| info.state == LockState::Held && info.fence > fence)
        },
    );
    let a = granted(a);
    assert!(a.fence() > fence + 1);
    a.check().unwrap();
    a.unlock().unwrap();
    granted(b).unlock().unwrap();
    assert_eq!(mgr.stats().losses(), 0, "no guard has lost anything");
}

fn a_lost_turn_that_nobody_took_says_how_the_last_guard_ended(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let short = mgr.with(LockOptions::new().max_hold(Duration::from_millis(150)));
    for (is_finished, previous) in [
        (true, PreviousHolder::Released),
        (false, PreviousHolder::Lapsed),
    ] {
        let guard = mgr.lock("n").unwrap();
        let idle = short.enqueue("n").unwrap();
        let theirs = other.enqueue("n").unwrap();
        if is_finished {
            guard.unlock().unwrap();
        } else {
            guard.abandon().unwrap();
        }
        assert_eq!(idle.position(), None, "it was passed the lock");
        backend.pass(Duration::from_millis(200));
        let theirs = granted(theirs);
        assert_eq!(theirs.previous_holder(), previous);
        drop(idle);
        theirs.unlock().unwrap();
    }
    assert_eq!(mgr.stats().losses(), 0, "no guard has lost anything");
}

fn a_line_takes_a_name_that_became_another_kind(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 1), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    guard.unlock().unwrap();
    let a = granted(a);
    assert!(other.force_release("n", a.fence()).unwrap());
    let permit = other.semaphore("n", 2).acquire(1).unwrap();
    permit.unlock().unwrap();
    // Nobody uses the name any more. The next tenure of the line needs it as a mutex.
    assert!(matches!(a.unlock(), Err(Error::Lost { .. })));
    granted(b).unlock().unwrap();
}

fn a_shutdown_ends_the_waits_of_all_members(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = other.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    mgr.shutdown(Duration::from_secs(1)).unwrap();
    for waiter in [a, b] {
        assert!(matches!(waiter.wait(), Err(Error::Closed)));
    }
    assert!(matches!(mgr.enqueue("n"), Err(Error::Closed)));
    until(SLACK, "the place is cancelled", || waiters(&other) == 0);
    guard.unlock().unwrap();
    assert_eq!(mgr.stats().waiting, 0);
}

fn a_shutdown_ends_the_current_turn(backend: &Backend) {
    let (mgr, other) = (local(&patient(backend), 9), patient(backend));
    let guard = mgr.lock("n").unwrap();
    let [a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    guard.unlock().unwrap();
    let a = granted(a);
    let report = mgr.shutdown(Duration::ZERO);
    let loss = a.lost().recv_timeout(SLACK).unwrap();
    assert_eq!((loss.fence, loss.reason), (a.fence(), LossReason::Shutdown));
    assert!(matches!(b.wait(), Err(Error::Closed)));
    assert!(format!("{report:?}").contains("\"n\""), "{report:?}");
    let theirs = other.lock("n").unwrap();
    assert_eq!(theirs.previous_holder(), PreviousHolder::Lapsed);
}

fn a_reentrant_mutex_is_handed_over(backend: &Backend) {
    let mgr = local(&patient(backend), 9);
    let lock = mgr.reentrant_mutex("n");
    let outer = lock.lock().unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    let inner = lock.lock().unwrap();
    assert_eq!(inner.fence(), outer.fence());
    drop(inner);
    assert_eq!(waiter.position(), Some(1));
    let fence = outer.fence();
    drop(outer);
    assert_eq!(granted(waiter).fence(), fence + 1);
}

/// Counts turns, so that no speed is under test.
fn one_thread_beside_many_gets_its_share(backend: &Backend) {
    const MAX: u32 = 7;
    let (many, one) = (local(&patient(backend), MAX), local(&patient(backend), MAX));
    let turns_of_many = AtomicU64::new(0);
    let longest = thread::scope(|scope| {
        let done = AtomicU64::new(0);
        let (many, turns_of_many, done) = (&many, &turns_of_many, &Arc::new(done));
        for _ in 0..64 {
            let done = Arc::clone(done);
            scope.spawn(move || {
                while done.load(Ordering::SeqCst) == 0 {
                    let _guard = many.lock("n").unwrap();
                    turns_of_many.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        until(SLACK, "all of them wait", || many.stats().waiting > 32);
        let mut longest = 0;
        for _ in 0..20 {
            let waiter = one.enqueue("n").unwrap();
            let queued = turns_of_many.load(Ordering::SeqCst);
            let guard = waiter.wait().unwrap();
            let turns = turns_of_many.load(Ordering::SeqCst) - queued;
            longest = longest.max(turns);
            guard.unlock().unwrap();
        }
        done.store(1, Ordering::SeqCst);
        longest
    });
    assert!(longest <= u64::from(MAX) + 1, "{longest} turns came first");
}

fn try_lock_and_lock_all_ask_redis_themselves(backend: &Backend) {
    let mgr = local(&patient(backend), 9);
    let tried = mgr.try_lock("n").unwrap().expect("it is free");
    let waiter = mgr.enqueue("n").unwrap();
    assert!(mgr.try_lock("n").unwrap().is_none());
    assert_eq!(waiters(&mgr), 1);
    tried.unlock().unwrap();
    granted(waiter).unlock().unwrap();
    let all = mgr.lock_all(["n", "m"]).unwrap();
    let waiter = mgr.enqueue("m").unwrap();
    assert_eq!(mgr.inspect("m").unwrap().unwrap().waiters, 1);
    all.unlock().unwrap();
    granted(waiter).unlock().unwrap();
    assert_eq!(mgr.stats().local_handovers, 0);
}

#[track_caller]
fn assert_refused<T>(result: fairlock::Result<T>) {
    match result.map(drop) {
        Err(Error::Misused {
            misuse: Misuse::Setting { name, .. },
            ..
        }) => assert_eq!(name, "local_handovers"),
        other => panic!("{other:?}"),
    }
}

fn options_that_do_not_fit_are_refused(backend: &Backend) {
    let mgr = local(&patient(backend), 65_535);
    mgr.lock("n").unwrap().unlock().unwrap();
    let new = LockOptions::new;
    assert_refused(mgr.with(new().local_handovers(65_536)).lock("n"));
    assert_refused(
        mgr.with(new().fixed_lease(Duration::from_secs(30)))
            .lock("n"),
    );
    assert_refused(
        mgr.with(new().hold_at_least(Duration::from_secs(1)))
            .lock("n"),
    );
    assert_refused(mgr.semaphore("s", 2).acquire(1));
    assert_refused(mgr.rw_lock("r").read());
    let none = mgr.with(new().local_handovers(0));
    none.semaphore("s", 2).acquire(1).unwrap().unlock().unwrap();
}

fn a_wait_behind_a_turn_of_this_process_outlasts_an_outage(backend: &Backend) {
    let limit = Duration::from_millis(500);
    let builder = LockManager::builder(backend)
        .options(
            LockOptions::new()
                .ttl(Duration::from_secs(60))
                .local_handovers(9),
        )
        .outage_limit(limit)
        .command_timeout(Duration::from_millis(200));
    let mgr = builder.build().unwrap();
    let guard = mgr.lock("n").unwrap();
    let [mut a, b] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    backend.go_away();
    assert!(a.wait_for(limit * 3).unwrap().is_none());
    guard.unlock().unwrap();
    let guard = granted(a);
    guard.check().unwrap();
    guard.unlock().unwrap();
    let guard = granted(b);
    backend.come_back();
    guard.unlock().unwrap();
    let state = mgr.inspect("n").unwrap().map(|info| info.state);
    assert!(matches!(state, None | Some(LockState::Free)), "{state:?}");
}
