//! Sentinels that do not answer.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};

use super::common::{P, SOON, T, TTL, build, builder, manager, moment_of_change};
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, throughout, until};

/// The manager waits for it once, when it is built, for half the connect timeout.
#[test]
fn hung_sentinel_does_not_delay_a_failover() {
    let set = SentinelSet::start();
    set.sentinels[0].stop();
    let mgr = build(builder(set.url()).connect_timeout(Duration::from_secs(5)));
    mgr.lock("a").unwrap().unlock().unwrap();
    set.await_replication();
    let old = &set.nodes[0];
    old.kill();
    let (named, granted) = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let _guard = mgr.lock("a").unwrap();
            Instant::now()
        });
        let (named, _) = moment_of_change(&set, &set.sentinels[1..], old);
        (named, waits.join().unwrap())
    });
    let ours = granted.saturating_duration_since(named);
    println!("ours {ours:?}");
    assert!(ours <= P + SLACK, "{ours:?}");
}

fn all_calls(mgr: &LockManager) {
    let guard = mgr.lock("b").unwrap();
    guard.renew().unwrap();
    assert!(mgr.try_lock("b").unwrap().is_none());
    let waits = mgr.clone();
    let waits = thread::spawn(move || waits.lock("b").map(drop));
    until(SOON, "it is queued", || {
        mgr.inspect("b")
            .unwrap()
            .is_some_and(|info| info.waiters == 1)
    });
    guard.unlock().unwrap();
    waits.join().unwrap().unwrap();
    mgr.inspect("b").unwrap();
    mgr.list("*").for_each(drop);
}

#[test]
fn manager_goes_on_without_sentinels_while_the_master_lives() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let held = mgr.lock("held").unwrap();
    for sentinel in &set.sentinels {
        sentinel.kill();
    }
    all_calls(&mgr);
    // The sentinels are asked for again and again meanwhile, and the lease is renewed.
    throughout(TTL + P, "it is held", || held.is_held());
    all_calls(&mgr);
    held.unlock().unwrap();
}

/// Each kind of call keeps to its own bound.
#[test]
fn no_call_hangs_without_sentinels_and_master() {
    let set = SentinelSet::start();
    let limit = Duration::from_secs(2);
    // The sentinels are waited for longer than any call may wait.
    let connecting = Duration::from_secs(7);
    let mgr = build(
        builder(set.url())
            .outage_limit(limit)
            .connect_timeout(connecting),
    );
    let held = mgr.lock("held").unwrap();
    for sentinel in &set.sentinels {
        sentinel.stop();
    }
    set.nodes[0].stop();
    let bounded = |what: &str, bound: Duration, call: &(dyn Fn() -> Result<(), Error> + Sync)| {
        let started = Instant::now();
        let outcome = call();
        let took = started.elapsed();
        assert!(
            matches!(outcome, Err(Error::Unavailable { .. })),
            "{what}: {outcome:?}"
        );
        assert!(took <= bound + SLACK, "{what} took {took:?}");
    };
    bounded("renew", 2 * T, &|| held.renew());
    bounded("try_lock", 2 * T, &|| mgr.try_lock("a").map(drop));
    bounded("lock", limit + 2 * T, &|| mgr.lock("a").map(drop));
    bounded("inspect", 2 * T, &|| mgr.inspect("a").map(drop));
    let started = Instant::now();
    assert!(held.lost().recv_timeout(TTL + SLACK).is_ok());
    drop(held);
    assert!(started.elapsed() <= TTL + SLACK);
    let started = Instant::now();
    drop(mgr);
    assert!(started.elapsed() <= T + SLACK, "{:?}", started.elapsed());
}

#[test]
fn manager_is_right_again_when_sentinels_come_back() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    for sentinel in &set.sentinels {
        sentinel.kill();
    }
    set.nodes[0].kill();
    assert!(mgr.try_lock("a").is_err());
    for sentinel in &set.sentinels {
        sentinel.restart();
    }
    let guard = mgr.lock("a").unwrap();
    assert!(guard.is_held());
}
