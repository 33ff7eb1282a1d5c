//! Work that a guard leaves half done, by a panic or because it is abandoned: the next holder
//! learns of it.

use std::{
    panic::{UnwindSafe, catch_unwind, resume_unwind},
    thread,
    time::Duration,
};

use fairlock::{
    Error, LockManager, LockOptions, LossReason, PreviousHolder, RwLock, inspect::LockState,
};

use crate::backend::{Backend, on_both_stores};
use crate::managers::patient;
use crate::sums::Sums;

on_both_stores! {
    a_mutex_dropped_by_a_panic_counts_as_lapsed,
    a_mutex_unlocked_during_a_panic_counts_as_lapsed,
    the_waiter_of_a_mutex_learns_of_a_panic,
    permits_dropped_by_a_panic_count_as_lapsed,
    a_writer_dropped_by_a_panic_counts_as_lapsed,
    a_reader_dropped_by_a_panic_leaves_nothing_half_done,
    several_names_dropped_by_a_panic_count_as_lapsed,
    only_the_outermost_reentrant_guard_counts_in_a_panic,
    a_guard_created_during_a_panic_releases_normally,
    a_waiter_dropped_by_a_panic_leaves_no_trace,
    an_abandoned_mutex_counts_as_lapsed,
    abandoned_permits_and_writers_count_as_lapsed,
    several_abandoned_names_count_as_lapsed,
    an_abandoned_reentrant_guard_counts_at_the_last_release,
    unfinished_work_still_cools,
    a_lost_guard_cannot_be_abandoned,
}

/// Runs this until it panics. It panics without the noise of a panic hook.
fn panics<R>(work: impl FnOnce() -> R + UnwindSafe) {
    let end = catch_unwind(|| {
        let _held = work();
        resume_unwind(Box::new("the test panics here"));
    });
    assert!(end.is_err());
}

/// Runs an action in a destructor during a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        assert!(thread::panicking());
        (self.0)();
    }
}

#[track_caller]
fn assert_next_sees(mgr: &LockManager, name: &str, previous: PreviousHolder) {
    let next = mgr.try_lock(name).unwrap().expect("it is free");
    assert_eq!(next.previous_holder(), previous);
    next.unlock().unwrap();
    let next = mgr.try_lock(name).unwrap().expect("it is free");
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
}

fn a_mutex_dropped_by_a_panic_counts_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    panics(|| mgr.lock("n").unwrap());
    assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
    assert_eq!((mgr.stats().losses(), mgr.stats().held), (0, 0));
    // A panic that is over does not matter.
    drop(mgr.lock("n").unwrap());
    assert_next_sees(&mgr, "n", PreviousHolder::Released);
}

fn a_mutex_unlocked_during_a_panic_counts_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    panics(|| {
        let mut guard = Some(mgr.lock("n").unwrap());
        OnDrop(move || guard.take().unwrap().unlock().unwrap())
    });
    assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
}

fn the_waiter_of_a_mutex_learns_of_a_panic(backend: &Backend) {
    let (mgr, other) = (patient(backend), patient(backend));
    for waits_at in [&mgr, &other] {
        let guard = mgr.lock("n").unwrap();
        let waiter = waits_at.enqueue("n").unwrap();
        panics(|| guard);
        let next = waiter.wait().unwrap();
        assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    }
}

fn permits_dropped_by_a_panic_count_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    let semaphore = mgr.semaphore("n", 3);
    let beside = semaphore.acquire(1).unwrap();
    panics(|| semaphore.acquire(2).unwrap());
    let next = semaphore.try_acquire(2).unwrap().expect("two are free");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    beside.unlock().unwrap();
    let next = semaphore.try_acquire(1).unwrap().expect("one is free");
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
}

fn a_writer_dropped_by_a_panic_counts_as_lapsed(backend: &Backend) {
    let lock = patient(backend).rw_lock("n");
    panics(|| lock.write().unwrap());
    // Readers see it, and do not change it.
    let reader = lock.read().unwrap();
    assert_eq!(reader.previous_holder(), PreviousHolder::Lapsed);
    reader.unlock().unwrap();
    let writer = lock.write().unwrap();
    assert_eq!(writer.previous_holder(), PreviousHolder::Lapsed);
    writer.unlock().unwrap();
    let writer = lock.write().unwrap();
    assert_eq!(writer.previous_holder(), PreviousHolder::Released);
}

fn a_reader_dropped_by_a_panic_leaves_nothing_half_done(backend: &Backend) {
    let lock = patient(backend).rw_lock("n");
    lock.write().unwrap().unlock().unwrap();
    panics(|| lock.read().unwrap());
    let seen = |guard: &fairlock::LockGuard| guard.previous_holder();
    assert_eq!(seen(&lock.write().unwrap()), PreviousHolder::Released);
    // The writer's part ended with the downgrade.
    panics(|| RwLock::downgrade(lock.write().unwrap()).unwrap());
    assert_eq!(seen(&lock.write().unwrap()), PreviousHolder::Released);
    let waits = lock.write().unwrap();
    let waiter = lock.enqueue_read().unwrap();
    waits.unlock().unwrap();
    panics(|| waiter.wait().unwrap());
    assert_eq!(seen(&lock.write().unwrap()), PreviousHolder::Released);
}

