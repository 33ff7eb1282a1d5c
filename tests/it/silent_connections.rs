//! Connections that die in silence, as when a router forgets them: no call fails for it. On Redis
//! alone, since the in-memory store has no connections.

use std::time::{Duration, Instant};

use fairlock::LockManager;

use crate::fixtures::{P, SOON, Verb, build, is_free_within, request, warm_up, with_ttl};
use crate::support::{Proxy, SLACK, Server, until};
use crate::verbs_once::{self, OF_MUTEXES, OF_QUEUES, check};

/// Long enough that on a busy machine a call fails for silence alone.
const T: Duration = Duration::from_secs(3);
const H: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(20);

/// How connections die.
type Death = fn(&Proxy);

fn check_verbs(death: Death) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let builder = verbs_once::builder(proxy.url());
    // Two lanes, the renewal thread's connection and the subscription.
    check(&builder, 4, &[OF_MUTEXES, OF_QUEUES], || death(&proxy));
}

#[test]
fn no_verb_fails_on_connections_that_died_in_silence() {
    check_verbs(Proxy::forget_connections);
}

#[test]
fn no_verb_fails_when_only_its_reply_is_lost_in_silence() {
    check_verbs(Proxy::forget_replies);
}

/// Managers whose connections have all died, through a proxy, and one that is well.
struct Setup {
    server: Server,
    proxy: Proxy,
    ours: LockManager,
    other: LockManager,
}

fn setup() -> Setup {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let [ours, other] = [proxy.url(), server.url()].map(|url| {
        let builder = with_ttl(url, TTL).command_timeout(T);
        let manager = build(builder.check_period(P).horizon(H));
        warm_up(&manager);
        let guard = manager.lock("warm").unwrap();
        let before = manager.stats().renewals_confirmed;
        until(TTL, "the renewal thread is connected", || {
            manager.stats().renewals_confirmed > before
        });
        guard.unlock().unwrap();
        manager
    });
    Setup {
        server,
        proxy,
        ours,
        other,
    }
}

/// The check of its name goes out within P. It has no reply for T, and goes out again on a new
/// connection.
#[test]
fn waiter_is_served_although_all_connections_died_in_silence() {
    for death in [Proxy::forget_connections as Death, Proxy::forget_replies] {
        let s = setup();
        let guard = s.other.lock("a").unwrap();
        let waiter = s.ours.enqueue("a").unwrap();
        death(&s.proxy);
        let started = Instant::now();
        guard.unlock().unwrap();
        let served = waiter.wait().unwrap();
        let took = started.elapsed();
        assert!(took <= P + T + SLACK, "{took:?}");
        served.unlock().unwrap();
    }
}

/// Also the first copies of requests harm nobody, if they arrive in the end.
#[test]
fn held_lock_outlasts_connections_that_died_in_silence() {
    let s = setup();
    let guard = s.ours.lock("a").unwrap();
    s.proxy.forget_connections();
    let before = s.ours.stats();
    until(TTL, "it is renewed on a new connection", || {
        s.ours.stats().renewals_confirmed > before.renewals_confirmed
    });
    assert!(guard.is_held());
    assert_eq!(s.ours.stats().renewals_failed, before.renewals_failed);
    assert!(s.other.try_lock("a").unwrap().is_none());
    guard.unlock().unwrap();
    assert!(s.server.query::<Vec<String>>(&["KEYS", "*"]).len() < 20);
}

#[test]
fn drop_on_a_dead_connection_releases_within_its_time() {
    for death in [Proxy::forget_connections as Death, Proxy::forget_replies] {
        let s = setup();
        let guards = ["a", "b", "c", "d"].map(|name| s.ours.lock(name).unwrap());
        death(&s.proxy);
        let started = Instant::now();
        drop(guards);
        let took = started.elapsed();
        assert!(took <= 4 * T + SLACK, "{took:?}");
        // Those that did not wait go out again when their replies are late.
        for name in ["a", "b", "c", "d"] {
            until(2 * T + SLACK, "it is free", || {
                s.other.try_lock(name).unwrap().is_some()
            });
        }
    }
}

#[test]
fn shutdown_releases_all_although_connections_died_in_silence() {
    let s = setup();
    let guard = s.ours.lock("a").unwrap();
    s.proxy.forget_connections();
    drop(guard);
    let started = Instant::now();
    s.ours.shutdown(Duration::ZERO).expect("all is released");
    let took = started.elapsed();
    assert!(took <= 3 * T + SLACK, "{took:?}");
}

/// A call whose first copy arrives after all, when its caller has long had its lock by the second.
#[test]
fn late_first_copy_of_an_acquire_takes_nothing() {
    let s = setup();
    let held = s.proxy.hold_request_when(request(Verb::Acquire, "a"));
    let guard = s.ours.try_lock("a").unwrap().expect("it is free");
    held.wait(SOON);
    guard.unlock().unwrap();
    held.release();
    is_free_within(SLACK, &s.other, "a");
}
