//! One server.

use std::net::Ipv4Addr;

use super::*;
use crate::support::gateway::{Gateway, Unknown};
use crate::support::hosts::{BlackHole, Hosts, Nowhere};
use crate::support::is_redis_62;

#[test]
fn diagnosis_takes_few_requests_and_leaves_nothing() {
    let server = Server::start_with(&GOOD);
    let manager = LockManager::connect(server.url()).expect("the server is there");
    let guard = manager.lock("a").expect("granted");
    let (clients, before) = (server.clients().len(), server.commands_processed());
    diagnose(&server.url()).assert_no_complaint();
    // On Redis 6.2, the rights are asked for by each command of the scripts.
    let with = server.commands_processed() - before;
    assert!((20..=150).contains(&with), "{with}, with those of scripts");
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 1, "the lock alone");
    assert!(guard.is_held());
    let left = || server.clients().len() == clients;
    until(LONG, "its connections are closed", left);
}

#[test]
fn interrupted_doctor_leaves_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let held = proxy.hold_request_when(contains("CONFIG"));
    let mut doctor = Run::start(at(&proxy.url(), "doctor --command-timeout 20s"));
    held.wait(LONG);
    doctor.signal(Signal::INT);
    held.release();
    assert_eq!(doctor.ended().code, Some(130));
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 0);
}

/// Each is a setting, its bad value, and what is found. No other check complains, but for the lock
/// that may be refused. A remedy that is a command helps.
#[test]
fn each_bad_setting_is_found_and_its_remedy_helps() {
    let buffers = "client-output-buffer-limit";
    let server = Server::start_with(&GOOD);
    for (name, value, check, level) in [
        ("maxmemory-policy", "allkeys-lru", "eviction", Warning),
        ("maxmemory", "1", "memory", Error),
        ("appendonly", "no", "persistence", Warning),
        ("timeout", "2", "clients", Warning),
        ("lua-time-limit", "0", "scripts", Warning),
        ("min-replicas-to-write", "1", "scripts", Error),
        (buffers, "pubsub 1024 0 0", "messages", Warning),
    ] {
        let before: Vec<String> = server.query(&["CONFIG", "GET", name]);
        server.query::<()>(&["CONFIG", "SET", name, value]);
        let diagnosis = diagnose(&server.url());
        diagnosis.assert_finds(check, level, "");
        let is_lock = |check: &str| check == "scripts" && level == Error;
        let is_alone = |other: &&Finding| other.check == check || is_lock(&other.check);
        let complaints = diagnosis.complaints();
        assert!(complaints.iter().all(is_alone), "{diagnosis:#?}");
        let found = diagnosis.of(check).last().expect("a finding");
        let remedy = found.remedy.as_deref().expect("a remedy");
        if remedy.starts_with(&format!("CONFIG SET {name} ")) {
            let (command, _) = remedy.split_once([':', '.']).expect("a reason");
            let words = shlex::split(command).expect("words");
            server.query::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>());
            diagnose(&server.url()).assert_no_complaint();
        } else {
            assert_eq!(level, Error, "{found:?}");
        }
        server.query::<()>(&["CONFIG", "SET", name, &before[1]]);
    }
}

#[test]
fn server_that_cannot_save_is_an_error() {
    // 6.2 protects no setting. No file can be made in /proc, by root either.
    let server = match is_redis_62() {
        true => Server::start(),
        false => Server::start_with(&["--enable-protected-configs", "yes"]),
    };
    server.query::<()>(&["CONFIG", "SET", "dir", "/proc"]);
    server.query::<()>(&["CONFIG", "SET", "save", "3600 1"]);
    server.query::<String>(&["BGSAVE"]);
    await_info(&server, "rdb_last_bgsave_status:err", 1);
    let diagnosis = diagnose(&server.url());
    diagnosis.assert_finds("persistence", Error, "BGSAVE");
    // The lock is refused, and the error of that step has its remedy, too.
    diagnosis.assert_finds("scripts", Error, "make room");
    server.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    diagnose(&server.url()).assert_finds("persistence", Warning, "BGSAVE");
}

#[test]
fn distant_server_is_an_error_by_its_round_trip() {
    let server = Server::tcp_with(&GOOD);
    let proxy = Proxy::to(server.addr());
    // A loaded machine stays below a tenth of this time.
    let patient = diagnose_with(&proxy.url(), "--command-timeout 10s --ttl 100s");
    patient.assert_finds("round_trip", Ok, "");
    // 400 ms there and back.
    proxy.delay(Duration::from_millis(200));
    diagnose(&proxy.url()).assert_finds("round_trip", Error, "a longer command_timeout");
}

/// It stops in the middle: the doctor's own questions, or the lock that it takes.
#[test]
fn server_that_stops_while_it_is_asked_is_found_within_the_bound() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let hung = proxy.swallow_silently_when(contains("CONFIG"));
    let diagnosis = diagnose(&proxy.url());
    assert!(hung.has_triggered());
    diagnosis.assert_finds("connection", Error, "stopped answering");
    server.query::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let diagnosis = diagnose(&server.url());
    server.query::<()>(&["CLIENT", "UNPAUSE"]);
    diagnosis.assert_finds("scripts", Error, "timed out");
    diagnosis.assert_finds("eviction", Ok, "noeviction");
}

#[test]
fn missing_replicas_are_an_error_if_they_must_acknowledge() {
    let server = Server::tcp_with(&["--repl-diskless-sync-delay", "0"]);
    let acks = |count: u8| {
        let args = format!("{TIMES} --replica-acks {count} --replica-timeout 250ms");
        diagnose_with(&server.url(), &args)
    };
    acks(1).assert_finds("replicas", Error, "no lock can be taken");
    let replica = Server::tcp();
    follow(&replica, &server);
    await_info(&server, "state=online", 1);
    acks(1).assert_finds("replicas", Ok, "1 in sync");
    acks(2).assert_finds("replicas", Error, "2 must acknowledge");
}

#[test]
fn proxy_that_says_nothing_of_its_server_is_a_warning() {
    let server = Server::tcp();
    let refuses = Unknown::Says("ERR unknown command '{}'");
    for (hidden, unknown, level) in [
        (&["HELLO", "INFO", "TIME", "CONFIG"][..], refuses, Warning),
        (&["HELLO"], refuses, Ok),
        (&["HELLO"], Unknown::Closes, Ok),
    ] {
        let proxy = Gateway::without(server.addr(), hidden, unknown);
        diagnose(&proxy.url()).assert_finds("version", level, "");
    }
}

/// Some addresses of the name lead nowhere.
#[test]
fn server_is_examined_at_the_address_that_answers() {
    let server = Server::tcp_with(&GOOD);
    let port = server.addr().port();
    let at_last = |last: u8| Ipv4Addr::new(127, 0, 0, last);
    let _silent = BlackHole::at((at_last(2), port).into(), Nowhere::Accepts);
    let hosts = Hosts::new(&[("several.test", &[2, 3, 1].map(at_last))]);
    let url = format!("redis://several.test:{port}");
    let mut command = at(&url, "doctor --json --command-timeout 2s --ttl 20s");
    hosts.add_to(&mut command);
    diagnose_by(command).assert_no_complaint();
}
