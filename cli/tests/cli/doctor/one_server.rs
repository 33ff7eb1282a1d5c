//! One server.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use fairlock::LockManager;

use super::diagnosis::{Level, SOON, T, TIMES, diagnose, diagnose_by, diagnose_with};
use crate::process::without_server;
use crate::support::gateway::{Gateway, Unknown};
use crate::support::hosts::{BlackHole, Hosts, Nowhere};
use crate::support::server::is_redis_62;
use crate::support::{Proxy, Server, until};

/// Settings of which no check complains.
const GOOD: [&str; 2] = ["--appendonly", "yes"];

#[test]
fn good_server_has_no_complaint_and_keeps_nothing() {
    let server = Server::tcp_with(&GOOD);
    let url = server.url();
    let before = server.clients().len();
    let diagnosis = diagnose(&url);
    diagnosis.assert_no_complaint();
    let address = server.addr().to_string();
    for finding in &diagnosis.findings {
        assert_eq!(finding.server.as_deref(), Some(&*address), "{finding}");
        assert_eq!(finding.remedy.is_some(), finding.level > Level::Ok);
    }
    diagnosis.assert_finds("persistence", Level::Ok, "everysec");
    diagnosis.assert_finds("messages", Level::Ok, "a message arrived");
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 0);
    until(SOON, "its connections are closed", || {
        server.clients().len() == before
    });
}

#[test]
fn diagnosis_takes_few_requests_and_no_lock() {
    let server = Server::start();
    let manager = LockManager::connect(server.url()).expect("the server is there");
    let guard = manager.lock("a").expect("granted");
    let before = server.commands_processed();
    diagnose(&server.url());
    let with = server.commands_processed() - before;
    // On Redis 6.2, the rights are asked for by each command of the scripts.
    assert!(
        (20..=80).contains(&with),
        "{with}, those of the scripts included"
    );
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 1, "the lock alone");
    assert!(guard.is_held());
}

