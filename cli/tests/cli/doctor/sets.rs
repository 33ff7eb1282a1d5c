//! Sentinel, Cluster and a quorum.

use std::thread;

use super::diagnosis::{Level, SOON, diagnose, diagnose_with};
use crate::cluster_set::ClusterSet;
use crate::process::{end, without_server};
use crate::sentinel_set::{SentinelSet, SentinelSetup};
use crate::support::{Proxy, Server, Shifted, until};

/// Settings of which no check complains.
const GOOD: [&str; 4] = [
    "--appendonly",
    "yes",
    "--cluster-require-full-coverage",
    "no",
];

/// A master that is cut off from its replicas grants nothing then.
fn bound(nodes: &[Server]) {
    for node in nodes {
        node.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
}

fn sentinels(args: &[&str]) -> SentinelSet {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: args,
        sentinel_lines: &[],
    });
    set.calm();
    // A replica may have the data a moment before its master calls it in sync.
    until(SOON, "the replicas are in sync", || {
        let info: String = set.nodes[0].query(&["INFO", "replication"]);
        info.matches("state=online").count() == 2
    });
    set
}

fn set_down_after(sentinel: &Server, ms: &str) {
    sentinel.query::<()>(&["SENTINEL", "SET", "mymaster", "down-after-milliseconds", ms]);
}

#[test]
fn good_sentinel_set_has_no_complaint() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("sentinels", Level::Ok, "3 of 3 name");
    diagnosis.assert_finds("sentinels", Level::Ok, "2 other sentinels and 2 replicas");
    diagnosis.assert_finds("clocks", Level::Ok, "does no harm");
    diagnosis.assert_finds("replicas", Level::Ok, "2 in sync");
    // The replicas are examined, too, and the master first.
    let roles = diagnosis.servers_of("role");
    assert_eq!(roles.len(), 3, "{diagnosis:#?}");
    assert_eq!(roles[0], set.nodes[0].addr().to_string());
    diagnosis.assert_finds("role", Level::Ok, "a replica in sync");
}

#[test]
fn stopped_sentinel_or_replica_is_a_warning_of_its_own() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let url = set.url();
    let (sentinel, replica) = (&set.sentinels[1], &set.nodes[2]);
    sentinel.stop();
    let diagnosis = diagnose(&url);
    assert_eq!(
        diagnosis.complaints_of(sentinel),
        ["sentinels"],
        "{diagnosis:#?}"
    );
    diagnosis.assert_finds("sentinels", Level::Warning, "the server hangs");
    sentinel.cont();
    replica.stop();
    let diagnosis = diagnose(&url);
    replica.cont();
    assert_eq!(
        diagnosis.complaints_of(replica),
        ["connection"],
        "{diagnosis:#?}"
    );
    diagnosis.assert_finds("connection", Level::Warning, "the server hangs");
    diagnosis.assert_finds("messages", Level::Ok, "arrived");
}

#[test]
fn sentinel_that_a_manager_may_not_ask_is_an_error() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let url = set.url();
    let refusing = &set.sentinels[1];
    // 6.2 can only add rights for parts of a command.
    refusing.query::<()>(&[
        "ACL",
        "SETUSER",
        "default",
        "-sentinel",
        "+sentinel|get-master-addr-by-name",
    ]);
    let diagnosis = diagnose(&url);
    assert_eq!(
        diagnosis.complaints_of(refusing),
        ["sentinels"],
        "{diagnosis:#?}"
    );
    let rule = "ACL SETUSER default +sentinel|get-master-addr-by-name +sentinel|master";
    diagnosis.assert_finds("sentinels", Level::Error, rule);
    // The remedy, without the words that say where.
    let words: Vec<&str> = rule.split(' ').collect();
    refusing.query::<()>(&words);
    diagnose(&url).assert_no_complaint();
}

#[test]
fn sentinels_that_cannot_agree_are_an_error() {
    let set = sentinels(&[]);
    let url = set.url();
    set.sentinels[1].kill();
    set.sentinels[2].kill();
    until(SOON, "the last sentinel knows that it is alone", || {
        let agreed = set.sentinels[0].try_query::<String>(&["SENTINEL", "CKQUORUM", "mymaster"]);
        agreed.is_err()
    });
    let diagnosis = diagnose(&url);
    diagnosis.assert_finds("sentinels", Level::Error, "cannot agree on a failover");
}

