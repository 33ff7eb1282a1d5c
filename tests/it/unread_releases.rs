//! Faults that meet a release whose reply nobody waits for: the lock is free soon all the same, and
//! at once for its own manager. On Redis alone: the faults are the server's and the network's.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, PreviousHolder};

use crate::fixtures::{P, Record, SOON, STEADY_T as T, build, is_free_within, steady, warm_up};
use crate::fork::in_child;
use crate::managers::{assert_nothing_left, patient};
use crate::sums::Sums;
use crate::support::child::report;
use crate::support::{Child, SLACK, Server, until};

const KILL: &[&str] = &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
const THREADS: usize = 4;
const TURNS: usize = 150;
const FORKS: usize = 20;

fn setup(server: &Server) -> (LockManager, LockManager) {
    let ours = build(steady(server.url()));
    let other = build(steady(server.url()));
    warm_up(&ours);
    warm_up(&other);
    (ours, other)
}

/// Threads that take names of their own by turns, each within this time.
#[track_caller]
fn take_turns(ours: &LockManager, within: Duration, after: impl Fn(usize) + Sync) {
    let after = &after;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let name = format!("k{thread}-{}", turn % 3);
                    let guard = ours.try_lock_for(&name, within).unwrap();
                    drop(guard.unwrap_or_else(|| panic!("turn {turn}: {name} is taken")));
                    after(turn);
                }
            });
        }
    });
    assert_eq!(ours.stats().losses(), 0);
}

#[track_caller]
fn turns_leave_nothing(server: &Server) {
    for thread in 0..THREADS {
        for name in 0..3 {
            Record::of(server, &format!("k{thread}-{name}")).comes_to_rest();
        }
    }
}

#[test]
fn no_unread_release_is_lost_when_scripts_are_forgotten() {
    let server = Server::tcp();
    let (ours, _other) = setup(&server);
    let flushes = server.repeat(&["SCRIPT", "FLUSH"], Duration::from_millis(1));
    // Each finds its name free.
    take_turns(&ours, Duration::ZERO, |_| {});
    drop(flushes);
    turns_leave_nothing(&server);
}

#[test]
fn no_unread_release_is_lost_when_connections_are_killed() {
    let server = Server::tcp();
    let (ours, _other) = setup(&server);
    // R7 (late copies): a release may go on in the background, and overtakes no later call then.
    take_turns(&ours, T + P + SLACK, |turn| {
        if turn % 8 == 0 {
            let _: i64 = server.query(KILL);
        }
    });
    turns_leave_nothing(&server);
}

/// The connection ends between the drop and any other call, so nobody reads.
#[test]
fn a_drop_before_its_connection_is_killed_releases_soon() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    for _ in 0..5 {
        let guards = [ours.lock("a").unwrap(), ours.lock("b").unwrap()];
        drop(guards);
        let _: i64 = server.query(KILL);
        is_free_within(T + SLACK, &other, "a");
        is_free_within(T + SLACK, &other, "b");
    }
}

fn ids_of_normal_clients(server: &Server) -> Vec<String> {
    let clients = server.clients();
    let normal = clients.iter().filter(|line| !line.contains(" sub=1 "));
    let id = |line: &String| line.split(' ').next().map(str::to_owned);
    normal.filter_map(id).collect()
}

/// The server closes connections that idle for a second.
#[test]
fn a_drop_on_connections_that_idled_too_long_has_released() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    let _: () = server.query(&["CONFIG", "SET", "timeout", "1"]);
    for _ in 0..2 {
        let guards = [ours.lock("a").unwrap(), ours.lock("b").unwrap()];
        let both = ours.lock_all(["c", "d"]).unwrap();
        // A new connection has another id, so the ones that were used last have ended.
        let ids = ids_of_normal_clients(&server);
        until(SOON, "all connections were closed", || {
            let now = ids_of_normal_clients(&server);
            ids.iter().all(|id| !now.contains(id))
        });
        drop(guards);
        drop(both);
        for name in ["a", "b", "c", "d"] {
            let guard = other.try_lock(name).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("{name}: drop had the reply"));
            assert_eq!(guard.previous_holder(), PreviousHolder::Released);
            guard.unlock().unwrap();
        }
    }
}

