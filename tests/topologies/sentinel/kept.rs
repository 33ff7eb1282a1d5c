//! Another master takes over while locks are kept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, PreviousHolder};

use super::common::{P, SOON, T, TTL as SHORT_TTL, build, builder, manager};
use super::lost_data::{cut_off_replicas, replace_master};
use crate::keeping::{costs_nothing, keep};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::sums::Sums;
use crate::support::{EndLoops, SLACK, until};

/// Leases outlast a failover.
const TTL: Duration = FAILOVER_WITHIN.saturating_mul(3);

fn keeper(set: &SentinelSet) -> LockManager {
    keeper_for(set, TTL)
}

fn keeper_for(set: &SentinelSet, ttl: Duration) -> LockManager {
    let options = LockOptions::new().ttl(ttl).keep_idle(ttl / 6);
    build(builder(set.url()).options(options))
}

/// The new master has the record, and tells the keeper over its own connection.
#[test]
fn kept_lock_outlives_a_failover_and_others_get_it() {
    let set = SentinelSet::start();
    let (mgr, other) = (keeper(&set), manager(&set));
    keep(&mgr, "a");
    keep(&mgr, "b");
    let last = mgr.lock("a").unwrap().fence();
    set.await_replication();
    set.nodes[0].kill();
    set.await_other_master(&set.all(), &set.nodes[0]);
    let guard = other
        .try_lock_for("a", SOON)
        .unwrap()
        .expect("the keeper is told");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    assert!(guard.fence() > last);
    drop(guard);
    // The other one is confirmed, and lent again.
    until(SOON, "it is confirmed", || {
        costs_nothing(&mgr, || drop(mgr.lock("b").unwrap()))
    });
    assert_eq!(mgr.stats().losses(), 0);
}

/// The new master knows nothing of the grant. Nothing of it is lent once the master is another one.
#[test]
fn kept_lock_that_was_not_replicated_is_not_lent_after_a_failover() {
    let set = SentinelSet::start();
    let (mgr, other) = (keeper(&set), manager(&set));
    keep(&mgr, "warm");
    cut_off_replicas(&set);
    keep(&mgr, "a");
    let last = mgr.lock("a").unwrap().fence();
    replace_master(&set);
    let theirs = other
        .try_lock_for("a", SOON)
        .unwrap()
        .expect("it is not known");
    assert!(theirs.fence() > last);
    // The keeper's connections to the old master have failed by now, or its messages stopped.
    until(2 * P + T + SLACK, "it asks the new master", || {
        matches!(mgr.try_lock("a"), Ok(None))
    });
    let fence = theirs.fence();
    theirs.unlock().unwrap();
    assert!(mgr.lock("a").unwrap().fence() > fence);
}

/// Keepers and others use the names all the time, while sentinels replace the master in good order.
#[test]
fn keepers_and_others_go_on_across_an_ordered_failover() {
    let set = SentinelSet::start();
    let keeper = || keeper_for(&set, SHORT_TTL);
    let managers = [keeper(), keeper(), manager(&set)];
    keep(&managers[0], "a");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = EndLoops(&over);
        let users: Vec<_> = managers
            .iter()
            .map(|mgr| {
                let over = &over;
                scope.spawn(move || {
                    let mut last = 0;
                    while !over.load(Ordering::Relaxed) {
                        for name in ["a", "b"] {
                            let Ok(guard) = mgr.lock(name) else { continue };
                            if name == "a" && guard.is_held() {
                                assert!(guard.fence() > last);
                                last = guard.fence();
                            }
                        }
                        // Time itself is under test: the work between two guards.
                        thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        set.calm();
        set.await_replication();
        let _: String =
            set.sentinels[0].query(&["SENTINEL", "FAILOVER", crate::sentinel_set::SERVICE]);
        set.await_other_master(&set.all(), &set.nodes[0]);
        for mgr in &managers {
            let granted = mgr.stats().granted();
            // A release may be lost. Then the new master names a holder that had released already, for
            // a TTL.
            until(SHORT_TTL + SOON, "each goes on", || {
                mgr.stats().granted() > granted + 10
            });
        }
        drop(end);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}
