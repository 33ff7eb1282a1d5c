//! The server's wall clock steps. On Redis alone.

use std::{thread, time::SystemTime};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use crate::fixtures::{
    P, Record, T, TTL, Verb, Waiters, build, manager, micros, request, warm_up, with_ttl,
};
use crate::permits::{self, AnyGuard, PermitWaiters, Permits, Want};
use crate::support::{Proxy, SLACK, Server, Shifted, until};
use crate::worker::{self, SOON, expect_got};

const HALF_AN_HOUR: i64 = 30 * 60 * 1_000_000;

#[test]
fn a_forward_clock_step_ends_leases_and_ages_no_waiter() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    // Renewals are so rare that none arrives before the waiters notice the lapse.
    let holding = build(with_ttl(server.url(), 20 * TTL));
    let holder = holding.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&other);
    shifted.step_to(HALF_AN_HOUR);
    let next = queue.expect_grant(0, P + T + SLACK);
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > holder.fence());
    let result = holder.renew();
    assert!(
        matches!(&result, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Expired),
        "{result:?}"
    );
    assert_eq!(
        holder
            .lost()
            .recv_timeout(T + SLACK)
            .expect("the loss is reported")
            .reason,
        LossReason::Expired
    );
    next.renew().unwrap();
    let fence = next.fence();
    next.unlock().unwrap();
    let last = queue.expect_grant(1, P + T + SLACK);
    assert!(last.fence() > fence);
    last.unlock().unwrap();
    assert_eq!(
        ours.stats().requeues + other.stats().requeues,
        0,
        "the step aged a waiter"
    );
    Record::of(server, "a").comes_to_rest();
}

#[test]
fn after_a_backward_clock_step_dead_holders_cost_one_ttl() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let guard = ours.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    queue.add(&ours);
    shifted.step_to(-HALF_AN_HOUR);
    let renewed = ours.stats().renewals_confirmed;
    until(TTL, "it is renewed", || {
        ours.stats().renewals_confirmed > renewed
    });
    guard
        .check()
        .expect("a backward step takes nothing from the holder");
    let mut largest = guard.fence();
    guard.unlock().unwrap();
    for who in 0..2 {
        let guard = queue.expect_grant(who, P + T + SLACK);
        assert!(guard.fence() > largest, "{} after {largest}", guard.fence());
        largest = guard.fence();
        guard.unlock().unwrap();
    }
    // A holder that died just before such a step delays the next by one TTL, and not by half an
    // hour.
    let mut dead = worker::start(&server.url(), TTL);
    dead.send(&format!("fixed {}", TTL.as_millis()));
    dead.send("lock b");
    let fence = expect_got(&dead, "b", SOON).fence;
    dead.kill();
    shifted.step_to(-2 * HALF_AN_HOUR);
    let mut waiter = other.enqueue("b").unwrap();
    let next = waiter
        .wait_for(TTL + P + T + SLACK)
        .unwrap()
        .expect("its lease is cut to its TTL");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > fence);
    next.unlock().unwrap();
    Record::of(server, "a").comes_to_rest();
}

#[test]
fn a_forward_clock_step_ends_only_the_permits_it_passes() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    // Renewals are so rare that none arrives before the waiters notice the lapse.
    let [longer, shorter] = [40, 10].map(|ttls| build(with_ttl(server.url(), ttls * TTL)));
    let [stays, goes] = [&longer, &shorter].map(|mgr| Want::Permits(1, 2).take(mgr, "n").unwrap());
    let [reads, ends] = [&longer, &shorter].map(|mgr| Want::Read.take(mgr, "r").unwrap());
    let (mut takers, mut writers) = (
        PermitWaiters::of(server, "n"),
        PermitWaiters::of(server, "r"),
    );
    takers.add(&ours, Want::Permits(1, 2));
    takers.add(&other, Want::Permits(1, 2));
    writers.add(&other, Want::Write);
    shifted.step_to(micros(20 * TTL).cast_signed());
    let next = takers.expect_grant(0, P + T + SLACK);
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > goes.fence());
    for (lost, left) in [(&goes, 2), (&ends, 1)] {
        until(P + T + SLACK, "its lapse is noticed", || {
            Permits::of(server, lost.name()).holding().len() == left
        });
        let result = lost.renew();
        assert!(
            matches!(&result, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Expired),
            "{result:?}"
        );
    }
    for kept in [&stays, &reads] {
        kept.renew().expect("its lease is longer than the step");
    }
    assert!(takers.none_ended() && writers.none_ended());
    stays.unlock().unwrap();
    takers.expect_grant(1, P + T + SLACK).unlock().unwrap();
    reads.unlock().unwrap();
    writers.expect_grant(0, P + T + SLACK).unlock().unwrap();
    next.unlock().unwrap();
    assert_eq!(
        ours.stats().requeues + other.stats().requeues,
        0,
        "the step aged a waiter"
    );
    for name in ["n", "r"] {
        Permits::of(server, name).comes_to_rest();
    }
}

