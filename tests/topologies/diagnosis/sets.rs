//! Sentinel, Cluster and a quorum.

use std::time::Duration;

use fairlock::{Check, Diagnosis, Level, LockManager, LockOptions};

use super::{
    SOON, T, assert_finds, assert_no_complaint, builder, complaints, in_time, manager, of,
};
use crate::cluster_set::ClusterSet;
use crate::quorum::{clocks, set::Set};
use crate::sentinel_set::{SentinelSet, SentinelSetup};
use crate::support::{Server, until};

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

fn servers_of(diagnosis: &Diagnosis, check: Check) -> Vec<&str> {
    let found = of(diagnosis, check).into_iter();
    found
        .filter_map(|finding| finding.server.as_deref())
        .collect()
}

/// The complaints about this server.
fn complaints_of(diagnosis: &Diagnosis, server: &Server) -> Vec<Check> {
    let address = server.addr().to_string();
    let of_server = complaints(diagnosis).into_iter();
    let of_server = of_server.filter(|finding| finding.server.as_deref() == Some(&*address));
    of_server.map(|finding| finding.check).collect()
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
    let diagnosis = in_time(&manager(set.url()));
    assert_no_complaint(&diagnosis);
    assert_finds(&diagnosis, Check::Sentinels, Level::Ok, "3 of 3 name");
    assert_finds(
        &diagnosis,
        Check::Sentinels,
        Level::Ok,
        "2 other sentinels and 2 replicas",
    );
    assert_finds(&diagnosis, Check::Clocks, Level::Ok, "does no harm");
    assert_finds(&diagnosis, Check::Replicas, Level::Ok, "2 in sync");
    // The replicas are examined, too, and the master first.
    let roles = servers_of(&diagnosis, Check::Role);
    assert_eq!(roles.len(), 3, "{diagnosis}");
    assert_eq!(roles[0], set.nodes[0].addr().to_string());
    assert_finds(&diagnosis, Check::Role, Level::Ok, "a replica in sync");
}

#[test]
fn stopped_sentinel_or_replica_is_a_warning_of_its_own() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let manager = manager(set.url());
    let (sentinel, replica) = (&set.sentinels[1], &set.nodes[2]);
    sentinel.stop();
    let diagnosis = in_time(&manager);
    assert_eq!(
        complaints_of(&diagnosis, sentinel),
        [Check::Sentinels],
        "{diagnosis}"
    );
    assert_finds(
        &diagnosis,
        Check::Sentinels,
        Level::Warning,
        "the server hangs",
    );
    sentinel.cont();
    replica.stop();
    let diagnosis = in_time(&manager);
    replica.cont();
    assert_eq!(
        complaints_of(&diagnosis, replica),
        [Check::Connection],
        "{diagnosis}"
    );
    assert_finds(
        &diagnosis,
        Check::Connection,
        Level::Warning,
        "the server hangs",
    );
    assert_finds(&diagnosis, Check::Messages, Level::Ok, "arrived");
}

#[test]
fn sentinel_that_a_manager_may_not_ask_is_an_error() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let manager = manager(set.url());
    let refusing = &set.sentinels[1];
    // 6.2 can only add rights for parts of a command.
    refusing.query::<()>(&[
        "ACL",
        "SETUSER",
        "default",
        "-sentinel",
        "+sentinel|get-master-addr-by-name",
    ]);
    let diagnosis = in_time(&manager);
    assert_eq!(
        complaints_of(&diagnosis, refusing),
        [Check::Sentinels],
        "{diagnosis}"
    );
    let rule = "ACL SETUSER default +sentinel|get-master-addr-by-name +sentinel|master";
    assert_finds(&diagnosis, Check::Sentinels, Level::Error, rule);
    // The remedy, without the words that say where.
    let words: Vec<&str> = rule.split(' ').collect();
    refusing.query::<()>(&words);
    assert_no_complaint(&in_time(&manager));
}

