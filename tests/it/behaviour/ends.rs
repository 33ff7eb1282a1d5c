//! The ways in which a holding ends, other than by a drop on the same thread.

use crate::fixtures::DEFAULT_TTL;
use std::{
    mem,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use crate::{
    backend::{Backend, on_both_stores},
    managers::{
        assert_nothing_left, check_period, command_timeout, fields, manager, patient, queue,
    },
    support::{SLACK, until},
};

const TTL: Duration = Duration::from_secs(1);

on_both_stores! {
    a_moved_guard_is_released_by_its_new_thread,
    p8_a_panic_releases_what_is_held,
    a_panic_while_waiting_leaves_no_queue_entry,
    a_forgotten_guard_is_renewed_until_max_hold,
    p4_a_lapsed_lease_is_reported_and_handed_over,
    a_lapsed_lease_without_waiters_leaves_the_lock_free,
    a_lapsed_lease_moves_its_process_to_the_queue_end,
    p8_the_last_handle_ends_within_one_command_timeout_in_silence,
    a_lease_past_half_its_time_is_confirmed_before_use,
}

fn a_moved_guard_is_released_by_its_new_thread(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("k").unwrap();
    let waiter = mgr.enqueue("k").unwrap();
    let moved = thread::spawn(move || {
        assert!(guard.is_held());
        guard.unlock()
    });
    moved.join().unwrap().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert_nothing_left(backend, "k");
}

fn p8_a_panic_releases_what_is_held(backend: &Backend) {
    let mgr = patient(backend);
    let holder = mgr.clone();
    let waiting = mgr.clone();
    let (locked, is_locked) = mpsc::channel();
    let (queued, is_queued) = mpsc::channel();
    let panicking = thread::spawn(move || {
        let _guard = holder.lock("k").unwrap();
        locked.send(()).unwrap();
        is_queued.recv().unwrap();
        panic!("the test panics here");
    });
    is_locked.recv().unwrap();
    let waiter = waiting.enqueue("k").unwrap();
    queued.send(()).unwrap();
    assert!(panicking.join().is_err());
    let guard = waiter.wait().unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    assert_nothing_left(backend, "k");
}

fn a_panic_while_waiting_leaves_no_queue_entry(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("k").unwrap();
    let behind = || {
        let panicking = thread::spawn({
            let mgr = mgr.clone();
            move || {
                let mut waiter = mgr.enqueue("k").unwrap();
                assert!(
                    waiter
                        .wait_for(Duration::from_millis(20))
                        .unwrap()
                        .is_none()
                );
                panic!("the test panics here");
            }
        });
        assert!(panicking.join().is_err());
    };
    behind();
    assert_eq!(
        (fields(backend, "k", "w:"), queue(backend, "k")),
        (0, vec![])
    );
    let waiter = mgr.enqueue("k").unwrap();
    behind();
    assert_eq!(
        (fields(backend, "k", "w:"), queue(backend, "k").len()),
        (1, 1)
    );
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert_eq!(mgr.stats().waiting, 0);
    assert_nothing_left(backend, "k");
}

fn a_forgotten_guard_is_renewed_until_max_hold(backend: &Backend) {
    // So long that a busy machine does not miss the renewals.
    const TTL: Duration = crate::fixtures::TTL;
    let limit = TTL + TTL / 2;
    let (report, losses) = mpsc::channel();
    let options = LockOptions::new()
        .max_hold(limit)
        .on_lost(move |loss| report.send(loss.clone()).unwrap());
    let holder = manager(backend, TTL);
    let start = Instant::now();
    let guard = holder.with(options).lock("k").unwrap();
    let fence = guard.fence();
    mem::forget(guard);
    let guard = manager(backend, TTL).lock("k").unwrap();
    let took = start.elapsed();
    assert!(
        took >= limit,
        "the leaked guard's lease ended after {took:?}"
    );
    assert!(took < limit + command_timeout(TTL) + SLACK, "{took:?}");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    let loss = losses.recv_timeout(SLACK).unwrap();
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        ("k", fence, LossReason::MaxHold)
    );
    assert!(losses.try_recv().is_err(), "it was reported twice");
}

fn p4_a_lapsed_lease_is_reported_and_handed_over(backend: &Backend) {
    let (ours, other) = (manager(backend, TTL), manager(backend, TTL));
    let guard = ours.lock("k").unwrap();
    let mut waiter = other.enqueue("k").unwrap();
    assert!(backend.lapse("k"));
    let next = waiter
        .wait_for(check_period(TTL) + SLACK)
        .unwrap()
        .expect("it is the next live waiter");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
    let loss = guard
        .lost()
        .recv_timeout(TTL / 3 + command_timeout(TTL) + SLACK)
        .unwrap();
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        ("k", guard.fence(), LossReason::Expired)
    );
    drop(guard);
    next.renew().unwrap();
    next.unlock().unwrap();
    assert_nothing_left(backend, "k");
}

