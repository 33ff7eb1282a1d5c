//! The costs of a manager: threads, connections, requests and wake-ups. All of them end with the
//! last handle. On Redis alone: the tests count connections and requests on the server, and threads
//! in a child process.

use crate::fixtures::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_TTL};
use std::{
    fs,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockGuard, LockManager, LockOptions};

use crate::{
    managers::{manager, queue},
    support::{
        Child, SLACK, Server,
        child::{receive, report},
        until,
    },
    worker::SOON,
};

const CROWD: usize = 100;
const PREFIX: &str = "fairlock-";
/// The thread's name as the kernel shows it: the first 15 bytes.
const RENEWAL: &str = "fairlock-renewa";
/// One for the holder. In the crowd's process, one each for the lane, the subscription and the renewal
/// thread.
const CONNECTIONS: usize = 4;
const BACKGROUND_THREADS: [&str; 3] = ["fairlock-listen", "fairlock-pool", RENEWAL];

/// The waiters also cost at most three requests a second.
#[test]
fn p9_a_hundred_waiters_cost_two_connections_beside_the_pool() {
    const PERIODS: u32 = 4;
    let server = Server::start();
    let (mut child, _locks) = crowd_of(&server, 1);
    let before = requests(&server);
    let reported = requests_reported(&mut child);
    // Time itself is under test: the requests of these periods are counted.
    thread::sleep(PERIODS * DEFAULT_CHECK_PERIOD);
    let most = 3 * u64::from(PERIODS);
    let seen = requests(&server) - before;
    let reported = requests_reported(&mut child) - reported;
    assert!(
        (1..=most).contains(&seen) && (1..=most).contains(&reported),
        "{seen} seen by Redis, {reported} counted by the manager"
    );
    check_crowd(&server, &mut child);
}

#[test]
fn p9_a_hundred_waiters_on_a_hundred_names_cost_no_more() {
    let server = Server::start();
    let (mut child, _locks) = crowd_of(&server, CROWD);
    // Time itself is under test: all names are checked in it.
    thread::sleep(2 * DEFAULT_CHECK_PERIOD);
    check_crowd(&server, &mut child);
}

#[test]
fn the_renewal_thread_sleeps_through_ten_thousand_uncontended_turns() {
    check_sleep("cold");
}

#[test]
fn the_renewal_thread_sleeps_again_after_contention_has_ended() {
    check_sleep("warm");
}

#[test]
fn all_threads_and_connections_end_with_the_last_manager() {
    check_end("manager");
}

#[test]
fn all_threads_and_connections_end_with_the_last_guard() {
    check_end("guard");
}

#[test]
fn all_threads_and_connections_end_with_the_last_waiter() {
    check_end("waiter");
}

#[test]
fn threads_and_connections_end_when_callbacks_drop_the_last_handle() {
    check_end("callback");
}

/// A worker with a hundred threads that wait for `names` names, and the guards that they wait for.
/// The guards' manager has one connection, and fixed leases, so that no renewal opens another.
fn crowd_of(server: &Server, names: usize) -> (Child, Vec<LockGuard>) {
    let holder = LockManager::builder(server.url()).lanes(1).build().unwrap();
    let holder = holder.with(LockOptions::new().fixed_lease(Duration::from_secs(60)));
    let locks = (0..names)
        .map(|i| holder.lock(format!("k{i}")).unwrap())
        .collect();
    assert_eq!(server.clients().len(), 1);
    let child = Child::spawn("crowd", &[&server.url(), &names.to_string()]);
    until(SOON, "all wait", || {
        (0..names)
            .map(|i| queue(server, &format!("k{i}")).len())
            .sum::<usize>()
            == CROWD
    });
    until(
        SOON,
        "the crowd's renewal thread has checked a name",
        || server.clients().len() >= CONNECTIONS,
    );
    (child, locks)
}

#[track_caller]
fn check_crowd(server: &Server, child: &mut Child) {
    child.send("threads");
    assert_eq!(child.expect("threads", SOON), BACKGROUND_THREADS.join(" "));
    let clients = server.clients();
    assert_eq!(clients.len(), CONNECTIONS, "{clients:#?}");
    child.send("try");
    assert_eq!(
        child.expect("tried", SOON),
        "true",
        "waiters hold the only lane"
    );
}

/// How many client requests Redis has run. Its statistics also count commands inside scripts; those
/// are subtracted.
fn requests(server: &Server) -> u64 {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    // While a crowd waits, only sync scripts run, and each has one HMGET. Clients sent all other
    // HMGETs themselves.
    let scripts = calls("eval") + calls("evalsha");
    let lookups = calls("hmget").saturating_sub(scripts);
    scripts + lookups + calls("ping") + calls("time") - scripts.min(calls("time"))
}

fn requests_reported(child: &mut Child) -> u64 {
    child.send("requests");
    child.expect("requests", SOON).parse().unwrap()
}