#[test]
fn sentinels_that_cannot_agree_are_an_error() {
    let set = sentinels(&[]);
    let manager = manager(set.url());
    set.sentinels[1].kill();
    set.sentinels[2].kill();
    until(SOON, "the last sentinel knows that it is alone", || {
        let agreed = set.sentinels[0].try_query::<String>(&["SENTINEL", "CKQUORUM", "mymaster"]);
        agreed.is_err()
    });
    let diagnosis = in_time(&manager);
    assert_finds(
        &diagnosis,
        Check::Sentinels,
        Level::Error,
        "cannot agree on a failover",
    );
}

#[test]
fn settings_of_a_sentinel_set_are_compared_with_the_numbers_of_locks() {
    let set = sentinels(&[]);
    let patient = builder(set.url())
        .command_timeout(5 * T)
        .horizon(16 * T)
        .options(LockOptions::new().ttl(30 * T))
        .build();
    let diagnosis = in_time(&patient.expect("the set is there"));
    let remedy = "down-after-milliseconds 10000";
    assert_finds(&diagnosis, Check::Sentinels, Level::Warning, remedy);
    let remedy = "CONFIG SET min-replicas-to-write 1";
    assert_finds(&diagnosis, Check::Replicas, Level::Warning, remedy);
    set_down_after(&set.sentinels[0], "30000");
    let one = format!("redis-sentinel://{}/mymaster", set.sentinels[0].addr());
    let diagnosis = in_time(&manager(one));
    assert_finds(&diagnosis, Check::Sentinels, Level::Warning, "a ttl of 90s");
    assert_finds(
        &diagnosis,
        Check::Sentinels,
        Level::Warning,
        "names one sentinel",
    );
}

#[test]
fn good_cluster_has_no_complaint() {
    let set = ClusterSet::start_with(3, 1, &GOOD);
    bound(set.nodes());
    let diagnosis = in_time(&manager(set.url()));
    assert_no_complaint(&diagnosis);
    assert_eq!(servers_of(&diagnosis, Check::Role).len(), 6, "{diagnosis}");
    for check in [
        Check::Rights,
        Check::Scripts,
        Check::Messages,
        Check::Cluster,
    ] {
        assert_eq!(
            servers_of(&diagnosis, check).len(),
            3,
            "{check}: {diagnosis}"
        );
    }
    assert_finds(&diagnosis, Check::Cluster, Level::Ok, "6 nodes known");
}

#[test]
fn each_master_of_a_cluster_is_checked_by_its_own_settings() {
    let set = ClusterSet::start_with(3, 0, &["--appendonly", "yes"]);
    let manager = manager(set.url());
    let second = set.node(1);
    for node in [set.node(0), set.node(2)] {
        node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    second.query::<()>(&["ACL", "SETUSER", "default", "-hdel"]);
    let diagnosis = in_time(&manager);
    let wrong = [Check::Replicas, Check::Cluster, Check::Rights];
    assert_eq!(complaints_of(&diagnosis, second), wrong, "{diagnosis}");
    assert_eq!(
        complaints_of(&diagnosis, set.node(0)),
        [Check::Replicas],
        "{diagnosis}"
    );
    let remedy = "CONFIG SET cluster-require-full-coverage no";
    assert_finds(&diagnosis, Check::Cluster, Level::Warning, remedy);
    assert_finds(
        &diagnosis,
        Check::Rights,
        Level::Error,
        "ACL SETUSER default +hdel",
    );
}

#[test]
fn stopped_master_of_a_cluster_delays_no_other_finding() {
    let set = ClusterSet::start_with(3, 0, &GOOD);
    let manager = manager(set.url());
    let stopped = set.node(1);
    stopped.stop();
    until(SOON, "the others call it down", || {
        let nodes: String = set.node(0).query(&["CLUSTER", "NODES"]);
        nodes.contains("fail ")
    });
    let diagnosis = in_time(&manager);
    stopped.cont();
    assert_eq!(
        complaints_of(&diagnosis, stopped),
        [Check::Connection],
        "{diagnosis}"
    );
    assert_finds(
        &diagnosis,
        Check::Connection,
        Level::Error,
        "the server hangs",
    );
    for node in [set.node(0), set.node(2)] {
        let bad = complaints_of(&diagnosis, node);
        assert_eq!(bad.first(), Some(&Check::Replicas), "{diagnosis}");
        assert!(
            bad[1..].iter().all(|check| *check == Check::Cluster),
            "{diagnosis}"
        );
    }
    assert_finds(&diagnosis, Check::Cluster, Level::Error, "slots is down");
    // The listener of a message was the stopped master.
    assert_eq!(servers_of(&diagnosis, Check::Messages).len(), 2);
    assert_finds(&diagnosis, Check::Messages, Level::Ok, "arrived");
}

#[test]
fn message_of_a_master_is_awaited_at_the_next_one() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let manager = manager(set.url());
    set.node(0)
        .query::<()>(&["ACL", "SETUSER", "default", "-subscribe"]);
    let diagnosis = in_time(&manager);
    let found = of(&diagnosis, Check::Messages);
    let bad: Vec<_> = found
        .iter()
        .filter(|finding| finding.level == Level::Error)
        .collect();
    assert_eq!(bad.len(), 1, "{diagnosis}");
    assert_ne!(
        bad[0].server,
        Some(set.node(0).addr().to_string()),
        "{diagnosis}"
    );
}

