//! Faults of the network and of the server, under TLS: the bounds hold.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};

use super::certificates::{EXPIRED, HERE, argument};
use super::{HAS_EXPIRED, SOON, T, TTL, TlsServer, build, builder, is_tls, url_of};
use crate::support::{Proxy, SLACK, until, until_some};

/// The pause before each byte of a reply. A record has many.
const PAUSE: Duration = Duration::from_millis(100);
const OUTAGE_LIMIT: Duration = Duration::from_secs(1);

struct Setup {
    server: TlsServer,
    proxy: Proxy,
    ours: LockManager,
    other: LockManager,
}

/// A manager behind a proxy, and one beside it.
fn setup() -> Setup {
    let server = TlsServer::start();
    let proxy = Proxy::raw(server.addr);
    let ours = build(behind(&proxy, &server).outage_limit(OUTAGE_LIMIT));
    let other = server.manager();
    ours.lock("warm").unwrap().unlock().unwrap();
    Setup {
        server,
        proxy,
        ours,
        other,
    }
}

fn behind(proxy: &Proxy, server: &TlsServer) -> fairlock::Builder {
    builder(&url_of(proxy.addr())).tls_ca(server.authority.pem())
}

#[track_caller]
fn ends_within<R>(bound: Duration, call: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = call();
    let took = started.elapsed();
    assert!(took <= bound + SLACK, "{took:?}, not {bound:?}");
    result
}

#[track_caller]
fn assert_unavailable<V: std::fmt::Debug>(result: fairlock::Result<V>) {
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
}

#[test]
fn handshake_that_trickles_ends_in_time() {
    let server = TlsServer::start();
    let proxy = Proxy::raw(server.addr);
    proxy.trickle(PAUSE);
    assert_unavailable(ends_within(T, || behind(&proxy, &server).build()));
    until(SLACK, "the connection is given up", || {
        proxy.connections() == 0
    });
}

#[test]
fn server_that_is_stopped_is_unavailable_in_time() {
    let server = TlsServer::start();
    server.server.stop();
    assert_unavailable(ends_within(T, || server.builder().build()));
    server.server.cont();
}

/// It answers the question in plain text as a server of TLS does, and the handshake then.
#[test]
fn slow_server_is_not_taken_for_a_plain_one() {
    let server = TlsServer::start();
    let proxy = Proxy::raw(server.addr);
    proxy.pause_requests();
    let timeout = Duration::from_secs(4);
    thread::scope(|scope| {
        let built = scope.spawn(|| behind(&proxy, &server).connect_timeout(timeout).build());
        until(timeout, "the question in plain text has come", || {
            proxy.connections() == 2
        });
        proxy.resume_requests();
        let mgr = built.join().unwrap().expect("it only took its time");
        mgr.lock("a").unwrap().unlock().unwrap();
    });
}

#[test]
fn calls_end_in_time_though_records_trickle() {
    let Setup {
        server: _server,
        proxy,
        ours,
        other,
    } = setup();
    let guard = ours.lock("a").unwrap();
    proxy.trickle(PAUSE);
    assert_unavailable(ends_within(2 * T, || ours.try_lock("b")));
    assert_unavailable(ends_within(2 * T, || ours.inspect("b")));
    assert_unavailable(ends_within(OUTAGE_LIMIT + 2 * T, || ours.lock("c")));
    assert_unavailable(ends_within(T, || guard.unlock()));
    proxy.trickle(Duration::ZERO);
    for name in ["a", "b", "c"] {
        let guard = until_some(TTL + SOON, "it is free", || other.try_lock(name).unwrap());
        guard.unlock().unwrap();
    }
}

/// Each place of a record: in the header, in the content, in the last byte.
#[test]
fn connection_that_ends_inside_a_record_is_replaced() {
    let Setup {
        server: _server,
        proxy,
        ours,
        other,
    } = setup();
    for cut in [0, 1, 4, 5, 6, 20, 40] {
        proxy.cut_next_bytes(cut);
        let guard = until_some(SOON, "the lock is taken", || ours.lock("a").ok());
        assert!(!proxy.is_cut_due(), "{cut}");
        assert!(other.try_lock("a").unwrap().is_none(), "{cut}");
        guard.unlock().unwrap();
        let guard = until_some(SOON, "it is free", || other.try_lock("a").unwrap());
        guard.unlock().unwrap();
    }
}

#[test]
fn waiter_outlasts_resets_and_is_granted_the_lock() {
    let Setup {
        server: _server,
        proxy,
        ours,
        other,
    } = setup();
    let holder = other.lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    for _ in 0..3 {
        proxy.reset_all();
        assert!(waiter.wait_for(T).unwrap().is_none());
    }
    holder.unlock().unwrap();
    let guard = waiter.wait_for(SOON).unwrap().expect("it is its turn");
    assert!(other.try_lock("a").unwrap().is_none());
    guard.unlock().unwrap();
}

/// The certificate is replaced while callers wait: one in the queue, and one for a connection.
#[test]
fn certificate_that_expires_later_is_an_outage_with_a_name() {
    let server = TlsServer::start();
    let good = server
        .authority
        .issue("good", HERE, super::certificates::VALID);
    let expired = server.authority.issue("expired", HERE, EXPIRED);
    let install = |certificate: &super::certificates::Certificate| {
        let (file, key) = (&certificate.certificate, &certificate.key);
        let _: String = server.server.query(&[
            "CONFIG",
            "SET",
            "tls-cert-file",
            argument(file),
            "tls-key-file",
            argument(key),
        ]);
    };
    let proxy = Proxy::raw(server.addr);
    let ours = build(behind(&proxy, &server));
    let hasty = build(behind(&proxy, &server).outage_limit(OUTAGE_LIMIT));
    let other = server.manager();
    let holder = other.lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    install(&expired);
    proxy.close_all();
    thread::scope(|scope| {
        let patient = scope.spawn(|| ours.lock("b"));
        let error = ends_within(T, || ours.try_lock("c").expect_err("no connection"));
        assert_expired(&error);
        let error = ends_within(OUTAGE_LIMIT + 2 * T, || {
            hasty.lock("c").expect_err("too long")
        });
        assert_expired(&error);
        assert!(waiter.wait_for(2 * T).unwrap().is_none());
        install(&good);
        let guard = patient.join().unwrap().expect("it was worth the wait");
        guard.unlock().unwrap();
    });
    holder.unlock().unwrap();
    let guard = waiter.wait_for(SOON).unwrap().expect("it is its turn");
    guard.unlock().unwrap();
}

#[track_caller]
fn assert_expired(error: &Error) {
    assert!(is_tls(error, HAS_EXPIRED), "{error:?}");
}
