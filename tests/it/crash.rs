//! P5: how long a dead process delays the others, whether it held or waited. On Redis alone, which
//! processes share.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fairlock::{LockManager, PreviousHolder, Waiter};

use crate::{
    managers::{assert_nothing_left, check_period, horizon, manager, owner, queue},
    permits::AnyGuard,
    support::{Child, Proxy, SLACK, Server, until, until_some},
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(4);

#[test]
fn p5_a_crashed_holder_delays_others_by_ttl_plus_check_period() {
    let server = Server::start();
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    let dead = expect_got(&child, "k", SOON);
    let mgr = manager(server.url(), TTL);
    let waiter = mgr.enqueue("k").unwrap();
    let crash = Instant::now();
    child.kill();
    let guard = waiter.wait().unwrap();
    assert_in_time(crash);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    assert!(guard.fence() > dead.fence);
    guard.unlock().unwrap();
    assert_eq!(
        mgr.lock("k").unwrap().previous_holder(),
        PreviousHolder::Released
    );
    assert_nothing_left(&server, "k");
}

#[test]
fn p5_a_caller_after_the_crash_waits_no_longer() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    let crash = Instant::now();
    child.kill();
    assert!(
        mgr.try_lock("k").unwrap().is_none(),
        "the dead process's lease still lasts"
    );
    let guard = mgr.lock("k").unwrap();
    assert_in_time(crash);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn p5_a_waiter_crashing_just_before_its_turn_costs_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send("queue k");
    child.expect("queued", SOON);
    let waiter = mgr.enqueue("k").unwrap();
    child.kill();
    let owners = owners_until_granted(&server, waiter, || guard.unlock().unwrap());
    assert!(
        owners.len() <= 1,
        "one dead waiter was granted more than once: {owners:?}"
    );
    assert_nothing_left(&server, "k");
}

#[test]
fn p5_twenty_crashed_waiters_together_cost_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut children = queue_up(&server, 20);
    let waiter = mgr.enqueue("k").unwrap();
    assert_eq!(waiter.position(), Some(21));
    children.iter_mut().for_each(Child::kill);
    let owners = owners_until_granted(&server, waiter, || guard.unlock().unwrap());
    assert!(
        owners.len() <= 1,
        "more than one dead waiter was granted: {owners:?}"
    );
    assert_nothing_left(&server, "k");
}

#[test]
fn p5_waiters_dead_for_longer_than_the_horizon_cost_nothing() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut children = queue_up(&server, 20);
    let waiter = mgr.enqueue("k").unwrap();
    children.iter_mut().for_each(Child::kill);
    // Time itself is under test. R10 counts in served time (R2), which passes only while requests
    // arrive: the live waiter's checks are such requests.
    std::thread::sleep(horizon(TTL) + 2 * check_period(TTL));
    let release = Instant::now();
    guard.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    assert!(
        release.elapsed() < check_period(TTL) + SLACK,
        "{:?}",
        release.elapsed()
    );
    assert_eq!(
        guard.previous_holder(),
        PreviousHolder::Released,
        "a dead waiter was granted in between"
    );
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

/// R10 (places of the dead): when the lease lapses, the server knows that the waiters of its
/// process are dead too.
#[test]
fn p5_a_crashed_process_that_held_and_waited_costs_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    for _ in 0..3 {
        child.send("queue k");
        child.expect("queued", SOON);
    }
    let held = owner(&server, "k").expect("it is held");
    let waiter = mgr.enqueue("k").unwrap();
    let owners = owners_until_granted(&server, waiter, || child.kill());
    assert_eq!(owners, BTreeSet::from([held]), "a dead waiter was granted");
    assert_nothing_left(&server, "k");
}

/// R10 (places of the dead), when no live process sent requests, so that no served time passed.
#[test]
fn p5_a_lapse_shows_that_its_process_has_no_live_waiters() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    for _ in 0..3 {
        child.send("queue k");
        child.expect("queued", SOON);
    }
    child.kill();
    until(TTL + SLACK, "the lease lapses", || {
        mgr.inspect("k")
            .unwrap()
            .expect("it has waiters")
            .time_left
            .is_zero()
    });
    // R22 (tries among the dead): the server may have been away, so the try gives the holder's
    // process time for a sign of life.
    let guard = mgr.try_lock("k").unwrap();
    let guard = guard.expect("no live waiter is ahead");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

#[test]
fn p5_a_crash_with_many_locks_delays_each_name_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    let names: Vec<String> = (0..10).map(|i| format!("k{i}")).collect();
    for name in &names {
        child.send(&format!("lock {name}"));
        expect_got(&child, name, SOON);
        child.send(&format!("queue {name}"));
        child.expect("queued", SOON);
    }
    let waiters: Vec<Waiter> = names
        .iter()
        .map(|name| mgr.enqueue(name).unwrap())
        .collect();
    let crash = Instant::now();
    child.kill();
    let guards: Vec<_> = waiters
        .into_iter()
        .map(|waiter| waiter.wait().unwrap())
        .collect();
    assert_in_time(crash);
    assert!(
        guards
            .iter()
            .all(|guard| guard.previous_holder() == PreviousHolder::Lapsed)
    );
}

#[test]
fn p5_processes_dying_together_cost_one_ttl_in_total() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    let held = owner(&server, "k").expect("it is held");
    let mut children = queue_up(&server, 5);
    children.push(child);
    let waiter = mgr.enqueue("k").unwrap();
    let owners = owners_until_granted(&server, waiter, || {
        children.iter_mut().for_each(Child::kill)
    });
    assert_eq!(owners, BTreeSet::from([held]), "a dead waiter was granted");
    assert_nothing_left(&server, "k");
}