#[test]
fn each_bad_setting_is_found() {
    use Level::{Error, Warning};
    type Case = (
        &'static [(&'static str, &'static str)],
        &'static str,
        Level,
        &'static str,
    );
    let cases: [Case; 8] = [
        (
            &[("maxmemory-policy", "allkeys-lru")],
            "eviction",
            Warning,
            "noeviction",
        ),
        (
            &[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-lru")],
            "eviction",
            Error,
            "CONFIG SET maxmemory-policy noeviction",
        ),
        (&[("maxmemory", "1")], "memory", Error, "OOM"),
        (
            &[("appendonly", "no")],
            "persistence",
            Warning,
            "CONFIG SET appendonly yes",
        ),
        (
            &[("timeout", "2")],
            "clients",
            Warning,
            "CONFIG SET timeout 0",
        ),
        (
            &[("lua-time-limit", "0")],
            "scripts",
            Warning,
            "lua-time-limit",
        ),
        (
            &[("client-output-buffer-limit", "pubsub 1024 0 0")],
            "messages",
            Warning,
            "client-output-buffer-limit",
        ),
        (
            &[("min-replicas-to-write", "1")],
            "replicas",
            Error,
            "NOREPLICAS",
        ),
    ];
    let server = Server::start_with(&GOOD);
    let url = server.url();
    // A command of its own: the append-only file takes a while to be switched on again.
    for (settings, check, level, text) in cases {
        let before: Vec<(&str, String)> = settings
            .iter()
            .map(|(name, _)| {
                let pair: Vec<String> = server.query(&["CONFIG", "GET", name]);
                (*name, pair[1].clone())
            })
            .collect();
        for (name, value) in settings {
            server.query::<()>(&["CONFIG", "SET", name, value]);
        }
        let diagnosis = diagnose(&url);
        diagnosis.assert_finds(check, level, text);
        let bad = diagnosis.complaints();
        let other = bad.iter().find(|other| other.check != check);
        assert_eq!(other, None, "{settings:?}");
        for (name, value) in &before {
            server.query::<()>(&["CONFIG", "SET", name, value]);
        }
    }
}

/// The remedy is a command, and it helps.
#[test]
fn remedy_of_an_evicting_server_makes_it_good() {
    let server = Server::start_with(&GOOD);
    let url = server.url();
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let diagnosis = diagnose(&url);
    let found = diagnosis.of("eviction");
    let remedy = found[0].remedy.as_deref().expect("a remedy");
    let (command, rest) = remedy.split_once(". ").expect("two sentences");
    assert!(rest.starts_with("CONFIG REWRITE "), "{remedy}");
    let words: Vec<&str> = command.split(' ').collect();
    server.query::<()>(&words);
    diagnose(&url).assert_no_complaint();
}

#[test]
fn server_that_cannot_save_is_an_error() {
    // 6.2 protects no setting. No file can be made in /proc, by root either.
    let server = if is_redis_62() {
        Server::start()
    } else {
        Server::start_with(&["--enable-protected-configs", "yes"])
    };
    let url = server.url();
    server.query::<()>(&["CONFIG", "SET", "dir", "/proc"]);
    server.query::<()>(&["CONFIG", "SET", "save", "3600 1"]);
    server.query::<String>(&["BGSAVE"]);
    until(SOON, "the save has failed", || {
        let info: String = server.query(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    diagnose(&url).assert_finds("persistence", Level::Error, "MISCONF");
    server.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    diagnose(&url).assert_finds("persistence", Level::Warning, "BGSAVE");
}

#[test]
fn distant_server_is_an_error_by_its_round_trip() {
    let server = Server::tcp_with(&GOOD);
    let proxy = Proxy::to(server.addr());
    let with = |timeout: &str, ttl: &str| {
        let args = ["--command-timeout", timeout, "--ttl", ttl];
        diagnose_with(&proxy.url(), &args)
    };
    // A loaded machine stays below a tenth of this time.
    with("10s", "100s").assert_finds("round_trip", Level::Ok, "10s");
    // 400 ms there and back.
    proxy.delay(Duration::from_millis(200));
    with("1s", "8s").assert_finds("round_trip", Level::Error, "a command_timeout");
    with("2s", "20s").assert_finds("round_trip", Level::Warning, "a command_timeout");
}

#[test]
fn stopped_server_is_one_error_within_the_bound() {
    let server = Server::tcp();
    let url = server.url();
    server.stop();
    let diagnosis = diagnose(&url);
    server.cont();
    diagnosis.assert_finds("connection", Level::Error, "the server hangs");
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:#?}");
    let address = server.addr().to_string();
    assert_eq!(diagnosis.findings[0].server, Some(address));
}

/// It stops in the middle: after the handshake, and again a reply later.
#[test]
fn server_that_stops_while_it_is_asked_is_found_within_the_bound() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let url = proxy.url();
    for last in ["INFO", "EVALSHA"] {
        let hung = proxy.swallow_silently_when(crate::support::contains(last));
        let diagnosis = diagnose(&url);
        assert!(hung.has_triggered(), "{last}");
        proxy.disarm();
        diagnosis.assert_finds("connection", Level::Error, "stopped answering");
        let unknown = |check| {
            let found = diagnosis.of(check);
            found
                .iter()
                .any(|finding| finding.message.contains("not known"))
        };
        assert_eq!(unknown("version"), last == "INFO", "{diagnosis:#?}");
        assert!(unknown("scripts"), "{diagnosis:#?}");
    }
}

#[test]
fn dead_server_is_an_error_with_a_remedy() {
    let server = Server::tcp();
    let url = server.url();
    server.kill();
    let diagnosis = diagnose(&url);
    diagnosis.assert_finds("connection", Level::Error, "no Redis runs there: start one");
}

#[test]
fn master_that_became_a_replica_is_an_error_with_the_masters_url() {
    let (server, other) = (Server::tcp(), Server::tcp());
    let url = server.url();
    let (host, port) = (
        other.addr().ip().to_string(),
        other.addr().port().to_string(),
    );
    server.query::<()>(&["REPLICAOF", &host, &port]);
    let diagnosis = diagnose(&url);
    let url = format!("redis://{}", other.addr());
    diagnosis.assert_finds("role", Level::Error, &url);
}

#[test]
fn missing_replicas_are_an_error_if_they_must_acknowledge() {
    let server = Server::tcp();
    let acks = |count: &str| {
        let timeout = format!("{}ms", (T / 4).as_millis());
        let args = ["--replica-acks", count, "--replica-timeout", &timeout];
        diagnose_with(&server.url(), &[&TIMES[..], &args].concat())
    };
    acks("1").assert_finds("replicas", Level::Error, "no lock can be taken");
    let (host, port) = (
        server.addr().ip().to_string(),
        server.addr().port().to_string(),
    );
    let args = [
        "--replicaof",
        &host,
        &port,
        "--repl-diskless-sync-delay",
        "0",
    ];
    server.query::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let _replica = Server::tcp_with(&args);
    until(SOON, "the replica is in sync", || {
        let info: String = server.query(&["INFO", "replication"]);
        info.contains("state=online")
    });
    acks("1").assert_finds("replicas", Level::Ok, "1 in sync");
    acks("2").assert_finds("replicas", Level::Error, "wants 2");
}

/// A script that runs on and on: nothing else is answered.
#[test]
fn busy_server_is_an_error_with_the_way_out() {
    let server = Server::tcp_with(&["--lua-time-limit", "50"]);
    let url = server.url();
    let mut busy = server.connection();
    let endless = std::thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0);
        let _ = script.query::<()>(&mut busy);
    });
    until(SOON, "the server is busy", || {
        let refused = server.try_query::<String>(&["GET", "x"]);
        refused.is_err_and(|error| error.code() == Some("BUSY"))
    });
    let diagnosis = diagnose(&url);
    let remedy = "SCRIPT KILL ends the script";
    diagnosis.assert_finds("connection", Level::Error, remedy);
    server.query::<()>(&["SCRIPT", "KILL"]);
    endless.join().expect("the script has ended");
}