fn several_names_dropped_by_a_panic_count_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    panics(|| mgr.lock_all(["a", "b"]).unwrap());
    assert_next_sees(&mgr, "a", PreviousHolder::Lapsed);
    assert_next_sees(&mgr, "b", PreviousHolder::Lapsed);
}

fn only_the_outermost_reentrant_guard_counts_in_a_panic(backend: &Backend) {
    let mgr = patient(backend);
    let mutex = mgr.reentrant_mutex("n");
    let outer = mutex.lock().unwrap();
    panics(|| mutex.lock().unwrap());
    assert_eq!(outer.depth(), 1);
    outer.unlock().unwrap();
    assert_next_sees(&mgr, "n", PreviousHolder::Released);
    panics(|| (mutex.lock().unwrap(), mutex.lock().unwrap()));
    assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
}

/// As a mutex of std that is locked in a destructor during a panic is not poisoned.
fn a_guard_created_during_a_panic_releases_normally(backend: &Backend) {
    let mgr = patient(backend);
    let (semaphore, lock) = (mgr.semaphore("s", 1), mgr.rw_lock("w"));
    let reentrant = mgr.reentrant_mutex("r");
    panics(|| {
        OnDrop(|| {
            drop(mgr.lock("n").unwrap());
            drop(mgr.lock_all(["a", "b"]).unwrap());
            drop(reentrant.lock().unwrap());
            semaphore.acquire(1).unwrap().unlock().unwrap();
            lock.write().unwrap().unlock().unwrap();
        })
    });
    for name in ["n", "a", "b", "r"] {
        let next = mgr.lock(name).unwrap();
        assert_eq!(next.previous_holder(), PreviousHolder::Released, "{name}");
    }
    let permit = semaphore.acquire(1).unwrap();
    assert_eq!(permit.previous_holder(), PreviousHolder::Released);
    let writer = lock.write().unwrap();
    assert_eq!(writer.previous_holder(), PreviousHolder::Released);
}

/// A granted waiter is no guard yet: nobody has begun to work.
fn a_waiter_dropped_by_a_panic_leaves_no_trace(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("n").unwrap();
    panics(|| {
        let waiter = mgr.enqueue("n").unwrap();
        guard.unlock().unwrap();
        waiter
    });
    assert_next_sees(&mgr, "n", PreviousHolder::Released);
}

fn an_abandoned_mutex_counts_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("n").unwrap();
    let lost = guard.lost().clone();
    guard.abandon().unwrap();
    assert!(lost.recv().is_err(), "it is given up, not lost");
    assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
    assert_eq!((mgr.stats().losses(), mgr.stats().held), (0, 0));
}

fn abandoned_permits_and_writers_count_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    let semaphore = mgr.semaphore("s", 2);
    semaphore.acquire(1).unwrap().abandon().unwrap();
    let next = semaphore.acquire(2).unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let lock = mgr.rw_lock("w");
    lock.write().unwrap().abandon().unwrap();
    let next = lock.write().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

fn several_abandoned_names_count_as_lapsed(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock_all(["a", "b"]).unwrap();
    let lost = guard.lost().clone();
    guard.abandon().unwrap();
    assert!(lost.recv().is_err(), "they are given up, not lost");
    assert_next_sees(&mgr, "a", PreviousHolder::Lapsed);
    assert_next_sees(&mgr, "b", PreviousHolder::Lapsed);
}

fn an_abandoned_reentrant_guard_counts_at_the_last_release(backend: &Backend) {
    let mgr = patient(backend);
    let mutex = mgr.reentrant_mutex("n");
    mutex.lock().unwrap().abandon().unwrap();
    assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
    for ends in [drop, |outer: fairlock::ReentrantGuard| {
        outer.unlock().unwrap()
    }] {
        let outer = mutex.lock().unwrap();
        mutex.lock().unwrap().abandon().unwrap();
        outer.check().unwrap();
        ends(outer);
        assert_next_sees(&mgr, "n", PreviousHolder::Lapsed);
    }
}

/// R16 (hold_at_least): the name stays taken, however the work ended.
fn unfinished_work_still_cools(backend: &Backend) {
    let mgr = patient(backend);
    let once = mgr.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    panics(|| once.lock("a").unwrap());
    once.lock("b").unwrap().abandon().unwrap();
    panics(|| once.semaphore("c", 1).acquire(1).unwrap());
    for name in ["a", "b", "c"] {
        let info = mgr.inspect(name).unwrap().expect("it cools");
        assert_eq!(info.state, LockState::Cooling, "{name}");
        assert!(mgr.force_release(name, info.fence).unwrap());
    }
    assert_next_sees(&mgr, "a", PreviousHolder::Lapsed);
    assert_next_sees(&mgr, "b", PreviousHolder::Lapsed);
    let semaphore = mgr.semaphore("c", 1);
    let next = semaphore.try_acquire(1).unwrap().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

fn a_lost_guard_cannot_be_abandoned(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("n").unwrap();
    assert!(mgr.force_release("n", guard.fence()).unwrap());
    let end = guard.abandon();
    assert!(
        matches!(&end, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Forced),
        "{end:?}"
    );
    assert_next_sees(&mgr, "n", PreviousHolder::Forced);
}
