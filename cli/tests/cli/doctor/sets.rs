//! Sentinel, Cluster and a quorum.

use super::*;
use crate::sentinel_set::SentinelSetup;

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

#[test]
fn silent_sentinel_is_a_warning_and_a_refusing_one_an_error() {
    let set = sentinels(&GOOD);
    bound(&set.nodes);
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_no_complaint();
    for (check, text) in [
        ("sentinels", "named by 3 sentinels"),
        ("sentinels", "2 other sentinels, 2 replicas"),
        ("clocks", "does no harm"),
        ("replicas", "2 in sync"),
    ] {
        diagnosis.assert_finds(check, Ok, text);
    }
    // The replicas are examined, too, and the master first.
    let roles = diagnosis.servers_of("role");
    assert_eq!(roles.len(), 3, "{diagnosis:#?}");
    assert_eq!(roles[0], set.nodes[0].addr().to_string());
    for stopped in [&set.sentinels[1], &set.nodes[2]] {
        stopped.stop();
        let diagnosis = diagnose(&set.url());
        stopped.cont();
        assert_eq!(diagnosis.code, Some(0), "{diagnosis:#?}");
        diagnosis.assert_complaints_of(stopped, &["connection"]);
        diagnosis.assert_finds("connection", Warning, "the server hangs");
        diagnosis.assert_finds("messages", Ok, "");
    }
    // A sentinel that refuses is an error, and so are sentinels that cannot agree.
    let refusing = &set.sentinels[1];
    // 6.2 can only add rights for parts of a command.
    let rules = ["-sentinel", "+sentinel|get-master-addr-by-name"];
    refusing.query::<()>(&[&["ACL", "SETUSER", "default"], &rules[..]].concat());
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_complaints_of(refusing, &["sentinels"]);
    let rule = "ACL SETUSER default +sentinel|get-master-addr-by-name +sentinel|master";
    diagnosis.assert_finds("sentinels", Error, rule);
    // The remedy, without the words that say where.
    refusing.query::<()>(&rule.split(' ').collect::<Vec<_>>());
    diagnose(&set.url()).assert_no_complaint();
    set.sentinels[1].kill();
    set.sentinels[2].kill();
    until(LONG, "the last sentinel knows that it is alone", || {
        let agreed = set.sentinels[0].try_query::<String>(&["SENTINEL", "CKQUORUM", "mymaster"]);
        agreed.is_err()
    });
    diagnose(&set.url()).assert_finds("sentinels", Error, "cannot agree on a failover");
}

#[test]
fn settings_of_a_sentinel_set_are_compared_with_the_numbers_of_locks() {
    let set = sentinels(&[]);
    let diagnosis = diagnose_with(&set.url(), "--command-timeout 5s --ttl 40s");
    diagnosis.assert_finds("sentinels", Warning, "a slow master is replaced");
    let remedy = "CONFIG SET min-replicas-to-write 1";
    diagnosis.assert_finds("replicas", Warning, remedy);
    let slow = "SENTINEL SET mymaster down-after-milliseconds 30000";
    set.sentinels[0].query::<()>(&slow.split(' ').collect::<Vec<_>>());
    let one = format!("redis-sentinel://{}/mymaster", set.sentinels[0].addr());
    let diagnosis = diagnose(&one);
    diagnosis.assert_finds("sentinels", Warning, "half of the ttl");
    diagnosis.assert_finds("sentinels", Warning, "no other master is found");
}

#[test]
fn each_master_of_a_cluster_is_checked_by_its_own_settings() {
    let set = ClusterSet::start_with(3, 1, &GOOD);
    bound(set.nodes());
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("cluster", Ok, "6 nodes known");
    let asked = ["role", "rights", "scripts", "messages", "cluster"];
    let asked = asked.map(|check| diagnosis.servers_of(check).len());
    assert_eq!(asked, [6, 3, 3, 3, 3], "{diagnosis:#?}");
    for node in set.nodes() {
        assert_eq!(node.query::<usize>(&["DBSIZE"]), 0);
    }
    let [first, second, third] = [0, 1, 2].map(|number| set.node(number));
    second.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    second.query::<()>(&["ACL", "SETUSER", "default", "-hdel"]);
    third.query::<()>(&["ACL", "SETUSER", "default", "-subscribe"]);
    let diagnosis = diagnose(&set.url());
    diagnosis.assert_complaints_of(first, &[]);
    diagnosis.assert_complaints_of(second, &["cluster", "rights", "scripts"]);
    diagnosis.assert_complaints_of(third, &["rights"]);
    let remedy = "CONFIG SET cluster-require-full-coverage no";
    diagnosis.assert_finds("cluster", Warning, remedy);
    for rule in ["+hdel", "+subscribe"] {
        diagnosis.assert_finds("rights", Error, &format!("ACL SETUSER default {rule}"));
    }
}

#[test]
fn stopped_master_of_a_cluster_delays_no_other_finding() {
    let set = ClusterSet::start_with(3, 0, &GOOD);
    let stopped = set.node(1);
    stopped.stop();
    until(LONG, "the others call it down", || {
        let nodes: String = set.node(0).query(&["CLUSTER", "NODES"]);
        nodes.contains("fail ")
    });
    let diagnosis = diagnose(&set.url());
    stopped.cont();
    assert_eq!(diagnosis.code, Some(1), "{diagnosis:#?}");
    diagnosis.assert_complaints_of(stopped, &["connection"]);
    diagnosis.assert_finds("connection", Error, "the server hangs");
    for node in [set.node(0), set.node(2)] {
        diagnosis.assert_complaints_of(node, &["replicas", "cluster", "cluster"]);
    }
    diagnosis.assert_finds("cluster", Error, "5461 slots have no master");
    assert_eq!(diagnosis.servers_of("messages").len(), 2);
    diagnosis.assert_finds("messages", Ok, "");
}

#[test]
fn servers_of_a_quorum_that_are_away_are_counted() {
    let servers = [(); 3].map(|()| Server::start_with(&GOOD));
    // A server that has run for less than a ttl has no vote.
    let age = |server: &Server| server.counted("uptime_in_seconds");
    until(LONG, "all have a vote", || {
        servers.iter().all(|server| age(server) >= 10)
    });
    let url = urls(&servers);
    let diagnosis = diagnose(&url);
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("majority", Ok, "3 of 3");
    assert_eq!(diagnosis.servers_of("rights").len(), 3);
    assert_eq!(diagnosis.of("messages").count(), 0, "nobody waits for one");
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
fn clocks_that_differ_are_found() {
    let servers = [(); 3].map(|()| Shifted::start());
    let urls = servers.each_ref().map(|shifted| shifted.server.url());
    // The ttl is 8 s.
    for (seconds, level) in [(6, Warning), (12, Error)] {
        servers[1].step_to(seconds * 1_000_000);
        diagnose(&urls.join(" ")).assert_finds("clocks", level, "NTP");
    }
}

/// The lock on each server alone has the login of the whole set.
#[test]
fn young_servers_of_a_quorum_have_no_vote_and_are_tried_with_the_login() {
    let servers = [(); 3].map(|()| Server::start_with(&["--requirepass", "secret"]));
    let line = "FAIRLOCK_PASSWORD=secret doctor --json --command-timeout 1s --ttl 3600s";
    let diagnosis = diagnose_by(at(&urls(&servers), line));
    diagnosis.assert_finds("majority", Error, "a new one has its vote after");
    for check in ["scripts", "persistence"] {
        diagnosis.assert_finds(check, Ok, "");
        assert_eq!(diagnosis.servers_of(check).len(), 3, "{diagnosis:#?}");
    }
}
