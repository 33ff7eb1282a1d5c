//! A manager shuts down while a request is in flight, or before its process exits. On Redis alone:
//! a proxy holds the request back, and the holder is a separate process.

use crate::fixtures::DEFAULT_TTL;
use std::{process, time::Duration};

use fairlock::{Error, LockManager, LockOptions, PreviousHolder};

use crate::{
    backend::Backend,
    behaviour::shutdown::{aside, assert_closed, assert_unreleased, patient},
    fixtures::build,
    managers,
    support::{Child, Proxy, SLACK, Server, contains},
    worker::SOON,
};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that TTL.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// How much longer a shutdown may take than the time it gives to guards.
const OVERHEAD: Duration = COMMAND_TIMEOUT.saturating_mul(2).saturating_add(SLACK);

fn manager(server: &Server) -> LockManager {
    to(&server.url())
}

fn to(url: &str) -> LockManager {
    LockManager::builder(url)
        .options(LockOptions::new().ttl(TTL))
        .build()
        .unwrap()
}

#[test]
fn a_lock_granted_during_shutdown_is_released() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let other = manager(&server);
    let mgr = LockManager::connect(proxy.url()).unwrap();
    let held = proxy.hold_request_when(contains("{n}"));
    let locking = aside(&mgr, |mgr| mgr.lock("n").map(drop));
    held.wait(SLACK);
    assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
    held.release();
    assert_closed(locking.recv_timeout(OVERHEAD).expect("the call ends"));
    assert!(other.try_lock_for("n", SLACK).unwrap().is_some());
}

#[test]
fn a_wait_that_begins_during_shutdown_ends_at_once() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let other = manager(&server);
    let mgr = LockManager::connect(proxy.url()).unwrap();
    let guard = other.lock("n").unwrap();
    let held = proxy.hold_request_when(contains("{n}"));
    // Its first try is in flight, so it is not queued yet.
    let locking = aside(&mgr, |mgr| mgr.lock("n").map(drop));
    held.wait(SLACK);
    mgr.shutdown(Duration::ZERO).unwrap();
    held.release();
    assert_closed(locking.recv_timeout(OVERHEAD).expect("the wait ends"));
    assert_eq!(other.inspect("n").unwrap().unwrap().waiters, 0);
    guard.check().unwrap();
}

#[test]
fn a_process_that_exits_after_its_shutdown_leaves_no_lock() {
    let server = Server::start();
    let other = managers::manager(server.url(), DEFAULT_TTL);
    for many in [1, 1, 1, 1, 1, 1000] {
        let mut child = Child::spawn("shuts_down", &[&server.url(), &many.to_string()]);
        assert!(child.wait(SOON).success(), "{child}");
        for i in 0..many {
            let guard = other.try_lock(format!("k{i}")).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("k{i} of {many} is still taken"));
            assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
        }
    }
}

#[test]
fn a_shutdown_completes_releases_that_began_before_it() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (patient(proxy.url()), patient(server.url()));
    let _taken = other.lock("place").unwrap();
    let guard = mgr.lock("n").unwrap();
    let waiter = mgr.enqueue("place").unwrap();
    proxy.refuse();
    proxy.close_all();
    // The first attempts fail, and the renewal thread pauses before it connects again.
    drop((guard, waiter));
    proxy.accept();
    assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
    assert!(other.try_lock("n").unwrap().is_some());
    assert_eq!(other.inspect("place").unwrap().unwrap().waiters, 0);
}

#[test]
fn a_shutdown_names_a_lock_whose_release_is_refused() {
    let server = Server::start();
    let mgr = patient(server.url());
    std::mem::forget(mgr.lock("n").unwrap());
    let _: String = server.query(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    assert_unreleased(mgr.shutdown(Duration::ZERO), "n; still held at the end: n");
}

#[test]
fn the_last_handle_completes_releases_that_began_before_it() {
    let backend = Backend::redis();
    let (mgr, other) = (patient(&backend), patient(&backend));
    let guard = mgr.lock("n").unwrap();
    backend.go_away();
    assert!(matches!(guard.unlock(), Err(Error::Unavailable { .. })));
    // Redis is silent for so long that the next drop is not a part of that call.
    assert!(matches!(mgr.try_lock("n"), Err(Error::Unavailable { .. })));
    backend.come_back();
    drop(mgr);
    assert!(other.try_lock("n").unwrap().is_some());
}

/// A child role that ends with locks that a shutdown must release.
pub(crate) fn shuts_down(args: &[String]) {
    let mgr = build(managers::patient_builder(args[0].as_str()).lanes(1));
    let many: usize = args[1].parse().unwrap();
    for i in 0..many {
        std::mem::forget(mgr.lock(format!("k{i}")).unwrap());
    }
    let shutdown = mgr.shutdown(Duration::ZERO).unwrap();
    assert_eq!(shutdown.len(), many);
    process::exit(0);
}
