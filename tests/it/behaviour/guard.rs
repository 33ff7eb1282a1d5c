//! A guard's reports about its lock, how a guard ends, and how its loss is reported.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use fairlock::{
    Error, LockGuard, LockManager, LossReason, PreviousHolder, Result,
    crossbeam_channel::{RecvTimeoutError, TryRecvError, select},
};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{self, Record};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, throughout, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// The latest time at which a renewal reports a loss.
const REPORTED_WITHIN: Duration = TTL.saturating_add(SLACK);

on_both_stores! {
    a_guard_shows_its_name_and_that_it_is_held,
    reading_a_guards_state_costs_no_request,
    dropping_a_guard_releases_without_another_call,
    with_wait_on_drop_a_dropped_lock_is_free_for_all,
    a_dropped_lock_is_free_for_all_threads_of_its_manager,
    a_clean_unlock_disconnects_the_loss_channel_at_once,
    p6_a_channel_requested_after_the_loss_reports_it,
    a_loss_can_be_selected_beside_the_work,
    p6_a_deleted_lock_is_lost_as_taken,
    a_forced_loss_is_reported_and_spares_the_successor,
    force_release_compares_the_fence,
    force_release_hands_over_to_the_first_waiter,
    unlock_reports_a_loss_that_was_not_noticed,
    unlock_of_a_lock_granted_again_is_a_loss,
    an_untaken_lapsed_lease_still_belongs_to_its_owner,
    a_lapsed_lease_that_was_taken_is_lost_as_expired,
    previous_holder_stays_lapsed_until_a_proper_release,
    renew_extends_the_lease_and_never_shortens_it,
    a_guard_is_renewed_after_every_handle_is_gone,
    guards_of_two_managers_are_independent,
    a_guard_may_be_unlocked_on_another_thread,
    a_guard_is_released_when_its_thread_panics,
    unlock_in_silence_is_unavailable_and_continues_in_the_background,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

/// A manager that renews so late that no renewal undoes what a test writes into the record.
fn unhurried(backend: &Backend) -> LockManager {
    LockManager::connect(backend).unwrap()
}

/// Makes the lease of `n` look lapsed to the server, whatever its holder believes.
fn lapse(backend: &Backend) {
    Record::of(backend, "n").set(&[("e", "1")]);
}

#[track_caller]
fn assert_lost<T>(result: Result<T>, reason: LossReason, fence: u64) {
    let Err(Error::Lost { loss, .. }) = result else {
        panic!("not lost: {:?}", result.err())
    };
    assert_eq!((&*loss.lock, loss.fence, loss.reason), ("n", fence, reason));
}

#[track_caller]
fn assert_loses(guard: &LockGuard, reason: LossReason) {
    let loss = guard.lost().recv_timeout(REPORTED_WITHIN).unwrap();
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        (guard.name(), guard.fence(), reason)
    );
    // The channel reports the loss once, and then it is disconnected.
    assert_eq!(
        guard.lost().recv_timeout(SLACK),
        Err(RecvTimeoutError::Disconnected)
    );
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_lost(guard.check(), reason, guard.fence());
    assert_lost(guard.renew(), reason, guard.fence());
}

fn a_guard_shows_its_name_and_that_it_is_held(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    assert_eq!(guard.name(), "n");
    assert!(guard.is_held());
    guard.check().unwrap();
    assert!(guard.remaining() > Duration::ZERO && guard.remaining() < TTL);
    assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Empty));
    assert_eq!(
        guard.lost().recv_timeout(Duration::from_millis(20)),
        Err(RecvTimeoutError::Timeout)
    );
    guard.unlock().unwrap();
    assert!(mgr.inspect("n").unwrap().is_none());
}

fn reading_a_guards_state_costs_no_request(backend: &Backend) {
    let mgr = LockManager::connect(backend).unwrap();
    let guard = mgr.lock("n").unwrap();
    let before = mgr.stats().requests;
    for _ in 0..1000 {
        guard.check().unwrap();
        assert!(guard.is_held() && !guard.remaining().is_zero());
        assert!(guard.lost().is_empty());
        assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
    }
    assert_eq!(mgr.stats().requests, before);
}

fn dropping_a_guard_releases_without_another_call(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    drop(mgr.lock("n").unwrap());
    until(SLACK, "the release has run", || {
        other.try_lock("n").unwrap().is_some()
    });
}

