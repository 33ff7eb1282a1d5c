//! One server.

use std::net::Ipv4Addr;
use std::time::Duration;

use fairlock::LockManager;
use rustix::process::Signal;

use super::Level::{Error, Ok, Warning};
use super::{GOOD, SOON, TIMES, await_info, diagnose, diagnose_by, diagnose_with};
use crate::look::follow;
use crate::process::without_server;
use crate::run::Run;
use crate::support::gateway::{Gateway, Unknown};
use crate::support::hosts::{BlackHole, Hosts, Nowhere};
use crate::support::server::is_redis_62;
use crate::support::{Proxy, Server, contains, until};

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
    until(SOON, "its connections are closed", || {
        server.clients().len() == clients
    });
}

#[test]
fn interrupted_doctor_leaves_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let held = proxy.hold_request_when(contains("CONFIG"));
    let args = ["doctor", "--url", &proxy.url(), "--command-timeout", "20s"];
    let mut doctor = Run::start(&mut without_server(&args));
    held.wait(SOON);
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
        let complaints = diagnosis.complaints();
        let mut others = complaints.iter().filter(|other| other.check != check);
        let is_lock = |check: &str| check == "scripts" && level == Error;
        assert!(others.all(|other| is_lock(&other.check)), "{diagnosis:#?}");
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
    let times = ["--command-timeout", "10s", "--ttl", "100s"];
    diagnose_with(&proxy.url(), &times).assert_finds("round_trip", Ok, "");
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
    let acks = |count: &str| {
        let args = ["--replica-acks", count, "--replica-timeout", "250ms"];
        diagnose_with(&server.url(), &[&TIMES[..], &args].concat())
    };
    acks("1").assert_finds("replicas", Error, "no lock can be taken");
    let replica = Server::tcp();
    follow(&replica, &server);
    await_info(&server, "state=online", 1);
    acks("1").assert_finds("replicas", Ok, "1 in sync");
    acks("2").assert_finds("replicas", Error, "2 must acknowledge");
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
fn ttl_of_the_locks_is_compared_with() {
    let server = Server::tcp_with(&[&GOOD[..], &["--timeout", "3"]].concat());
    // Renewals come every third of the ttl.
    for (args, level) in [(&[][..], Warning), (&["--ttl", "6s"], Ok)] {
        diagnose_with(&server.url(), args).assert_finds("clients", level, "");
    }
}
