//! P5 and P6 for permits, readers and writers: what a process costs the others if it dies, or is
//! paused for too long, while it holds or waits. On Redis alone, which processes share.

use std::time::{Duration, Instant};

use fairlock::{FenceGate, PreviousHolder};

use crate::sums::Sums;
use crate::{
    crash::assert_a_crash_costs_only_hold_at_least,
    managers::{check_period, command_timeout, horizon, manager},
    permits::{PermitWaiters, Permits, Want},
    support::{Child, Proxy, SLACK, Server, throughout, until},
    worker::{self, SOON, expect_got, machine_time},
};

const TTL: Duration = Duration::from_secs(4);

/// The bound of P5.
fn in_time() -> Duration {
    TTL + check_period(TTL) + SLACK
}

/// A writer then waits only for the live readers.
#[test]
fn p5_a_crashed_reader_costs_the_live_readers_nothing() {
    let server = Server::start();
    let (ours, other) = (manager(server.url(), TTL), manager(server.url(), TTL));
    let record = Permits::of(&server, "k");
    let mut child = worker::start(&server.url(), TTL);
    let readers = [&ours, &other, &ours].map(|mgr| Want::Read.take(mgr, "k").unwrap());
    child.send("read k");
    expect_got(&child, "k", SOON);
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&other, Want::Write);
    child.kill();
    until(in_time(), "the dead reader's lapse is noticed", || {
        record.used() == 3
    });
    assert!(readers.iter().all(|reader| reader.is_held()) && queue.none_ended());
    readers.iter().for_each(|reader| reader.renew().unwrap());
    let released = Instant::now();
    readers
        .into_iter()
        .for_each(|reader| reader.unlock().unwrap());
    let writer = queue.expect_grant(0, check_period(TTL) + SLACK);
    assert!(
        released.elapsed() < check_period(TTL) + SLACK,
        "{:?}",
        released.elapsed()
    );
    assert_ne!(
        writer.previous_holder(),
        PreviousHolder::Lapsed,
        "a dead reader leaves no write unfinished"
    );
    writer.unlock().unwrap();
    assert_eq!(ours.stats().losses() + other.stats().losses(), 0);
    record.comes_to_rest();
}

#[test]
fn p5_many_crashed_readers_delay_a_writer_by_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let mut children = launch(&server, TTL, 3);
    for child in &mut children {
        for _ in 0..5 {
            child.send("read k");
            expect_got(child, "k", SOON);
        }
    }
    let reader = Want::Read.take(&mgr, "k").unwrap();
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Write);
    let crash = Instant::now();
    children.iter_mut().for_each(Child::kill);
    reader.unlock().unwrap();
    queue.expect_grant(0, in_time()).unlock().unwrap();
    assert!(crash.elapsed() < in_time(), "{:?}", crash.elapsed());
    Permits::of(&server, "k").comes_to_rest();
}

#[test]
fn p5_permits_of_a_crashed_holder_return_while_others_hold() {
    let server = Server::start();
    let (ours, other) = (manager(server.url(), TTL), manager(server.url(), TTL));
    let record = Permits::of(&server, "k");
    let mut child = worker::start(&server.url(), TTL);
    child.send("acquire 2/5 k");
    let dead = expect_got(&child, "k", SOON);
    let held =
        [(&ours, 1), (&other, 2)].map(|(mgr, many)| Want::Permits(many, 5).take(mgr, "k").unwrap());
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&ours, Want::Permits(1, 5));
    queue.add(&other, Want::Permits(1, 5));
    let crash = Instant::now();
    child.kill();
    let next = queue.expect_grants(0..2, in_time());
    assert!(crash.elapsed() < in_time(), "{:?}", crash.elapsed());
    assert!(next.iter().all(
        |guard| guard.previous_holder() == PreviousHolder::Lapsed && guard.fence() > dead.fence
    ));
    assert!(held.iter().all(|guard| guard.is_held()));
    assert_eq!(record.used(), 5);
    held.into_iter()
        .chain(next)
        .for_each(|guard| guard.unlock().unwrap());
    assert_eq!(ours.stats().losses() + other.stats().losses(), 0);
    record.comes_to_rest();
}