fn with_wait_on_drop_a_dropped_lock_is_free_for_all(backend: &Backend) {
    let other = managers::patient(backend);
    let mgr = fixtures::build(managers::patient_builder(backend).wait_on_drop(true));
    for _ in 0..50 {
        drop(mgr.lock("n").unwrap());
        assert!(other.try_lock("n").unwrap().is_some());
        drop(mgr.lock_all(["n", "m"]).unwrap());
        let both = other.try_lock_all(["m", "n"]).unwrap();
        drop(both.expect("both are free"));
        drop(mgr.semaphore("s", 2).acquire(2).unwrap());
        assert!(other.semaphore("s", 2).try_acquire(2).unwrap().is_some());
    }
}

fn a_dropped_lock_is_free_for_all_threads_of_its_manager(backend: &Backend) {
    let mgr = managers::patient(backend);
    for _ in 0..200 {
        drop(mgr.lock("n").unwrap());
        thread::scope(|scope| {
            let other = scope.spawn(|| mgr.try_lock("n").unwrap().map(drop));
            assert!(other.join().unwrap().is_some());
        });
        drop(mgr.lock_all(["n", "m"]).unwrap());
        assert!(mgr.try_lock_all(["m", "n"]).unwrap().is_some());
        drop(mgr.semaphore("s", 2).acquire(2).unwrap());
        assert!(mgr.semaphore("s", 2).try_acquire(2).unwrap().is_some());
        drop(mgr.rw_lock("rw").write().unwrap());
        assert!(mgr.rw_lock("rw").try_read().unwrap().is_some());
        assert!(mgr.rw_lock("rw").try_write().unwrap().is_some());
    }
}

fn a_clean_unlock_disconnects_the_loss_channel_at_once(backend: &Backend) {
    let mgr = manager(backend);
    for unlock in [true, false] {
        let guard = mgr.lock("n").unwrap();
        let lost = guard.lost().clone();
        if unlock {
            guard.unlock().unwrap();
        } else {
            drop(guard);
        }
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    }
    assert_eq!(mgr.stats().losses(), 0);
}

fn p6_a_channel_requested_after_the_loss_reports_it(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    backend.delete("n");
    until(REPORTED_WITHIN, "the loss is noticed", || {
        mgr.stats().losses() == 1
    });
    assert_loses(&guard, LossReason::NotOwner);
    // It stays lost, although the name is free again and a renewal would succeed.
    assert!(!guard.is_held());
    drop(guard);
    assert_eq!(mgr.stats().losses(), 1);
}

fn a_loss_can_be_selected_beside_the_work(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    assert!(mgr.force_release("n", guard.fence()).unwrap());
    let never = fairlock::crossbeam_channel::never::<()>();
    select! {
        recv(guard.lost()) -> loss => assert_eq!(loss.unwrap().reason, LossReason::Forced),
        recv(never) -> _ => unreachable!(),
        default(REPORTED_WITHIN) => panic!("the loss was not reported"),
    }
}

fn p6_a_deleted_lock_is_lost_as_taken(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    backend.flush_all();
    assert_loses(&guard, LossReason::NotOwner);
    // The drop does not write the record again.
    drop(guard);
    assert!(mgr.inspect("n").unwrap().is_none());
}

fn a_forced_loss_is_reported_and_spares_the_successor(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    assert!(other.force_release("n", guard.fence()).unwrap());
    let next = other.try_lock("n").unwrap().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Forced);
    assert_loses(&guard, LossReason::Forced);
    drop(guard);
    next.renew().unwrap();
    assert!(mgr.try_lock("n").unwrap().is_none());
    next.unlock().unwrap();
}

fn force_release_compares_the_fence(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    assert!(!mgr.force_release("n", 1).unwrap());
    assert_eq!(backend.keys("n"), [""; 0]);
    let guard = mgr.lock("n").unwrap();
    for fence in [0, 1, guard.fence() - 1, guard.fence() + 1, u64::MAX] {
        assert!(!other.force_release("n", fence).unwrap(), "{fence}");
    }
    guard.renew().unwrap();
    assert!(other.force_release("n", guard.fence()).unwrap());
    assert!(!other.force_release("n", guard.fence()).unwrap());
    // A lock that was released properly cannot be forced.
    let next = other.lock("n").unwrap();
    let fence = next.fence();
    next.unlock().unwrap();
    assert!(!mgr.force_release("n", fence).unwrap());
}

fn force_release_hands_over_to_the_first_waiter(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    let mut first = other.enqueue("n").unwrap();
    let mut second = mgr.enqueue("n").unwrap();
    assert!(mgr.force_release("n", guard.fence()).unwrap());
    let next = first
        .wait_for(COMMAND_TIMEOUT + SLACK)
        .unwrap()
        .expect("it is first");
    assert_eq!(next.previous_holder(), PreviousHolder::Forced);
    assert!(second.wait_for(Duration::ZERO).unwrap().is_none());
    assert_loses(&guard, LossReason::Forced);
}

