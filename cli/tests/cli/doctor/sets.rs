//! Sentinel, Cluster and a quorum.

use std::thread;

use super::Level::{Error, Ok, Warning};
use super::{GOOD, SOON, await_info, diagnose, diagnose_by, diagnose_with};
use crate::cluster_set::ClusterSet;
use crate::process::without_server;
use crate::sentinel_set::{SentinelSet, SentinelSetup};
use crate::support::{Server, Shifted, until};

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
    await_info(&set.nodes[0], "state=online", 2);
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
    diagnosis.assert_finds("sentinels", Ok, "named by 3 sentinels");
    diagnosis.assert_finds("sentinels", Ok, "2 other sentinels and 2 replicas");
    diagnosis.assert_finds("clocks", Ok, "does no harm");
    diagnosis.assert_finds("replicas", Ok, "2 in sync");
    // The replicas are examined, too, and the master first.
    let roles = diagnosis.servers_of("role");
    assert_eq!(roles.len(), 3, "{diagnosis:#?}");
    assert_eq!(roles[0], set.nodes[0].addr().to_string());
}

#[test]
fn stopped_sentinel_or_replica_is_a_warning_of_its_own() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    for (stopped, check) in [
        (&set.sentinels[1], "sentinels"),
        (&set.nodes[2], "connection"),
    ] {
        stopped.stop();
        let diagnosis = diagnose(&set.url());
        stopped.cont();
        assert_eq!(diagnosis.code, Some(0), "{diagnosis:#?}");
        assert_eq!(diagnosis.complaints_of(stopped), [check], "{diagnosis:#?}");
        diagnosis.assert_finds(check, Warning, "the server hangs");
        diagnosis.assert_finds("messages", Ok, "");
    }
}

#[test]
fn sentinel_that_a_manager_may_not_ask_is_an_error() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let refusing = &set.sentinels[1];
    // 6.2 can only add rights for parts of a command.
    let rules = ["-sentinel", "+sentinel|get-master-addr-by-name"];
    refusing.query::<()>(&[&["ACL", "SETUSER", "default"], &rules[..]].concat());
    let diagnosis = diagnose(&set.url());
    let complaints = diagnosis.complaints_of(refusing);
    assert_eq!(complaints, ["sentinels"], "{diagnosis:#?}");
    let rule = "ACL SETUSER default +sentinel|get-master-addr-by-name +sentinel|master";
    diagnosis.assert_finds("sentinels", Error, rule);
    // The remedy, without the words that say where.
    refusing.query::<()>(&rule.split(' ').collect::<Vec<_>>());
    diagnose(&set.url()).assert_no_complaint();
}

#[test]
fn sentinels_that_cannot_agree_are_an_error() {
    let set = sentinels(&[]);
    set.sentinels[1].kill();
    set.sentinels[2].kill();
    until(SOON, "the last sentinel knows that it is alone", || {
        let agreed = set.sentinels[0].try_query::<String>(&["SENTINEL", "CKQUORUM", "mymaster"]);
        agreed.is_err()
    });
    diagnose(&set.url()).assert_finds("sentinels", Error, "cannot agree on a failover");
}

#[test]
fn settings_of_a_sentinel_set_are_compared_with_the_numbers_of_locks() {
    let set = sentinels(&[]);
    let patient = ["--command-timeout", "5s", "--ttl", "40s"];
    let diagnosis = diagnose_with(&set.url(), &patient);
    diagnosis.assert_finds("sentinels", Warning, "a slow master is replaced");
    let remedy = "CONFIG SET min-replicas-to-write 1";
    diagnosis.assert_finds("replicas", Warning, remedy);
    set_down_after(&set.sentinels[0], "30000");
    let one = format!("redis-sentinel://{}/mymaster", set.sentinels[0].addr());
    let diagnosis = diagnose(&one);
    diagnosis.assert_finds("sentinels", Warning, "half of the ttl");
    diagnosis.assert_finds("sentinels", Warning, "names one sentinel");
}

#[test]
fn good_cluster_has_no_complaint() {
    let set = ClusterSet::start_with(3, 1, &GOOD);
    bound(set.nodes());
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("cluster", Ok, "6 nodes known");
    assert_eq!(diagnosis.servers_of("role").len(), 6, "{diagnosis:#?}");
    for check in ["rights", "scripts", "messages", "cluster"] {
        let servers = diagnosis.servers_of(check);
        assert_eq!(servers.len(), 3, "{check}: {diagnosis:#?}");
    }
    for node in set.nodes() {
        assert_eq!(node.query::<usize>(&["DBSIZE"]), 0);
    }
}

