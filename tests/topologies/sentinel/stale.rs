//! Answers that are not true any more.

use std::time::Instant;

use super::common::{P, SOON, T, TTL, manager};
use crate::sentinel_set::{SentinelSet, is_master};
use crate::support::{SLACK, Server, until};

/// A sentinel that was away during the failover names the old master, and that one was started again
/// and takes writes. No other sentinel answers.
#[test]
fn sentinel_that_names_the_old_master_is_not_believed() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let other = manager(&set);
    let [stale, second, third] = &set.sentinels[..] else {
        unreachable!()
    };
    stale.kill();
    let old = &set.nodes[0];
    old.kill();
    let new = set.await_other_master(&[second, third], old);
    for mgr in [&mgr, &other] {
        mgr.lock("a").unwrap().unlock().unwrap();
    }
    // Only now: a failover can take longer than a lease.
    let held = mgr.lock("held").unwrap();
    second.stop();
    third.stop();
    old.restart();
    // It has its old configuration, and gets no message from the others. Stopped and woken, it
    // would find their messages in its sockets.
    stale.restart();
    until(SOON, "the stale sentinel names the old master", || {
        SentinelSet::named_by(stale) == Some(old.addr()) && is_master(old)
    });
    // Connections end, so that the sentinels are asked for sure.
    new.query::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let renewed = mgr.stats().renewals_confirmed;
    let started = Instant::now();
    while started.elapsed() < 2 * P {
        mgr.lock("a").unwrap().unlock().unwrap();
        other.lock("b").unwrap().unlock().unwrap();
    }
    // In the old master it is unknown, and would be lost.
    until(TTL / 3 + T + SLACK, "it is renewed", || {
        mgr.stats().renewals_confirmed > renewed
    });
    assert!(new.query::<i64>(&["PTTL", "fairlock:{held}"]) > 0);
    assert!(held.is_held(), "{:?}", held.lost().try_recv());
    let written: Vec<String> = old.query(&["KEYS", "fairlock:*"]);
    assert!(written.is_empty(), "{written:?} in the old master");
    assert_eq!(new.query::<i64>(&["EXISTS", "fairlock:{b}"]), 1);
    held.unlock().unwrap();
}

/// After the failover the old master comes back as a master, until the sentinels demote it.
#[test]
fn old_master_that_comes_back_gets_no_lock() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let held = mgr.lock("held").unwrap();
    let old = &set.nodes[0];
    old.stop();
    let new = set.await_other_master(&set.all(), old);
    mgr.lock("a").unwrap().unlock().unwrap();
    old.cont();
    let fence = held.fence();
    drop(held);
    let started = Instant::now();
    while started.elapsed() < 2 * P {
        assert!(mgr.lock("held").unwrap().fence() > fence);
        mgr.lock("b").unwrap().unlock().unwrap();
    }
    assert!(is_master(old), "the sentinels let it be one for seconds");
    let has_b = |node: &Server| node.query::<i64>(&["EXISTS", "fairlock:{b}"]) == 1;
    assert!(has_b(new) && !has_b(old));
}
