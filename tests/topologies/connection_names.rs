//! The names of connections to sets of servers.

use std::process;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, endpoint::Endpoint};

use crate::cluster_set::ClusterSet;
use crate::sentinel_set::SentinelSet;
use crate::support::{Server, until};

const SOON: Duration = Duration::from_secs(30);

fn options() -> LockOptions {
    LockOptions::new()
        .ttl(Duration::from_secs(60))
        .label("billing")
}

fn manager(to: impl Into<fairlock::endpoint::Endpoint>) -> LockManager {
    let builder = LockManager::builder(to)
        .options(options())
        .command_timeout(Duration::from_secs(5))
        .horizon(Duration::from_secs(20));
    builder.build().expect("the servers answer")
}

/// Waits until a server shows a connection for this, from a manager with the label `billing`.
#[track_caller]
pub(crate) fn await_role(server: &Server, role: &str) {
    let name = format!(" name=fairlock:billing:{}:{role} ", process::id());
    until(SOON, role, || {
        let clients = server.clients();
        clients.iter().any(|line| line.contains(&name))
    });
}

/// HELLO comes before the question, and a sentinel knows it.
#[test]
fn master_and_sentinels_show_each_connection() {
    let set = SentinelSet::start();
    let mgr = manager(set.url());
    for sentinel in &set.sentinels {
        await_role(sentinel, "resolver");
    }
    let _guard = mgr.lock("a").expect("it is free");
    let _waiter = mgr.enqueue("a").expect("the master answers");
    for role in ["lane", "renewal", "subscription"] {
        await_role(&set.nodes[0], role);
    }
}

#[test]
fn masters_of_a_cluster_show_each_connection() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let mgr = manager(set.url());
    let names = [0, 1, 2].map(|master| set.name_on(master, 0));
    let _guards = names
        .clone()
        .map(|name| mgr.lock(name).expect("it is free"));
    let _waiters = names.map(|name| mgr.enqueue(name).expect("the master answers"));
    for node in set.nodes() {
        await_role(node, "lane");
        await_role(node, "renewal");
    }
    until(SOON, "one master carries the subscription", || {
        let has_it = |node: &&Server| {
            let clients = node.clients();
            clients.iter().any(|line| line.contains(":subscription "))
        };
        set.nodes().iter().filter(has_it).count() == 1
    });
}

#[test]
fn nodes_of_a_quorum_show_each_connection() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let quorum = Endpoint::quorum(servers.iter().map(Server::url));
    let builder = LockManager::builder(quorum)
        .options(options().ttl(Duration::from_secs(3)))
        .connect_timeout(Duration::from_secs(3))
        .uptime_check(false);
    let mgr = builder.build().expect("all nodes answer");
    // The renewal thread connects when the first renewal is due.
    let _guard = mgr.lock("a").expect("it is free");
    for server in &servers {
        await_role(server, "lane");
        await_role(server, "renewal");
    }
}
