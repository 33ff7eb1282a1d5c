//! The next guard of a kept lock has it without Redis, and what ends that.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{LockGuard, LockOptions, PreviousHolder};

use super::{P, gets, granted, keeper, plain};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::SOON;
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    third_lock_of_a_name_sends_no_request,
    lock_that_is_locked_once_is_released,
    unlock_releases_a_kept_lock,
    abandoned_guard_of_a_kept_lock_is_not_kept,
    guard_that_a_panic_drops_is_not_kept,
    kept_turns_say_released_and_have_rising_fences,
    reentrant_mutex_is_kept_after_its_outermost_guard,
    waiter_that_takes_a_kept_lock_and_is_dropped_frees_it,
    threads_of_one_manager_share_a_kept_lock_without_redis,
    each_verb_takes_the_kept_lock,
    handle_without_keep_keeps_nothing,
    try_behind_a_guard_of_this_manager_sends_nothing,
    waiter_for_a_kept_lock_is_ready_at_once,
    callers_queue_behind_those_that_wait_for_a_kept_lock,
}

fn third_lock_of_a_name_sends_no_request(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    assert!(costs_nothing(&mgr, || drop(mgr.lock("a").unwrap())));
    let stats = mgr.stats();
    assert_eq!((stats.held, stats.waiting, stats.losses()), (0, 0, 0));
    drop(gets(&plain(backend), "a", SOON));
}

fn lock_that_is_locked_once_is_released(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    for name in ["a", "b", "c"] {
        drop(mgr.lock(name).unwrap());
        until(SLACK, "it is free", || {
            other.try_lock(name).unwrap().is_some()
        });
    }
    assert_eq!(mgr.stats().kept_turns, 0);
}

fn unlock_releases_a_kept_lock(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "a");
    mgr.lock("a").unwrap().unlock().unwrap();
    // A try would have the keeper release it.
    let info = other.inspect("a").unwrap();
    assert!(info.is_none_or(|info| info.holders.is_empty()));
    let theirs = other.try_lock("a").unwrap().expect("it is free at once");
    assert_eq!(theirs.previous_holder(), PreviousHolder::Released);
}

fn abandoned_guard_of_a_kept_lock_is_not_kept(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "a");
    mgr.lock("a").unwrap().abandon().unwrap();
    let theirs = other.try_lock("a").unwrap().expect("it is free at once");
    assert_eq!(theirs.previous_holder(), PreviousHolder::Lapsed);
}

fn guard_that_a_panic_drops_is_not_kept(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let end = thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            let _guard = mgr.lock("b").unwrap();
            keep(&mgr, "c");
            let _kept = mgr.lock("c").unwrap();
            resume_unwind(Box::new(()));
        });
        panicking.join()
    });
    assert!(end.is_err());
    for name in ["b", "c"] {
        let mut theirs = None;
        until(SLACK, "it is free", || {
            theirs = other.try_lock(name).unwrap();
            theirs.is_some()
        });
        let before = theirs.unwrap().previous_holder();
        assert_eq!(before, PreviousHolder::Lapsed, "{name}");
    }
    guard.check().unwrap();
}

fn kept_turns_say_released_and_have_rising_fences(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let mut last = 0;
    for _ in 0..1000 {
        let guard = mgr.lock("a").unwrap();
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        assert!(guard.fence() > last);
        last = guard.fence();
    }
    mgr.lock("a").unwrap().unlock().unwrap();
    let theirs = plain(backend).lock("a").unwrap();
    assert!(theirs.fence() > last, "{} {last}", theirs.fence());
}

fn each_verb_takes_the_kept_lock(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let handle = mgr.mutex("a");
    let wait = Duration::from_millis(1);
    let verbs: [(&str, &dyn Fn() -> LockGuard); 7] = [
        ("lock", &|| mgr.lock("a").unwrap()),
        ("try_lock", &|| mgr.try_lock("a").unwrap().unwrap()),
        ("try_lock_for", &|| {
            mgr.try_lock_for("a", wait).unwrap().unwrap()
        }),
        ("enqueue", &|| mgr.enqueue("a").unwrap().wait().unwrap()),
        ("handle.lock", &|| handle.lock().unwrap()),
        ("handle.try_lock", &|| handle.try_lock().unwrap().unwrap()),
        ("handle.try_lock_for", &|| {
            handle.try_lock_for(wait).unwrap().unwrap()
        }),
    ];
    for (verb, take) in verbs {
        let before = mgr.stats().kept_turns;
        assert!(
            costs_nothing(&mgr, || drop(take())),
            "{verb} sends requests"
        );
        assert!(mgr.stats().kept_turns > before, "{verb}");
    }
}

