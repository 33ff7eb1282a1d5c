//! Every guard of a handle that is to be told learns of waiters, in whichever way its lease came. And
//! being told changes no order.

use std::sync::Barrier;
use std::thread;

use fairlock::{LockGuard, LockManager, LockOptions, Waiter};

use super::{KEEP, granted, patient, plain};
use crate::backend::{Backend, on_both_stores};
use crate::keeping::keep;
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    guard_is_told_in_whichever_way_its_lease_came,
    try_that_meets_another_try_is_told,
    attached_lock_is_kept_as_any_other,
    attached_lock_leaves_its_process_the_places_behind_it,
    callers_that_are_told_have_a_place_each,
    callers_of_a_name_that_is_not_kept_share_a_place,
}

const NEW: LockOptions = LockOptions::new();

/// One way to a guard of a name.
type Way = (&'static str, fn(&LockManager, &str) -> LockGuard);

const WAYS: [Way; 10] = [
    ("lock", |m, n| m.lock(n).unwrap()),
    ("try_lock", |m, n| m.try_lock(n).unwrap().unwrap()),
    ("try_lock_for", |m, n| {
        m.try_lock_for(n, SLACK).unwrap().unwrap()
    }),
    ("enqueue", |m, n| m.enqueue(n).unwrap().wait().unwrap()),
    ("a mutex", |m, n| m.mutex(n).lock().unwrap()),
    ("a try of a mutex", |m, n| {
        m.mutex(n).try_lock().unwrap().unwrap()
    }),
    ("a grant that was waited for", |m, n| {
        let before = m.with(NEW.no_keep_idle().notify_wanted(false)).lock(n);
        let waiter = m.enqueue(n).unwrap();
        drop(before.unwrap());
        granted(waiter)
    }),
    ("a turn after another", |m, n| {
        let before = m.lock(n).unwrap();
        let waiter = m.enqueue(n).unwrap();
        drop(before);
        granted(waiter)
    }),
    ("attach", |m, n| {
        let detached = m.lock(n).unwrap().detach(KEEP).unwrap();
        m.attach(&detached).unwrap()
    }),
    ("attach by a mutex", |m, n| {
        let detached = m.lock(n).unwrap().detach(KEEP).unwrap();
        m.mutex(n).attach(&detached).unwrap()
    }),
];

/// Handles whose guards are told: because they ask for it, or since the name is kept.
fn told(backend: &Backend) -> Vec<(&'static str, LockManager)> {
    let mgr = plain(backend);
    let notified = NEW.notify_wanted(true);
    vec![
        ("keep", mgr.with(NEW.keep_idle(KEEP))),
        ("notify_wanted", mgr.with(notified.clone())),
        ("both", mgr.with(notified.clone().keep_idle(KEEP))),
        ("with hand-overs", mgr.with(notified.local_handovers(3))),
    ]
}

fn guard_is_told_in_whichever_way_its_lease_came(backend: &Backend) {
    let other = patient(backend);
    for (what, mgr) in told(backend) {
        for (way, take) in WAYS {
            let name = format!("{what}, {way}");
            if what == "keep" {
                keep(&mgr, &name);
            }
            let guard = take(&mgr, &name);
            let waiter = other.enqueue(&name).unwrap();
            until(SLACK, &format!("{name}: it is told"), || guard.is_wanted());
            guard.wanted().recv_timeout(SLACK).expect(way);
            drop(guard);
            drop(granted(waiter));
        }
        if what == "keep" {
            keep(&mgr, what);
        }
        let outer = mgr.reentrant_mutex(what).lock().unwrap();
        let waiter = other.enqueue(what).unwrap();
        until(SLACK, "a re-entrant guard is told", || outer.is_wanted());
        drop(outer);
        drop(granted(waiter));
    }
}

fn try_that_meets_another_try_is_told(backend: &Backend) {
    const THREADS: usize = 3;
    let other = patient(backend);
    for (what, mgr) in told(backend) {
        let start = Barrier::new(THREADS);
        for round in 0..100 {
            let name = format!("{what}, round {round}");
            if what == "keep" {
                keep(&mgr, &name);
                mgr.lock(&name).unwrap().unlock().unwrap();
            }
            let tries = thread::scope(|scope| {
                let tries = [(); THREADS].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        mgr.try_lock(&name).unwrap()
                    })
                });
                tries.map(|one| one.join().unwrap())
            });
            let [guard] = &tries.into_iter().flatten().collect::<Vec<_>>()[..] else {
                panic!("{name}: it was free for one of them");
            };
            let waiter = other.enqueue(&name).unwrap();
            until(SLACK, &format!("{name}: it is told"), || guard.is_wanted());
            drop(waiter);
        }
    }
}

