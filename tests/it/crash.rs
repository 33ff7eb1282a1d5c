//! P5: what a dead process costs the others, whether it held or waited. On Redis alone, which processes share.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fairlock::{LockGuard, LockManager, PreviousHolder, Waiter};

use crate::{
    managers::{
        assert_nothing_left, check_period, command_timeout, horizon, manager, owner, queue,
    },
    support::{Child, Proxy, SLACK, Server, until, until_some},
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(2);

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
    in_time(crash);
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
        "the dead one's lease runs on"
    );
    let guard = mgr.lock("k").unwrap();
    in_time(crash);
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
    // Liveness is counted in served time, which the waiter's checks carry on.
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
        "a dead one was granted in between"
    );
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

/// R10: the lapse of its lease tells that its waiters are dead too.
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

/// R10, where nobody was there to let served time pass.
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
            .expect("it is awaited")
            .time_left
            .is_zero()
    });
    let held = owner(&server, "k");
    // The server may have been away meanwhile: the holder has one step to be heard of, and no more.
    assert!(mgr.try_lock("k").unwrap().is_none());
    let guard = until_some(
        check_period(TTL) + command_timeout(TTL) + SLACK,
        "nobody alive is before us",
        || {
            assert_eq!(owner(&server, "k"), held, "a dead waiter was granted");
            mgr.try_lock("k").unwrap()
        },
    );
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
    in_time(crash);
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

/// Nobody alive saw them die, so that their places look like those of waiters who sat out an outage.
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
            .expect("it is awaited")
            .time_left
            .is_zero()
    });
    let start = Instant::now();
    let guard = mgr.lock("k").unwrap();
    in_time(start);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

/// The grant reaches the server and never the process, which asked for it or stood in the queue.
#[test]
fn p5_a_process_killed_before_seeing_its_grant_costs_one_ttl() {
    for verb in ["lock", "queue"] {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let mgr = manager(server.url(), TTL);
        // The server has to know the script, since it cannot say that it does not.
        let holder = Some(mgr.lock("k").unwrap()).filter(|_| verb == "queue");
        let mut child = worker::start(&proxy.url(), TTL);
        if holder.is_some() {
            child.send("queue k");
            child.expect("queued", SOON);
        }
        proxy.pause_replies();
        match holder {
            Some(holder) => holder.unlock().unwrap(),
            None => child.send("lock k"),
        }
        let unheard = until_some(SOON, "it is granted", || owner(&server, "k"));
        let waiter = mgr.enqueue("k").unwrap();
        let owners = owners_until_granted(&server, waiter, || child.kill());
        assert_eq!(owners, BTreeSet::from([unheard]), "{verb}");
        assert_eq!(child.pending_lines(), [""; 0], "it learnt of its grant");
        assert_nothing_left(&server, "k");
    }
}

#[test]
fn p5_a_crash_with_long_hold_at_least_costs_only_that() {
    let server = Server::start();
    a_hold_at_least_is_all_that_a_crash_costs(&server, "lock k", |mgr| mgr.lock("k").unwrap());
}

/// The worker takes it, and dies; then we do.
pub(crate) fn a_hold_at_least_is_all_that_a_crash_costs(
    server: &Server,
    take: &str,
    next: impl FnOnce(&LockManager) -> LockGuard,
) {
    const LEAST: Duration = Duration::from_secs(4);
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send(&format!("least {}", LEAST.as_millis()));
    let asked = Instant::now();
    child.send(take);
    expect_got(&child, "k", SOON);
    let told = Instant::now();
    child.kill();
    let guard = next(&mgr);
    assert!(asked.elapsed() >= LEAST, "{:?}", asked.elapsed());
    assert!(
        told.elapsed() < LEAST + check_period(TTL) + SLACK,
        "{:?}",
        told.elapsed()
    );
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
}

/// A fixed lease that lapsed says nothing of its process, whose places therefore last for the horizon.
#[test]
fn p5_dead_waiters_with_fixed_leases_cost_one_lease_plus_horizon() {
    const TTL: Duration = Duration::from_secs(4);
    const LEASE: Duration = Duration::from_millis(1400);
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send(&format!("fixed {}", LEASE.as_millis()));
    // One lease for each would be far more than the bound.
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

/// The bound of P5: the lock is free in the moment `since` but for the dead process.
#[track_caller]
fn in_time(since: Instant) {
    let took = since.elapsed();
    assert!(took < TTL + check_period(TTL) + SLACK, "{took:?}");
}

/// Worker processes that stand in the queue of `k`, one place each.
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

/// The owners that the record of `k` shows from the moment in which `strike` is over until the waiter
/// is granted; a grant to a dead one lasts a TTL and is not overlooked.
fn owners_until_granted(
    server: &Server,
    waiter: Waiter,
    strike: impl FnOnce(),
) -> BTreeSet<String> {
    let last = queue(server, "k").pop().expect("the waiter stands last");
    strike();
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
    in_time(start);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    owners.remove(&last);
    owners
}
