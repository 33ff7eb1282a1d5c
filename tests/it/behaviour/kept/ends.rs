//! The ends of kept locks and of their guards: shutdown, the last handle, `max_hold`, losses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use super::{SHORT_TTL as TTL, T, gets, keeper, patient, plain, short};
use crate::backend::{Backend, on_both_stores};
use crate::keeping::keep;
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    shutdown_releases_kept_locks_and_reports_none,
    shutdown_waits_for_the_guard_of_a_kept_lock,
    shutdown_amid_relocks_reports_no_kept_lock,
    last_handle_releases_kept_locks,
    last_handle_while_a_guard_lives_releases_at_its_drop,
    max_hold_counts_for_each_guard_of_a_kept_lock,
    forced_release_of_a_guard_of_a_kept_lock_is_reported_once,
    forced_release_of_a_kept_lock_is_counted_and_calls_nobody,
    forced_release_that_no_guard_noticed_is_counted,
    next_holder_after_a_forced_release_reads_forced,
}

fn assert_nothing_left(still_held: &[Arc<str>]) {
    assert_eq!(still_held, [""; 0].map(Arc::from));
}

fn names() -> impl Iterator<Item = String> {
    (0..50).map(|i| format!("n{i}"))
}

fn shutdown_releases_kept_locks_and_reports_none(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    names().for_each(|name| keep(&mgr, &name));
    assert_nothing_left(&mgr.shutdown(Duration::ZERO).unwrap());
    for name in names() {
        let guard = other.try_lock(&name).unwrap();
        let guard = guard.unwrap_or_else(|| panic!("{name} is still taken"));
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
    assert_eq!(mgr.stats().losses(), 0);
    assert!(matches!(mgr.lock("n1"), Err(Error::Closed)));
    assert!(matches!(mgr.try_lock("n1"), Err(Error::Closed)));
    assert!(matches!(mgr.enqueue("n1"), Err(Error::Closed)));
}

fn shutdown_waits_for_the_guard_of_a_kept_lock(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    keep(&mgr, "b");
    let guard = mgr.lock("a").unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| mgr.shutdown(Duration::from_secs(8)).unwrap());
        drop(gets(&other, "b", SLACK + T));
        guard.check().unwrap();
        assert!(!ending.is_finished());
        drop(guard);
        let ended = ending.join().unwrap();
        assert_nothing_left(&ended);
    });
    let guard = other.try_lock("a").unwrap().expect("the drop released it");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
}

/// Guards are dropped until the manager refuses new ones. None of their locks is kept beyond that.
fn shutdown_amid_relocks_reports_no_kept_lock(backend: &Backend) {
    let other = patient(backend);
    for round in 0..5 {
        let mgr = keeper(backend);
        let names = [0, 1, 2, 3].map(|i| format!("n{round}.{i}"));
        names.iter().for_each(|name| keep(&mgr, name));
        thread::scope(|scope| {
            for name in &names {
                let mgr = &mgr;
                scope.spawn(move || {
                    while let Ok(guard) = mgr.lock(name) {
                        drop(guard);
                    }
                });
            }
            let granted = mgr.stats().granted();
            until(SLACK, "they lock", || mgr.stats().granted() > granted + 100);
            let ended = mgr.shutdown(Duration::from_secs(5)).unwrap();
            assert_nothing_left(&ended);
        });
        for name in &names {
            let guard = other.try_lock(name).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("{name} is still taken"));
            assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        }
        assert_eq!(mgr.stats().losses(), 0);
    }
}

fn last_handle_releases_kept_locks(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    names().for_each(|name| keep(&mgr, &name));
    let handle = mgr.mutex("n3");
    drop(mgr);
    assert!(
        other
            .inspect("n3")
            .unwrap()
            .is_some_and(|info| !info.holders.is_empty())
    );
    drop(handle);
    for name in names() {
        let guard = other.try_lock(&name).unwrap();
        let guard = guard.unwrap_or_else(|| panic!("{name} is still taken"));
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
}

fn last_handle_while_a_guard_lives_releases_at_its_drop(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    drop(mgr);
    guard.check().unwrap();
    drop(guard);
    let guard = other.try_lock("a").unwrap().expect("nobody could use it");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
}

fn max_hold_counts_for_each_guard_of_a_kept_lock(backend: &Backend) {
    let limit = Duration::from_millis(300);
    let lost = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&lost);
    let options = LockOptions::new().max_hold(limit).on_lost(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let (mgr, other) = (keeper(backend).with(options), patient(backend));
    keep(&mgr, "a");
    for _ in 0..5 {
        let guard = mgr.lock("a").unwrap();
        assert!(guard.remaining() > limit / 2);
        backend.pass(limit / 4);
        guard.check().unwrap();
    }
    let guard = mgr.lock("a").unwrap();
    let began = Instant::now();
    let waiter = other.enqueue("a").unwrap();
    backend.pass(limit);
    let loss = guard.lost().recv_timeout(SLACK).expect("a loss");
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::MaxHold, guard.fence())
    );
    assert!(!guard.is_held());
    let mut waiter = waiter;
    let theirs = waiter.wait_for(SLACK).unwrap().expect("it is the next");
    assert_eq!(theirs.previous_holder(), PreviousHolder::Lapsed);
    assert!(theirs.fence() > guard.fence());
    drop(theirs);
    if backend.server().is_some() {
        assert!(began.elapsed() < limit + T + SLACK);
    }
    until(SLACK, "the callback is called", || {
        lost.load(Ordering::SeqCst) == 1
    });
    drop(guard);
    // The next guard has a limit of its own.
    let guard = mgr.lock("a").unwrap();
    guard.check().unwrap();
    assert!(guard.remaining() > limit / 2);
    assert_eq!(mgr.stats().losses_max_hold, 1);
}