/// No live process saw them die, so their entries look like those of waiters that survived an
/// outage.
#[test]
fn p5_processes_that_died_unseen_cost_the_next_waiter_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    let mut children = queue_up(&server, 5);
    children.push(child);
    children.iter_mut().for_each(Child::kill);
    until(TTL + SLACK, "the lease lapses", || {
        mgr.inspect("k")
            .unwrap()
            .expect("it has waiters")
            .time_left
            .is_zero()
    });
    let start = Instant::now();
    let guard = mgr.lock("k").unwrap();
    assert_in_time(start);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

/// The server grants the lock, but the process is killed before the reply or the message arrives.
#[test]
fn p5_a_process_killed_before_seeing_its_grant_costs_one_ttl() {
    for verb in ["lock", "queue"] {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let mgr = manager(server.url(), TTL);
        // The server must know the script already: its NOSCRIPT reply would not arrive.
        let holder = Some(mgr.lock("k").unwrap()).filter(|_| verb == "queue");
        let mut child = worker::start(&proxy.url(), TTL);
        if holder.is_some() {
            child.send("queue k");
            child.expect("queued", SOON);
        }
        if holder.is_none() {
            // Before its first lock it asks for its rights, and waits for the reply.
            child.send("lock first");
            worker::expect_got(&child, "first", SOON);
            child.send("unlock first");
            child.expect("unlocked first", SOON);
        }
        proxy.pause_replies();
        match holder {
            Some(holder) => holder.unlock().unwrap(),
            None => child.send("lock k"),
        }
        let granted = until_some(SOON, "it is granted", || owner(&server, "k"));
        let waiter = mgr.enqueue("k").unwrap();
        let owners = owners_until_granted(&server, waiter, || child.kill());
        assert_eq!(owners, BTreeSet::from([granted]), "{verb}");
        assert_eq!(child.pending_lines(), [""; 0], "it learned of its grant");
        assert_nothing_left(&server, "k");
    }
}

#[test]
fn p5_a_crash_with_long_hold_at_least_costs_only_that() {
    let server = Server::start();
    assert_a_crash_costs_only_hold_at_least(&server, "lock k", |mgr| {
        AnyGuard::Guard(mgr.lock("k").unwrap())
    });
}

/// The worker acquires the lock and dies, then this process acquires it.
pub(crate) fn assert_a_crash_costs_only_hold_at_least(
    server: &Server,
    take: &str,
    next: impl FnOnce(&LockManager) -> AnyGuard,
) {
    const LEAST: Duration = Duration::from_secs(8);
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send(&format!("least {}", LEAST.as_millis()));
    let before = Instant::now();
    child.send(take);
    expect_got(&child, "k", SOON);
    let after = Instant::now();
    child.kill();
    let guard = next(&mgr);
    assert!(before.elapsed() >= LEAST, "{:?}", before.elapsed());
    assert!(
        after.elapsed() < LEAST + check_period(TTL) + SLACK,
        "{:?}",
        after.elapsed()
    );
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
}

/// A lapsed fixed lease says nothing about its process, so the process's waiters stay queued for
/// the horizon.
#[test]
fn p5_dead_waiters_with_fixed_leases_cost_one_lease_plus_horizon() {
    const TTL: Duration = Duration::from_secs(4);
    const LEASE: Duration = Duration::from_millis(1400);
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send(&format!("fixed {}", LEASE.as_millis()));
    // If each waiter cost one lease, the total would be far above the bound.
    for _ in 0..8 {
        child.send("queue k");
        child.expect("queued", SOON);
    }
    let waiter = mgr.enqueue("k").unwrap();
    child.kill();
    let release = Instant::now();
    guard.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    let took = release.elapsed();
    assert!(
        took < LEASE + horizon(TTL) + check_period(TTL) + SLACK,
        "{took:?}"
    );
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

/// The bound of P5, counted from `since`: from then on only the dead process is in the way.
#[track_caller]
fn assert_in_time(since: Instant) {
    let took = since.elapsed();
    assert!(took < TTL + check_period(TTL) + SLACK, "{took:?}");
}

/// Worker processes that wait in the queue of `k`, with one waiter each.
fn queue_up(server: &Server, count: usize) -> Vec<Child> {
    let mut children: Vec<Child> = (0..count)
        .map(|_| worker::launch(&server.url(), TTL))
        .collect();
    for child in &mut children {
        child.expect("ready", SOON);
        child.send("queue k");
        child.expect("queued", SOON);
    }
    children
}

/// The owners that the record of `k` shows from the end of `crash` until the waiter is granted. A
/// grant to a dead waiter lasts for a TTL, so polling does not miss it.
fn owners_until_granted(server: &Server, waiter: Waiter, crash: impl FnOnce()) -> BTreeSet<String> {
    let last = queue(server, "k").pop().expect("the waiter is last");
    crash();
    let start = Instant::now();
    let mut owners = BTreeSet::new();
    until(
        TTL + check_period(TTL) + SLACK,
        "the live waiter owns it",
        || {
            let now = owner(server, "k");
            owners.extend(now.clone());
            now.as_ref() == Some(&last)
        },
    );
    let guard = waiter.wait().unwrap();
    assert_in_time(start);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    owners.remove(&last);
    owners
}
