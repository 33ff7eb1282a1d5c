//! Replies that come byte by byte: each call still ends within its bound, since a reply has one
//! deadline over all its reads. On Redis alone, since the in-memory store has no connections.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LossReason};

use crate::fixtures::{
    P, Record, SOON, T, TTL, Verb, build, builder, manager, release, request, warm_up,
};
use crate::support::proxy::ProxyFault;
use crate::support::{Proxy, SLACK, Server, contains, until};

/// The pause before each byte. It is shorter than the command timeout, so no single read times out,
/// and so long that the shortest reply takes many times that.
const PAUSE: Duration = Duration::from_millis(300);
const OUTAGE_LIMIT: Duration = Duration::from_secs(1);

struct Setup {
    server: Server,
    proxy: Proxy,
    ours: LockManager,
}

fn setup() -> Setup {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(builder(proxy.url()).outage_limit(OUTAGE_LIMIT));
    warm_up(&ours);
    Setup {
        server,
        proxy,
        ours,
    }
}

/// Runs a call whose reply trickles.
#[track_caller]
fn ends_within<R>(bound: Duration, call: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = call();
    let took = started.elapsed();
    assert!(took <= bound + SLACK, "{took:?}, not {bound:?}");
    result
}

fn assert_unavailable<V: std::fmt::Debug>(result: fairlock::Result<V>) {
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
}

#[test]
fn p8_calls_on_a_lock_end_in_time_though_replies_trickle() {
    let Setup {
        server,
        proxy,
        ours,
    } = setup();
    // The second copy of each call goes out on another connection.
    let faults = [(); 2].map(|()| proxy.trickle_when(PAUSE, request(Verb::Acquire, "a")));
    assert_unavailable(ends_within(2 * T, || ours.try_lock("a")));
    assert!(faults.iter().all(ProxyFault::has_triggered));
    Record::of(&server, "a").comes_to_rest();

    let guard = ours.lock("b").unwrap();
    let faults = [(); 2].map(|()| proxy.trickle_when(PAUSE, request(Verb::Renew, "b")));
    assert_unavailable(ends_within(2 * T, || guard.renew()));
    assert!(faults.iter().all(ProxyFault::has_triggered));
    // Nobody holds this name, so nobody renews it.
    let faults = [(); 2].map(|()| proxy.trickle_when(PAUSE, contains("fairlock:{e}")));
    assert_unavailable(ends_within(2 * T, || ours.inspect("e")));
    assert!(faults.iter().all(ProxyFault::has_triggered));
    let faults = [(); 2].map(|()| proxy.trickle_when(PAUSE, release("used", "b")));
    assert_unavailable(ends_within(T, || guard.unlock()));
    // On a busy machine there may be no time for the second.
    assert!(faults.iter().any(ProxyFault::has_triggered));
    proxy.disarm();
    Record::of(&server, "b").comes_to_rest();

    let guard = ours.lock("c").unwrap();
    let fault = proxy.trickle_when(PAUSE, release("used", "c"));
    ends_within(T, || drop(guard));
    fault.wait(SOON);
    Record::of(&server, "c").comes_to_rest();

    let faults = [(); 2].map(|()| proxy.trickle_when(PAUSE, contains("SCAN")));
    let listed = ends_within(4 * T, || ours.list("*").collect::<Result<Vec<_>, _>>());
    assert_unavailable(listed);
    assert!(faults.iter().all(ProxyFault::has_triggered));

    // Now every reply trickles, to every attempt.
    proxy.trickle(PAUSE);
    assert_unavailable(ends_within(OUTAGE_LIMIT + 2 * T, || ours.lock("d")));
    assert_unavailable(ends_within(2 * T, || ours.try_lock_for("d", T)));
    proxy.trickle(Duration::ZERO);
    Record::of(&server, "d").comes_to_rest();
}

#[test]
fn p8_connecting_ends_in_time_though_the_handshake_trickles() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    proxy.trickle(PAUSE);
    let built = ends_within(T, || builder(proxy.url()).build());
    assert_unavailable(built);
    // The attempt itself ends then as well, and not only the caller's wait for it.
    until(SLACK, "the connection is given up", || {
        proxy.connections() == 0
    });
}

#[test]
fn p6_a_trickling_renewal_delays_no_report_of_a_loss() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = setup();
    let guard = ours.lock("a").unwrap();
    // The renewal thread's connection is open then.
    let before = ours.stats().renewals_confirmed;
    until(TTL, "it is renewed", || {
        ours.stats().renewals_confirmed > before
    });
    proxy.trickle(PAUSE);
    let loss = ends_within(TTL + T, || guard.lost().recv_timeout(SOON + TTL).unwrap());
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(ours.stats().renewals_failed > 0);
}

#[test]
fn p4_a_trickling_subscription_is_replaced_while_somebody_waits() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (manager(proxy.url()), manager(server.url()));
    let holder = other.lock("a").unwrap();
    let fault = proxy.trickle_when(PAUSE, contains("SUBSCRIBE"));
    let mut waiter = ends_within(5 * T, || ours.enqueue("a").unwrap());
    assert!(fault.has_triggered());
    until(2 * T + SLACK, "another connection is subscribed", || {
        let clients = server.clients();
        clients
            .iter()
            .filter(|line| line.contains(" sub=1 "))
            .count()
            == 1
            && proxy.connections() <= 3
    });
    let fault = proxy.trickle_when(PAUSE, contains("PING"));
    until(P + SLACK, "the subscription is checked", || {
        fault.has_triggered()
    });
    holder.unlock().unwrap();
    // The message trickles. The check finds the grant.
    let guard = ends_within(P + T, || waiter.wait_for(SOON).unwrap());
    guard.expect("it is its turn").unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}
