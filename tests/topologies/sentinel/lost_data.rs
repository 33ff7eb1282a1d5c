//! Grants and places that were not replicated, which the new master does not know.

use std::thread;

use fairlock::{LockOptions, LossReason};

use super::common::{P, SOON, build, builder, manager};
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, Server, until};

/// Cuts the replicas off: what the master does from now on reaches none of them.
pub(super) fn cut_off_replicas(set: &SentinelSet) {
    for replica in &set.nodes[1..] {
        replica.stop();
    }
    // Otherwise they would find what the master has sent once they go on.
    set.nodes[0].query::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the master, and waits for the next one.
pub(super) fn replace_master(set: &SentinelSet) -> &Server {
    set.nodes[0].kill();
    for replica in &set.nodes[1..] {
        replica.cont();
    }
    set.await_other_master(&set.all(), &set.nodes[0])
}

#[test]
fn grant_that_was_not_replicated_is_reported_as_lost() {
    let set = SentinelSet::start();
    // Its next renewal would come much later.
    let options = LockOptions::new().ttl(6 * SOON);
    let mgr = build(builder(set.url()).options(options));
    let other = manager(&set);
    cut_off_replicas(&set);
    let guard = mgr.lock("a").unwrap();
    replace_master(&set);
    let next = other.lock("a").unwrap();
    assert!(
        next.fence() > guard.fence(),
        "both clocks are this machine's"
    );
    let loss = guard.lost().recv_timeout(P + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::NotOwner);
    assert!(!guard.is_held());
    assert!(next.is_held());
}

#[test]
fn waiters_that_were_not_replicated_queue_again() {
    let set = SentinelSet::start();
    let (holder, waiter) = (manager(&set), manager(&set));
    let guard = holder.lock("a").unwrap();
    set.await_replication();
    cut_off_replicas(&set);
    let place = waiter.enqueue("a").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| place.wait());
        let new = replace_master(&set);
        until(SOON, "the waiter is queued again", || {
            waiter.stats().requeues == 1 && new.query::<i64>(&["LLEN", "fairlock:{a}:q"]) == 1
        });
        let fence = guard.fence();
        drop(guard);
        let next = waits.join().unwrap().unwrap();
        assert!(next.fence() > fence);
    });
}
