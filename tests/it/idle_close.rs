//! A connection that the server closed while it was idle is no event: every call succeeds within
//! its bound, nothing is logged above debug, and no failure is counted. On Redis alone, since the
//! in-memory store has no connections. A logger belongs to a process, so the manager is in a
//! worker.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, RwLock};

use crate::fixtures::{P, SOON, STEADY_T, STEADY_TTL, build, steady, warm_up};
use crate::sums::Sums;
use crate::support::child::{Child, receive, report};
use crate::support::{SLACK, Server, until};

/// For a role with many steps.
const LONG: Duration = Duration::from_secs(60);

/// The TTL of a lock whose renewal is not due while the steps run. A renewal among them would use
/// the renewal thread's connection, or have it opened, just when it is closed: that is an event.
const RARELY_RENEWED: Duration = Duration::from_secs(180);

#[test]
fn idle_connections_that_were_killed_are_no_event() {
    let server = Server::start();
    check(&server, "every step", |server, which| {
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        if which == Close::All {
            let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
    });
}

#[test]
fn connections_that_idled_too_long_are_no_event() {
    let server = Server::start();
    check(&server, "calls", |server, _| {
        let _: () = server.query(&["CONFIG", "SET", "timeout", "1"]);
        let started = Instant::now();
        let before = normal_clients(server);
        until(SOON, "those that are not used meanwhile are closed", || {
            let now = normal_clients(server);
            let was_used = |idle: u64| idle + 1 < started.elapsed().as_secs();
            now.iter()
                .all(|(id, idle)| !before.contains_key(id) || was_used(*idle))
        });
        let _: () = server.query(&["CONFIG", "SET", "timeout", "0"]);
    });
}

#[test]
fn a_restart_between_lock_and_drop_is_no_event() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    check(&server, "one drop", |server, _| {
        server.restart();
    });
}

#[test]
fn a_close_whose_retry_fails_is_reported_as_before() {
    let server = Server::start();
    let mut child = Child::spawn("idle_close", &[&server.url(), "outage"]);
    assert_eq!(child.expect("next", LONG), "Idle");
    server.kill();
    child.send("closed");
    assert_eq!(child.expect("next", LONG), "end");
    let lines = child.expect("lines", SOON);
    for warning in [
        "WARN dropping the guard of \"a\": redis at SERVER is unavailable",
        "WARN renewing \"held\" failed and will be tried again: SERVER: ",
        "INFO the subscription ended: SERVER: ",
    ] {
        let warning = warning.replace("SERVER", &socket(&server));
        assert!(lines.contains(&warning), "{lines}");
    }
    child.join();
}

/// The path of a server's socket, as errors show it.
fn socket(server: &Server) -> String {
    server.dir().join("s").display().to_string()
}

/// The last handle's drop wakes the subscription's thread by a message. If it went out on a closed
/// connection, the thread would run on until its next check.
#[test]
fn the_last_handle_ends_its_threads_although_its_connections_were_closed() {
    let server = Server::start();
    let period = SLACK + 2 * STEADY_T;
    let manager = build(
        steady(server.url())
            .options(LockOptions::new().ttl(8 * period))
            .check_period(period)
            .horizon(period + 4 * STEADY_T),
    );
    warm_up(&manager);
    until(SOON, "it is subscribed", || {
        subscribed_clients(&server) == 1
    });
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let started = Instant::now();
    drop(manager);
    assert!(started.elapsed() <= STEADY_T + SLACK);
    until(SLACK, "the subscription is closed", || {
        subscribed_clients(&server) == 0
    });
}

/// The connections that a worker wants to be closed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Close {
    /// The lanes' and the renewal thread's.
    Idle,
    /// The subscription as well.
    All,
}

/// Lets a worker take these steps, and closes its idle connections when it asks for that.
#[track_caller]
fn check(server: &Server, steps: &str, close: impl Fn(&Server, Close)) {
    let mut child = Child::spawn("idle_close", &[&server.url(), steps]);
    loop {
        let which = match &*child.expect("next", LONG) {
            "Idle" => Close::Idle,
            "All" => Close::All,
            _ => break,
        };
        close(server, which);
        child.send("closed");
    }
    // A restart takes a moment, in which the subscription cannot be restored.
    let allowed = if steps == "one drop" {
        "INFO"
    } else {
        "nothing"
    };
    let lines = child.expect("lines", SOON);
    let lines: Vec<&str> = lines.split(" | ").filter(|line| !line.is_empty()).collect();
    let events: Vec<_> = lines
        .iter()
        .filter(|line| !line.starts_with(allowed))
        .collect();
    assert!(events.is_empty(), "{events:#?}");
    let lost_failed_requeued = child.expect("failures", SOON);
    assert_eq!(lost_failed_requeued, "0 0 0");
    child.join();
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

/// The lines above debug. Joined by ` | ` they are one line for the parent.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Capture;

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        LINES.lock().unwrap().push(line);
    }
    fn flush(&self) {}
}

