//! Sentinel and Cluster: a lock that replicas have acknowledged is there after the failover.

use std::time::Duration;

use fairlock::{
    Builder, Error, LockGuard, LockManager, LockOptions, LossReason, Step, endpoint::Endpoint,
};

use super::{SOON, assert_not_replicated, build};
use crate::cluster_set::ClusterSet;
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet, SentinelSetup};
use crate::support::{SLACK, Server, until, until_some};

const ACK: Duration = Duration::from_millis(300);

/// Leases that outlast a failover.
fn builder(to: impl Into<Endpoint>) -> Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(Duration::from_secs(60)))
        .command_timeout(Duration::from_millis(600))
        .check_period(Duration::from_millis(500))
        .outage_limit(FAILOVER_WITHIN)
}

/// A lock that all replicas acknowledge, however late on a loaded machine.
fn lock_acked(manager: &LockManager, name: &str) -> LockGuard {
    until_some(SOON, "acknowledgements come", || match manager.lock(name) {
        Ok(guard) => Some(guard),
        Err(Error::Unavailable {
            step: Step::Replicas,
            ..
        }) => None,
        Err(other) => panic!("{other}"),
    })
}

/// The replicas log in as this user, so that a test can keep them away.
const REPLICA_USER: [&str; 11] = [
    "--user",
    "replica",
    "on",
    ">pw",
    "+psync",
    "+replconf",
    "+ping",
    "--masteruser",
    "replica",
    "--masterauth",
    "pw",
];

/// From now on no replica of this master receives anything. Clients and sentinels do not notice.
fn cut_off_replicas(master: &Server) {
    master.query::<()>(&["ACL", "SETUSER", "replica", "off"]);
    master.query::<u64>(&["CLIENT", "KILL", "TYPE", "replica"]);
    until(SOON, "no replica is there", || {
        let info: String = master.query(&["INFO", "replication"]);
        info.contains("connected_slaves:0")
    });
}

/// The new master knows these locks, and nobody else can take them.
#[track_caller]
fn assert_kept(kept: &[LockGuard], other: &LockManager) {
    for guard in kept {
        let seen = until_some(FAILOVER_WITHIN, "the new master answers", || {
            other.inspect(guard.name()).ok()
        });
        assert_eq!(seen.map(|seen| seen.fence), Some(guard.fence()));
        assert!(guard.is_held(), "{} was lost", guard.name());
        assert!(other.try_lock(guard.name()).unwrap().is_none());
    }
}

/// The new master does not know these locks.
#[track_caller]
fn assert_lost(overtaken: &[LockGuard]) {
    for guard in overtaken {
        let lost = until_some(FAILOVER_WITHIN, "the new master answers", || {
            match guard.renew() {
                Err(Error::Lost { .. }) => Some(true),
                Ok(()) => Some(false),
                Err(_) => None,
            }
        });
        assert!(lost, "{} survived", guard.name());
    }
}

#[test]
fn r18_sentinel_promotes_a_replica_with_all_acknowledged_locks() {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: &REPLICA_USER,
        ..SentinelSetup::default()
    });
    let master = &set.nodes[0];
    let safe = build(builder(set.url()).replica_acks(2, ACK));
    let other = build(builder(set.url()));
    let kept: Vec<_> = (0..10)
        .map(|i| lock_acked(&safe, &format!("kept{i}")))
        .collect();
    cut_off_replicas(master);
    assert_not_replicated(safe.try_lock("late"), "late", 2, 0);
    let overtaken: Vec<_> = (0..10)
        .map(|i| other.lock(format!("overtaken{i}")).unwrap())
        .collect();
    master.kill();
    let sentinels: Vec<&Server> = set.sentinels.iter().collect();
    set.await_other_master(&sentinels, master);
    assert_kept(&kept, &other);
    assert_lost(&overtaken);
}

#[test]
fn r18_a_clusters_replica_takes_over_with_all_acknowledged_locks() {
    let set = ClusterSet::start_with(3, 1, &REPLICA_USER);
    let safe = build(builder(set.url()).replica_acks(1, ACK));
    let other = build(builder(set.url()));
    let kept: Vec<_> = (0..10)
        .map(|n| lock_acked(&safe, &set.name_on(0, n)))
        .collect();
    cut_off_replicas(set.node(0));
    let late = set.name_on(0, 10);
    assert_not_replicated(safe.try_lock(&late), &late, 1, 0);
    // The replicas of the other masters acknowledge, as before.
    let elsewhere = lock_acked(&safe, &set.name_on(1, 0));
    let overtaken: Vec<_> = (20..30)
        .map(|n| other.lock(set.name_on(0, n)).unwrap())
        .collect();
    set.node(0).kill();
    assert_kept(&kept, &other);
    assert_lost(&overtaken);
    elsewhere.renew().unwrap();
}

#[test]
fn r18_a_master_without_replicas_delays_no_renewal_of_others() {
    let set = ClusterSet::start();
    let ttl = Duration::from_millis(3_700);
    let manager = build(
        builder(set.url())
            .options(LockOptions::new().ttl(ttl))
            .check_period(Duration::from_millis(250))
            .horizon(Duration::from_millis(2_050))
            .replica_acks(1, ACK),
    );
    let names = [set.name_on(0, 0), set.name_on(1, 0), set.name_on(2, 0)];
    let all = until_some(SOON, "acknowledgements come", || {
        manager.lock_all(&names).ok()
    });
    drop(all);
    let guards: Vec<_> = names
        .iter()
        .map(|name| lock_acked(&manager, name))
        .collect();
    until(SOON, "renewals count", || {
        manager.stats().renewals_confirmed >= 3
    });
    // The replica of the first master.
    set.node(3).stop();
    let loss = guards[0].lost().recv_timeout(ttl + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(guards[1].is_held() && guards[2].is_held());
    assert_not_replicated(manager.lock(&names[0]), &names[0], 1, 0);
}

#[test]
fn r18_acknowledged_locks_move_with_their_slot() {
    let set = ClusterSet::start();
    let manager = build(builder(set.url()).replica_acks(1, ACK));
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let guard = lock_acked(&manager, &name);
    for to in [1, 0] {
        set.begin_migration(slot, to);
        until(SOON, "it is renewed in between", || guard.renew().is_ok());
        set.move_keys(slot, 1 - to, to);
        until(SOON, "it is renewed behind ASK", || guard.renew().is_ok());
        set.end_migration(slot, to);
        until(SOON, "it is renewed at the new owner", || {
            guard.renew().is_ok()
        });
    }
    guard.unlock().unwrap();
    drop(lock_acked(&manager, &name));
}