#[test]
fn p5_a_crashed_writer_costs_one_ttl_and_readers_see_lapsed() {
    let server = Server::start();
    let (ours, other) = (manager(server.url(), TTL), manager(server.url(), TTL));
    let mut child = worker::start(&server.url(), TTL);
    child.send("write k");
    let dead = expect_got(&child, "k", SOON);
    let mut queue = PermitWaiters::of(&server, "k");
    for mgr in [&ours, &other, &other, &ours] {
        queue.add(mgr, Want::Read);
    }
    queue.add(&other, Want::Write);
    let crash = Instant::now();
    child.kill();
    let readers = queue.expect_grants(0..4, in_time());
    assert!(crash.elapsed() < in_time(), "{:?}", crash.elapsed());
    assert!(
        readers
            .iter()
            .all(|reader| reader.is_held() && reader.previous_holder() == PreviousHolder::Lapsed)
    );
    assert!(
        readers.iter().all(|reader| reader.fence() == dead.fence),
        "readers have the last writer's fence"
    );
    assert!(queue.none_ended());
    readers
        .into_iter()
        .for_each(|reader| reader.unlock().unwrap());
    let writer = queue.expect_grant(4, check_period(TTL) + SLACK);
    assert_eq!(
        writer.previous_holder(),
        PreviousHolder::Lapsed,
        "no writer has repaired the data yet"
    );
    writer.unlock().unwrap();
    assert_eq!(
        Want::Read.take(&ours, "k").unwrap().previous_holder(),
        PreviousHolder::Released
    );
    Permits::of(&server, "k").comes_to_rest();
}

/// No lease lapses here: enough permits are free for the light waiters, and only the dead heavy
/// ones are ahead of them.
#[test]
fn p5_a_heavy_waiter_crashed_at_the_head_costs_the_horizon() {
    // So long that a delay of one TTL would be noticed.
    const TTL: Duration = Duration::from_secs(6);
    let server = Server::start();
    let (ours, other) = (manager(server.url(), TTL), manager(server.url(), TTL));
    let record = Permits::of(&server, "k");
    let holder = Want::Permits(1, 3).take(&ours, "k").unwrap();
    let mut children = launch(&server, TTL, 2);
    for (queued, child) in children.iter_mut().enumerate() {
        child.send("acquire 3/3 k");
        until(SOON, "it is queued", || record.waiting_for(3) == queued + 1);
    }
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&other, Want::Permits(1, 3));
    queue.add(&ours, Want::Permits(1, 3));
    assert!(
        queue.none_ended(),
        "no caller overtakes a live heavy waiter"
    );
    let crash = Instant::now();
    children.iter_mut().for_each(Child::kill);
    let bound = horizon(TTL) + check_period(TTL) + SLACK;
    let light = queue.expect_grants(0..2, bound);
    assert!(crash.elapsed() < bound, "{:?}", crash.elapsed());
    assert!(holder.is_held());
    assert!(
        light
            .iter()
            .all(|guard| guard.previous_holder() == PreviousHolder::Unknown),
        "a dead waiter was granted"
    );
    drop((holder, light));
    record.comes_to_rest();
}

#[test]
fn p5_crashed_queued_readers_together_cost_a_writer_one_ttl() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    let holder = Want::Write.take(&mgr, "k").unwrap();
    let mut children = launch(&server, TTL, 3);
    for (queued, child) in children.iter_mut().enumerate() {
        child.send("read k");
        child.send("read k");
        until(SOON, "they are queued", || {
            record.waiting_for(1) == 2 * (queued + 1)
        });
    }
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Read);
    queue.add(&mgr, Want::Write);
    children.iter_mut().for_each(Child::kill);
    let released = Instant::now();
    holder.unlock().unwrap();
    // A live reader is not even delayed.
    queue
        .expect_grant(0, check_period(TTL) + SLACK)
        .unlock()
        .unwrap();
    let writer = queue.expect_grant(1, in_time());
    assert!(released.elapsed() < in_time(), "{:?}", released.elapsed());
    assert_eq!(writer.previous_holder(), PreviousHolder::Released);
    writer.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn p5_permit_holders_dying_while_queued_cost_one_ttl_in_total() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    let mut children = launch(&server, TTL, 6);
    for child in &mut children {
        child.send("acquire 1/6 k");
        expect_got(child, "k", SOON);
    }
    for (queued, child) in children.iter_mut().enumerate() {
        child.send("acquire 5/6 k");
        until(SOON, "it is queued", || {
            record.waiters().len() == queued + 1
        });
    }
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Permits(6, 6));
    let crash = Instant::now();
    children.iter_mut().for_each(Child::kill);
    let all = queue.expect_grant(0, in_time());
    assert!(crash.elapsed() < in_time(), "{:?}", crash.elapsed());
    assert_eq!(all.previous_holder(), PreviousHolder::Lapsed);
    all.unlock().unwrap();
    record.comes_to_rest();
}

