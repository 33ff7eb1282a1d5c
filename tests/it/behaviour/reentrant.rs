//! A mutex that its holding thread can take again.

use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, LossReason};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON};
use crate::managers;
use crate::support::until;

const TTL: Duration = Duration::from_secs(2);

on_both_stores! {
    re_entry_needs_no_request,
    the_last_guard_releases_in_any_order,
    other_threads_and_managers_wait,
    a_lost_lock_refuses_re_entry_until_its_guards_go,
    handles_of_one_manager_share_re_entry,
    re_entry_distinguishes_names_and_managers,
    waiter_returns_a_guard_that_its_thread_can_take_again,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn re_entry_needs_no_request(backend: &Backend) {
    let mgr = manager(backend);
    let mutex = mgr.reentrant_mutex("n");
    let outer = mutex.lock().unwrap();
    let before = mgr.stats();
    let guards = [
        mutex.lock().unwrap(),
        mutex.try_lock().unwrap().expect("this thread holds it"),
        mutex
            .try_lock_for(Duration::ZERO)
            .unwrap()
            .expect("this thread holds it"),
    ];
    assert_eq!(mgr.stats().requests, before.requests);
    assert_eq!(mgr.stats().held, 1);
    assert_eq!(outer.depth(), 4);
    for guard in &guards {
        assert_eq!(guard.fence(), outer.fence());
        assert!(guard.is_held());
    }
}

fn the_last_guard_releases_in_any_order(backend: &Backend) {
    let mgr = manager(backend);
    let mutex = mgr.reentrant_mutex("n");
    let free = || mgr.try_lock("n").unwrap().is_some();
    let (first, second) = (mutex.lock().unwrap(), mutex.lock().unwrap());
    let fence = first.fence();
    drop(first);
    assert!(!free());
    let third = mutex.lock().unwrap();
    second.unlock().unwrap();
    assert!(!free());
    assert_eq!((third.fence(), third.depth()), (fence, 1));
    third.unlock().unwrap();
    assert!(free());
    let again = mutex.lock().unwrap();
    assert!(again.fence() > fence);
    let inner = mutex
        .try_lock()
        .unwrap()
        .expect("this thread holds it again");
    assert_eq!((inner.fence(), inner.depth()), (again.fence(), 2));
}

fn other_threads_and_managers_wait(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let mutex = ours.reentrant_mutex("n");
    let guard = mutex.lock().unwrap();
    let inner = mutex.lock().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| mutex.lock().unwrap().fence());
        until(SOON, "another thread waits", || {
            ours.inspect("n").unwrap().is_some_and(|n| n.waiters == 1)
        });
        assert!(theirs.reentrant_mutex("n").try_lock().unwrap().is_none());
        assert!(
            ours.try_lock("n").unwrap().is_none(),
            "as a plain mutex it is not re-entrant"
        );
        let fence = guard.fence();
        drop((guard, inner));
        assert!(other.join().unwrap() > fence);
    });
    Record::of(backend, "n").comes_to_rest();
}

fn a_lost_lock_refuses_re_entry_until_its_guards_go(backend: &Backend) {
    let mgr = manager(backend);
    let mutex = mgr.reentrant_mutex("n");
    let (outer, inner) = (mutex.lock().unwrap(), mutex.lock().unwrap());
    assert!(mgr.force_release("n", outer.fence()).unwrap());
    until(TTL, "the loss is reported", || !outer.is_held());
    for refused in [mutex.lock().map(Some), mutex.try_lock()] {
        assert!(
            matches!(&refused, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Forced),
            "{refused:?}"
        );
    }
    inner.unlock().unwrap();
    assert!(matches!(mutex.lock(), Err(Error::Lost { .. })));
    assert!(matches!(outer.unlock(), Err(Error::Lost { .. })));
    mutex.lock().unwrap().unlock().unwrap();
}

fn handles_of_one_manager_share_re_entry(backend: &Backend) {
    let mgr = manager(backend);
    let outer = mgr.reentrant_mutex("n").lock().unwrap();
    let other = mgr
        .with(LockOptions::new().label("inner"))
        .reentrant_mutex("n");
    let inner = other.try_lock().unwrap().expect("this thread holds it");
    assert_eq!((inner.fence(), inner.depth()), (outer.fence(), 2));
}

fn re_entry_distinguishes_names_and_managers(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let a = ours.reentrant_mutex("a").lock().unwrap();
    let b = ours.reentrant_mutex("b").lock().unwrap();
    assert_eq!((a.depth(), b.depth()), (1, 1));
    assert!(theirs.reentrant_mutex("a").try_lock().unwrap().is_none());
    assert!(matches!(
        ours.reentrant_mutex("").lock(),
        Err(Error::Misused { .. })
    ));
}

fn waiter_returns_a_guard_that_its_thread_can_take_again(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let held = theirs.lock("n").unwrap();
    let mutex = ours.reentrant_mutex("n");
    let mut waiter = mutex.enqueue().unwrap();
    assert!(waiter.wait_for(Duration::ZERO).unwrap().is_none());
    held.unlock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let outer = waiter.wait_for(SOON).unwrap().expect("it is its turn");
            let before = ours.stats().requests;
            let inner = mutex.lock().unwrap();
            assert_eq!((inner.depth(), ours.stats().requests), (2, before));
            drop(outer);
            assert!(theirs.try_lock("n").unwrap().is_none());
            inner.unlock().unwrap();
        });
    });
    theirs
        .try_lock("n")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}