/// A worker with a manager whose connections are closed again and again.
pub(crate) fn idle_close(args: &[String]) {
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let manager = build(steady(args[0].as_str()));
    let other = build(steady(args[0].as_str()));
    warm_up(&manager);
    warm_up(&other);
    // The renewal thread's connection is open then.
    during_a_renewal(&manager, || {});
    if args[1] == "outage" {
        return outage(&manager);
    }
    let rarely = manager.with(LockOptions::new().ttl(RARELY_RENEWED));
    let held = rarely.lock("held").unwrap();
    a_drop(&manager);
    if args[1] != "one drop" {
        calls(&manager);
        close();
        held.renew().unwrap();
        during_a_renewal(&manager, close);
    }
    if args[1] == "every step" {
        waits(&manager, &other);
    }
    held.unlock().unwrap();
    report_lines();
    let stats = manager.stats();
    report(format_args!(
        "failures {} {} {}",
        stats.losses(),
        stats.renewals_failed,
        stats.requeues
    ));
}

fn report_lines() {
    report("next end");
    report(format_args!("lines {}", LINES.lock().unwrap().join(" | ")));
}

/// The server does not come back.
fn outage(manager: &LockManager) {
    let _held = manager.lock("held").unwrap();
    let guard = manager.lock("a").unwrap();
    close();
    in_time(|| drop(guard));
    until(STEADY_TTL / 2 + SLACK, "a renewal has failed", || {
        let lines = LINES.lock().unwrap();
        lines.iter().any(|line| line.contains("renewing \"held\""))
    });
    report_lines();
}

/// Has the parent close the connections that are idle.
fn close() {
    close_also(Close::Idle);
}

fn close_also(which: Close) {
    report(format_args!("next {which:?}"));
    assert_eq!(receive().as_deref(), Some("closed"));
}

/// Takes a lock, does this, and lets the renewal thread renew the lock.
fn during_a_renewal(manager: &LockManager, first: impl FnOnce()) {
    let renewed = manager.stats().renewals_confirmed;
    let guard = manager.lock("renewed").unwrap();
    first();
    until(STEADY_TTL / 2 + SLACK, "the first renewal", || {
        manager.stats().renewals_confirmed > renewed
    });
    guard.unlock().unwrap();
}

/// Runs a call that may take one command timeout.
#[track_caller]
fn in_time<R>(call: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = call();
    assert!(started.elapsed() <= STEADY_T + SLACK);
    result
}

#[track_caller]
fn assert_free(manager: &LockManager, name: &str) {
    let guard = manager.try_lock(name).unwrap();
    guard.expect("it is free").unlock().unwrap();
}

fn a_drop(manager: &LockManager) {
    let guard = manager.lock("a").unwrap();
    close();
    in_time(|| drop(guard));
    assert_free(manager, "a");
}

fn calls(manager: &LockManager) {
    let guard = manager.lock("a").unwrap();
    close();
    in_time(|| guard.unlock().unwrap());
    assert_free(manager, "a");

    let both = manager.lock_all(["a", "b"]).unwrap();
    close();
    in_time(|| drop(both));
    assert_free(manager, "a");
    assert_free(manager, "b");

    let writer = manager.rw_lock("rw").write().unwrap();
    close();
    let reader = in_time(|| RwLock::downgrade(writer).unwrap());
    // It may go on in the background, on a connection that is being opened and so is not idle.
    until(SOON, "Redis has the downgrade", || {
        let info = manager.inspect("rw").unwrap().unwrap();
        info.holders[0].shared
    });
    close();
    in_time(|| drop(reader));
    drop(manager.rw_lock("rw").try_write().unwrap().unwrap());

    close();
    assert!(manager.inspect("held").unwrap().is_some());
    close();
    assert_eq!(manager.list("held").count(), 1);
}

fn waits(manager: &LockManager, other: &LockManager) {
    let waiter = manager.enqueue("held").unwrap();
    close();
    in_time(|| drop(waiter));
    until(STEADY_T + SLACK, "it has left the queue", || {
        manager.inspect("held").unwrap().unwrap().waiters == 0
    });

    let holder = other.lock("a").unwrap();
    let mut waiter = manager.enqueue("a").unwrap();
    close_also(Close::All);
    drop(holder);
    let granted = waiter.wait_for(P + STEADY_T + SLACK).unwrap();
    granted.expect("it is its turn").unlock().unwrap();
}

/// The ids of the connections without a subscription, and for how many seconds each was idle.
fn normal_clients(server: &Server) -> BTreeMap<String, u64> {
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let found = fields.find(|(key, _)| *key == name);
        found.map_or_else(String::new, |(_, value)| value.to_owned())
    };
    let clients = server.clients();
    let normal = clients.iter().filter(|line| !line.contains(" sub=1 "));
    normal
        .map(|line| (field(line, "id"), field(line, "idle").parse().unwrap()))
        .collect()
}

fn subscribed_clients(server: &Server) -> usize {
    let clients = server.clients();
    clients
        .iter()
        .filter(|line| line.contains(" sub=1 "))
        .count()
}