#[test]
fn each_master_of_a_cluster_is_checked_by_its_own_settings() {
    let set = ClusterSet::start_with(3, 0, &["--appendonly", "yes"]);
    let second = set.node(1);
    for node in [set.node(0), set.node(2)] {
        node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    second.query::<()>(&["ACL", "SETUSER", "default", "-hdel"]);
    let diagnosis = diagnose(&set.url());
    let wrong = ["replicas", "cluster", "rights", "scripts"];
    assert_eq!(diagnosis.complaints_of(second), wrong, "{diagnosis:#?}");
    let of_first = diagnosis.complaints_of(set.node(0));
    assert_eq!(of_first, ["replicas"], "{diagnosis:#?}");
    let remedy = "CONFIG SET cluster-require-full-coverage no";
    diagnosis.assert_finds("cluster", Warning, remedy);
    diagnosis.assert_finds("rights", Error, "ACL SETUSER default +hdel");
}

#[test]
fn stopped_master_of_a_cluster_delays_no_other_finding() {
    let set = ClusterSet::start_with(3, 0, &GOOD);
    let stopped = set.node(1);
    stopped.stop();
    until(SOON, "the others call it down", || {
        let nodes: String = set.node(0).query(&["CLUSTER", "NODES"]);
        nodes.contains("fail ")
    });
    let diagnosis = diagnose(&set.url());
    stopped.cont();
    assert_eq!(diagnosis.code, Some(1), "{diagnosis:#?}");
    let complaints = diagnosis.complaints_of(stopped);
    assert_eq!(complaints, ["connection"], "{diagnosis:#?}");
    diagnosis.assert_finds("connection", Error, "the server hangs");
    for node in [set.node(0), set.node(2)] {
        let bad = diagnosis.complaints_of(node);
        let expected = ["replicas", "cluster", "cluster"];
        assert_eq!(bad, expected, "{diagnosis:#?}");
    }
    diagnosis.assert_finds("cluster", Error, "5461 slots have no master");
    assert_eq!(diagnosis.servers_of("messages").len(), 2);
    diagnosis.assert_finds("messages", Ok, "");
}

#[test]
fn master_that_refuses_to_subscribe_is_named() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let refusing = set.node(0);
    refusing.query::<()>(&["ACL", "SETUSER", "default", "-subscribe"]);
    let diagnosis = diagnose(&set.url());
    let complaints = diagnosis.complaints_of(refusing);
    assert!(complaints.contains(&"rights"), "{diagnosis:#?}");
    diagnosis.assert_finds("rights", Error, "+subscribe");
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
    diagnosis.assert_finds("majority", Ok, "3 of 3");
    assert_eq!(diagnosis.servers_of("rights").len(), 3);
    let messages = diagnosis.servers_of("messages");
    assert_eq!(messages.len(), 0, "nobody waits for one");
    for server in &servers {
        assert_eq!(server.query::<usize>(&["DBSIZE"]), 0);
    }
    servers[2].query::<()>(&["ACL", "SETUSER", "default", "-hdel", "-hgetall"]);
    let diagnosis = diagnose(&url);
    let remedy = diagnosis.complaints()[0].remedy.as_deref();
    assert_eq!(remedy, Some("ACL SETUSER default +hdel"), "{diagnosis:#?}");
    servers[2].query::<()>(&["ACL", "SETUSER", "default", "+hdel"]);
    servers[0].stop();
    let diagnosis = diagnose(&url);
    assert_eq!(diagnosis.code, Some(0), "{diagnosis:#?}");
    diagnosis.assert_finds("majority", Warning, "2 of 3");
    servers[1].kill();
    let diagnosis = diagnose(&url);
    diagnosis.assert_finds("majority", Error, "no lock can be taken");
    diagnosis.assert_finds("connection", Error, "nothing listens there");
    servers[0].cont();
}

#[test]
fn young_servers_of_a_quorum_have_no_vote() {
    let servers = [(); 3].map(|()| Server::start());
    let diagnosis = diagnose_with(&quorum(&servers), &["--ttl", "3600s"]);
    diagnosis.assert_finds("majority", Error, "a new one has its vote after");
    diagnosis.assert_finds("persistence", Ok, "");
}

#[test]
fn clocks_that_differ_are_found() {
    let servers = [(); 3].map(|()| Shifted::start());
    let urls: Vec<String> = servers.iter().map(|shifted| shifted.server.url()).collect();
    // The ttl is 8 s.
    for (seconds, level) in [(6, Warning), (12, Error)] {
        servers[1].step_to(seconds * 1_000_000);
        let diagnosis = diagnose(&urls.join(" "));
        diagnosis.assert_finds("clocks", level, "NTP");
        diagnosis.assert_finds("clock", Ok, "to this host's clock");
    }
}

/// The lock on each server alone has the login of the whole set.
#[test]
fn password_of_a_quorum_is_given_to_each_server() {
    let servers = [(); 3].map(|()| Server::start_with(&["--requirepass", "secret"]));
    let mut doctor = without_server(&[]);
    doctor.env("FAIRLOCK_PASSWORD", "secret");
    let diagnosis = diagnose_by(&mut doctor, &quorum(&servers), &["--ttl", "1s"]);
    assert_eq!(diagnosis.servers_of("scripts").len(), 3, "{diagnosis:#?}");
    for finding in diagnosis.complaints() {
        assert_eq!(finding.check, "majority", "{finding:#?}");
    }
}