fn unlock_reports_a_loss_that_was_not_noticed(backend: &Backend) {
    let (mgr, other) = (unhurried(backend), unhurried(backend));

    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    backend.delete("n");
    assert_lost(guard.unlock(), LossReason::NotOwner, fence);

    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    assert!(other.force_release("n", fence).unwrap());
    assert_lost(guard.unlock(), LossReason::Forced, fence);

    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    lapse(backend);
    let next = other.try_lock("n").unwrap().unwrap();
    assert_lost(guard.unlock(), LossReason::Expired, fence);
    next.check().unwrap();
    next.renew().unwrap();
    next.unlock().unwrap();

    // The record knows of the last nine ends. After more it only shows that somebody else holds it.
    for (times, reason) in [(9, LossReason::Expired), (10, LossReason::NotOwner)] {
        let guard = mgr.lock("n").unwrap();
        let fence = guard.fence();
        for _ in 0..times {
            lapse(backend);
            std::mem::forget(other.try_lock("n").unwrap().unwrap());
        }
        assert_lost(guard.unlock(), reason, fence);
        lapse(backend);
    }
}

/// Gives the lock to the owner of these fields, under another fence, as a script does after a release.
fn grant_again(record: &Record<'_>, fields: &BTreeMap<String, String>, fence: u64) {
    let fence = fence.to_string();
    let kept = ["o", "a", "l", "e"].map(|field| (field, &*fields[field]));
    record.set(&[&kept[..], &[("f", &*fence), ("d", "0")]].concat());
}

/// Late copies of the acquire, or older data, grant the lock to the guard's token again.
fn unlock_of_a_lock_granted_again_is_a_loss(backend: &Backend) {
    let (mgr, other) = (unhurried(backend), unhurried(backend));
    let record = Record::of(backend, "n");
    other.lock("n").unwrap().unlock().unwrap();
    for waits in [false, true] {
        let guard = mgr.lock("n").unwrap();
        let waiter = waits.then(|| other.enqueue("n").unwrap());
        let (fields, fence) = (record.fields(), guard.fence());
        if waits {
            // An older copy of the data: this token waited there, and was served later.
            grant_again(&record, &fields, fence + 1_000);
            assert_lost(guard.unlock(), LossReason::NotOwner, fence);
        } else {
            assert!(other.force_release("n", fence).unwrap());
            other.lock("n").unwrap().unlock().unwrap();
            grant_again(&record, &fields, fence + 10_000_000);
            assert_lost(guard.unlock(), LossReason::Forced, fence);
        }
        // Nobody wants the lock that came again. It ended at once, and without a trace.
        let next = waiter.map_or_else(
            || other.try_lock("n").unwrap().expect("it is free"),
            |waiter| waiter.wait().unwrap(),
        );
        assert_eq!(next.previous_holder(), PreviousHolder::Released);
        next.unlock().unwrap();
    }
    // An older copy of the data without this grant.
    let guard = mgr.lock("n").unwrap();
    let fence = guard.fence();
    record.set(&[("f", &(fence - 1).to_string())]);
    assert_lost(guard.unlock(), LossReason::NotOwner, fence);
    assert!(other.try_lock("n").unwrap().is_some());
}

fn an_untaken_lapsed_lease_still_belongs_to_its_owner(backend: &Backend) {
    let mgr = unhurried(backend);
    let guard = mgr.lock("n").unwrap();
    lapse(backend);
    guard.renew().unwrap();
    guard.check().unwrap();
    lapse(backend);
    guard.unlock().unwrap();
    assert_eq!(
        mgr.lock("n").unwrap().previous_holder(),
        PreviousHolder::Released
    );
}

fn a_lapsed_lease_that_was_taken_is_lost_as_expired(backend: &Backend) {
    let (mgr, other) = (unhurried(backend), unhurried(backend));
    let guard = mgr.lock("n").unwrap();
    lapse(backend);
    let next = other.try_lock("n").unwrap().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert_lost(guard.renew(), LossReason::Expired, guard.fence());
    assert_loses(&guard, LossReason::Expired);
    next.unlock().unwrap();
}

