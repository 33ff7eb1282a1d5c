//! Redis is away when `fairlock run` starts, and comes back, or does not.

use super::*;
use crate::defaults::DEFAULT_OUTAGE_LIMIT;

/// The longest time to connect, and that of the next attempt.
const CONNECT: Duration = Duration::from_secs(2);

/// `fairlock run` at these URLs, which waits for long.
fn patient_at(url: &str) -> Command {
    at(url, "run --wait 1h a -- echo 'it ran'")
}

/// Starts a run while Redis is away, and has it come back once the run waits for it.
#[track_caller]
fn runs_after(url: &str, come_back: impl FnOnce()) {
    let mut terminal = Terminal::start(&patient_at(url));
    terminal.shows("a: waiting, redis does not answer");
    come_back();
    terminal.shows("it ran");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn wait_covers_servers_that_are_down() {
    let (cluster, sentinels) = (ClusterSet::start(), SentinelSet::start());
    let alone = [Server::start(), Server::tcp()];
    let quorum = [(); 3].map(|()| Server::start());
    for (url, down) in [
        (alone[0].url(), vec![&alone[0]]),
        (alone[1].url(), vec![&alone[1]]),
        (cluster.url(), cluster.nodes().iter().collect()),
        (sentinels.url(), sentinels.all()),
        (urls(&quorum), vec![&quorum[1], &quorum[2]]),
    ] {
        down.iter().for_each(|server| server.kill());
        runs_after(&url, || down.iter().for_each(|server| server.restart()));
    }
}

#[test]
fn wait_covers_a_server_that_is_busy_or_full_or_a_replica() {
    let server = Server::tcp();
    let master = Server::tcp();
    follow(&server, &master);
    gives(fairlock(&server, "run --no-wait a -- true"), 69, "");
    runs_after(&server.url(), || {
        server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    });
    let own = server.connection();
    let mut others: Vec<_> = (0..3).map(|_| server.connection()).collect();
    server.query::<()>(&["CONFIG", "SET", "maxclients", "3"]);
    runs_after(&server.url(), || others.clear());
    drop(own);
    // It runs a long script.
    let server = Server::start();
    keep_busy(&server);
    runs_after(&server.url(), || {
        server.query::<()>(&["SCRIPT", "KILL"]);
    });
}

#[test]
fn wait_for_redis_has_its_time_and_no_wait_has_none() {
    let server = Server::start();
    server.kill();
    for (options, least) in [
        ("--wait=700ms", Duration::from_millis(700)),
        ("--timeout=0s", Duration::ZERO),
        ("--no-wait", Duration::ZERO),
        // As long as for an outage. No pause is begun that it does not leave time for.
        ("", DEFAULT_OUTAGE_LIMIT - Duration::from_secs(1)),
    ] {
        let start = Instant::now();
        let line = format!("run {options} a -- true");
        gives(at(&server.url(), &line), 69, "");
        let (waited, bound) = (start.elapsed(), least + CONNECT + SLACK);
        assert!((least..bound).contains(&waited), "{options}: {waited:?}");
    }
}

#[test]
fn state_that_does_not_pass_by_itself_fails_at_once() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let cluster_url = server.url().replace("redis://", "redis-cluster://:secret@");
    let wrong = server.url().replace("redis://", "redis://:wrong@");
    for (url, code, text) in [
        (&*server.url(), 69, "NOAUTH"),
        (&*wrong, 69, "WRONGPASS"),
        (&*cluster_url, 64, "FAIRLOCK_URL: "),
    ] {
        let start = Instant::now();
        gives(patient_at(url), code, "").says(text);
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
        let mut terminal = Terminal::start(&patient_at(&server.url()));
        terminal.shows("a: waiting, redis does not answer");
        let process = Pid::from_child(&terminal.program);
        kill_process(process, signal).expect("sent");
        assert_eq!(terminal.ends(), Some(128 + signal.as_raw()));
    }
}

#[test]
fn wait_covers_replicas_that_are_not_there_yet() {
    let (server, replica) = (Server::tcp(), Server::tcp());
    server.query::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let acks = |options| {
        let line = format!("run --replica-acks 1 {options} a -- echo ran");
        at(&server.url(), &line)
    };
    gives(acks("--no-wait"), 69, "").says("0 of 1 replicas");
    let mut run = Run::start(acks("--wait 1h"));
    let before = server.calls("wait");
    until(LONG, "it has tried twice", || {
        server.calls("wait") >= before + 2
    });
    follow(&replica, &server);
    run.ends(0, "ran\n");
}