/// No live process saw them die, so their entries look like those of waiters that survived an
/// outage.
#[test]
fn p5_permits_of_processes_that_died_unseen_return_to_new_callers() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    let mut children = launch(&server, TTL, 2);
    for child in &mut children {
        child.send("acquire 1/2 k");
        expect_got(child, "k", SOON);
    }
    // This process waits for permits that it holds itself, so its waiter must be removed as well.
    children[0].send("acquire 2/2 k");
    until(SOON, "it is queued", || record.waiters().len() == 1);
    children.iter_mut().for_each(Child::kill);
    until(TTL + SLACK, "they lapse", || {
        mgr.inspect("k")
            .unwrap()
            .is_none_or(|seen| seen.time_left.is_zero())
    });
    let start = Instant::now();
    let next = Want::Permits(2, 2)
        .take_for(&mgr, "k", in_time())
        .unwrap()
        .expect("its turn comes");
    assert!(start.elapsed() < in_time(), "{:?}", start.elapsed());
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    next.unlock().unwrap();
    record.comes_to_rest();
}

/// The server grants the permits, but the process is killed before the reply or the message
/// arrives.
#[test]
fn p5_permits_granted_unseen_to_a_killed_process_cost_one_ttl() {
    for waits in [false, true] {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let mgr = manager(server.url(), TTL);
        let record = Permits::of(&server, "k");
        // The server must know the script already: its NOSCRIPT reply would not arrive.
        let holder = Some(Want::Permits(2, 3).take(&mgr, "k").unwrap()).filter(|_| waits);
        let before = record.holding();
        let mut child = worker::start(&proxy.url(), TTL);
        if waits {
            child.send("acquire 2/3 k");
            until(SOON, "it is queued", || record.waiters().len() == 1);
        }
        if holder.is_none() {
            // Before its first lock it asks for its rights, and waits for the reply.
            child.send("acquire 2/3 first");
            worker::expect_got(&child, "first", SOON);
            child.send("unlock first");
            child.expect("unlocked first", SOON);
        }
        proxy.pause_replies();
        match holder {
            Some(holder) => holder.unlock().unwrap(),
            None => child.send("acquire 2/3 k"),
        }
        until(SOON, "it is granted", || {
            record.used() == 2 && record.holding().is_disjoint(&before)
        });
        let light = Want::Permits(1, 3).take(&mgr, "k").unwrap();
        let mut queue = PermitWaiters::of(&server, "k");
        queue.add(&mgr, Want::Permits(2, 3));
        let crash = Instant::now();
        child.kill();
        let next = queue.expect_grant(0, in_time());
        assert!(crash.elapsed() < in_time(), "{:?}", crash.elapsed());
        assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
        assert_eq!(child.pending_lines(), [""; 0], "it learned of its grant");
        drop((light, next));
        record.comes_to_rest();
    }
}

#[test]
fn p5_crashed_permits_with_hold_at_least_cost_only_that() {
    let server = Server::start();
    assert_a_crash_costs_only_hold_at_least(&server, "acquire 2/2 k", |mgr| {
        Want::Permits(1, 2).take(mgr, "k").unwrap()
    });
    Permits::of(&server, "k").comes_to_rest();
}

/// A lapsed fixed lease says nothing about its process, so the process's waiters stay queued for
/// the horizon.
#[test]
fn p5_dead_permit_waiters_with_fixed_leases_cost_lease_plus_horizon() {
    const TTL: Duration = Duration::from_secs(4);
    const LEASE: Duration = Duration::from_millis(1400);
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    let holder = Want::Permits(2, 2).take(&mgr, "k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send(&format!("fixed {}", LEASE.as_millis()));
    // If each waiter cost one lease, the total would be far above the bound.
    for queued in 1..=8 {
        child.send("acquire 2/2 k");
        until(SOON, "it is queued", || record.waiters().len() == queued);
    }
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Permits(1, 2));
    child.kill();
    let release = Instant::now();
    holder.unlock().unwrap();
    let next = queue.expect_grant(0, LEASE + horizon(TTL) + check_period(TTL) + SLACK);
    assert!(
        release.elapsed() < LEASE + horizon(TTL) + check_period(TTL) + SLACK,
        "{:?}",
        release.elapsed()
    );
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    next.unlock().unwrap();
    record.comes_to_rest();
}

