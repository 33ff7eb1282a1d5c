//! A manager shuts down while a request is in flight. On Redis alone: a proxy holds the request
//! back.

use std::time::Duration;

use fairlock::{LockManager, LockOptions};

use crate::{
    behaviour::shutdown::{aside, assert_closed},
    support::{Proxy, SLACK, Server, contains},
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
    assert!(mgr.shutdown(Duration::ZERO).unwrap().ended.is_empty());
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
