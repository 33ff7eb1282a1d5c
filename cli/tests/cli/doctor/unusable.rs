//! Servers with which no manager can be built.

use super::*;
use crate::support::server::free_address;

/// The first finding says why. The code is that of no connection.
#[track_caller]
fn unusable(url: &str, text: &str) -> Diagnosis {
    let diagnosis = diagnose_with(url, "--command-timeout 2s");
    assert_eq!(diagnosis.code, Some(69), "{diagnosis:#?}");
    let first = &diagnosis.findings[0];
    assert_eq!((&*first.check, first.level), ("connection", Error));
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

fn dead() -> String {
    format!("redis://{}/", free_address())
}

#[test]
fn server_that_cannot_be_used_exits_69_with_the_remedy() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let wrong = format!("redis://:wrong@{}/", server.addr());
    let cluster = dead().replace("redis:", "redis-cluster:");
    let sentinel = dead().replace("redis:", "redis-sentinel:") + "service";
    let start = "no Redis runs there: start";
    let plain = Server::tcp();
    #[cfg(feature = "tls")]
    let encrypted = plain.url().replace("redis:", "rediss:");
    for (url, message, remedy) in [
        (&*server.url(), "NOAUTH", "redis://:password@host"),
        (&wrong, "WRONGPASS", "correct the user and the password"),
        (&dead(), "refused", start),
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
    // A script that runs on and on: nothing else is answered.
    keep_busy(&plain);
    unusable(&plain.url(), "SCRIPT KILL ends the script");
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
fn server_without_a_lock_is_examined_as_far_as_it_answers() {
    let master = Server::tcp();
    let cache = ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"];
    let replica = Server::tcp_with(&cache);
    follow(&replica, &master);
    let master_url = format!("redis://{}", master.addr());
    let remedy = format!("use the master: {master_url}");
    let node = Server::tcp_with(&["--cluster-enabled", "yes"]);
    let cluster = node.url().replace("redis:", "redis-cluster:");
    let minority = format!("{} {} {}", master.url(), dead(), dead());
    let third = Server::tcp();
    let mixed = format!("{} {} {}", master.url(), third.url(), replica.url());
    for (url, first, server, check, text) in [
        (replica.url(), &*master_url, &replica, "role", &*remedy),
        (replica.url(), "", &replica, "eviction", "noeviction"),
        (cluster, "", &node, "cluster", "16384 slots have no master"),
        (minority, "", &master, "majority", "no lock can be taken"),
        (mixed, "is a replica", &replica, "role", "use the master"),
    ] {
        let diagnosis = unusable(&url, first);
        assert_examined(&diagnosis, server);
        diagnosis.assert_finds(check, Error, text);
    }
}

#[test]
fn sentinels_and_replicas_without_a_master_are_examined() {
    let mut set = SentinelSet::start();
    set.calm();
    set.await_replication();
    // One sentinel agrees on no failover.
    set.sentinels.truncate(1);
    let master = SentinelSet::named_by(&set.sentinels[0]).expect("it names one");
    set.nodes.retain(|node| node.addr() != master);
    let diagnosis = unusable(&set.url(), "");
    diagnosis.assert_finds("sentinels", Warning, "name all sentinels");
    for replica in &set.nodes {
        assert_examined(&diagnosis, replica);
    }
    let mut silent = diagnosis.of("connection").filter(|one| one.level == Error);
    let master = master.to_string();
    let is_master = |one: &Finding| one.server.as_deref() == Some(&*master);
    assert!(silent.any(is_master), "{diagnosis:#?}");
}
