//! Redis is away when `fairlock run` starts, and comes back, or does not.

use crate::defaults::DEFAULT_OUTAGE_LIMIT;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{LONG, Run};
use crate::cluster_set::ClusterSet;
use crate::process::{end, fairlock, without_server};
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, Server, until};
use crate::terminal::Terminal;

/// The longest time to connect, and that of the next attempt.
const CONNECT: Duration = Duration::from_secs(2);

/// `fairlock run` at these URLs, which waits for long.
fn patient(url: &str) -> Command {
    let mut command = without_server(&["run", "--wait", "1h", "a", "--", "echo", "it ran"]);
    command.env("FAIRLOCK_URL", url);
    command
}

/// Starts the command while Redis is away, and has it come back once the command waits for it.
#[track_caller]
fn runs_after(command: &Command, come_back: impl FnOnce()) {
    let mut terminal = Terminal::start(command, 24, 100);
    terminal.shows("a: waiting, redis does not answer");
    come_back();
    terminal.shows("it ran");
    assert!(terminal.program.wait().expect("ends").success());
}

#[test]
fn wait_covers_a_server_that_is_not_up_yet() {
    for server in [Server::start(), Server::tcp()] {
        server.kill();
        runs_after(&patient(&server.url()), || server.restart());
    }
}

#[test]
fn wait_covers_a_server_that_is_busy_or_full_or_a_replica() {
    let server = Server::tcp();
    let master = Server::tcp();
    let port = master.addr().port().to_string();
    server.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let args = [
        "run",
        "--url",
        &server.url(),
        "--no-wait",
        "a",
        "--",
        "true",
    ];
    let ended = end(&mut without_server(&args));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    runs_after(&patient(&server.url()), || {
        server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    });
    let own = server.connection();
    let mut others: Vec<_> = (0..3).map(|_| server.connection()).collect();
    server.query::<()>(&["CONFIG", "SET", "maxclients", "3"]);
    runs_after(&patient(&server.url()), || others.clear());
    drop(own);
}

#[test]
fn wait_covers_a_server_that_runs_a_long_script() {
    let server = Server::start();
    server.query::<()>(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut killer = server.connection();
    let mut busy = server.connection();
    let script = std::thread::spawn(move || {
        let _: redis::RedisResult<()> = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query(&mut busy);
    });
    until(LONG, "busy", || {
        redis::cmd("PING").query::<String>(&mut killer).is_err()
    });
    runs_after(&patient(&server.url()), || {
        redis::cmd("SCRIPT")
            .arg("KILL")
            .exec(&mut killer)
            .expect("killed");
    });
    script.join().expect("no panic");
}

#[test]
fn wait_covers_a_cluster_without_owners_of_slots() {
    let set = ClusterSet::start();
    for node in set.nodes() {
        node.kill();
    }
    runs_after(&patient(&set.url()), || {
        for node in set.nodes() {
            node.restart();
        }
    });
}

#[test]
fn wait_covers_sentinels_without_a_master() {
    let set = SentinelSet::start();
    let nodes = set.all();
    for node in &nodes {
        node.kill();
    }
    runs_after(&patient(&set.url()), || {
        for node in &nodes {
            node.restart();
        }
    });
}

#[test]
fn wait_covers_a_quorum_with_too_few_servers() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    servers[0].kill();
    servers[1].kill();
    runs_after(&patient(&urls.join(" ")), || {
        servers[0].restart();
        servers[1].restart();
    });
}

#[test]
fn plain_run_waits_for_redis_as_long_as_for_an_outage() {
    let server = Server::start();
    server.kill();
    let start = Instant::now();
    let ended = end(&mut fairlock(&server, &["run", "a", "--", "true"]));
    let waited = start.elapsed();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(
        waited >= DEFAULT_OUTAGE_LIMIT - Duration::from_secs(1),
        "{waited:?}"
    );
    assert!(waited < DEFAULT_OUTAGE_LIMIT + SLACK, "{waited:?}");
}

#[test]
fn wait_for_redis_ends_with_its_time_and_no_wait_at_once() {
    let server = Server::start();
    server.kill();
    for (option, least) in [("--wait=700ms", 700), ("--timeout=0s", 0), ("--no-wait", 0)] {
        let start = Instant::now();
        let ended = end(&mut fairlock(&server, &["run", option, "a", "--", "true"]));
        let (waited, least) = (start.elapsed(), Duration::from_millis(least));
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(
            waited >= least && waited < least + SLACK,
            "{option}: {waited:?}"
        );
    }
}

/// The kernel connects, and nobody answers.
#[test]
fn last_attempt_to_connect_ends_with_the_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    let mut command = without_server(&["run", "--url", &url, "--wait", "5s"]);
    command.args(["--command-timeout", "4s", "--ttl", "32s", "a", "--", "true"]);
    let start = Instant::now();
    let ended = end(&mut command);
    let waited = start.elapsed();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(waited < Duration::from_secs(5) + SLACK, "{waited:?}");
}

#[test]
fn state_that_does_not_pass_by_itself_fails_at_once() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let cluster_url = server.url().replace("redis://", "redis-cluster://:secret@");
    let wrong = server.url().replace("redis://", "redis://:wrong@");
    for (url, code, text) in [
        (&*server.url(), 69, "NOAUTH"),
        (&*wrong, 69, "WRONGPASS"),
        (&*cluster_url, 64, "belongs to no cluster"),
    ] {
        let start = Instant::now();
        let ended = end(&mut patient(url));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
        assert!(start.elapsed() < CONNECT + SLACK, "{:?}", start.elapsed());
    }
}

/// The code and not the signal says that fairlock handled it. The first process of a container gets
/// no signal that it does not handle.
#[test]
fn signal_ends_the_wait_for_redis() {
    let server = Server::start();
    server.kill();
    for signal in [Signal::TERM, Signal::HUP, Signal::ALARM] {
        let mut run = Run::start(&mut patient(&server.url()));
        until(LONG, "it handles signals", || {
            let status = format!("/proc/{}/status", run.process.id());
            let status = std::fs::read_to_string(status).expect("alive");
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.expect("Linux").trim(), 16);
            caught.expect("a number") & (1 << (signal.as_raw() - 1)) != 0
        });
        run.signal(signal);
        run.ends(128 + signal.as_raw(), "");
    }
}

#[test]
fn wait_covers_replicas_that_are_not_there_yet() {
    let (server, replica) = (Server::tcp(), Server::tcp());
    server.query::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let mut command = patient(&server.url());
    let mut run = Run::start(command.env("FAIRLOCK_REPLICA_ACKS", "1"));
    until(LONG, "it has tried twice", || {
        let info: String = server.query(&["INFO", "commandstats"]);
        let calls = info.split("cmdstat_wait:calls=").nth(1);
        let calls = calls.and_then(|rest| rest.split(',').next());
        calls.is_some_and(|calls| calls.parse::<u64>().expect("a number") >= 2)
    });
    let port = server.addr().port().to_string();
    replica.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    run.ends(0, "it ran\n");
}
