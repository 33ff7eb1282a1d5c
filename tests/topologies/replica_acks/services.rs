//! Sentinel and Cluster: a lock that replicas have acknowledged is there after the failover.

use std::time::Duration;

use fairlock::{Builder, Endpoint, Error, LockGuard, LockManager, LockOptions};

use super::{SOON, assert_not_replicated, build};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet, SentinelSetup};
use crate::support::{Server, until, until_some};

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
        Err(Error::NotReplicated { .. }) => None,
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
    for guard in &kept {
        let seen = until_some(SOON, "the new master answers", || {
            other.inspect(guard.name()).ok()
        });
        assert_eq!(seen.map(|seen| seen.fence), Some(guard.fence()));
        assert!(guard.is_held(), "{} was lost", guard.name());
        assert!(other.try_lock(guard.name()).unwrap().is_none());
    }
    for guard in &overtaken {
        let lost = until_some(SOON, "the new master answers", || match guard.renew() {
            Err(Error::Lost { .. }) => Some(true),
            Ok(()) => Some(false),
            Err(_) => None,
        });
        assert!(lost, "{} survived", guard.name());
    }
    // One replica is left, until the old master returns as the other.
    master.restart();
    until(FAILOVER_WITHIN, "both replicas acknowledge", || {
        kept[0].renew().is_ok()
    });
}
