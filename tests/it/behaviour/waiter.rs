//! A waiter in the queue: its position, how it keeps its place, and how it leaves.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions, Misuse, inspect::LockState};

use crate::backend::{Backend, Keyspace as _, on_both_stores};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, throughout, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
const CHECK_PERIOD: Duration = Duration::from_millis(250);
/// A grant must be known within this time, even if its message is lost.
const GRANTED_WITHIN: Duration = CHECK_PERIOD
    .saturating_add(COMMAND_TIMEOUT)
    .saturating_add(SLACK);

on_both_stores! {
    a_waiter_on_a_free_lock_is_granted_at_once,
    positions_count_from_one_and_decrease,
    wait_for_keeps_the_place,
    a_grant_between_two_waits_stays_renewed,
    a_dropped_waiter_leaves_and_the_others_keep_their_order,
    the_last_waiter_to_leave_leaves_nothing_behind,
    dropping_a_granted_waiter_hands_the_lock_over,
    an_unused_grant_that_is_lost_queues_again,
    an_unused_grant_that_is_lost_is_granted_again,
    a_waiter_returns_one_guard,
    a_waiter_works_on_another_thread_without_its_handle,
    p8_a_waiter_drops_within_one_command_timeout_in_silence,
    p8_short_waits_end_at_the_outage_limit_keeping_their_place,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The number of waiters for `n`, as Redis counts them.
fn waiters(mgr: &LockManager) -> u64 {
    mgr.inspect("n").unwrap().map_or(0, |info| info.waiters)
}

fn a_waiter_on_a_free_lock_is_granted_at_once(backend: &Backend) {
    let mgr = manager(backend);
    let mut waiter = mgr.enqueue("n").unwrap();
    assert_eq!(waiter.position(), None);
    assert_eq!(mgr.inspect("n").unwrap().unwrap().state, LockState::Held);
    assert!(mgr.try_lock("n").unwrap().is_none());
    let guard = waiter.wait_for(Duration::ZERO).unwrap().unwrap();
    guard.check().unwrap();
    drop(waiter);
    guard.renew().unwrap();
    assert_eq!(mgr.stats().waiting, 0);
}

fn positions_count_from_one_and_decrease(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    let a = mgr.enqueue("n").unwrap();
    let b = other.enqueue("n").unwrap();
    let c = mgr.enqueue("n").unwrap();
    assert_eq!(
        [a.position(), b.position(), c.position()],
        [Some(1), Some(2), Some(3)]
    );
    assert_eq!(mgr.stats().waiting, 2);
    assert_eq!(waiters(&mgr), 3);
    guard.unlock().unwrap();
    until(GRANTED_WITHIN, "all move up", || {
        [a.position(), b.position(), c.position()] == [None, Some(1), Some(2)]
    });
    let guard = a.wait().unwrap();
    // The entry of a dropped waiter counts until the queue has passed it.
    drop(b);
    assert!(c.position() <= Some(2));
    guard.unlock().unwrap();
    until(GRANTED_WITHIN, "the last one is served", || {
        c.position().is_none()
    });
    c.wait().unwrap().unlock().unwrap();
}

fn wait_for_keeps_the_place(backend: &Backend) {
    let (mgr, other) = (managers::patient(backend), managers::patient(backend));
    let guard = mgr.lock("n").unwrap();
    let mut first = mgr.enqueue("n").unwrap();
    let mut second = other.enqueue("n").unwrap();
    for _ in 0..5 {
        let start = Instant::now();
        assert!(first.wait_for(ms(30)).unwrap().is_none());
        let took = start.elapsed();
        assert!(took >= ms(30) && took < ms(30) + SLACK, "{took:?}");
        assert!(first.wait_for(Duration::ZERO).unwrap().is_none());
    }
    assert_eq!((first.position(), second.position()), (Some(1), Some(2)));
    guard.unlock().unwrap();
    let guard = first.wait_for(GRANTED_WITHIN).unwrap().unwrap();
    assert!(second.wait_for(ms(30)).unwrap().is_none());
    guard.unlock().unwrap();
    assert!(second.wait_for(GRANTED_WITHIN).unwrap().is_some());
}

fn a_grant_between_two_waits_stays_renewed(backend: &Backend) {
    let mgr = manager(backend);
    let other = managers::patient(backend);
    // One waiter that was queued, and one that was granted on arrival.
    let guard = mgr.lock("n").unwrap();
    let mut queued = mgr.enqueue("n").unwrap();
    assert!(queued.wait_for(ms(10)).unwrap().is_none());
    guard.unlock().unwrap();
    let mut at_once = mgr.enqueue("m").unwrap();
    until(GRANTED_WITHIN, "it is granted", || {
        queued.position().is_none()
    });
    let fences = ["n", "m"].map(|name| mgr.inspect(name).unwrap().unwrap().fence);
    throughout(TTL * 2, "both are kept", || {
        ["n", "m"]
            .iter()
            .all(|name| other.try_lock(name).unwrap().is_none())
    });
    for (waiter, fence) in [&mut queued, &mut at_once].into_iter().zip(fences) {
        let guard = waiter
            .wait_for(Duration::ZERO)
            .unwrap()
            .expect("it was granted");
        assert_eq!(guard.fence(), fence);
        guard.check().unwrap();
        guard.unlock().unwrap();
    }
    assert_eq!(mgr.stats().requeues, 0);
}

fn a_dropped_waiter_leaves_and_the_others_keep_their_order(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    let a = mgr.enqueue("n").unwrap();
    let b = other.enqueue("n").unwrap();
    let c = mgr.enqueue("n").unwrap();
    let d = other.enqueue("n").unwrap();
    drop(b);
    until(GRANTED_WITHIN, "the dropped one is gone", || {
        waiters(&mgr) == 3
    });
    assert_eq!(other.stats().waiting, 1);
    drop(a);
    until(GRANTED_WITHIN, "and another", || waiters(&mgr) == 2);
    guard.unlock().unwrap();
    let guard = c.wait().unwrap();
    assert_eq!(waiters(&mgr), 1);
    guard.unlock().unwrap();
    d.wait().unwrap().unlock().unwrap();
    assert!(mgr.inspect("n").unwrap().is_none());
}

fn the_last_waiter_to_leave_leaves_nothing_behind(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    drop([mgr.enqueue("n").unwrap(), mgr.enqueue("n").unwrap()]);
    until(GRANTED_WITHIN, "the queue is gone", || {
        backend.query::<i64>(&["LLEN", "fairlock:{n}:q"]) == 0
    });
    let fields: Vec<String> = backend.query(&["HKEYS", "fairlock:{n}"]);
    assert!(
        !fields.iter().any(|field| field.starts_with("w:")),
        "{fields:?}"
    );
    assert_eq!(mgr.stats().waiting, 0);
    guard.unlock().unwrap();
    assert!(mgr.inspect("n").unwrap().is_none());
    assert!(backend.keys_without_ttl().is_empty());
}

fn dropping_a_granted_waiter_hands_the_lock_over(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let granted = mgr.enqueue("n").unwrap();
    let queued = mgr.enqueue("n").unwrap();
    let mut last = other.enqueue("n").unwrap();
    drop(granted);
    until(GRANTED_WITHIN, "the next one is granted", || {
        queued.position().is_none()
    });
    drop(queued);
    let guard = last.wait_for(GRANTED_WITHIN).unwrap().unwrap();
    guard.unlock().unwrap();
    assert!(mgr.inspect("n").unwrap().is_none());
    assert_eq!((mgr.stats().waiting, other.stats().waiting), (0, 0));
}

fn an_unused_grant_that_is_lost_queues_again(backend: &Backend) {
    let disasters: [fn(&Backend); 2] = [|backend| backend.delete("n"), Backend::flush_all];
    for disaster in disasters {
        let (mgr, other) = (manager(backend), manager(backend));
        let mut waiter = mgr.enqueue("n").unwrap();
        let lost = mgr.inspect("n").unwrap().unwrap().fence;
        disaster(backend);
        let taken = other.try_lock("n").unwrap().expect("the lock is free");
        let again = || waiter.position() == Some(1) && mgr.stats().requeues == 1;
        until(TTL + SLACK, "it is queued again", again);
        assert!(waiter.wait_for(ms(20)).unwrap().is_none());
        // No guard has lost anything.
        assert_eq!(mgr.stats().losses(), 0);
        let fence = taken.fence();
        taken.unlock().unwrap();
        let guard = waiter.wait_for(GRANTED_WITHIN).unwrap().unwrap();
        assert!(fence > lost && guard.fence() > fence);
        guard.unlock().unwrap();
    }
}

fn an_unused_grant_that_is_lost_is_granted_again(backend: &Backend) {
    let mgr = manager(backend);
    let waiter = mgr.enqueue("n").unwrap();
    let lost = mgr.inspect("n").unwrap().unwrap().fence;
    backend.flush_all();
    until(TTL + SLACK, "it is granted again", || {
        mgr.stats().requeues == 1
    });
    let guard = waiter.wait().unwrap();
    assert!(guard.fence() > lost);
    guard.renew().unwrap();
}

fn a_waiter_returns_one_guard(backend: &Backend) {
    let mgr = manager(backend);
    let mut waiter = mgr.enqueue("n").unwrap();
    let guard = waiter.wait_for(Duration::MAX).unwrap().unwrap();
    for _ in 0..2 {
        let error = waiter.wait_for(Duration::MAX).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Misused {
                    misuse: Misuse::Setting { name: "waiter", .. },
                    ..
                }
            ),
            "{error:?}"
        );
    }
    assert_eq!(waiter.position(), None);
    let error = waiter.wait().unwrap_err();
    assert!(error.to_string().contains("one guard"), "{error}");
    guard.check().unwrap();
}