fn a_lapsed_lease_without_waiters_leaves_the_lock_free(backend: &Backend) {
    let (ours, other) = (patient(backend), patient(backend));
    assert!(!backend.lapse("k"), "it was never held");
    let guard = ours.lock("k").unwrap();
    assert!(backend.lapse("k"));
    assert!(!backend.lapse("k"), "it is not held any more");
    let next = other.try_lock("k").unwrap().expect("it is free");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let Err(Error::Lost { loss, .. }) = guard.unlock() else {
        panic!("unlock succeeded on a lost lock")
    };
    assert_eq!(loss.reason, LossReason::Expired);
    next.unlock().unwrap();
    assert!(!backend.lapse("k"), "it was released");
    assert_nothing_left(backend, "k");
}

fn a_lapsed_lease_moves_its_process_to_the_queue_end(backend: &Backend) {
    let (ours, other) = (manager(backend, TTL), manager(backend, TTL));
    let guard = ours.lock("k").unwrap();
    let passed_over = ours.enqueue("k").unwrap();
    let mut waiter = other.enqueue("k").unwrap();
    assert!(backend.lapse("k"));
    let next = waiter
        .wait_for(check_period(TTL) + SLACK)
        .unwrap()
        .expect("it is the next live waiter");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    next.unlock().unwrap();
    passed_over.wait().unwrap().unlock().unwrap();
    until(SLACK, "its new queue entry is counted", || {
        ours.stats().requeues == 1
    });
    assert_eq!(other.stats().requeues, 0);
    drop(guard);
    assert_nothing_left(backend, "k");
}

fn p8_the_last_handle_ends_within_one_command_timeout_in_silence(backend: &Backend) {
    // Longer than the slack, or two timeouts would pass for one.
    let timeout = SLACK + SLACK / 3;
    let manager = |lanes| {
        let options = LockOptions::new().ttl(timeout * 20);
        let builder = LockManager::builder(backend)
            .options(options)
            .command_timeout(timeout)
            .lanes(lanes);
        builder.horizon(timeout * 6).build().unwrap()
    };
    let other = patient(backend);
    let _held = other.lock("held").unwrap();
    let guard = manager(8).lock("guard").unwrap();
    let unlocked = manager(1).lock("unlocked").unwrap();
    let granted = manager(8).enqueue("granted").unwrap();
    let queued = manager(8).enqueue("held").unwrap();
    let one = manager(1);
    let (first, second) = (one.lock("first").unwrap(), one.lock("second").unwrap());
    drop(one);
    backend.go_away();
    thread::scope(|scope| {
        let go = |what: &'static str, end: Box<dyn FnOnce() + Send>| {
            scope.spawn(move || {
                let start = Instant::now();
                end();
                assert!(
                    start.elapsed() < timeout + SLACK,
                    "{what}: {:?}",
                    start.elapsed()
                );
            });
        };
        go("a guard", Box::new(move || drop(guard)));
        go(
            "a guard that is unlocked",
            Box::new(move || drop(unlocked.unlock())),
        );
        go("a waiter that was granted", Box::new(move || drop(granted)));
        go("a waiter", Box::new(move || drop(queued)));
        // The release of the first guard has no reply yet, and the second follows it on the only
        // lane.
        go("a guard of two", Box::new(move || drop(first)));
        // Time itself is under test: the second release comes this much later.
        thread::sleep(timeout / 10);
        go(
            "a guard whose lane is busy",
            Box::new(move || drop(second.unlock())),
        );
    });
    backend.come_back();
}

fn a_lease_past_half_its_time_is_confirmed_before_use(backend: &Backend) {
    let lease = SLACK * 3;
    let mgr = manager(backend, DEFAULT_TTL).with(LockOptions::new().fixed_lease(lease));
    let mut waiter = mgr.enqueue("k").unwrap();
    // Time itself is under test: more than half of the lease passes.
    thread::sleep(lease * 2 / 3);
    let guard = waiter
        .wait_for(SLACK)
        .unwrap()
        .expect("it was granted at once");
    assert!(guard.remaining() > lease / 2, "{:?}", guard.remaining());
    guard.unlock().unwrap();
}
