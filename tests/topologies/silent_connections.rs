//! Connections that die in silence, all at once, as when a router forgets them: no call fails for it,
//! whatever the topology. The test of one server is in `it`.

use std::time::Duration;

use fairlock::endpoint::Endpoint;

use crate::cluster_set::ClusterSet;
use crate::support::notes::left_out;
use crate::support::server::{free_address, is_redis_62};
use crate::support::{Proxy, Server, until};
use crate::verbs_once::{OF_MUTEXES, OF_QUEUES, builder, check};

const SERVICE: &str = "silent";
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn sentinels_and_their_master_may_be_forgotten_by_a_router() {
    let server = Server::tcp();
    let master = Proxy::to(server.addr());
    let config = format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds {SERVICE} 60000\n",
        master.addr().port()
    );
    let sentinel = Server::sentinel_at(free_address(), &config).expect("the port is free");
    let sentinels = Proxy::to(sentinel.addr());
    let service = Endpoint::sentinel(SERVICE, [("127.0.0.1", sentinels.addr().port())]);
    check(&builder(service), 4, &[OF_MUTEXES, OF_QUEUES], || {
        master.forget_connections();
        sentinels.forget_connections();
    });
}

#[test]
fn nodes_of_a_cluster_may_be_forgotten_by_a_router() {
    // So no proxy can stand before its nodes. The client is the same for all servers.
    if is_redis_62() {
        left_out("nodes tell no port that `CONFIG SET` changed");
        return;
    }
    let set = ClusterSet::start();
    let proxies: Vec<Proxy> = set
        .nodes()
        .iter()
        .map(|node| Proxy::to(node.addr()))
        .collect();
    for (node, proxy) in set.nodes().iter().zip(&proxies) {
        let port = proxy.addr().port().to_string();
        node.query::<()>(&["CONFIG", "SET", "cluster-announce-port", &port]);
    }
    until(SOON, "all nodes know the new ports", || {
        set.nodes().iter().all(|node| {
            let known: String = node.query(&["CLUSTER", "NODES"]);
            proxies
                .iter()
                .all(|proxy| known.contains(&format!(":{}@", proxy.addr().port())))
        })
    });
    let url = format!("redis-cluster://{}", proxies[0].addr());
    check(&builder(url), 6, &[OF_MUTEXES, OF_QUEUES], || {
        proxies.iter().for_each(Proxy::forget_connections);
    });
}

#[test]
fn nodes_of_a_quorum_may_be_forgotten_by_a_router() {
    for death in [
        Proxy::forget_connections as fn(&Proxy),
        Proxy::forget_replies,
    ] {
        let servers: Vec<Server> = (0..3).map(|_| Server::tcp()).collect();
        let proxies: Vec<Proxy> = servers
            .iter()
            .map(|server| Proxy::to(server.addr()))
            .collect();
        let quorum = Endpoint::quorum(proxies.iter().map(Proxy::url));
        // The servers have just started.
        let builder = builder(quorum).uptime_check(false);
        // The lanes of callers and those of the renewal thread.
        check(&builder, 9, &[OF_MUTEXES], || {
            proxies.iter().for_each(death);
        });
    }
}

#[test]
fn master_with_acknowledging_replicas_may_be_forgotten_by_a_router() {
    let server = Server::tcp_with(&["--repl-diskless-sync-delay", "0"]);
    let port = server.addr().port().to_string();
    let replica = Server::tcp_with(&["--replicaof", "127.0.0.1", &port]);
    until(SOON, "the replica is online", || {
        let info: String = replica.query(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    });
    let proxy = Proxy::to(server.addr());
    let builder = builder(proxy.url()).replica_acks(1, Duration::from_millis(1500));
    check(&builder, 6, &[OF_MUTEXES, OF_QUEUES], || {
        proxy.forget_connections();
    });
}
