//! No new connection can be had, while some are open: nothing that is held is lost, whatever the
//! topology. The tests of one server are in `it`.

use std::time::Duration;

use fairlock::{Builder, LockManager, LockOptions};

use crate::cluster_set::ClusterSet;
use crate::quorum::set::Set;
use crate::replica_acks::ReplicaSet;
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, Server, throughout, until, until_some};

const TTL: Duration = Duration::from_millis(6500);
const T: Duration = Duration::from_secs(1);
const H: Duration = Duration::from_millis(3500);
const P: Duration = Duration::from_millis(250);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

fn builder(url: String) -> Builder {
    LockManager::builder(url)
        .options(LockOptions::new().ttl(TTL))
        .connect_timeout(2 * T)
        .command_timeout(T)
        .check_period(P)
        .horizon(H)
}

/// The servers take no more clients from now on. Those that they have stay.
fn fill<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    for server in servers {
        let _: () = server.query(&["CONFIG", "SET", "maxclients", "1"]);
    }
}

/// The numbers of the connections that have this role.
fn connections(server: &Server, role: &str) -> Vec<String> {
    let role = format!(":{role} ");
    let clients = server.clients().into_iter();
    let number = |client: String| {
        let mut words = client.split(' ');
        words.find_map(|word| Some(word.strip_prefix("id=")?.to_owned()))
    };
    let clients = clients.filter(|client| client.contains(&role));
    clients.filter_map(number).collect()
}

fn kill(server: &Server, role: &str) {
    for number in connections(server, role) {
        let _: i64 = server.query(&["CLIENT", "KILL", "ID", &number]);
    }
}

fn has_owner(server: &Server, name: &str) -> bool {
    let owner: Option<String> = server.query(&["HGET", &format!("fairlock:{{{name}}}"), "o"]);
    owner.is_some_and(|owner| !owner.is_empty())
}

#[test]
fn each_full_master_of_a_cluster_keeps_its_locks() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let mgr = builder(set.url()).build().unwrap();
    let other = builder(set.url()).build().unwrap();
    let names: Vec<String> = (0..3).map(|master| set.name_on(master, 0)).collect();
    let theirs: Vec<String> = (0..3).map(|master| set.name_on(master, 1)).collect();
    let guards: Vec<_> = names.iter().map(|name| mgr.lock(name).unwrap()).collect();
    let taken: Vec<_> = theirs
        .iter()
        .map(|name| other.lock(name).unwrap())
        .collect();
    // Each lane is open.
    for name in &theirs {
        assert!(mgr.try_lock(name).unwrap().is_none());
    }
    fill(set.nodes());
    throughout(2 * TTL, "all are held", || {
        guards.iter().all(|g| g.is_held())
    });
    for (name, guard) in theirs.iter().zip(taken) {
        let waiter = mgr.enqueue(name).unwrap();
        guard.unlock().unwrap();
        waiter.wait().unwrap().unlock().unwrap();
    }
    drop(guards);
    until(SLACK, "all are released", || {
        names
            .iter()
            .zip(set.nodes())
            .all(|(name, node)| !has_owner(node, name))
    });
}

#[test]
fn renewals_in_a_cluster_survive_the_end_of_their_connections() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let mgr = builder(set.url()).build().unwrap();
    let names: Vec<String> = (0..3).map(|master| set.name_on(master, 0)).collect();
    let guards: Vec<_> = names.iter().map(|name| mgr.lock(name).unwrap()).collect();
    until(SOON, "renewals have connections", || {
        set.nodes()
            .iter()
            .all(|node| connections(node, "renewal").len() == 1)
    });
    fill(set.nodes());
    set.nodes().iter().for_each(|node| kill(node, "renewal"));
    throughout(2 * TTL, "all are held", || {
        guards.iter().all(|g| g.is_held())
    });
}

#[test]
fn full_master_of_a_service_keeps_its_locks() {
    let set = SentinelSet::start();
    let mgr = builder(set.url()).lanes(1).build().unwrap();
    let guard = mgr.lock("a").unwrap();
    let master = &set.nodes[0];
    fill([master]);
    throughout(2 * TTL, "it is held", || guard.is_held());
    let _: () = master.query(&["CONFIG", "SET", "maxclients", "100"]);
    until(SOON, "renewals have a connection", || {
        connections(master, "renewal").len() == 1
    });
    fill([master]);
    kill(master, "renewal");
    throughout(2 * TTL, "it is held again", || guard.is_held());
    drop(guard);
    until(SLACK, "it is released", || !has_owner(master, "a"));
}

#[test]
fn full_nodes_of_a_quorum_keep_its_locks() {
    let set = Set::start(3);
    let mgr = set
        .builder()
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T);
    let mgr = mgr.check_period(P).horizon(H).build().unwrap();
    let guard = mgr.lock("a").unwrap();
    fill(&set.servers);
    throughout(2 * TTL, "it is held", || guard.is_held());
    drop(guard);
    until(SLACK, "it is released", || {
        !set.servers.iter().any(|server| has_owner(server, "a"))
    });
}

/// Of one node the callers' connections are left, of another the renewal thread's, and none of the
/// third.
#[test]
fn quorum_is_kept_over_whatever_connections_its_nodes_have() {
    let set = Set::start(3);
    let mgr = set
        .builder()
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T);
    let mgr = mgr.check_period(P).horizon(H).build().unwrap();
    let guards = ["a", "b"].map(|name| mgr.lock(name).unwrap());
    until(SOON, "renewals have connections", || {
        let has = |server| connections(server, "renewal").len() == 1;
        set.servers.iter().all(has)
    });
    fill(&set.servers);
    kill(&set.servers[0], "renewal");
    kill(&set.servers[1], "lane");
    for role in ["renewal", "lane"] {
        kill(&set.servers[2], role);
    }
    throughout(2 * TTL, "both are held", || {
        guards.iter().all(|g| g.is_held())
    });
    let [dropped, unlocked] = guards;
    drop(dropped);
    unlocked.unlock().unwrap();
    until(SLACK + T, "both are released", || {
        let released = |server| !has_owner(server, "a") && !has_owner(server, "b");
        set.servers[..2].iter().all(released)
    });
}

#[test]
fn full_master_with_acknowledging_replicas_keeps_its_locks() {
    let set = ReplicaSet::start(1);
    let mgr = builder(set.url())
        .lanes(1)
        .replica_acks(1, T / 2)
        .build()
        .unwrap();
    // A replica of Valkey may take a second for its first acknowledgement.
    let acknowledged = || mgr.lock("a").ok();
    let guard = until_some(SOON, "the replica acknowledges", acknowledged);
    fill([&set.master]);
    throughout(2 * TTL, "it is held", || guard.is_held());
    kill(&set.master, "acks");
    // A caller needs acknowledgements as well.
    guard.renew().unwrap();
    mgr.lock("b").unwrap().unlock().unwrap();
    throughout(2 * TTL, "it is held without their connection", || {
        guard.is_held()
    });
    guard.unlock().unwrap();
}