fn handle_without_keep_keeps_nothing(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    let without = mgr.with(LockOptions::new().no_keep_idle());
    for _ in 0..20 {
        drop(without.lock("a").unwrap());
    }
    until(SLACK, "it is free", || {
        other.try_lock("a").unwrap().is_some()
    });
    assert_eq!(mgr.stats().kept_turns, 0);
}

fn reentrant_mutex_is_kept_after_its_outermost_guard(backend: &Backend) {
    let mgr = keeper(backend);
    let mutex = mgr.reentrant_mutex("a");
    let before = mgr.stats().kept_turns;
    let mut last = 0;
    until(SOON, "it is kept", || {
        let outer = mutex.lock().unwrap();
        let inner = mutex.try_lock().unwrap().expect("this thread has it");
        assert_eq!((inner.depth(), inner.fence()), (2, outer.fence()));
        assert!(outer.fence() > last);
        last = outer.fence();
        drop(inner);
        outer.check().unwrap();
        drop(outer);
        mgr.stats().kept_turns >= before + 10
    });
    let outer = mutex.lock().unwrap();
    let inner = mutex.lock().unwrap();
    let other = plain(backend);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| gets(&other, "a", SOON).fence());
        until(SOON, "the guard learns of it", || outer.is_wanted());
        drop(inner);
        let fence = outer.fence();
        assert!(!waiting.is_finished());
        drop(outer);
        assert!(waiting.join().unwrap() > fence);
    });
}

fn waiter_that_takes_a_kept_lock_and_is_dropped_frees_it(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let waiter = mgr.enqueue("a").unwrap();
    assert_eq!(waiter.position(), None, "it has the lock");
    drop(waiter);
    drop(gets(&plain(backend), "a", SOON));
    assert_eq!(
        (mgr.stats().held, mgr.stats().waiting, mgr.stats().losses()),
        (0, 0, 0)
    );
}

fn threads_of_one_manager_share_a_kept_lock_without_redis(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let before = mgr.stats();
    let inside = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let guard = mgr.lock("a").unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    guard.check().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    let after = mgr.stats();
    assert_eq!(after.granted(), before.granted() + 2000);
    // Renewals, and a PING in each check period.
    let requests = after.requests - before.requests;
    assert!(requests < 100, "{requests} requests for 2,000 locks");
}

fn try_behind_a_guard_of_this_manager_sends_nothing(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let tries = || {
        assert!(mgr.try_lock("a").unwrap().is_none());
        assert!(mgr.try_lock_for("a", Duration::ZERO).unwrap().is_none());
    };
    assert!(costs_nothing(&mgr, tries));
    drop(guard);
    drop(mgr.try_lock("a").unwrap().expect("the guard is dropped"));
}

fn waiter_for_a_kept_lock_is_ready_at_once(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    let waiter = mgr.enqueue("a").unwrap();
    waiter.ready().recv_timeout(SLACK).expect("it has the lock");
    let guard = waiter.wait().unwrap();
    let second = mgr.enqueue("a").unwrap();
    assert!(second.ready().is_empty(), "a guard has it");
    drop(guard);
    second.ready().recv_timeout(SLACK).expect("it is the next");
    drop(second.wait().unwrap());
    assert!(costs_nothing(&mgr, || drop(mgr.lock("a").unwrap())));
}

/// A guard is alive for longer than an unused lock is kept. So nobody has asked Redis for that long.
fn callers_queue_behind_those_that_wait_for_a_kept_lock(backend: &Backend) {
    let unused = P / 2;
    let mgr = plain(backend).with(LockOptions::new().keep_idle(unused));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let mut waiters = vec![mgr.enqueue("a").unwrap()];
    for _ in 0..3 {
        backend.pass(2 * unused);
        let mut queue = || waiters.push(mgr.enqueue("a").unwrap());
        assert!(costs_nothing(&mgr, &mut queue), "a place of its own");
    }
    drop(guard);
    for waiter in waiters {
        drop(granted(waiter));
    }
    assert_eq!((mgr.stats().losses(), mgr.stats().recalls), (0, 0));
}