#[test]
fn settings_of_a_sentinel_set_are_compared_with_the_numbers_of_locks() {
    let set = sentinels(&[]);
    let patient = ["--command-timeout", "5s", "--ttl", "40s"];
    let diagnosis = diagnose_with(&set.url(), &patient);
    let remedy = "down-after-milliseconds 10000";
    diagnosis.assert_finds("sentinels", Level::Warning, remedy);
    let remedy = "CONFIG SET min-replicas-to-write 1";
    diagnosis.assert_finds("replicas", Level::Warning, remedy);
    set_down_after(&set.sentinels[0], "30000");
    let one = format!("redis-sentinel://{}/mymaster", set.sentinels[0].addr());
    let diagnosis = diagnose(&one);
    diagnosis.assert_finds("sentinels", Level::Warning, "a ttl of 90s");
    diagnosis.assert_finds("sentinels", Level::Warning, "names one sentinel");
}

#[test]
fn good_cluster_has_no_complaint() {
    let set = ClusterSet::start_with(3, 1, &GOOD);
    bound(set.nodes());
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_no_complaint();
    assert_eq!(diagnosis.servers_of("role").len(), 6, "{diagnosis:#?}");
    for check in ["rights", "scripts", "messages", "cluster"] {
        assert_eq!(
            diagnosis.servers_of(check).len(),
            3,
            "{check}: {diagnosis:#?}"
        );
    }
    diagnosis.assert_finds("cluster", Level::Ok, "6 nodes known");
}

#[test]
fn each_master_of_a_cluster_is_checked_by_its_own_settings() {
    let set = ClusterSet::start_with(3, 0, &["--appendonly", "yes"]);
    let url = set.url();
    let second = set.node(1);
    for node in [set.node(0), set.node(2)] {
        node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    second.query::<()>(&["ACL", "SETUSER", "default", "-hdel"]);
    let diagnosis = diagnose(&url);
    let wrong = ["replicas", "cluster", "rights"];
    assert_eq!(diagnosis.complaints_of(second), wrong, "{diagnosis:#?}");
    assert_eq!(
        diagnosis.complaints_of(set.node(0)),
        ["replicas"],
        "{diagnosis:#?}"
    );
    let remedy = "CONFIG SET cluster-require-full-coverage no";
    diagnosis.assert_finds("cluster", Level::Warning, remedy);
    diagnosis.assert_finds("rights", Level::Error, "ACL SETUSER default +hdel");
}

#[test]
fn stopped_master_of_a_cluster_delays_no_other_finding() {
    let set = ClusterSet::start_with(3, 0, &GOOD);
    let url = set.url();
    let stopped = set.node(1);
    stopped.stop();
    until(SOON, "the others call it down", || {
        let nodes: String = set.node(0).query(&["CLUSTER", "NODES"]);
        nodes.contains("fail ")
    });
    let diagnosis = diagnose(&url);
    stopped.cont();
    assert_eq!(
        diagnosis.complaints_of(stopped),
        ["connection"],
        "{diagnosis:#?}"
    );
    diagnosis.assert_finds("connection", Level::Error, "the server hangs");
    for node in [set.node(0), set.node(2)] {
        let bad = diagnosis.complaints_of(node);
        assert_eq!(bad.first(), Some(&"replicas"), "{diagnosis:#?}");
        assert!(
            bad[1..].iter().all(|check| *check == "cluster"),
            "{diagnosis:#?}"
        );
    }
    diagnosis.assert_finds("cluster", Level::Error, "slots is down");
    // The listener of a message was the stopped master.
    assert_eq!(diagnosis.servers_of("messages").len(), 2);
    diagnosis.assert_finds("messages", Level::Ok, "arrived");
}

#[test]
fn message_of_a_master_is_awaited_at_the_next_one() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let url = set.url();
    set.node(0)
        .query::<()>(&["ACL", "SETUSER", "default", "-subscribe"]);
    let diagnosis = diagnose(&url);
    let found = diagnosis.of("messages");
    let bad: Vec<_> = found
        .iter()
        .filter(|finding| finding.level == Level::Error)
        .collect();
    assert_eq!(bad.len(), 1, "{diagnosis:#?}");
    assert_ne!(
        bad[0].server,
        Some(set.node(0).addr().to_string()),
        "{diagnosis:#?}"
    );
}

