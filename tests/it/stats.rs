//! Numbers of `Stats` that move when connections break and processes die. On Redis alone: the
//! in-memory store has neither.

use std::thread;
use std::time::Duration;

use crate::fixtures::{SOON, build, steady};
use crate::managers::{check_period, horizon, manager};
use crate::support::{Child, Server, until};
use crate::worker;

#[test]
fn calls_that_wait_for_a_connection_are_counted() {
    let server = Server::start();
    let mgr = build(steady(server.url()).lanes(1));
    for _ in 0..3 {
        mgr.lock("k").unwrap().unlock().unwrap();
    }
    let before = mgr.stats();
    // The first call on the lane opened it.
    assert_eq!((before.connection_waits, before.retries), (1, 0));
    let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(killed > 0);
    mgr.lock("k").unwrap().unlock().unwrap();
    let after = mgr.stats();
    assert_eq!((after.connection_waits, after.retries), (2, 1), "{after}");
    assert!(
        after.connection_wait_time > before.connection_wait_time,
        "{after}"
    );
    server.kill();
    assert!(mgr.try_lock("k").is_err());
    let failed = mgr.stats();
    assert!(failed.connection_waits > after.connection_waits, "{failed}");
    assert_eq!(failed.acquisitions.failed, 1, "{failed}");
}

#[test]
fn waiters_of_killed_processes_are_counted_once_when_passed_over() {
    const TTL: Duration = Duration::from_secs(2);
    const CHILDREN: usize = 2;
    let server = Server::start();
    let [mgr, other] = [(); 2].map(|()| manager(server.url(), TTL));
    let guard = mgr.lock("k").unwrap();
    let mut children: Vec<Child> = (0..CHILDREN)
        .map(|_| worker::start(&server.url(), TTL))
        .collect();
    for child in &mut children {
        child.send("queue k");
        child.expect("queued", SOON);
    }
    let waiter = other.enqueue("k").unwrap();
    children.iter_mut().for_each(Child::kill);
    // Time itself is under test. Liveness counts in served time (R2), which passes while the
    // waiter's checks come.
    thread::sleep(horizon(TTL) + 2 * check_period(TTL));
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    let both = || mgr.stats().dead_waiters + other.stats().dead_waiters;
    until(SOON, "all are counted", || both() == CHILDREN as u64);
    mgr.lock("k").unwrap().unlock().unwrap();
    assert_eq!(both(), CHILDREN as u64);
}
