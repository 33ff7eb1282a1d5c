//! The release of a kept lock, or a reply, is held back or lost. On Redis alone, where a proxy can do
//! that.

use crate::behaviour::kept::{P, T, gets, keeper, patient, plain};
use crate::fixtures::{SOON, Verb, release, request};
use crate::keeping::keep;
use crate::sums::Sums;
use crate::support::{Proxy, SLACK, Server, until};

/// Another manager has tried the name, and the renewal thread's release hangs on its way. The
/// manager's own try comes behind a second copy of it.
#[test]
fn own_try_overtakes_a_release_that_is_under_way() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), plain(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let held = proxy.hold_request_when(release("used", name));
        // Whether the try waits for the release or not, the keeper is told.
        let _ = other.try_lock(name).unwrap();
        held.wait(SLACK);
        let guard = mgr.try_lock(name).unwrap();
        let guard = guard.expect("nobody has it: the release is its own");
        held.release();
        guard
            .renew()
            .expect("the late copy releases an older grant");
        guard.unlock().unwrap();
    }
    assert_eq!(
        mgr.stats().losses(),
        0,
        "the second copy was counted as a loss"
    );
}

/// The same, and a waiter of another manager gets the lock by that second copy.
#[test]
fn own_call_behind_a_release_under_way_waits_for_others() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), patient(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let held = proxy.hold_request_when(release("used", name));
        let mut waiter = other.enqueue(name).unwrap();
        held.wait(SLACK);
        let mut own = mgr.enqueue(name).unwrap();
        assert!(own.position().is_some(), "another was before it");
        let theirs = waiter.wait_for(SLACK).unwrap();
        let theirs = theirs.expect("the second copy has released it");
        held.release();
        theirs
            .renew()
            .expect("the late copy releases an older grant");
        theirs.unlock().unwrap();
        let guard = own.wait_for(SLACK).unwrap();
        guard.expect("it is the next").check().unwrap();
    }
    assert_eq!(
        mgr.stats().losses(),
        0,
        "the second copy was counted as a loss"
    );
}

/// Each request that takes, and each that releases, is sent twice: the first reply is lost.
#[test]
fn kept_locks_survive_lost_replies() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), plain(server.url()));
    let mut last = 0;
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        mgr.lock(name).unwrap().unlock().unwrap();
        let lost = proxy.swallow_reply_when(request(Verb::Acquire, name));
        keep(&mgr, name);
        assert!(lost.has_triggered());
        let lost = proxy.swallow_reply_when(release("used", name));
        let theirs = gets(&other, name, P + T + SLACK);
        lost.wait(SLACK);
        assert!(theirs.fence() > last);
        last = theirs.fence();
        // The renewal thread repeats the release, which finds another owner.
        until(SOON, "it has stopped repeating", || {
            server.calls("evalsha") > 0 && mgr.try_lock(name).unwrap().is_none()
        });
        theirs.renew().unwrap();
        theirs.unlock().unwrap();
    }
    assert_eq!(
        mgr.stats().losses(),
        0,
        "a second copy was counted as a loss"
    );
}

/// The renewal thread's release never reaches the server.
#[test]
fn release_of_a_kept_lock_that_is_lost_is_sent_again() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), plain(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let lost = proxy.reset_request_when(release("used", name));
        drop(gets(&other, name, P + 2 * T + SLACK));
        assert!(lost.has_triggered());
    }
    assert_eq!(mgr.stats().losses(), 0);
}
