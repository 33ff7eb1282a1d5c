//! P3: first come, first served, and nobody overtakes the queue.

use crate::fixtures::DEFAULT_TTL;
use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use fairlock::{LockManager, LockOptions, Waiter};

use crate::{
    backend::{Backend, on_both_stores},
    fixtures::{Record, Waiters},
    managers::{assert_nothing_left, patient, queue},
    support::{EndLoops, SLACK, until},
    worker::SOON,
};

on_both_stores! {
    p3_waiters_of_several_managers_are_granted_in_order,
    p3_waiters_of_one_process_are_granted_in_order,
    p3_equal_threads_take_equal_shares,
    p3_try_lock_in_a_loop_never_overtakes_a_queue,
    p3_try_lock_does_not_overtake_waiters_at_a_lapse,
    p3_a_releaser_that_locks_again_goes_behind_the_queue,
}

fn p3_waiters_of_several_managers_are_granted_in_order(backend: &Backend) {
    let managers: [LockManager; 4] = std::array::from_fn(|_| patient(backend));
    let guard = managers[0].lock("k").unwrap();
    let mut queue = Waiters::of("k");
    // All four managers queue in every round, and each round starts with another one.
    for i in 0..32 {
        queue.add(&managers[(i / 4 + i) % 4]);
    }
    guard.unlock().unwrap();
    let mut last = 0;
    for waiter in 0..32 {
        let guard = queue.expect_grant(waiter, SOON);
        assert!(guard.fence() > last, "waiter {waiter}");
        last = guard.fence();
        guard.unlock().unwrap();
    }
    assert_nothing_left(backend, "k");
}

fn p3_waiters_of_one_process_are_granted_in_order(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("k").unwrap();
    let waiters: Vec<Waiter> = (0..50).map(|_| mgr.enqueue("k").unwrap()).collect();
    guard.unlock().unwrap();
    let mut last = 0;
    for (i, waiter) in waiters.into_iter().enumerate() {
        let guard = waiter.wait().unwrap();
        assert!(guard.fence() > last, "waiter {i}");
        last = guard.fence();
        guard.unlock().unwrap();
    }
    assert_nothing_left(backend, "k");
}

fn p3_equal_threads_take_equal_shares(backend: &Backend) {
    const THREADS: usize = 12;
    const TURNS: usize = 240;
    let managers = [patient(backend), patient(backend)];
    let start = managers[0].lock("k").unwrap();
    let turns = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for i in 0..THREADS {
            let mgr = &managers[i % 2];
            let turns = &turns;
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let _guard = mgr.lock("k").unwrap();
                    // Once all others are queued, only the order decides the shares, and not how
                    // fast a thread comes back.
                    until(SOON, "the others queue", || {
                        over.load(Ordering::Relaxed) || queue(backend, "k").len() == THREADS - 1
                    });
                    let mut turns = turns.lock().unwrap();
                    turns.push(i);
                    if turns.len() >= TURNS {
                        over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        until(SOON, "all queue", || queue(backend, "k").len() == THREADS);
        start.unlock().unwrap();
    });
    let turns = turns.into_inner().unwrap();
    for i in THREADS..TURNS {
        assert_eq!(turns[i], turns[i - THREADS], "turn {i} of {turns:?}");
    }
}

fn p3_try_lock_in_a_loop_never_overtakes_a_queue(backend: &Backend) {
    let ours = patient(backend);
    let other = patient(backend);
    let mut guard = ours.lock("k").unwrap();
    let mut next = other.enqueue("k").unwrap();
    let tries = AtomicU64::new(0);
    let wins = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let barge = |mgr: &LockManager| {
        while !over.load(Ordering::Relaxed) {
            if mgr.try_lock("k").unwrap().is_some() {
                wins.fetch_add(1, Ordering::Relaxed);
            }
            tries.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| barge(&ours));
        scope.spawn(|| barge(&patient(backend)));
        let end = EndLoops(&over);
        until(SOON, "the loops run", || tries.load(Ordering::Relaxed) > 10);
        for i in 0..300 {
            let mgr = if i % 2 == 0 { &ours } else { &other };
            let after = mgr.enqueue("k").unwrap();
            guard.unlock().unwrap();
            guard = mem::replace(&mut next, after).wait().unwrap();
        }
        assert_eq!(wins.load(Ordering::Relaxed), 0, "of {tries:?} tries");
        drop(next);
        drop(guard);
        until(SOON, "a try wins once the queue is empty", || {
            wins.load(Ordering::Relaxed) > 0
        });
        drop(end);
    });
    assert_nothing_left(backend, "k");
}

fn p3_try_lock_does_not_overtake_waiters_at_a_lapse(backend: &Backend) {
    let lease = Duration::from_millis(300);
    let holder = patient(backend).with(LockOptions::new().fixed_lease(lease));
    let barger = patient(backend);
    let waiting = patient(backend);
    let lapsing = holder.try_lock("k").unwrap().expect("it is free");
    let mut waiter = waiting.enqueue("k").unwrap();
    until(
        lease + check_period() + SLACK,
        "the waiter is granted",
        || {
            assert!(
                barger.try_lock("k").unwrap().is_none(),
                "overtook the waiter"
            );
            waiter.position().is_none()
        },
    );
    let guard = waiter
        .wait_for(Duration::ZERO)
        .unwrap()
        .expect("it is granted");
    assert!(guard.fence() > lapsing.fence());
    assert!(!lapsing.is_held());
}

fn p3_a_releaser_that_locks_again_goes_behind_the_queue(backend: &Backend) {
    let ours = patient(backend);
    let other = patient(backend);
    for round in 0..50 {
        let guard = ours.lock("k").unwrap();
        let first = if round % 2 == 0 { &ours } else { &other };
        let waiters = [first.enqueue("k").unwrap(), other.enqueue("k").unwrap()];
        let (again, mut fences) = thread::scope(|scope| {
            let threads = waiters.map(|waiter| scope.spawn(move || waiter.wait().unwrap().fence()));
            drop(guard);
            let again = ours.lock("k").unwrap().fence();
            (again, threads.map(|thread| thread.join().unwrap()).to_vec())
        });
        fences.push(again);
        assert!(fences.is_sorted(), "round {round}: {fences:?}");
    }
    Record::of(backend, "k").comes_to_rest();
}

fn check_period() -> Duration {
    crate::managers::check_period(DEFAULT_TTL)
}
