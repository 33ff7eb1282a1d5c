//! Servers with which no manager can be built.

use super::{Diagnosis, Level, diagnose_with};
use crate::look::{follow, keep_busy};
use crate::process::{exits, without_server};
use crate::sentinel_set::SentinelSet;
use crate::support::server::free_address;
use crate::support::{Proxy, Server};

/// The first finding says why. The code is that of no connection.
#[track_caller]
fn unusable(url: &str, text: &str) -> Diagnosis {
    let diagnosis = diagnose_with(url, &["--command-timeout", "2s"]);
    assert_eq!(diagnosis.code, Some(69), "{diagnosis:#?}");
    let first = &diagnosis.findings[0];
    assert_eq!((&*first.check, first.level), ("connection", Level::Error));
    assert!(first.says(text), "{text}: {diagnosis:#?}");
    diagnosis
}

/// Nothing more is found, and the remedy is not said twice.
#[track_caller]
fn assert_not_built(url: &str, message: &str, remedy: &str) {
    let diagnosis = unusable(url, message);
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:#?}");
    let first = &diagnosis.findings[0];
    let advises = |text: &str| text.contains("start ") || text.contains("use ");
    assert!(!advises(&first.message), "{diagnosis:#?}");
    let said = first.remedy.as_deref().unwrap_or_default();
    assert!(said.contains(remedy), "{diagnosis:#?}");
}

#[test]
fn server_that_cannot_be_used_exits_69_with_the_remedy() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let wrong = format!("redis://:wrong@{}/", server.addr());
    let dead = format!("redis://{}/", free_address());
    let cluster = dead.replace("redis:", "redis-cluster:");
    let sentinel = dead.replace("redis:", "redis-sentinel:") + "service";
    let start = "no Redis runs there: start";
    let plain = Server::tcp();
    #[cfg(feature = "tls")]
    let encrypted = plain.url().replace("redis:", "rediss:");
    for (url, message, remedy) in [
        (&*server.url(), "NOAUTH", "redis://:password@host"),
        (&wrong, "WRONGPASS", "correct the user and the password"),
        (&dead, "refused", start),
        (&cluster, "refused", start),
        (&sentinel, "no sentinel of", "no sentinel runs there: start"),
        ("redis://no-such-host.invalid/", "lookup", "redis-cli PING"),
        #[cfg(feature = "tls")]
        (&encrypted, "does not speak TLS", "or use redis://"),
    ] {
        assert_not_built(url, message, remedy);
    }
    plain.stop();
    assert_not_built(&plain.url(), "timed out", "the server hangs");
    plain.cont();
}

/// A script that runs on and on: nothing else is answered.
#[test]
fn busy_server_is_an_error_with_the_way_out() {
    let server = Server::tcp();
    let endless = keep_busy(&server);
    unusable(&server.url(), "SCRIPT KILL ends the script");
    server.query::<()>(&["SCRIPT", "KILL"]);
    endless.join().expect("the script has ended");
}

/// The checks of any server, master or not.
#[track_caller]
fn assert_examined(diagnosis: &Diagnosis, server: &Server) {
    let address = server.addr().to_string();
    for check in ["version", "role", "eviction", "memory", "clients"] {
        let servers = diagnosis.servers_of(check);
        assert!(servers.contains(&&*address), "{check}: {diagnosis:#?}");
    }
}

#[test]
fn replica_is_examined_as_far_as_it_answers() {
    let master = Server::tcp();
    let cache = ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"];
    let replica = Server::tcp_with(&cache);
    follow(&replica, &master);
    let diagnosis = unusable(&replica.url(), &format!("redis://{}", master.addr()));
    assert_examined(&diagnosis, &replica);
    let remedy = format!("use the master: redis://{}", master.addr());
    diagnosis.assert_finds("role", Level::Error, &remedy);
    diagnosis.assert_finds("eviction", Level::Error, "noeviction");
}

#[test]
fn sentinels_and_replicas_without_a_master_are_examined() {
    let mut set = SentinelSet::start();
    set.calm();
    set.await_replication();
    // One sentinel agrees on no failover.
    set.sentinels.truncate(1);
    let url = format!("redis-sentinel://{}/mymaster", set.sentinels[0].addr());
    let master = SentinelSet::named_by(&set.sentinels[0]).expect("it names one");
    set.nodes.retain(|node| node.addr() != master);
    let diagnosis = unusable(&url, "");
    diagnosis.assert_finds("sentinels", Level::Warning, "name all sentinels");
    for replica in &set.nodes {
        assert_examined(&diagnosis, replica);
    }
    let silent = diagnosis
        .of("connection")
        .filter(|one| one.level == Level::Error);
    let mut silent = silent.map(|one| one.server.as_deref());
    assert!(
        silent.any(|one| one == Some(&*master.to_string())),
        "{diagnosis:#?}"
    );
}

#[test]
fn node_without_slots_and_quorum_without_a_majority_are_examined() {
    let node = Server::tcp_with(&["--cluster-enabled", "yes"]);
    let url = format!("redis-cluster://{}/", node.addr());
    let server = Server::tcp();
    let dead = [(); 2].map(|()| format!("redis://{}/", free_address()));
    let quorum = format!("{} {}", server.url(), dead.join(" "));
    for (url, server, check, text) in [
        (url, node, "cluster", "16384 slots have no master"),
        (quorum, server, "majority", "no lock can be taken"),
    ] {
        let diagnosis = unusable(&url, "");
        assert_examined(&diagnosis, &server);
        diagnosis.assert_finds(check, Level::Error, text);
    }
}

#[test]
fn replica_in_a_quorum_is_named_and_examined() {
    let servers = [(); 3].map(|()| Server::tcp());
    follow(&servers[2], &servers[0]);
    let urls = servers.each_ref().map(Server::url).join(" ");
    let diagnosis = unusable(&urls, "is a replica");
    diagnosis.assert_finds("role", Level::Error, "use the master");
}

/// The library refuses that as wrong usage, before any server is examined.
#[test]
fn server_at_two_addresses_exits_64() {
    let servers = [(); 2].map(|()| Server::tcp());
    let proxy = Proxy::to(servers[0].addr());
    let urls = [servers[0].url(), servers[1].url(), proxy.url()].join(" ");
    let ended = exits(without_server(&["doctor", "--url", &urls]), 64);
    ended.says("the same server");
}