/// A keeper whose renewals find losses soon, and how many losses its guards have reported.
fn reporting(backend: &Backend) -> (LockManager, Arc<AtomicU64>) {
    let reported = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reported);
    let options = LockOptions::new().keep_idle(TTL / 3).on_lost(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    (short(backend, options), reported)
}

/// The fence of the grant, as an operator sees it.
#[track_caller]
fn force(other: &LockManager, name: &str) {
    let fence = other.inspect(name).unwrap().expect("a record").fence;
    assert!(other.force_release(name, fence).unwrap());
}

fn forced_release_of_a_guard_of_a_kept_lock_is_reported_once(backend: &Backend) {
    let ((mgr, reported), other) = (reporting(backend), plain(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    force(&other, "a");
    let theirs = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(theirs.previous_holder(), PreviousHolder::Forced);
    let loss = guard
        .lost()
        .recv_timeout(TTL / 3 + T + SLACK)
        .expect("a loss");
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::Forced, guard.fence())
    );
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    until(SLACK, "the callback is called", || {
        reported.load(Ordering::SeqCst) == 1
    });
    assert_eq!((mgr.stats().losses(), mgr.stats().held), (1, 0));
    drop(theirs);
    let fence = loss.fence;
    assert!(mgr.lock("a").unwrap().fence() > fence);
}

/// No guard has lost anything.
fn forced_release_of_a_kept_lock_is_counted_and_calls_nobody(backend: &Backend) {
    let ((mgr, reported), other) = (reporting(backend), plain(backend));
    keep(&mgr, "a");
    force(&other, "a");
    let theirs = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(theirs.previous_holder(), PreviousHolder::Forced);
    // By its renewal, or as it is released because it is unused.
    until(TTL / 3 * 2 + T + SLACK, "it is counted", || {
        backend.pass(Duration::from_millis(5));
        mgr.stats().losses() == 1
    });
    assert_eq!(reported.load(Ordering::SeqCst), 0);
    theirs.check().unwrap();
    drop(theirs);
    drop(mgr.lock("a").unwrap());
    assert_eq!(mgr.stats().losses(), 1);
}

/// Forced while a guard had it; that guard was dropped, and the lock kept, before anybody knew. Its
/// work has overlapped another's, so the loss is counted.
fn forced_release_that_no_guard_noticed_is_counted(backend: &Backend) {
    let ((mgr, _), other) = (reporting(backend), plain(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    force(&other, "a");
    let theirs = other.try_lock("a").unwrap().expect("it is free");
    drop(guard);
    until(TTL / 3 * 2 + T + SLACK, "it is counted", || {
        backend.pass(Duration::from_millis(5));
        mgr.stats().losses() == 1
    });
    assert_eq!(mgr.stats().losses_not_owner + mgr.stats().losses_forced, 1);
    drop(theirs);
}

fn next_holder_after_a_forced_release_reads_forced(backend: &Backend) {
    let ((mgr, _), other) = (reporting(backend), plain(backend));
    keep(&mgr, "a");
    force(&other, "a");
    drop(other.try_lock("a").unwrap().expect("it is free"));
    // Within its ttl the manager may lend it once more: force_release is not told to the holder.
    until(TTL / 3 + T + SLACK, "it knows", || {
        backend.pass(Duration::from_millis(5));
        let guard = mgr.lock("a").unwrap();
        drop(guard);
        mgr.stats().losses() == 1
    });
    let guard = mgr.lock("a").unwrap();
    guard.check().unwrap();
    assert!(other.try_lock("a").unwrap().is_none());
}
