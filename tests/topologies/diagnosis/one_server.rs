//! One server.

use std::time::Duration;

use fairlock::{Check, Level, LockManager, LockOptions};

use super::{
    SOON, T, assert_finds, assert_no_complaint, builder, complaints, in_time, manager, of,
};
use crate::support::server::is_redis_62;
use crate::support::{Proxy, Server, until};

/// Settings of which no check complains.
const GOOD: [&str; 2] = ["--appendonly", "yes"];

#[test]
fn good_server_has_no_complaint_and_keeps_nothing() {
    let server = Server::tcp_with(&GOOD);
    let manager = manager(server.url());
    let before = server.clients().len();
    let diagnosis = in_time(&manager);
    assert_no_complaint(&diagnosis);
    let address = server.addr().to_string();
    for finding in &diagnosis.findings {
        assert_eq!(finding.server.as_deref(), Some(&*address), "{finding}");
        assert_eq!(finding.remedy.is_some(), finding.level > Level::Ok);
    }
    assert_finds(&diagnosis, Check::Persistence, Level::Ok, "everysec");
    assert_finds(&diagnosis, Check::Messages, Level::Ok, "a message arrived");
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 0);
    until(SOON, "its connections are closed", || {
        server.clients().len() == before
    });
}

/// No request is sent by a manager that nobody asks for a diagnosis.
#[test]
fn diagnosis_takes_few_requests_and_no_lock() {
    let server = Server::start();
    let manager = manager(server.url());
    let before = server.commands_processed();
    let guard = manager.lock("a").expect("granted");
    let without = server.commands_processed() - before;
    let before = server.commands_processed();
    in_time(&manager);
    let with = server.commands_processed() - before;
    // The first lock asks whether the name is new, and for the rights: on Redis 6.2 by each command of
    // the scripts.
    assert!(without <= 33, "{without}, those of the scripts included");
    assert!(
        (20..=80).contains(&with),
        "{with}, those of the scripts included"
    );
    assert_eq!(server.query::<usize>(&["DBSIZE"]), 1, "the lock alone");
    assert!(guard.is_held());
}