fn previous_holder_stays_lapsed_until_a_proper_release(backend: &Backend) {
    let (mgr, other) = (unhurried(backend), unhurried(backend));
    let first = mgr.lock("n").unwrap();
    assert_eq!(first.previous_holder(), PreviousHolder::Unknown);
    first.unlock().unwrap();
    let second = mgr.lock("n").unwrap();
    assert_eq!(second.previous_holder(), PreviousHolder::Released);

    lapse(backend);
    // A grant that was never used is not a proper release.
    drop(other.enqueue("n").unwrap());
    let third = other.try_lock_for("n", SLACK).unwrap().unwrap();
    assert_eq!(third.previous_holder(), PreviousHolder::Lapsed);
    // A second irregular end reports its own kind.
    assert!(mgr.force_release("n", third.fence()).unwrap());
    let fourth = mgr.lock("n").unwrap();
    assert_eq!(fourth.previous_holder(), PreviousHolder::Forced);
    // A hand-over reports it too.
    let waiter = other.enqueue("n").unwrap();
    let last = other.enqueue("n").unwrap();
    assert!(mgr.force_release("n", fourth.fence()).unwrap());
    let fifth = waiter.wait().unwrap();
    assert_eq!(fifth.previous_holder(), PreviousHolder::Forced);
    fifth.unlock().unwrap();
    assert_eq!(
        last.wait().unwrap().previous_holder(),
        PreviousHolder::Released
    );
    // The history ends with the record.
    backend.flush_all();
    assert_eq!(
        mgr.lock("n").unwrap().previous_holder(),
        PreviousHolder::Unknown
    );
    drop((second, third, fourth));
}

fn renew_extends_the_lease_and_never_shortens_it(backend: &Backend) {
    let mgr = LockManager::connect(backend).unwrap();
    let guard = mgr.lock("n").unwrap();
    let left = |guard: &LockGuard| {
        (
            guard.remaining(),
            mgr.inspect("n").unwrap().unwrap().time_left,
        )
    };
    backend.pass(Duration::from_millis(300));
    let before = left(&guard);
    let renewed = mgr.stats().renewals_confirmed;
    guard.renew().unwrap();
    let after = left(&guard);
    assert!(
        after.0 > before.0 && after.1 > before.1,
        "{before:?} {after:?}"
    );
    assert_eq!(mgr.stats().renewals_confirmed, renewed + 1);
}

fn a_guard_is_renewed_after_every_handle_is_gone(backend: &Backend) {
    let guard = manager(backend).lock("n").unwrap();
    let other = manager(backend);
    throughout(TTL * 5 / 4, "it is held", || guard.check().is_ok());
    assert!(other.try_lock("n").unwrap().is_none());
    guard.unlock().unwrap();
    assert!(other.try_lock("n").unwrap().is_some());
    if let Some(server) = backend.server() {
        until(SLACK, "its connections close", || {
            server.clients().len() <= 2
        });
    }
}

fn guards_of_two_managers_are_independent(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let (a, b) = (mgr.lock("a").unwrap(), other.lock("b").unwrap());
    assert!(mgr.try_lock("b").unwrap().is_none());
    assert!(other.try_lock("a").unwrap().is_none());
    mgr.shutdown(Duration::ZERO).unwrap();
    assert!(!a.is_held());
    b.check().unwrap();
    drop(mgr);
    drop(a);
    b.renew().unwrap();
    assert!(other.try_lock_for("a", SLACK).unwrap().is_some());
    b.unlock().unwrap();
}

fn a_guard_may_be_unlocked_on_another_thread(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    thread::spawn(move || guard.unlock())
        .join()
        .unwrap()
        .unwrap();
    let guard = std::sync::Arc::new(mgr.lock("n").unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let guard = std::sync::Arc::clone(&guard);
            thread::spawn(move || guard.renew().and_then(|()| guard.check()))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}

fn a_guard_is_released_when_its_thread_panics(backend: &Backend) {
    let mgr = manager(backend);
    let panicked = thread::spawn({
        let mgr = mgr.clone();
        move || {
            let _guard = mgr.lock("n").unwrap();
            panic!("the test panics here");
        }
    });
    assert!(panicked.join().is_err());
    assert!(mgr.try_lock("n").unwrap().is_some());
    assert_eq!(mgr.stats().held, 0);
}

fn unlock_in_silence_is_unavailable_and_continues_in_the_background(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    let lost = guard.lost().clone();
    backend.go_away();
    let start = Instant::now();
    let error = guard.unlock().unwrap_err();
    assert!(
        start.elapsed() < COMMAND_TIMEOUT + SLACK,
        "{:?}",
        start.elapsed()
    );
    assert!(
        matches!(&error, Error::Unavailable { lock: Some(lock), .. } if &**lock == "n"),
        "{error:?}"
    );
    assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    backend.come_back();
    assert!(other.try_lock_for("n", TTL + SLACK).unwrap().is_some());
}