#[test]
fn a_server_without_memory_runs_unread_releases() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    let guards = [ours.lock("a").unwrap(), ours.lock("b").unwrap()];
    let permits = ours.semaphore("s", 2).acquire(2).unwrap();
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    drop((guards, permits));
    until(SLACK, "all are released", || {
        ["a", "b", "s"]
            .iter()
            .all(|name| other.inspect(name).unwrap().is_none())
    });
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    is_free_within(SLACK, &other, "a");
    is_free_within(SLACK, &other, "b");
}

#[test]
fn p8_drops_end_in_time_on_a_stopped_server() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    let names: Vec<String> = (0..6).map(|i| format!("k{i}")).collect();
    let guards: Vec<_> = names.iter().map(|name| ours.lock(name).unwrap()).collect();
    let both = ours.lock_all(["y", "z"]).unwrap();
    server.stop();
    let in_time = |dropping: Box<dyn FnOnce()>| {
        let start = Instant::now();
        dropping();
        assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    };
    for guard in guards {
        in_time(Box::new(move || drop(guard)));
    }
    in_time(Box::new(move || drop(both)));
    server.cont();
    for name in names.iter().map(String::as_str).chain(["y", "z"]) {
        is_free_within(2 * T + SLACK, &other, name);
    }
}

/// The one drop has the lane to itself, so it does not wait for the server.
#[test]
fn a_drop_before_the_server_stops_is_released_when_it_goes_on() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    for pause in [Duration::ZERO, T + P] {
        let guard = ours.lock("a").unwrap();
        server.stop();
        let start = Instant::now();
        drop(guard);
        assert!(start.elapsed() <= T + SLACK);
        // Time itself is under test: the server is silent for this long.
        thread::sleep(pause);
        server.cont();
        is_free_within(2 * T + SLACK, &other, "a");
    }
    assert_eq!(ours.stats().losses(), 0);
}

#[test]
fn an_unread_release_refused_by_a_replica_runs_on_its_promotion() {
    let server = Server::tcp();
    let (ours, other) = setup(&server);
    for _ in 0..3 {
        let guards = [ours.lock("a").unwrap(), ours.lock("b").unwrap()];
        let _: () = server.query(&["REPLICAOF", "127.0.0.1", "1"]);
        drop(guards);
        let refused = other.try_lock("free");
        let is_read_only =
            matches!(&refused, Err(Error::Refused { code, .. }) if code == "READONLY");
        assert!(is_read_only, "{refused:?}");
        let _: () = server.query(&["REPLICAOF", "NO", "ONE"]);
        is_free_within(2 * T + SLACK, &other, "a");
        is_free_within(2 * T + SLACK, &other, "b");
    }
    assert_eq!(ours.stats().losses(), 0);
}

#[test]
fn p1_a_fork_disturbs_no_unread_release() {
    let server = Server::tcp();
    let mut child = Child::spawn("forks_with_unread", &[&server.url()]);
    for _ in 0..FORKS {
        assert_eq!(child.expect("child", SOON), "0");
    }
    child.expect("done", SOON);
    child.join();
    for name in ["k", "l", "m"] {
        until(SLACK, "it is released", || {
            Record::of(&server, name).owner().is_none()
        });
        assert_nothing_left(&server, name);
    }
}

pub(crate) fn forks_with_unread(args: &[String]) {
    let mgr = patient(args[0].as_str());
    for _ in 0..FORKS {
        let held = mgr.lock("l").unwrap();
        drop(mgr.lock("k").unwrap());
        drop(mgr.lock_all(["k", "m"]).unwrap());
        let failures = in_child(|| {
            // SAFETY: as in `fork::inherit`: the child never returns to the code that would drop
            // these values.
            let (mgr, held) = unsafe {
                (
                    std::ptr::read(&raw const mgr),
                    std::ptr::read(&raw const held),
                )
            };
            let closed = |e: Error| matches!(e, Error::Closed);
            let wrong = [
                !mgr.try_lock("k").is_err_and(closed),
                !mgr.lock_all(["k", "m"]).is_err_and(closed),
                !mgr.inspect("k").is_err_and(closed),
                !mgr.shutdown(Duration::ZERO).is_err_and(closed),
            ];
            drop((held, mgr));
            wrong.iter().filter(|wrong| **wrong).count() as i32
        });
        report(format_args!("child {failures}"));
        for name in ["k", "m"] {
            assert!(mgr.try_lock(name).unwrap().is_some(), "{name}");
        }
        held.unlock().unwrap();
    }
    report("done");
}
