//! Slots that no node serves: the nodes send each call on to each other, as an interrupted reshard
//! leaves them.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions};

use crate::cluster_set::ClusterSet;
use crate::support::{SLACK, until};

const LIMIT: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(10);
/// T at that ttl.
const T: Duration = Duration::from_millis(500);

fn manager(set: &ClusterSet) -> LockManager {
    LockManager::builder(set.url())
        .options(LockOptions::new().ttl(TTL))
        .outage_limit(LIMIT)
        .connect_timeout(Duration::from_secs(5))
        .build()
        .expect("the cluster is in order")
}

/// Each node of the row names the next one as the slot's owner, and the last names the first.
fn send_round(set: &ClusterSet, slot: u16, row: &[usize]) {
    let number = slot.to_string();
    for (at, index) in row.iter().enumerate() {
        let node = set.node(*index);
        let next = set.id(row[(at + 1) % row.len()]);
        // Clients may write the keys anew at any moment.
        until(SLACK, "the node has no key of the slot", || {
            let keys: Vec<String> = node.query(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]);
            for key in keys {
                node.query::<()>(&["DEL", &key]);
            }
            let named = node.try_query::<()>(&["CLUSTER", "SETSLOT", &number, "NODE", next]);
            named.is_ok()
        });
    }
}

/// The owner says ASK, and the node that it names says MOVED.
fn ask_and_moved(set: &ClusterSet, slot: u16) {
    let number = slot.to_string();
    let migrating = ["CLUSTER", "SETSLOT", &number, "MIGRATING", set.id(1)];
    set.node(0).query::<()>(&migrating);
}

/// All commands and connections that the nodes have seen.
fn traffic(set: &ClusterSet) -> (u64, u64) {
    let count = |what: &str| set.nodes().iter().map(|node| node.counted(what)).sum();
    (
        count("total_commands_processed"),
        count("total_connections_received"),
    )
}

/// No storm. The nodes' own talk and this test's questions are in the numbers, too.
#[track_caller]
fn assert_calm((requests, connections): (u64, u64), took: Duration, managers: u64) {
    let seconds = took.as_secs() + 1;
    let most = (50 * managers * seconds, 6 * managers * seconds);
    assert!(requests <= most.0, "{requests} requests in {took:?}");
    assert!(
        connections <= most.1,
        "{connections} connections in {took:?}"
    );
}

#[test]
fn call_for_a_slot_that_no_node_serves_ends_in_time() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let names: Vec<String> = (0..3).map(|n| set.name_on(0, n)).collect();
    let manager = manager(&set);
    manager
        .lock(&names[0])
        .expect("it is free")
        .unlock()
        .expect("it is held");
    send_round(&set, set.slot_of(&names[0]), &[0, 1]);
    send_round(&set, set.slot_of(&names[1]), &[0, 1, 2]);
    ask_and_moved(&set, set.slot_of(&names[2]));
    for name in &names {
        let ended = |what: &str, bound: Duration, call: &dyn Fn() -> fairlock::Result<()>| {
            let (requests, connections) = traffic(&set);
            let started = Instant::now();
            let error = call().expect_err("no node serves it");
            let took = started.elapsed();
            let (requests, connections) = {
                let (all, opened) = traffic(&set);
                (all - requests, opened - connections)
            };
            assert!(took <= bound + SLACK, "{what} took {took:?}");
            assert_calm((requests, connections), took, 1);
            let text = error.to_string();
            assert!(matches!(error, Error::Refused { .. }), "{what}: {text}");
            assert!(text.contains("no node serves slot"), "{what}: {text}");
        };
        ended("lock", LIMIT + 2 * T, &|| manager.lock(name).map(drop));
        ended("try_lock", 2 * T, &|| manager.try_lock(name).map(drop));
        let short = T / 2;
        ended("try_lock_for", short + T, &|| {
            manager.try_lock_for(name, short).map(drop)
        });
        ended("inspect", 2 * T, &|| manager.inspect(name).map(drop));
        let all = || manager.lock_all([name, "beside"]).map(drop);
        ended("lock_all", LIMIT + 2 * T, &all);
    }
}

/// A lock that is held, and one that waits for it.
#[test]
fn waiters_and_leases_of_a_lost_slot_end_in_time() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let (one, other) = (manager(&set), manager(&set));
    let held = one.lock(&name).expect("it is free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let ended = other.lock(&name).map(drop);
            (ended, Instant::now())
        });
        until(SLACK, "it waits", || other.stats().waiting == 1);
        send_round(&set, set.slot_of(&name), &[0, 1]);
        let lost_at = Instant::now();
        let (requests, connections) = traffic(&set);
        let (ended, at) = waits.join().expect("no panic");
        held.renew().expect_err("no node serves it");
        held.lost().recv_timeout(TTL + SLACK).expect("it is lost");
        let took = lost_at.elapsed();
        drop(held);
        let (all, opened) = traffic(&set);
        assert_calm((all - requests, opened - connections), took, 2);
        assert!(ended.is_err());
        assert!(at - lost_at <= LIMIT + 2 * T + SLACK, "{:?}", at - lost_at);
    });
}