fn quorum(set: &Set) -> LockManager {
    let built = builder(set.quorum()).uptime_check(false).build();
    built.expect("a majority is there")
}

#[test]
fn servers_of_a_quorum_that_are_away_are_counted() {
    let always = ["--appendonly", "yes", "--appendfsync", "always"];
    let start = move || Server::start_with(&always);
    let set = Set::of((0..3).map(|_| std::thread::spawn(start)));
    let manager = quorum(&set);
    let diagnosis = in_time(&manager);
    assert_no_complaint(&diagnosis);
    assert_finds(&diagnosis, Check::Majority, Level::Ok, "3 of 3");
    assert_eq!(servers_of(&diagnosis, Check::Rights).len(), 3);
    assert_eq!(
        servers_of(&diagnosis, Check::Messages).len(),
        0,
        "nobody waits for one"
    );
    set.servers[0].stop();
    let diagnosis = in_time(&manager);
    assert_finds(&diagnosis, Check::Majority, Level::Warning, "2 of 3");
    let bad = complaints(&diagnosis);
    assert!(
        bad.iter().all(|finding| finding.level == Level::Warning),
        "{diagnosis}"
    );
    set.servers[1].kill();
    let diagnosis = in_time(&manager);
    assert_finds(
        &diagnosis,
        Check::Majority,
        Level::Error,
        "no lock can be taken",
    );
    assert_finds(&diagnosis, Check::Connection, Level::Error, "");
    set.servers[0].cont();
}

#[test]
fn young_servers_of_a_quorum_have_no_vote() {
    let set = Set::start(3);
    let ttl = LockOptions::new().ttl(Duration::from_secs(3600));
    let built = builder(set.quorum()).options(ttl).build();
    let diagnosis = in_time(&built.expect("a majority is there"));
    assert_finds(&diagnosis, Check::Majority, Level::Error, "has no vote yet");
    assert_finds(
        &diagnosis,
        Check::Persistence,
        Level::Ok,
        "no vote for one ttl",
    );
    // Without that check, a server that forgets its locks is a danger.
    let diagnosis = in_time(&quorum(&set));
    assert_finds(
        &diagnosis,
        Check::Persistence,
        Level::Error,
        "uptime_check(true)",
    );
    assert_finds(&diagnosis, Check::Majority, Level::Ok, "");
}

#[test]
fn clocks_that_differ_are_found() {
    // The ttl is 6.5 s.
    for (offset, level) in [(4_000_000, Level::Warning), (9_000_000, Level::Error)] {
        let (set, _dir) = clocks::start(&[0, offset, 0]);
        let diagnosis = in_time(&quorum(&set));
        assert_finds(&diagnosis, Check::Clocks, level, "NTP");
        let seconds = offset / 1_000_000;
        assert_finds(
            &diagnosis,
            Check::Clock,
            Level::Ok,
            &format!("{seconds}.0s ahead of"),
        );
    }
}