#[test]
fn proxy_that_says_nothing_of_its_server_is_a_warning() {
    let server = Server::tcp();
    let said = |hidden: &'static [&'static str], unknown: Unknown| {
        let proxy = Gateway::without(server.addr(), hidden, unknown);
        let found = diagnose(&proxy.url());
        let said = found.findings.into_iter();
        said.filter(|finding| finding.message.contains("neither HELLO nor INFO"))
            .collect::<Vec<_>>()
    };
    let refuses = Unknown::Says("ERR unknown command '{}'");
    let warned = said(&["HELLO", "INFO", "TIME", "CONFIG"], refuses);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert_eq!(warned[0].level, Level::Warning);
    assert_eq!(said(&["HELLO"], refuses).len(), 0);
    assert_eq!(said(&["INFO"], refuses).len(), 0);
    assert_eq!(said(&["HELLO"], Unknown::Closes).len(), 0);
}

/// Some addresses of the name lead nowhere.
#[test]
fn server_is_examined_at_the_address_that_answers() {
    let server = Server::tcp_with(&GOOD);
    let port = server.addr().port();
    let at = |last: u8| Ipv4Addr::new(127, 0, 0, last);
    let _silent = BlackHole::at((at(2), port).into(), Nowhere::Accepts);
    let hosts = Hosts::new(&[("several.test", &[at(2), at(3), at(1)])]);
    let mut command = without_server(&[]);
    hosts.add_to(&mut command);
    let url = format!("redis://several.test:{port}");
    let args = ["--command-timeout", "2s", "--ttl", "20s"];
    diagnose_by(&mut command, &url, &args).assert_no_complaint();
}

#[test]
fn connections_of_the_doctor_have_a_name() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let named = proxy.hold_request_when(crate::support::contains("INFO"));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| diagnose(&proxy.url()));
        named.wait(SOON);
        let clients = server.clients();
        assert!(
            clients.iter().any(|line| line.contains(":diagnosis ")),
            "{clients:?}"
        );
        named.release();
        asking.join().expect("it ends");
    });
}

/// A pipe has the password once. The manager and the doctor need it both.
#[test]
fn password_of_a_pipe_is_enough_for_the_doctor() {
    let server = Server::tcp_with(&[&GOOD[..], &["--requirepass", "secret"]].concat());
    let mut command = without_server(&["--password-file", "/dev/stdin"]);
    let (read, mut write) = std::io::pipe().expect("a pipe");
    write.write_all(b"secret\n").expect("it has room");
    drop(write);
    command.stdin(read);
    let url = format!("redis://{}/2", server.addr());
    diagnose_by(&mut command, &url, &TIMES).assert_no_complaint();
}
