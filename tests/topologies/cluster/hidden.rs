//! A cluster behind a proxy that hides it. The server says that it belongs to none, and refuses keys
//! of several slots in one command.

use std::time::Duration;

use fairlock::{LockGuard, LockManager, LockOptions};

use crate::cluster_set::ClusterSet;
use crate::support::{Proxy, Server, until};

const TTL: Duration = Duration::from_secs(6);
/// So many that one call does not renew them all.
const LOCKS: u64 = 70;

/// How often the server has refused keys of several slots.
fn refused(server: &Server) -> u64 {
    let info: String = server.query(&["INFO", "errorstats"]);
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

#[test]
fn a_connection_is_refused_keys_of_several_slots_once() {
    let set = ClusterSet::start_with(1, 0, &[]);
    let server = set.node(0);
    let proxy = Proxy::to(server.addr());
    proxy.replace_in_replies("$7\r\ncluster\r\n", "$10\r\nstandalone\r\n");
    let options = LockOptions::new().ttl(TTL);
    let builder = LockManager::builder(proxy.url()).options(options);
    let manager = builder.build().expect("the server says it is alone");
    let guards: Vec<LockGuard> = (0..LOCKS)
        .map(|number| manager.lock(format!("name-{number}")).expect("it is free"))
        .collect();
    let renewed_by = |rounds: u64| {
        until(3 * TTL, "all are renewed", || {
            manager.stats().renewed >= rounds * LOCKS
        });
    };
    renewed_by(1);
    let first = refused(server);
    assert!(first > 0, "renewals were sent together");
    renewed_by(4);
    assert_eq!(refused(server), first);
    assert!(guards.iter().all(LockGuard::is_held));
    assert_eq!(manager.stats().renewal_failures, 0);
}
