//! P9 and P8: a single lane serves many callers, and work that must not wait for a lane does not.
//! On Redis alone, since the in-memory store has no lanes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions};

use crate::{
    fixtures::{
        P, Record, SOON, STEADY_T, STEADY_TTL, Verb, Waiters, build, manager, request, steady,
        warm_up, with_ttl,
    },
    managers::{assert_nothing_left, check_period},
    support::{EndLoops, Proxy, SLACK, Server, throughout, until},
};

/// So long that a busy machine answers within the command timeout that belongs to it.
const TTL: Duration = Duration::from_secs(4);

#[test]
fn p9_fifty_threads_share_one_connection_without_deadlock_or_late_renewal() {
    let server = Server::start();
    let losses = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&losses);
    let options = LockOptions::new().ttl(TTL).on_lost(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    // The longest timeout that fits the TTL.
    let builder = LockManager::builder(server.url()).lanes(1).options(options);
    let builder = builder
        .command_timeout(TTL / 7)
        .check_period(TTL / 10)
        .horizon(TTL * 11 / 20);
    let mgr = builder.build().unwrap();
    let held = mgr.lock("held").unwrap();
    let over = AtomicBool::new(false);
    let turns: Vec<AtomicU64> = (0..50).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for (i, turns) in turns.iter().enumerate() {
            let (mgr, over) = (&mgr, &over);
            scope.spawn(move || {
                // Most threads use one name, some use others.
                let name = format!("k{}", i.saturating_sub(39));
                while !over.load(Ordering::Relaxed) {
                    let guard = mgr.lock(&name).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                    guard.unlock().unwrap();
                }
            });
        }
        let end = EndLoops(&over);
        throughout(2 * TTL, "it is held", || held.check().is_ok());
        let before: Vec<u64> = turns.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        until(
            check_period(TTL) + SLACK,
            "every thread gets its turn",
            || {
                turns
                    .iter()
                    .zip(&before)
                    .all(|(n, before)| n.load(Ordering::Relaxed) > *before)
            },
        );
        drop(end);
    });
    assert!(mgr.stats().renewals_confirmed >= 4, "{:?}", mgr.stats());
    assert_eq!(losses.load(Ordering::Relaxed), 0);
    held.unlock().unwrap();
    for i in 0..=10 {
        assert_nothing_left(&server, &format!("k{i}"));
    }
}

#[test]
fn p9_renewals_releases_and_wake_ups_need_no_pooled_connection() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(steady(proxy.url()).lanes(1));
    let other = build(steady(server.url()));
    warm_up(&ours);
    let [kept, released, unlocked] =
        ["kept", "released", "unlocked"].map(|name| ours.lock(name).unwrap());
    let theirs = other.lock("theirs").unwrap();
    let [mut after, mut before] = [Waiters::of("released"), Waiters::of("theirs")];
    after.add(&other);
    before.add(&ours);
    let renewed = ours.stats().renewals_confirmed;
    until(STEADY_TTL, "the renewal thread is connected", || {
        ours.stats().renewals_confirmed > renewed
    });
    // The connection of the only lane breaks, and no other can be opened. The threads' connections
    // stay open.
    proxy.refuse();
    let fault = proxy.swallow_reply_when(request(Verb::Acquire, "x"));
    assert!(matches!(ours.try_lock("x"), Err(Error::Unavailable { .. })));
    assert!(fault.has_triggered());

    theirs.unlock().unwrap();
    before
        .expect_grant(0, P + STEADY_T + SLACK)
        .unlock()
        .unwrap();
    drop(released);
    after
        .expect_grant(0, P + STEADY_T + SLACK)
        .unlock()
        .unwrap();
    unlocked.unlock().unwrap();
    throughout(STEADY_TTL, "it is held", || kept.check().is_ok());
    assert!(
        matches!(ours.try_lock("x"), Err(Error::Unavailable { .. })),
        "the lane got a connection"
    );
    kept.unlock().unwrap();
    for name in ["kept", "released", "unlocked", "theirs", "x"] {
        Record::of(&server, name).comes_to_rest();
    }
}

/// The silent server's timeout is so long that a lease whose renewal waited for it would be lost.
#[test]
fn p9_a_silent_server_delays_nothing_on_another() {
    const TTL: Duration = crate::fixtures::TTL;
    let (silent, sound) = (Server::start(), Server::start());
    let builder = with_ttl(silent.url(), 14 * TTL)
        .command_timeout(2 * TTL)
        .check_period(P)
        .horizon(P + 6 * TTL);
    let stuck = build(builder);
    let (ours, other) = (manager(sound.url()), manager(sound.url()));
    warm_up(&ours);
    let kept = ours.lock("kept").unwrap();
    let _taken = stuck.lock("taken").unwrap();
    let _waiter = stuck.enqueue("taken").unwrap();
    let before = stuck.stats().requests;
    until(
        SOON,
        "its renewal thread checks the waiter, once each period, as the subscription is",
        || stuck.stats().requests >= before + 3,
    );
    silent.stop();
    throughout(TTL + P, "it is held", || kept.check().is_ok());
    let holder = other.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    holder.unlock().unwrap();
    queue.expect_grant(0, P + SLACK).unlock().unwrap();
    kept.unlock().unwrap();
    silent.cont();
}

/// The timeout is so long that the test would notice a call that waited for one command timeout and
/// then for another. Calls without a reply are ahead of it on the only lane.
#[test]
fn p8_drops_take_one_command_timeout_while_redis_is_silent() {
    const T: Duration = Duration::from_secs(2);
    let server = Server::start();
    let builder = with_ttl(server.url(), Duration::from_secs(12))
        .command_timeout(T)
        .horizon(P + 3 * T);
    let ours = build(builder.check_period(P).lanes(1));
    warm_up(&ours);
    let other = manager(server.url());
    let _taken = other.lock("taken").unwrap();
    let [dropped, unlocked] = ["dropped", "unlocked"].map(|name| ours.lock(name).unwrap());
    let waiter = ours.enqueue("taken").unwrap();
    server.stop();
    thread::scope(|scope| {
        let before = ours.stats().requests;
        for _ in 0..4 {
            scope.spawn(|| ours.try_lock("x").unwrap_err());
        }
        until(
            SOON,
            "one call has the connection and the others wait for it",
            || ours.stats().requests > before,
        );
        let bounded = |what: &'static str, call: Box<dyn FnOnce() + Send>| {
            scope.spawn(move || {
                let start = Instant::now();
                call();
                assert!(
                    start.elapsed() <= T + SLACK,
                    "{what} took {:?}",
                    start.elapsed()
                );
            });
        };
        bounded("a guard's drop", Box::new(move || drop(dropped)));
        bounded("a waiter's drop", Box::new(move || drop(waiter)));
        bounded(
            "unlock",
            Box::new(move || assert!(matches!(unlocked.unlock(), Err(Error::Unavailable { .. })))),
        );
    });
    server.cont();
    for name in ["dropped", "unlocked", "x"] {
        Record::of(&server, name).comes_to_rest();
    }
}