/// Its late release does not harm the readers that were granted in between.
#[test]
fn p6_a_writer_paused_past_its_ttl_knows_its_loss_immediately() {
    let server = Server::start();
    let gate = FenceGate::new();
    let mgr = manager(server.url(), TTL);
    let mut child = worker::start(&server.url(), TTL);
    child.send("write k");
    let old = expect_got(&child, "k", SOON);
    child.send("watch k");
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Read);
    queue.add(&mgr, Want::Read);
    child.stop();
    let readers = queue.expect_grants(0..2, in_time());
    let granted = machine_time();
    assert!(
        readers
            .iter()
            .all(|reader| reader.previous_holder() == PreviousHolder::Lapsed)
    );
    child.cont();
    let last_held: u64 = child.expect("false", SOON).parse().unwrap();
    assert!(
        last_held < granted,
        "it believed that it held the lock while others read"
    );
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "lost Expired");
    readers
        .iter()
        .for_each(|reader| reader.renew().expect("the late release harmed a reader"));
    assert_eq!(Permits::of(&server, "k").used(), 2);
    readers
        .into_iter()
        .for_each(|reader| reader.unlock().unwrap());
    let writer = Want::Write.take(&mgr, "k").unwrap();
    assert!(
        gate.admit(writer.fence()) && !gate.admit(old.fence),
        "the gate admitted the write of the overtaken writer"
    );
}

#[test]
fn p6_a_late_release_after_a_pause_frees_no_others_permits() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    for (takes, behind) in [
        ("acquire 2/3 k", Want::Permits(2, 3)),
        ("read r", Want::Write),
    ] {
        let name = takes.rsplit(' ').next().unwrap();
        let mut child = worker::start(&server.url(), TTL);
        child.send(takes);
        expect_got(&child, name, SOON);
        let kept = (name == "k").then(|| Want::Permits(1, 3).take(&mgr, name).unwrap());
        let mut queue = PermitWaiters::of(&server, name);
        queue.add(&mgr, behind);
        child.stop();
        let next = queue.expect_grant(0, in_time());
        let used = Permits::of(&server, name).used();
        child.cont();
        child.send(&format!("unlock {name}"));
        assert_eq!(
            child.expect(&format!("unlocked {name}"), SOON),
            "lost Expired"
        );
        next.renew().expect("the late release harmed the successor");
        assert_eq!(Permits::of(&server, name).used(), used);
        assert!(Want::try_take(behind, &mgr, name).unwrap().is_none());
        assert!(kept.is_none_or(|kept| kept.is_held()));
    }
    record.comes_to_rest();
    Permits::of(&server, "r").comes_to_rest();
}

#[test]
fn p6_permits_granted_during_a_pause_make_no_expired_guard() {
    let server = Server::start();
    let mgr = manager(server.url(), TTL);
    let record = Permits::of(&server, "k");
    let holder = Want::Permits(3, 3).take(&mgr, "k").unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send("acquire 2/3 k");
    until(SOON, "it is queued", || record.waiters().len() == 1);
    let mut queue = PermitWaiters::of(&server, "k");
    queue.add(&mgr, Want::Permits(3, 3));
    child.stop();
    holder.unlock().unwrap();
    // The paused waiter is granted, its lease lapses, and the next waiter gets the permits.
    let next = queue.expect_grant(0, in_time());
    assert_eq!(
        next.previous_holder(),
        PreviousHolder::Lapsed,
        "the paused waiter was granted first"
    );
    child.cont();
    until(SOON, "the paused waiter has learned what it missed", || {
        record.waiting_for(2) == 1
    });
    let long_enough = check_period(TTL) + 2 * command_timeout(TTL);
    throughout(long_enough, "the permits stay with their holder", || {
        child.pending_lines().is_empty()
    });
    next.renew().unwrap();
    let fence = next.fence();
    next.unlock().unwrap();
    let got = expect_got(&child, "k", check_period(TTL) + SLACK);
    assert!(got.held && got.fence > fence, "{got:?}");
    child.send("unlock k");
    assert_eq!(child.expect("unlocked k", SOON), "ok");
    record.comes_to_rest();
}

/// Worker processes, started together.
fn launch(server: &Server, ttl: Duration, count: usize) -> Vec<Child> {
    let children: Vec<Child> = (0..count)
        .map(|_| worker::launch(&server.url(), ttl))
        .collect();
    children
        .iter()
        .for_each(|child| drop(child.expect("ready", SOON)));
    children
}