fn a_waiter_works_on_another_thread_without_its_handle(backend: &Backend) {
    let other = manager(backend);
    let guard = other.lock("n").unwrap();
    let waiter = manager(backend).enqueue("n").unwrap();
    let waiting = thread::spawn(move || waiter.wait());
    until(SLACK, "it is queued", || waiters(&other) == 1);
    let longer_than_its_horizon = TTL * 3 / 4;
    throughout(longer_than_its_horizon, "it waits", || {
        !waiting.is_finished()
    });
    guard.unlock().unwrap();
    let guard = waiting.join().unwrap().unwrap();
    assert!(other.try_lock("n").unwrap().is_none());
    guard.unlock().unwrap();
}

fn p8_a_waiter_drops_within_one_command_timeout_in_silence(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = other.lock("n").unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    backend.go_away();
    let start = Instant::now();
    drop(waiter);
    assert!(
        start.elapsed() < COMMAND_TIMEOUT + SLACK,
        "{:?}",
        start.elapsed()
    );
    backend.come_back();
    until(TTL + SLACK, "it leaves the queue in the background", || {
        waiters(&other) == 0
    });
    drop(guard);
}

fn p8_short_waits_end_at_the_outage_limit_keeping_their_place(backend: &Backend) {
    let limit = COMMAND_TIMEOUT * 6;
    let other = manager(backend);
    let options = LockOptions::new().ttl(TTL);
    let mgr = LockManager::builder(backend)
        .options(options)
        .outage_limit(limit)
        .build()
        .unwrap();
    let guard = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    assert!(waiter.wait_for(CHECK_PERIOD).unwrap().is_none());
    backend.go_away();
    let start = Instant::now();
    let error = loop {
        let piece = Instant::now();
        match waiter.wait_for(COMMAND_TIMEOUT / 2) {
            Ok(granted) => assert!(granted.is_none()),
            Err(error) => break error,
        }
        assert!(
            piece.elapsed() < COMMAND_TIMEOUT + SLACK,
            "{:?}",
            piece.elapsed()
        );
    };
    let took = start.elapsed();
    assert!(
        matches!(&error, Error::Unavailable { lock: Some(lock), .. } if &**lock == "n"),
        "{error:?}"
    );
    assert!(
        took + CHECK_PERIOD + COMMAND_TIMEOUT >= limit,
        "not before its time: {took:?}"
    );
    assert!(took < limit + COMMAND_TIMEOUT * 2 + SLACK, "{took:?}");
    backend.come_back();
    drop(guard);
    until(TTL * 2 + SLACK, "it is still served", || {
        matches!(waiter.wait_for(CHECK_PERIOD), Ok(Some(_)))
    });
}
