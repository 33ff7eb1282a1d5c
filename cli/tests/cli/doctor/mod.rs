//! `fairlock doctor`: its lines, its JSON and its exit codes, on every topology.

mod diagnosis;
mod one_server;
mod rights;
mod sets;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster_set::ClusterSet;
use crate::process::{Ended, code_unread, end, fairlock, without_server};
use crate::sentinel_set::SentinelSet;
use crate::support::server::free_address;
use crate::support::{SLACK, Server};

/// A reply may take so long that no loaded machine is found too slow.
const PATIENT: [&str; 2] = ["--command-timeout", "20s"];

/// The same, where something hangs or is refused.
const BRIEF: [&str; 2] = ["--command-timeout", "2s"];

/// The promised bound: two timeouts to connect and six for replies. To build the manager takes one
/// more.
fn bound(args: &[&str]) -> Duration {
    let timeout = args
        .iter()
        .skip_while(|arg| **arg != "--command-timeout")
        .nth(1);
    9 * match timeout {
        Some(&"20s") => Duration::from_secs(20),
        Some(&"2s") => Duration::from_secs(2),
        _ => Duration::from_millis(500),
    }
}

const GOOD: [&str; 2] = ["--appendonly", "yes"];

/// Runs `doctor` against this URL, with further arguments.
fn doctor(url: &str, args: &[&str]) -> Ended {
    let started = Instant::now();
    let mut command = without_server(&["doctor"]);
    let ended = end(command.args(args).env("FAIRLOCK_URL", url));
    let took = started.elapsed();
    assert!(took < bound(args) + SLACK, "{took:?}: {ended:?}");
    ended
}

/// The findings, by `--json`, and the exit code.
fn findings(url: &str, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let ended = doctor(url, &[&["--json"], args].concat());
    let lines = ended.stdout.lines();
    let findings = lines.map(|line| serde_json::from_str(line).expect("an object per line"));
    (ended.code, findings.collect())
}

/// The checks of a level, each with its server.
fn of_level<'a>(findings: &'a [Value], level: &str) -> Vec<(&'a str, Option<&'a str>)> {
    let of_level = findings.iter().filter(|finding| finding["level"] == level);
    let pair = |finding: &'a Value| {
        let check = finding["check"].as_str().expect("a name");
        (check, finding["server"].as_str())
    };
    of_level.map(pair).collect()
}