#[test]
fn each_bad_setting_is_found() {
    use Check::{Clients, Eviction, Memory, Messages, Persistence, Replicas, Scripts};
    use Level::{Error, Warning};
    type Case = (
        &'static [(&'static str, &'static str)],
        Check,
        Level,
        &'static str,
    );
    let cases: [Case; 8] = [
        (
            &[("maxmemory-policy", "allkeys-lru")],
            Eviction,
            Warning,
            "noeviction",
        ),
        (
            &[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-lru")],
            Eviction,
            Error,
            "CONFIG SET maxmemory-policy noeviction",
        ),
        (&[("maxmemory", "1")], Memory, Error, "OOM"),
        (
            &[("appendonly", "no")],
            Persistence,
            Warning,
            "CONFIG SET appendonly yes",
        ),
        (
            &[("timeout", "2")],
            Clients,
            Warning,
            "CONFIG SET timeout 0",
        ),
        (
            &[("lua-time-limit", "0")],
            Scripts,
            Warning,
            "lua-time-limit",
        ),
        (
            &[("client-output-buffer-limit", "pubsub 1024 0 0")],
            Messages,
            Warning,
            "client-output-buffer-limit",
        ),
        (
            &[("min-replicas-to-write", "1")],
            Replicas,
            Error,
            "NOREPLICAS",
        ),
    ];
    let server = Server::start_with(&GOOD);
    let manager = manager(server.url());
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
        let diagnosis = in_time(&manager);
        assert_finds(&diagnosis, check, level, text);
        let bad = complaints(&diagnosis);
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
    let manager = manager(server.url());
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let diagnosis = manager.diagnose();
    let found = of(&diagnosis, Check::Eviction);
    let remedy = found[0].remedy.as_deref().expect("a remedy");
    let (command, rest) = remedy.split_once(". ").expect("two sentences");
    assert!(rest.starts_with("CONFIG REWRITE "), "{remedy}");
    let words: Vec<&str> = command.split(' ').collect();
    server.query::<()>(&words);
    assert_no_complaint(&manager.diagnose());
}

#[test]
fn server_that_cannot_save_is_an_error() {
    // 6.2 protects no setting. No file can be made in /proc, by root either.
    let server = if is_redis_62() {
        Server::start()
    } else {
        Server::start_with(&["--enable-protected-configs", "yes"])
    };
    let manager = manager(server.url());
    server.query::<()>(&["CONFIG", "SET", "dir", "/proc"]);
    server.query::<()>(&["CONFIG", "SET", "save", "3600 1"]);
    server.query::<String>(&["BGSAVE"]);
    until(SOON, "the save has failed", || {
        let info: String = server.query(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    assert_finds(
        &manager.diagnose(),
        Check::Persistence,
        Level::Error,
        "MISCONF",
    );
    server.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert_finds(
        &manager.diagnose(),
        Check::Persistence,
        Level::Warning,
        "BGSAVE",
    );
}

#[test]
fn distant_server_is_an_error_by_its_round_trip() {
    let server = Server::tcp_with(&GOOD);
    let proxy = Proxy::to(server.addr());
    let with = |timeout: Duration| {
        let built = builder(proxy.url())
            .command_timeout(timeout)
            .horizon(3 * timeout + T)
            .options(LockOptions::new().ttl(10 * timeout))
            .build();
        built.expect("the server is there")
    };
    let (short, long, very_long) = (manager(proxy.url()), with(2 * T), with(10 * T));
    // A loaded machine stays below a tenth of this time.
    assert_finds(&very_long.diagnose(), Check::RoundTrip, Level::Ok, "10s");
    // 400 ms there and back.
    proxy.delay(Duration::from_millis(200));
    let distant = short.diagnose();
    assert_finds(
        &distant,
        Check::RoundTrip,
        Level::Error,
        "a command_timeout",
    );
    let distant = long.diagnose();
    assert_finds(
        &distant,
        Check::RoundTrip,
        Level::Warning,
        "a command_timeout",
    );
}

#[test]
fn stopped_server_is_one_error_within_the_bound() {
    let server = Server::tcp();
    let manager = manager(server.url());
    server.stop();
    let diagnosis = in_time(&manager);
    server.cont();
    assert_finds(
        &diagnosis,
        Check::Connection,
        Level::Error,
        "the server hangs",
    );
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis}");
    let address = server.addr().to_string();
    assert_eq!(diagnosis.findings[0].server, Some(address));
}

/// It stops in the middle: after the handshake, and again a reply later.
#[test]
fn server_that_stops_while_it_is_asked_is_found_within_the_bound() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = manager(proxy.url());
    for last in ["INFO", "EVALSHA"] {
        let hung = proxy.swallow_silently_when(crate::support::contains(last));
        let diagnosis = in_time(&manager);
        assert!(hung.has_triggered(), "{last}");
        proxy.disarm();
        assert_finds(
            &diagnosis,
            Check::Connection,
            Level::Error,
            "stopped answering",
        );
        let unknown = |check| {
            let found = of(&diagnosis, check);
            found
                .iter()
                .any(|finding| finding.message.contains("not known"))
        };
        assert_eq!(unknown(Check::Version), last == "INFO", "{diagnosis}");
        assert!(unknown(Check::Scripts), "{diagnosis}");
    }
}

#[test]
fn dead_server_is_an_error_with_a_remedy() {
    let server = Server::tcp();
    let manager = manager(server.url());
    server.kill();
    let diagnosis = in_time(&manager);
    assert_finds(
        &diagnosis,
        Check::Connection,
        Level::Error,
        "nothing listens there",
    );
}

#[test]
fn master_that_became_a_replica_is_an_error_with_the_masters_url() {
    let (server, other) = (Server::tcp(), Server::tcp());
    let manager = manager(server.url());
    let (host, port) = (
        other.addr().ip().to_string(),
        other.addr().port().to_string(),
    );
    server.query::<()>(&["REPLICAOF", &host, &port]);
    let diagnosis = in_time(&manager);
    let url = format!("redis://{}", other.addr());
    assert_finds(&diagnosis, Check::Role, Level::Error, &url);
}

#[test]
fn missing_replicas_are_an_error_if_they_must_acknowledge() {
    let server = Server::tcp();
    let acks = |count| {
        let built = builder(server.url()).replica_acks(count, T / 4).build();
        built.expect("the server is there").diagnose()
    };
    assert_finds(
        &acks(1),
        Check::Replicas,
        Level::Error,
        "no lock can be taken",
    );
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
    assert_finds(&acks(1), Check::Replicas, Level::Ok, "1 in sync");
    assert_finds(&acks(2), Check::Replicas, Level::Error, "wants 2");
}

/// A script that runs on and on: nothing else is answered.
#[test]
fn busy_server_is_an_error_with_the_way_out() {
    let server = Server::tcp_with(&["--lua-time-limit", "50"]);
    let manager = manager(server.url());
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
    let diagnosis = in_time(&manager);
    let remedy = "SCRIPT KILL ends the script";
    assert_finds(&diagnosis, Check::Connection, Level::Error, remedy);
    server.query::<()>(&["SCRIPT", "KILL"]);
    endless.join().expect("the script has ended");
}

#[test]
fn error_of_a_build_is_a_diagnosis() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let error = LockManager::connect(server.url()).expect_err("a password is missing");
    let diagnosis = fairlock::Diagnosis::from(&error);
    assert_finds(
        &diagnosis,
        Check::Connection,
        Level::Error,
        "redis://:password@host",
    );
}

#[cfg(feature = "memory")]
#[test]
fn store_in_memory_is_fit_until_it_is_down() {
    use fairlock::memory::Memory;
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is up");
    let diagnosis = manager.diagnose();
    assert_eq!(diagnosis.level(), Level::Ok, "{diagnosis}");
    assert_finds(&diagnosis, Check::Persistence, Level::Ok, "this process");
    memory.go_down();
    assert_finds(&manager.diagnose(), Check::Connection, Level::Error, "");
}

#[cfg(feature = "serde")]
#[test]
fn diagnosis_survives_json() {
    let server = Server::start();
    let diagnosis = manager(server.url()).diagnose();
    let text = serde_json::to_string(&diagnosis).expect("it can be written");
    assert!(
        text.contains(r#""check":"round_trip","level":"ok""#),
        "{text}"
    );
    let read: fairlock::Diagnosis = serde_json::from_str(&text).expect("it can be read");
    assert_eq!(read, diagnosis);
}
