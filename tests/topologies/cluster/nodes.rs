//! Nodes that come and go, and nodes that do not say where they are.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::LockManager;

use super::manager;
use crate::cluster_set::ClusterSet;
use crate::support::{SLACK, is_redis_62, notes::left_out, until};

#[test]
fn locks_move_to_an_added_node_and_back() {
    let mut set = ClusterSet::start_with(3, 0, &[]);
    let manager = manager(&set);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let held = manager.lock(&name).expect("it is free");
    let added = set.add_node();
    let before = manager.stats();
    set.migrate(slot, added);
    held.renew().expect("it is held");
    held.unlock().expect("it is held");
    let held = manager.lock(&name).expect("it is free");
    set.migrate(slot, 0);
    set.remove_node(added);
    held.renew().expect("it is held");
    held.unlock().expect("it is held");
    // The counts of the removed node still count.
    let after = manager.stats();
    assert!(after.requests > before.requests && after.connects > before.connects);
    let listed = manager.list("*").count();
    assert_eq!(listed, 0);
}

#[test]
fn nodes_that_announce_no_host_are_reached_where_asked() {
    if is_redis_62() {
        left_out("it has no setting `cluster-preferred-endpoint-type`");
        return;
    }
    let preferred = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let set = ClusterSet::start_with(3, 0, &preferred);
    let (one, other) = (manager(&set), manager(&set));
    let name = set.name_on(2, 0);
    let held = one.lock(&name).expect("it is free");
    set.migrate(set.slot_of(&name), 0);
    assert!(other.try_lock(&name).expect("redis answers").is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.try_lock_for(&name, Duration::from_secs(30)));
        until(SLACK, "it waits", || other.stats().waiting == 1);
        held.unlock().expect("it is held");
        let granted = waiter.join().expect("no panic").expect("redis answers");
        assert!(granted.is_some());
    });
}

#[test]
fn hung_seed_is_skipped() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    set.node(0).stop();
    let started = Instant::now();
    let manager = manager(&set);
    // The connect timeout is 300 ms.
    assert!(started.elapsed() < Duration::from_millis(300) + SLACK);
    let guard = manager.lock(set.name_on(1, 0)).expect("its master answers");
    guard.unlock().expect("it is held");
    set.node(0).cont();
}

#[test]
fn replica_is_a_good_seed() {
    let set = ClusterSet::start_with(3, 1, &[]);
    let replica = set.node(3).addr();
    let manager = LockManager::connect(format!("redis-cluster://{replica}"));
    let manager = manager.expect("it knows the masters");
    for master in 0..3 {
        let guard = manager.lock(set.name_on(master, 0)).expect("it is free");
        guard.unlock().expect("it is held");
    }
}