pub(crate) fn crowd(args: &[String]) {
    let mgr = LockManager::builder(&*args[0]).lanes(1).build().unwrap();
    let names: usize = args[1].parse().unwrap();
    for i in 0..CROWD {
        let mutex = mgr.mutex(format!("k{}", i % names));
        thread::spawn(move || mutex.lock().map(drop));
    }
    while let Some(line) = receive() {
        match &*line {
            "threads" => {
                // While a connection is being opened, it has a thread of its own.
                until(SOON, "the connections are open", || {
                    own_threads().len() == BACKGROUND_THREADS.len()
                });
                report(format_args!("threads {}", own_threads().join(" ")));
            }
            "requests" => report(format_args!("requests {}", mgr.stats().requests)),
            _ => report(format_args!(
                "tried {}",
                mgr.try_lock("free").unwrap().is_some()
            )),
        }
    }
}

fn check_sleep(mode: &str) {
    let server = Server::start();
    let mut child = Child::spawn("cycles", &[&server.url(), mode]);
    let woken = child.expect("woken", Duration::from_secs(60));
    let numbers: Vec<u128> = woken.split(' ').map(|n| n.parse().unwrap()).collect();
    let [woken, lasted] = numbers[..] else {
        panic!("{numbers:?}")
    };
    // While guards are dropped, it looks once per command timeout for replies that nobody has read.
    let looks = lasted / DEFAULT_COMMAND_TIMEOUT.as_millis();
    assert!(
        woken <= 10 + looks,
        "{woken} context switches in {lasted} ms"
    );
    child.join();
}

/// Locks and unlocks ten thousand times, and reports how often the renewal thread went to sleep
/// during that.
pub(crate) fn cycles(args: &[String]) {
    let mgr = manager(args[0].as_str(), DEFAULT_TTL);
    if args[1] == "warm" {
        contend(&mgr);
    }
    for _ in 0..10 {
        drop(mgr.lock("k").unwrap());
    }
    let (before, started) = (sleeps_of(RENEWAL), Instant::now());
    for _ in 0..10_000 {
        drop(mgr.lock("k").unwrap());
    }
    let lasted = started.elapsed().as_millis();
    report(format_args!(
        "woken {} {lasted}",
        sleeps_of(RENEWAL) - before
    ));
}

fn check_end(last: &str) {
    let server = Server::start();
    let mut child = Child::spawn("last_handle", &[&server.url(), last]);
    child.expect("threads are gone", SOON);
    until(SLACK, "the connections are closed", || {
        server.clients().is_empty()
    });
    child.close_stdin();
    child.join();
}

/// Starts every thread that a manager can have, and drops its last handle.
pub(crate) fn last_handle(args: &[String]) {
    let (dropped, in_main) = mpsc::channel::<()>();
    let in_main = Mutex::new(in_main);
    let last = Arc::new(Mutex::new(None::<LockManager>));
    let (callback, called) = mpsc::channel();
    let in_callback = Arc::clone(&last);
    let options = LockOptions::new()
        .max_hold(Duration::from_millis(200))
        .on_lost(move |_| {
            // The guard must live until the loss is reported, and must be dropped before the
            // handle.
            callback.send(()).unwrap();
            in_main.lock().unwrap().recv().unwrap();
            drop(in_callback.lock().unwrap().take());
            callback.send(()).unwrap();
        });
    let mgr = manager(args[0].as_str(), DEFAULT_TTL);
    contend(&mgr);
    let lossy = mgr.with(options);
    let guard = lossy.lock("k").unwrap();
    let start = match &*args[1] {
        "callback" => {
            *last.lock().unwrap() = Some(mgr);
            called.recv_timeout(SOON).unwrap();
            drop((guard, lossy));
            dropped.send(()).unwrap();
            let start = Instant::now();
            called.recv_timeout(SOON).unwrap();
            start
        }
        "manager" => {
            drop((guard, lossy));
            let start = Instant::now();
            drop(mgr);
            start
        }
        "guard" => {
            drop((mgr, lossy));
            assert!(guard.is_held());
            let start = Instant::now();
            guard.unlock().unwrap();
            start
        }
        _ => {
            let waiter = mgr.enqueue("other").unwrap();
            drop((guard, mgr, lossy));
            let start = Instant::now();
            drop(waiter);
            start
        }
    };
    assert!(
        start.elapsed() < DEFAULT_COMMAND_TIMEOUT + SLACK,
        "{:?}",
        start.elapsed()
    );
    // The kernel still shows a thread for a moment after it was joined.
    until(
        SLACK,
        &format!("the threads end: {:?}", own_threads()),
        || own_threads().is_empty(),
    );
    report("threads are gone");
    receive();
}

/// Makes one caller wait for another, so that the subscription's thread starts.
fn contend(mgr: &LockManager) {
    let guard = mgr.lock("contended").unwrap();
    let waiter = mgr.enqueue("contended").unwrap();
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
}

/// The names of fairlock's threads in this process, as the kernel has them.
pub(crate) fn own_threads() -> Vec<String> {
    let mut names: Vec<String> = tasks()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    names.sort();
    names
}

fn sleeps_of(thread: &str) -> u64 {
    let (_, status) = tasks().find(|(name, _)| name == thread).expect("it runs");
    let sleeps = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    sleeps.expect("Linux reports it").trim().parse().unwrap()
}

/// The name and the status of every thread of this process.
fn tasks() -> impl Iterator<Item = (String, String)> {
    // A thread may end after it was listed and before it is read.
    fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm"))
            .ok()?
            .trim()
            .to_owned();
        Some((name, fs::read_to_string(task.join("status")).ok()?))
    })
}
