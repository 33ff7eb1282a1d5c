//! Passwords that are rotated while locks are held, on sets of servers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::{Credentials, CredentialsRequest, Endpoint, LockManager, LockOptions, Quorum};

use crate::cluster_set::ClusterSet;
use crate::quorum::set::Set;
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, Server, until};

const TTL: Duration = Duration::from_secs(5);

/// Holds a lock while the user of all these servers gets another password and loses its connections.
#[track_caller]
fn rotation_costs_no_lock(to: impl Into<Endpoint>, servers: &[&Server]) {
    let password = Arc::new(Mutex::new("one"));
    let rotate = |next: &'static str| {
        *password.lock().unwrap() = next;
        for server in servers {
            let secret = format!(">{next}");
            let user = ["ACL", "SETUSER", "u", "reset", "on", &secret];
            let _: () = server.query(&[&user[..], &["~*", "&*", "+@all"]].concat());
            let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
        }
    };
    rotate("one");
    let current = Arc::clone(&password);
    let mgr = LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .connect_timeout(Duration::from_secs(3))
        .uptime_check(false)
        .credentials(move |_: &CredentialsRequest| {
            Ok(Credentials::new("u", *current.lock().unwrap()))
        })
        .build()
        .unwrap();
    let held = mgr.lock("held").unwrap();
    rotate("two");
    let rotated = Instant::now();
    until(TTL + SLACK, "more than a ttl passes", || {
        assert!(held.is_held(), "{:?}", rotated.elapsed());
        rotated.elapsed() > TTL
    });
    mgr.lock("another").unwrap().unlock().unwrap();
    held.unlock().unwrap();
}

#[test]
fn rotated_password_costs_no_lock_on_a_quorum() {
    let set = Set::start(3);
    let urls = set.servers.iter().map(Server::url);
    let servers: Vec<&Server> = set.servers.iter().collect();
    rotation_costs_no_lock(Quorum::new(urls), &servers);
}

#[test]
fn rotated_password_costs_no_lock_in_a_cluster() {
    let set = ClusterSet::start();
    let servers: Vec<&Server> = set.nodes().iter().collect();
    rotation_costs_no_lock(set.url(), &servers);
}

#[test]
fn rotated_password_costs_no_lock_under_sentinels() {
    let set = SentinelSet::start();
    let servers: Vec<&Server> = set.nodes.iter().collect();
    rotation_costs_no_lock(set.url(), &servers);
}
