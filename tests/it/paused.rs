//! Processes that are paused past the end of their leases, or past their turns. On Redis alone,
//! which processes share.

use crate::fixtures::DEFAULT_TTL;
use std::{thread, time::Duration};

use fairlock::{FenceGate, PreviousHolder};

use crate::{
    managers::{check_period, command_timeout, manager, record},
    support::{SLACK, Server, throughout, until},
    worker::{self, SOON, expect_got, machine_time},
};

const TTL: Duration = Duration::from_millis(1500);

#[test]
fn p6_a_holder_paused_past_its_ttl_knows_its_loss_immediately() {
    let server = Server::start();
    let gate = FenceGate::new();
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    let old = expect_got(&child, "k", SOON);
    assert!(gate.admit(old.fence));
    child.send("watch k");
    let mgr = manager(server.url(), TTL);
    let mut waiter = mgr.enqueue("k").unwrap();
    child.stop();
    let guard = waiter
        .wait_for(TTL + check_period(TTL) + SLACK)
        .unwrap()
        .expect("the pause costs one ttl");
    let granted = machine_time();
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    assert!(gate.admit(guard.fence()));
    child.cont();
    let last_held: u64 = child.expect("false", SOON).parse().unwrap();
    assert!(
        last_held < granted,
        "both processes believed that they held it"
    );
    assert!(
        !gate.admit(old.fence),
        "the gate admitted the write of the overtaken holder"
    );
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "lost Expired");
    assert!(guard.is_held(), "the late release harmed the successor");
    guard.unlock().unwrap();
}

#[test]
fn p6_a_waiter_paused_past_its_grant_returns_no_expired_guard() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send("queue k");
    child.expect("queued", SOON);
    let waiter = mgr.enqueue("k").unwrap();
    child.stop();
    guard.unlock().unwrap();
    // The paused waiter is granted, its lease lapses, and the next waiter gets the lock.
    let guard = waiter.wait().unwrap();
    assert_eq!(
        guard.previous_holder(),
        PreviousHolder::Lapsed,
        "the paused waiter was granted first"
    );
    child.cont();
    // Long enough for the paused waiter to receive all that it missed.
    let long_enough = check_period(TTL) + 2 * command_timeout(TTL);
    throughout(long_enough, "the lock stays with its holder", || {
        guard.is_held() && child.pending_lines().is_empty()
    });
    let fence = guard.fence();
    guard.unlock().unwrap();
    let got = expect_got(&child, "k", check_period(TTL) + SLACK);
    assert!(got.held && got.fence > fence, "{got:?}");
    assert_eq!(got.previous, "Released");
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "ok");
}

#[test]
fn p6_a_lone_waiter_that_overslept_returns_a_held_guard() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send("queue k");
    child.expect("queued", SOON);
    child.stop();
    guard.unlock().unwrap();
    // Time itself is under test: its lease lapses.
    thread::sleep(TTL + TTL / 10);
    child.cont();
    let got = expect_got(&child, "k", check_period(TTL) + SLACK);
    assert!(got.held, "{got:?}");
    assert!(mgr.try_lock("k").unwrap().is_none());
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "ok");
}

#[test]
fn p8_a_waiter_paused_past_its_outage_limit_keeps_waiting() {
    let limit = Duration::from_secs(1);
    // When the waiter continues, Redis has two command timeouts to answer. With a short TTL these
    // would be too short for a busy machine.
    let ttl = DEFAULT_TTL;
    let server = Server::start();
    let mgr = manager(server.url(), ttl);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start_impatient(&server.url(), ttl, limit);
    child.send("queue k");
    child.expect("queued", SOON);
    child.stop();
    let stamps = || {
        record(&server, "k")
            .into_iter()
            .filter(|(field, _)| field.starts_with("m:"))
            .collect::<Vec<_>>()
    };
    let before = stamps();
    // Time itself is under test: its outage limit passes.
    thread::sleep(2 * limit);
    child.cont();
    until(SOON, "it asks what it missed", || {
        let said = child.pending_lines();
        assert!(said.is_empty(), "{said:?}");
        stamps() != before
    });
    guard.unlock().unwrap();
    let got = expect_got(&child, "k", check_period(ttl) + SLACK);
    assert!(got.held, "{got:?}");
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "ok");
}