#[test]
fn after_a_backward_step_each_dead_holder_costs_its_ttl() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let mut dead = worker::start(&server.url(), TTL);
    dead.send(&format!("fixed {}", TTL.as_millis()));
    dead.send("acquire 1/3 n");
    expect_got(&dead, "n", SOON);
    dead.send("read r");
    expect_got(&dead, "r", SOON);
    dead.kill();
    let fixed = ours.with(LockOptions::new().fixed_lease(40 * TTL));
    let longer = [("n", Want::Permits(1, 3)), ("r", Want::Read)]
        .map(|(name, want)| want.take(&fixed, name).unwrap());
    let live = Want::Permits(1, 3).take(&ours, "n").unwrap();
    let mut takers = PermitWaiters::of(server, "n");
    takers.add(&other, Want::Permits(1, 3));
    takers.add(&other, Want::Permits(2, 3));
    let mut writers = PermitWaiters::of(server, "r");
    writers.add(&other, Want::Write);
    // Step by less than the longest lease, and more than the shortest.
    shifted.step_to(-micros(10 * TTL).cast_signed());
    let next = takers.expect_grant(0, TTL + P + T + SLACK);
    assert!(next.fence() > live.fence());
    live.renew()
        .expect("a backward step takes nothing from the holder");
    assert!(takers.none_ended() && writers.none_ended());
    let largest = next.fence();
    next.unlock().unwrap();
    live.unlock().unwrap();
    let last = takers.expect_grant(1, P + T + SLACK);
    assert!(last.fence() > largest, "{} after {largest}", last.fence());
    last.unlock().unwrap();
    assert!(longer.iter().all(|guard| guard.is_held()));
    let [permit, reader] = longer;
    reader.unlock().unwrap();
    writers.expect_grant(0, P + T + SLACK).unlock().unwrap();
    permit.unlock().unwrap();
    for name in ["n", "r"] {
        Permits::of(server, name).comes_to_rest();
    }
}

/// The reply to a grant is lost, and the clock goes back before the request is sent again. Its
/// second reply must not promise what the lease cannot keep.
#[test]
fn p6_a_repeated_grant_is_over_before_the_next_one() {
    let shifted = Shifted::start_as(Server::tcp_with_env);
    let proxy = Proxy::to(shifted.server.addr());
    let (ours, other) = (manager(proxy.url()), manager(shifted.server.url()));
    warm_up(&ours);
    Want::Read.take(&ours, "warm-r").unwrap().unlock().unwrap();
    let take = |mgr: &LockManager, name| match name {
        "mutex" => mgr.lock(name).map(AnyGuard::Guard),
        "permit" => Want::Permits(1, 1).take(mgr, name),
        _ => Want::Write.take(mgr, name),
    };
    for (hours, name) in (1..).zip(["mutex", "permit", "writer"]) {
        let fault = if name == "mutex" {
            proxy.swallow_silently_when(request(Verb::Acquire, name))
        } else {
            proxy.swallow_silently_when(permits::request(Verb::Acquire, name))
        };
        let guard = thread::scope(|scope| {
            let taking = scope.spawn(|| take(&ours, name).unwrap());
            assert!(String::from_utf8_lossy(&fault.wait(SOON)).contains("granted"));
            shifted.step_to(-2 * hours * HALF_AN_HOUR);
            taking.join().unwrap()
        });
        assert!(guard.remaining() <= TTL, "{name}: {:?}", guard.remaining());
        // It can neither renew the lease any more, nor learn that it is over.
        proxy.refuse();
        proxy.reset_all();
        let next = take(&other, name).unwrap();
        assert!(!guard.is_held(), "{name}: two guards are held");
        next.unlock().unwrap();
        proxy.accept();
    }
}

#[test]
fn inspect_dates_its_look_by_the_servers_clock() {
    let shifted = Shifted::start();
    shifted.step_to(HALF_AN_HOUR);
    let mgr = manager(shifted.server.url());
    let _guard = mgr.lock("a").unwrap();
    for info in [mgr.inspect("a"), mgr.list("a").next().transpose()] {
        let info = info.unwrap().expect("it is held");
        let since = info.holder.expect("it is held").since;
        assert!(info.seen_at.duration_since(since).expect("later") < SOON);
        let ahead = info.seen_at.duration_since(SystemTime::now());
        assert!(ahead.expect("the server is ahead") > SOON);
    }
}