#[test]
fn good_server_has_aligned_lines_and_exits_0() {
    let server = Server::tcp_with(&GOOD);
    let ended = doctor(&server.url(), &[&PATIENT[..], &["--strict"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let (last, findings) = lines.split_last().expect("lines");
    assert_eq!(*last, "13 ok, 0 warnings, 0 errors");
    let beginning = format!("ok       {}  ", server.addr());
    for line in findings {
        assert!(line.starts_with(&beginning), "{line}");
    }
    assert!(!ended.stdout.contains("->"), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn warning_exits_0_and_with_strict_1() {
    let server = Server::tcp();
    let ended = doctor(&server.url(), &PATIENT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let address = server.addr().to_string();
    let warning = format!("\nwarning  {address}  persistence: no append-only file");
    let remedy = format!(
        "\n         {:w$}  -> CONFIG SET appendonly yes",
        "",
        w = address.len()
    );
    assert!(ended.stdout.contains(&warning), "{ended:?}");
    assert!(ended.stdout.contains(&remedy), "{ended:?}");
    assert_eq!(doctor(&server.url(), &["--strict"]).code, Some(1));
}

#[test]
fn error_exits_1_and_quiet_leaves_out_what_is_ok() {
    let server = Server::tcp_with(&GOOD);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1gb"]);
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let ended = doctor(&server.url(), &[&PATIENT[..], &["-q"]].concat());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(lines[0].starts_with("error    "), "{ended:?}");
    assert!(
        lines[1].contains("-> CONFIG SET maxmemory-policy noeviction. CONFIG REWRITE"),
        "{ended:?}"
    );
    assert_eq!(lines[2], "12 ok, 0 warnings, 1 error");
    assert_eq!(findings(&server.url(), &[]).0, Some(1));
}

#[test]
fn json_has_one_finding_on_each_line() {
    let server = Server::tcp();
    let (code, findings) = findings(&server.url(), &PATIENT);
    assert_eq!(code, Some(0));
    let checks = of_level(&findings, "ok");
    assert_eq!(checks.len(), 12, "{findings:?}");
    let address = server.addr().to_string();
    assert_eq!(checks[0], ("connection", Some(&*address)));
    assert_eq!(
        of_level(&findings, "warning"),
        [("persistence", Some(&*address))]
    );
    for finding in &findings {
        let keys: Vec<&String> = finding.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["check", "level", "message", "remedy", "server"]);
        assert_eq!(
            finding["remedy"].is_null(),
            finding["level"] == "ok",
            "{finding}"
        );
    }
}

/// One finding, with the message of the library and its remedy, and the code of no connection.
#[track_caller]
fn assert_not_built(url: &str, message: &str, remedy: &str) {
    let ended = doctor(url, &BRIEF);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(lines[0].starts_with("error    "), "{ended:?}");
    assert!(lines[0].contains("  connection: "), "{ended:?}");
    assert!(lines[0].contains(message), "{ended:?}");
    let advises = |line: &str| line.contains("start ") || line.contains("use ");
    assert!(!advises(lines[0]), "the remedy is said twice: {ended:?}");
    assert!(lines[1].trim_start().starts_with("-> "), "{ended:?}");
    assert!(lines[1].contains(remedy), "{ended:?}");
    let (code, findings) = findings(url, &BRIEF);
    assert_eq!(code, Some(69));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(of_level(&findings, "error")[0].0, "connection");
}

#[test]
fn server_that_cannot_be_used_exits_69_with_the_remedy() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let address = server.addr();
    let with = |password: &str| format!("redis://:{password}@{address}/");
    assert_not_built(&server.url(), "NOAUTH", "redis://:password@host");
    assert_not_built(
        &with("wrong"),
        "WRONGPASS",
        "correct the user and the password",
    );
    let dead = format!("redis://{}/", free_address());
    assert_not_built(&dead, "refused", "no Redis runs there: start one");
    let dead = dead.replace("redis:", "redis-cluster:");
    assert_not_built(&dead, "refused", "no Redis runs there: start it");
    let dead = dead.replace("redis-cluster:", "redis-sentinel:") + "service";
    assert_not_built(&dead, "no sentinel of", "no sentinel runs there: start one");
    assert_not_built("redis://no-such-host.invalid/", "lookup", "redis-cli PING");
}

/// The findings of servers for which no manager can be built. The first one says why.
#[track_caller]
fn unusable(url: &str, message: &str) -> Vec<Value> {
    let (code, findings) = findings(url, &BRIEF);
    assert_eq!(code, Some(69), "{findings:?}");
    let (check, text) = (&findings[0]["check"], findings[0]["message"].as_str());
    assert_eq!(check, "connection", "{findings:?}");
    assert!(
        text.is_some_and(|text| text.contains(message)),
        "{findings:?}"
    );
    findings
}

/// The checks of a server that could be examined, whatever came of them.
fn checks_of<'a>(findings: &'a [Value], server: &Server) -> Vec<&'a str> {
    let address = server.addr().to_string();
    let of_server = findings[1..]
        .iter()
        .filter(|finding| finding["server"] == *address);
    of_server
        .filter_map(|finding| finding["check"].as_str())
        .collect()
}

/// The checks of any server, master or not.
const OF_ANY: [&str; 8] = [
    "connection",
    "round_trip",
    "version",
    "role",
    "eviction",
    "memory",
    "persistence",
    "clients",
];

#[test]
fn replica_is_examined_as_far_as_it_answers() {
    let master = Server::tcp();
    let address = master.addr();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let cache = ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"];
    let replica = Server::tcp_with(&[&["--replicaof", &*host, &*port], &cache[..]].concat());
    let findings = unusable(&replica.url(), &format!("redis://{address}"));
    let checks = checks_of(&findings, &replica);
    assert_eq!(checks[..8], OF_ANY, "{findings:?}");
    let errors = of_level(&findings, "error");
    let checks: Vec<&str> = errors.iter().map(|(check, _)| *check).collect();
    assert_eq!(checks, ["connection", "role", "eviction"], "{findings:?}");
    let text = doctor(&replica.url(), &BRIEF).stdout;
    assert!(
        text.contains("version: Redis") || text.contains("version: Valkey"),
        "{text}"
    );
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
    let findings = unusable(&url, "");
    let sentinel = checks_of(&findings, &set.sentinels[0]);
    assert!(sentinel.contains(&"sentinels"), "{findings:?}");
    for replica in &set.nodes {
        assert_eq!(checks_of(&findings, replica)[..8], OF_ANY, "{findings:?}");
    }
    let master = master.to_string();
    let errors = of_level(&findings, "error");
    assert!(
        errors.contains(&("connection", Some(&master))),
        "{findings:?}"
    );
}

#[test]
fn node_of_a_cluster_without_slots_is_examined() {
    let node = Server::tcp_with(&["--cluster-enabled", "yes"]);
    let url = format!("redis-cluster://{}/", node.addr());
    let findings = unusable(&url, "");
    let checks = checks_of(&findings, &node);
    assert!(
        checks.contains(&"cluster") && checks.contains(&"eviction"),
        "{findings:?}"
    );
}

#[test]
fn quorum_without_a_majority_is_examined() {
    let server = Server::tcp();
    let dead = [free_address(), free_address()];
    let url = format!("{} redis://{}/ redis://{}/", server.url(), dead[0], dead[1]);
    let findings = unusable(&url, "");
    assert!(
        of_level(&findings, "error").contains(&("majority", None)),
        "{findings:?}"
    );
    assert!(
        checks_of(&findings, &server).contains(&"eviction"),
        "{findings:?}"
    );
}

#[cfg(feature = "tls")]
#[test]
fn plain_server_behind_rediss_exits_69_with_the_remedy() {
    let server = Server::tcp();
    let url = server.url().replace("redis:", "rediss:");
    assert_not_built(&url, "does not speak TLS", "or use redis://");
}

#[test]
fn stopped_server_exits_69_and_wrong_usage_64() {
    let server = Server::tcp();
    server.stop();
    assert_not_built(&server.url(), "timed out", "the server hangs");
    server.cont();
    for args in [&["--ttl", "5"][..], &["--ttl", "1ms"]] {
        let ended = doctor(&server.url(), args);
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert_eq!(ended.stdout, "");
    }
    assert_eq!(doctor("http://127.0.0.1/", &[]).code, Some(64));
}

#[test]
fn ttl_of_the_locks_is_compared_with() {
    let server = Server::tcp_with(&[&GOOD[..], &["--timeout", "3"]].concat());
    let timeout = |args: &[&str]| {
        let ended = doctor(&server.url(), args);
        ended.stdout.contains("CONFIG SET timeout 0")
    };
    // Renewals come every third of the ttl.
    assert!(timeout(&[]));
    assert!(!timeout(&["--ttl", "6s"]));
}

#[test]
fn user_without_config_learns_what_is_not_known() {
    let server = Server::tcp();
    let rules = ["~*", "&*", "+@all", "-config", "-info"];
    server.query::<()>(&[&["ACL", "SETUSER", "u", "on", ">p"], &rules[..]].concat());
    let url = format!("redis://u:p@{}/", server.addr());
    let ended = doctor(&url, &[&PATIENT[..], &["--strict"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("eviction: not known: no right to CONFIG GET"),
        "{ended:?}"
    );
    server.query::<()>(&["ACL", "SETUSER", "u", "-hdel"]);
    let ended = doctor(&url, &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("-> ACL SETUSER u +hdel"), "{ended:?}");
}

#[test]
fn levels_have_colours_only_where_they_are_wanted() {
    let server = Server::tcp();
    let plain = end(&mut fairlock(&server, &["doctor"]));
    assert!(!plain.stdout.contains('\x1b'), "{plain:?}");
    let forced = |name: &str| {
        let mut command = fairlock(&server, &["doctor"]);
        end(command.env("CLICOLOR_FORCE", "1").env(name, "1")).stdout
    };
    let coloured = forced("COLORTERM");
    assert!(
        coloured.contains("\x1b[32mok     \x1b[0m  "),
        "{coloured:?}"
    );
    assert!(
        coloured.contains("\x1b[33mwarning\x1b[0m  "),
        "{coloured:?}"
    );
}

#[test]
fn sentinel_set_is_examined_and_a_stopped_sentinel_is_a_warning() {
    let set = SentinelSet::start();
    set.calm();
    let (code, findings) = findings(&set.url(), &PATIENT);
    assert_eq!(
        (code, of_level(&findings, "error")),
        (Some(0), vec![]),
        "{findings:?}"
    );
    let about = |check: &str| {
        let about = findings.iter().filter(|finding| finding["check"] == check);
        about.count()
    };
    assert_eq!((about("sentinels"), about("role")), (4, 3), "{findings:?}");
    let sentinel = &set.sentinels[2];
    sentinel.stop();
    let (code, findings) = self::findings(&set.url(), &BRIEF);
    sentinel.cont();
    assert_eq!(code, Some(0), "{findings:?}");
    let address = sentinel.addr().to_string();
    let warnings = of_level(&findings, "warning");
    assert!(
        warnings.contains(&("sentinels", Some(&*address))),
        "{findings:?}"
    );
}

#[test]
fn cluster_is_examined_and_a_stopped_node_exits_1_in_time() {
    let set = ClusterSet::start_with(3, 0, &GOOD);
    let (code, findings) = findings(&set.url(), &PATIENT);
    assert_eq!(
        (code, of_level(&findings, "error")),
        (Some(0), vec![]),
        "{findings:?}"
    );
    let stopped = set.node(1);
    stopped.stop();
    let (code, findings) = self::findings(&set.url(), &BRIEF);
    stopped.cont();
    assert_eq!(code, Some(1), "{findings:?}");
    let address = stopped.addr().to_string();
    let errors = of_level(&findings, "error");
    assert!(
        errors.contains(&("connection", Some(&*address))),
        "{findings:?}"
    );
    let arrived = of_level(&findings, "ok");
    let arrived = arrived.iter().filter(|(check, _)| *check == "messages");
    assert_eq!(arrived.count(), 2, "{findings:?}");
}

#[test]
fn server_of_a_quorum_that_is_away_is_a_warning() {
    let servers: Vec<Server> = (0..3).map(|_| Server::tcp()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    servers[2].stop();
    let (_, findings) = findings(&urls.join(" "), &BRIEF);
    servers[2].cont();
    // The servers have just started, so none has a vote.
    assert_eq!(
        of_level(&findings, "error"),
        [("majority", None)],
        "{findings:?}"
    );
    let address = servers[2].addr().to_string();
    let warnings = of_level(&findings, "warning");
    assert!(
        warnings.contains(&("connection", Some(&*address))),
        "{findings:?}"
    );
}

#[test]
fn exit_code_of_doctor_needs_no_reader() {
    let refusing = Server::tcp_with(&["--requirepass", "secret"]);
    let volatile = Server::tcp_with(&["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"]);
    for (server, code) in [(&refusing, 69), (&volatile, 1)] {
        let mut command = without_server(&["doctor"]);
        command.args(PATIENT).env("FAIRLOCK_URL", server.url());
        assert_eq!(code_unread(&mut command), Some(code));
    }
}