fn attached_lock_is_kept_as_any_other(backend: &Backend) {
    let (mgr, other) = (plain(backend), patient(backend));
    let keeps = mgr.with(NEW.keep_idle(KEEP));
    keep(&keeps, "warm");
    until(
        SLACK,
        "the drop of an attached guard keeps the lock",
        || {
            let detached = mgr.lock("a").unwrap().detach(KEEP).unwrap();
            drop(keeps.attach(&detached).unwrap());
            let before = keeps.stats().kept_turns;
            drop(keeps.lock("a").unwrap());
            keeps.stats().kept_turns > before
        },
    );
    let guard = other.try_lock_for("a", SLACK).unwrap();
    drop(guard.expect("the keeper lets go"));
    assert_eq!((mgr.stats().losses(), keeps.stats().losses()), (0, 0));
}

/// A lock is attached ahead of the queue, although callers of its handle wait there.
fn attached_lock_leaves_its_process_the_places_behind_it(backend: &Backend) {
    let (mgr, other) = (plain(backend), patient(backend));
    for options in [
        NEW.keep_idle(KEEP),
        NEW.notify_wanted(true),
        NEW.local_handovers(2),
        NEW.notify_wanted(true).keep_idle(KEEP).local_handovers(2),
    ] {
        let handle = mgr.with(options);
        let detached = other.lock("a").unwrap().detach(KEEP).unwrap();
        let waiters = [&handle, &handle, &other].map(|mgr| mgr.enqueue("a").unwrap());
        let guard = handle.attach(&detached).unwrap();
        guard.unlock().unwrap();
        let order = order_of(waiters.into());
        assert_eq!(order[0], 0, "{order:?}");
    }
    assert_eq!((mgr.stats().losses(), mgr.stats().waiting), (0, 0));
}

/// The order in which waiters have the lock.
fn order_of(waiters: Vec<Waiter>) -> Vec<usize> {
    let mut waiters: Vec<_> = waiters.into_iter().enumerate().collect();
    let mut order = Vec::new();
    while !waiters.is_empty() {
        let mut next = None;
        until(SLACK, "one of them has the lock", || {
            next = waiters
                .iter()
                .position(|(_, waiter)| !waiter.ready().is_empty());
            next.is_some()
        });
        let (number, waiter) = waiters.remove(next.unwrap());
        order.push(number);
        drop(granted(waiter));
    }
    order
}

/// The order of two callers of this manager, and then of another.
fn order(mgr: &LockManager, other: &LockManager) -> Vec<usize> {
    let guard = other.lock("a").unwrap();
    let waiters = [mgr, mgr, other].map(|mgr| mgr.enqueue("a").unwrap());
    drop(guard);
    order_of(waiters.into())
}

fn callers_that_are_told_have_a_place_each(backend: &Backend) {
    let (mgr, other) = (plain(backend), plain(backend));
    assert_eq!(order(&mgr, &other), [0, 1, 2]);
    let told = mgr.with(NEW.notify_wanted(true));
    assert_eq!(order(&told, &other), [0, 1, 2]);
}

/// Neither a new name nor a cold one is kept. What changes over time is not the order.
fn callers_of_a_name_that_is_not_kept_share_a_place(backend: &Backend) {
    let (mgr, other) = (plain(backend), plain(backend));
    let keeps = mgr.with(NEW.keep_idle(KEEP));
    keep(&keeps, "warm");
    for _ in 0..6 {
        assert_eq!(order(&keeps, &other), [0, 2, 1]);
    }
    assert!(keeps.stats().cold_names > 0, "{:?}", keeps.stats());
    assert_eq!(order(&keeps, &other), [0, 2, 1]);
}