/// The servers at these addresses as a quorum.
fn quorum(servers: &[Server]) -> String {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    urls.join(" ")
}

#[test]
fn servers_of_a_quorum_that_are_away_are_counted() {
    let always = ["--appendonly", "yes", "--appendfsync", "always"];
    let starting = [(); 3].map(|()| thread::spawn(move || Server::start_with(&always)));
    let servers = starting.map(|server| server.join().expect("it starts"));
    // A server that has run for less than a ttl has no vote.
    until(SOON, "all have a vote", || {
        let is_young = |server: &Server| {
            let info: String = server.query(&["INFO", "server"]);
            let mut ages = (0..10).map(|age| format!("uptime_in_seconds:{age}\r"));
            ages.any(|young| info.contains(&young))
        };
        !servers.iter().any(is_young)
    });
    let url = quorum(&servers);
    let diagnosis = diagnose(&url);
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("majority", Level::Ok, "3 of 3");
    diagnosis.assert_finds("persistence", Level::Ok, "no vote for one ttl");
    assert_eq!(diagnosis.servers_of("rights").len(), 3);
    assert_eq!(
        diagnosis.servers_of("messages").len(),
        0,
        "nobody waits for one"
    );
    servers[0].stop();
    let diagnosis = diagnose(&url);
    diagnosis.assert_finds("majority", Level::Warning, "2 of 3");
    let bad = diagnosis.complaints();
    assert!(
        bad.iter().all(|finding| finding.level == Level::Warning),
        "{diagnosis:#?}"
    );
    servers[1].kill();
    let diagnosis = diagnose(&url);
    diagnosis.assert_finds("majority", Level::Error, "no lock can be taken");
    diagnosis.assert_finds("connection", Level::Error, "nothing listens there");
    servers[0].cont();
}

#[test]
fn young_servers_of_a_quorum_have_no_vote() {
    let servers = [(); 3].map(|()| Server::start());
    let diagnosis = diagnose_with(&quorum(&servers), &["--ttl", "3600s"]);
    diagnosis.assert_finds("majority", Level::Error, "has no vote yet");
    diagnosis.assert_finds("persistence", Level::Ok, "no vote for one ttl");
}

/// The library refuses that as wrong usage, before any server is examined.
#[test]
fn server_at_two_addresses_exits_64() {
    let servers = [(); 2].map(|()| Server::tcp());
    let proxy = Proxy::to(servers[0].addr());
    let url = format!("{} {}", quorum(&servers), proxy.url());
    let ended = end(&mut without_server(&["doctor", "--url", &url]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("the same server"), "{ended:?}");
}

#[test]
fn replica_in_a_quorum_is_named_and_examined() {
    let servers = [(); 3].map(|()| Server::tcp());
    let master = servers[0].addr();
    let (host, port) = (master.ip().to_string(), master.port().to_string());
    servers[2].query::<()>(&["REPLICAOF", &host, &port]);
    let diagnosis = diagnose(&quorum(&servers));
    assert_eq!(diagnosis.code, Some(69), "{diagnosis:#?}");
    diagnosis.assert_finds("connection", Level::Error, "is a replica");
    let of_replica = diagnosis.complaints_of(&servers[2]);
    assert!(of_replica.contains(&"role"), "{diagnosis:#?}");
}

#[test]
fn clocks_that_differ_are_found() {
    let servers = [(); 3].map(|()| Shifted::start());
    let urls: Vec<String> = servers.iter().map(|shifted| shifted.server.url()).collect();
    // The ttl is 8 s.
    for (seconds, level) in [(6, Level::Warning), (12, Level::Error)] {
        servers[1].step_to(seconds * 1_000_000);
        let diagnosis = diagnose(&urls.join(" "));
        diagnosis.assert_finds("clocks", level, "NTP");
        diagnosis.assert_finds("clock", Level::Ok, &format!("{seconds}.0s ahead of"));
    }
}
