//! Nodes that die, hang, and come back.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions};

use super::{manager, manager_with};
use crate::cluster_set::ClusterSet;
use crate::support::{SLACK, Server, until};

/// How long a replica may take until it is the master. The others suspect the master after the node
/// timeout, and agree after another. Then comes an election, which waits for up to 1 s.
const FAILOVER: Duration = Duration::from_secs(4);

const LONG: Duration = Duration::from_secs(30);

#[test]
fn waiters_and_leases_go_on_after_a_masters_death() {
    let set = ClusterSet::start();
    let ttl = Duration::from_secs(20);
    let (one, other) = (manager_with(&set, ttl), manager_with(&set, ttl));
    let name = set.name_on(0, 0);
    let held = one.lock(&name).expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.try_lock_for(&name, LONG * 2));
        until(SLACK, "it waits", || other.stats().waiting == 1);
        // Replication is asynchronous: the copy has the lock and its queue by now.
        let copied = ["WAIT", "1", "1000"];
        set.node(0).query::<i64>(&copied);
        set.node(0).kill();
        let renewed = || held.renew().is_ok();
        until(
            FAILOVER + SLACK * 2,
            "the lease is renewed elsewhere",
            renewed,
        );
        held.unlock().expect("it is held");
        let granted = waiter.join().expect("no panic").expect("no error");
        granted
            .expect("it was released")
            .unlock()
            .expect("it is held");
    });
    let again = one.lock(&name).expect("it is free");
    again.unlock().expect("it is held");
}

#[test]
fn a_stopped_master_delays_no_renewal_of_the_others() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let ttl = Duration::from_secs(12);
    let period = ttl / 3;
    // One timeout for each tick would be more than the slack.
    let timeout = Duration::from_secs(2);
    let manager = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(ttl))
        .command_timeout(timeout)
        .check_period(Duration::from_millis(500))
        .horizon(Duration::from_millis(6_600))
        .build()
        .expect("the cluster is in order");
    let lock = |master: usize, n: usize| {
        let guard = manager.lock(set.name_on(master, n)).expect("it is free");
        // Time itself is under test: the leases are due at different times.
        thread::sleep(Duration::from_millis(50));
        guard
    };
    let mut healthy = Vec::new();
    let mut stopped = Vec::new();
    for n in 0..20 {
        stopped.push(lock(0, n));
        healthy.push(lock(1, n));
        healthy.push(lock(2, n));
    }
    let free: Vec<String> = (1..3).map(|master| set.name_on(master, 50)).collect();
    until(period + SLACK, "all masters have seen renewals", || {
        manager.stats().renewals_confirmed >= 60
    });
    set.node(0).stop();
    let mut least = ttl;
    let mut longest = Duration::ZERO;
    let stopped_at = Instant::now();
    while stopped_at.elapsed() < period * 2 {
        for guard in &healthy {
            least = least.min(guard.remaining());
        }
        let cycle = Instant::now();
        for name in &free {
            let guard = manager.lock(name).expect("its master answers");
            guard.unlock().expect("it is held");
        }
        longest = longest.max(cycle.elapsed());
        // A pause between two polls.
        thread::sleep(Duration::from_millis(5));
    }
    set.node(0).cont();
    // A renewal may come half a second early, and the next one keeps its time.
    let late = (ttl - period - Duration::from_millis(500)).saturating_sub(least);
    println!("renewals were late by {late:?} at most; a cycle took {longest:?}");
    assert!(late < SLACK, "renewals were late by {late:?}");
    assert!(
        longest < SLACK,
        "a cycle on a healthy master took {longest:?}"
    );
    for guard in &healthy {
        guard.check().expect("it is held");
    }
    drop(stopped);
}

#[test]
fn subscription_moves_when_its_master_dies() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let one = manager(&set);
    let ttl = Duration::from_secs(3);
    // Without the subscription, its grants would come a check period late.
    let check_period = ttl / 10;
    let other = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(ttl))
        .check_period(check_period)
        .build()
        .expect("the cluster is in order");
    let carries = |node: &Server| {
        node.try_query::<Vec<String>>(&["PUBSUB", "CHANNELS"])
            .is_ok_and(|channels| !channels.is_empty())
    };
    // It subscribes when it has to wait.
    let first = set.name_on(0, 0);
    let held = one.lock(&first).expect("it is free");
    let tried = other.try_lock_for(&first, Duration::from_millis(200));
    assert!(tried.expect("redis answers").is_none());
    held.unlock().expect("it is held");
    let carriers = || (0..3).filter(|index| set.node(*index).is_running());
    let carrier = carriers()
        .find(|index| carries(set.node(*index)))
        .expect("a master carries it");
    let name = set.name_on((carrier + 1) % 3, 5);
    let held = one.lock(&name).expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.try_lock_for(&name, LONG));
        until(SLACK, "it waits", || other.stats().waiting == 1);
        set.node(carrier).kill();
        until(check_period + SLACK, "another master carries it", || {
            carriers().any(|index| carries(set.node(index)))
        });
        held.unlock().expect("it is held");
        let granted = waiter.join().expect("no panic").expect("no error");
        granted
            .expect("it was released")
            .unlock()
            .expect("it is held");
    });
}

#[test]
fn cluster_that_is_down_is_waited_for() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let manager = manager(&set);
    let name = set.name_on(1, 0);
    manager
        .lock(&name)
        .expect("it is free")
        .unlock()
        .expect("it is held");
    set.node(0).kill();
    until(FAILOVER + SLACK, "the others refuse", || {
        let info: String = set.node(1).query(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
    let started = Instant::now();
    let refused = manager.try_lock(&name).expect_err("the cluster is down");
    let Error::Refused { code, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, "CLUSTERDOWN");
    // T is 300 ms.
    assert!(started.elapsed() < Duration::from_millis(900) + SLACK);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| manager.try_lock_for(&name, LONG));
        set.node(0).restart();
        let granted = waiter.join().expect("no panic").expect("it came back");
        granted.expect("it is free").unlock().expect("it is held");
    });
}

/// The test tries each master, dead and hanging. Its names are missing, and the error that comes
/// last says why.
#[test]
fn names_of_the_other_masters_are_listed_beside_a_dead_one() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let manager = manager_with(&set, LONG);
    let names = [0, 1, 2].map(|master| set.name_on(master, 0));
    let _guards = names.clone().map(|name| manager.lock(name).unwrap());
    for lost in 0..3 {
        set.node(lost).stop();
        let mut listed: Vec<_> = manager.list("*").collect();
        let error = listed.pop().expect("an error").expect_err("one is silent");
        assert!(
            error
                .to_string()
                .contains(&set.node(lost).addr().to_string()),
            "{error}"
        );
        let found = listed.into_iter().map(|info| info.expect("a name").name);
        let mut found: Vec<String> = found.map(|name| name.to_string()).collect();
        found.sort();
        let mut expected = names.to_vec();
        expected.remove(lost);
        expected.sort();
        assert_eq!(found, expected);
        set.node(lost).cont();
        until(SLACK * 4, "all are listed again", || {
            manager.list("*").all(|info| info.is_ok())
        });
    }
}
