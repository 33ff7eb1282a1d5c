//! Redis is silent: every call ends in time, losses are told, and what comes back goes on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use crate::scene::{H, Line, P, Record, SOON, STEADY_TTL, T, TTL, build, builder, manager, steady, warm_up, with_ttl};
use crate::support::{Proxy, SLACK, Server, until};

#[test]
fn drop_and_unlock_with_the_server_stopped_end_within_a_command_timeout() {
    let server = Server::start();
    let manager = manager(server.url());
    warm_up(&manager);
    let [dropped, unlocked, third] = ["dropped", "unlocked", "third"].map(|name| manager.lock(name).unwrap());
    server.stop();
    let start = Instant::now();
    drop(dropped);
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    let start = Instant::now();
    let end = unlocked.unlock();
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    // With no connection left in the pool either.
    let start = Instant::now();
    drop(third);
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    server.cont();
    // A lapsed record would still name its owner: these were released.
    for name in ["dropped", "unlocked", "third"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn in_a_black_hole_every_verb_ends_within_its_bound() {
    // T is longer than the slack, so that a verb that waited twice would show.
    const T: Duration = Duration::from_millis(1600);
    const P: Duration = Duration::from_millis(500);
    const OUTAGE: Duration = Duration::from_secs(2);
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager =
        LockManager::builder(proxy.url()).command_timeout(T).check_period(P).horizon(P + 3 * T).outage_limit(OUTAGE);
    let manager = manager.pool_size(32).build().unwrap();
    warm_up(&manager);
    let other = LockManager::connect(server.url()).unwrap();
    let _taken = other.lock("taken").unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| manager.lock(name).unwrap());
    let [stays, leaves] = [(); 2].map(|()| manager.enqueue("taken").unwrap());
    proxy.pause_requests();
    proxy.pause_replies();

    let took = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let bounded = |what: &'static str, bound: Duration, call: Box<dyn FnOnce() -> Option<Error> + Send>| {
            let took = &took;
            scope.spawn(move || {
                let start = Instant::now();
                let end = call();
                took.lock().unwrap().push((what, start.elapsed(), bound, end));
            });
        };
        let m = &manager;
        bounded("try_lock", 2 * T, {
            let m = m.clone();
            Box::new(move || m.try_lock("x").err())
        });
        bounded("try_lock_for", T / 2 + T, {
            let m = m.clone();
            Box::new(move || m.try_lock_for("x", T / 2).err())
        });
        bounded("lock", OUTAGE + T, {
            let m = m.clone();
            Box::new(move || m.lock("x").err())
        });
        bounded("enqueue", OUTAGE + T, {
            let m = m.clone();
            Box::new(move || m.enqueue("x").err())
        });
        bounded("wait", OUTAGE, Box::new(move || stays.wait().err()));
        bounded("inspect", 2 * T, {
            let m = m.clone();
            Box::new(move || m.inspect("x").err())
        });
        bounded("list", 4 * T, {
            let m = m.clone();
            Box::new(move || m.list("*").find_map(Result::err))
        });
        bounded("force_release", 2 * T, {
            let m = m.clone();
            Box::new(move || m.force_release("x", 1).err())
        });
        bounded("renew", 2 * T, Box::new(move || a.renew().err()));
        bounded("unlock", T, Box::new(move || b.unlock().err()));
        bounded("build", T, {
            let url = proxy.url();
            Box::new(move || {
                LockManager::builder(url).command_timeout(T).check_period(P).horizon(P + 3 * T).build().err()
            })
        });
        let unknown = || Some(Error::Closed);
        bounded(
            "drop of a guard",
            T,
            Box::new(move || {
                drop(c);
                unknown()
            }),
        );
        bounded(
            "drop of a waiter",
            T,
            Box::new(move || {
                drop(leaves);
                unknown()
            }),
        );
    });
    for (what, took, bound, end) in took.into_inner().unwrap() {
        assert!(took <= bound + SLACK, "{what} took {took:?} where {bound:?} is promised");
        assert!(matches!(end, Some(Error::Unavailable { .. } | Error::Closed)), "{what} ended with {end:?}");
    }
    let start = Instant::now();
    manager.shutdown(Duration::ZERO).unwrap();
    drop(manager);
    assert!(start.elapsed() <= 3 * T + SLACK, "{:?}", start.elapsed());
}

#[test]
fn a_lease_outlives_an_outage_of_half_its_ttl() {
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = build(with_ttl(proxy.url(), TTL));
    let guard = manager.lock("a").unwrap();
    let start = Instant::now();
    proxy.pause_requests();
    proxy.pause_replies();
    thread::sleep(TTL / 2);
    proxy.resume_requests();
    proxy.resume_replies();
    let at_its_return = manager.stats();
    assert!(at_its_return.renewal_failures > 0, "a renewal fell into the outage");
    until(TTL / 2, "a renewal comes through", || manager.stats().renewed > at_its_return.renewed);
    while start.elapsed() < TTL + TTL / 10 {
        assert!(guard.is_held());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(guard.lost().is_empty());
    assert_eq!(manager.stats().lost, 0);
    guard.unlock().unwrap();
}

#[test]
fn a_loss_in_a_silent_outage_is_told_on_time_and_stays() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (called, calls) = crossbeam_channel::unbounded();
    let options = LockOptions::new().ttl(TTL).on_lost(move |loss| {
        let _ = called.send((Instant::now(), loss.clone()));
    });
    let ours = manager(proxy.url()).with(options);
    let other = manager(server.url());
    let guard = ours.lock("a").unwrap();
    proxy.pause_requests();
    proxy.pause_replies();
    // What had arrived before has been read by now.
    thread::sleep(T / 4);
    let deadline = Instant::now() + guard.remaining();
    assert!(guard.is_held());
    let loss = guard.lost().recv_deadline(deadline + T + SLACK).expect("the loss is told");
    let told = Instant::now();
    assert_eq!((loss.reason, loss.fence), (LossReason::Expired, guard.fence()));
    assert!(told + Duration::from_millis(5) >= deadline, "not before it is one");
    assert!(!guard.is_held());
    let (called, same) = calls.recv_deadline(deadline + T + SLACK).expect("so is on_lost");
    assert_eq!(same, loss);
    assert!(called + Duration::from_millis(5) >= deadline);

    proxy.resume_requests();
    proxy.resume_replies();
    Record::of(&server, "a").comes_to_rest();
    assert!(!guard.is_held() && guard.remaining().is_zero());
    let next = other.try_lock("a").unwrap().expect("it was given up");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.renew(), Err(Error::Lost { .. })));
    assert!(matches!(guard.check(), Err(Error::Lost { .. })));
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    next.renew().unwrap();
    assert!(calls.is_empty(), "once");
}

#[test]
fn is_held_turns_false_by_the_clock_alone() {
    let server = Server::start();
    let manager = manager(server.url());
    let guard = manager.lock("a").unwrap();
    server.stop();
    let deadline = Instant::now() + guard.remaining() + T;
    until(TTL + SLACK, "it is not held any more", || !guard.is_held());
    assert!(Instant::now() <= deadline + SLACK);
    server.cont();
    let renewed = Instant::now() + TTL / 3;
    while Instant::now() < renewed {
        assert!(!guard.is_held(), "once lost, never again");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn waiters_keep_their_order_over_an_outage_that_they_are_to_wait_out() {
    let server = Server::start();
    let patient = || build(builder(server.url()).outage_limit(Duration::MAX));
    let managers = [patient(), patient()];
    // Of a third process: its own waiters would lose their places with its lease (R10).
    let holding = patient();
    let holder = holding.lock("a").unwrap();
    let fence = holder.fence();
    let mut line = Line::of("a");
    for who in 0..6 {
        line.stand(&managers[who % 2]);
    }
    server.stop();
    // Past the holder's lease, and past the horizon: an outage ages nobody (R2).
    thread::sleep(TTL + H / 2);
    assert!(!holder.is_held());
    assert!(line.is_quiet());
    server.cont();
    let back = Instant::now();
    let mut last = fence;
    for who in 0..6 {
        let guard = line.serve(who, Duration::from_secs(2) + SLACK);
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.unlock().unwrap();
    }
    assert!(back.elapsed() <= Duration::from_secs(2) + SLACK, "{:?}", back.elapsed());
    assert_eq!(managers.each_ref().map(|m| m.stats().requeued), [0, 0]);
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn a_call_made_in_an_outage_is_served_when_it_is_over() {
    let server = Server::start();
    let manager = manager(server.url());
    server.stop();
    let calls = ["a", "b"].map(|name| {
        let manager = manager.clone();
        thread::spawn(move || manager.lock(name).unwrap().unlock())
    });
    thread::sleep(3 * T);
    server.cont();
    for call in calls {
        call.join().unwrap().unwrap();
    }
}

#[test]
fn past_the_outage_limit_waits_end_and_new_calls_are_served_afterwards() {
    const OUTAGE: Duration = Duration::from_secs(1);
    let server = Server::start();
    let manager = build(builder(server.url()).outage_limit(OUTAGE));
    let holder = manager.lock("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&manager);
    line.stand(&manager);
    server.stop();
    let start = Instant::now();
    for _ in 0..2 {
        let (_, end) = line.next(OUTAGE + SLACK);
        let Err(Error::Unavailable { waited, lock, .. }) = &end else { panic!("{end:?}") };
        assert!(*waited >= OUTAGE, "{waited:?}");
        assert_eq!(lock.as_deref(), Some("a"));
    }
    assert!(start.elapsed() + P + T >= OUTAGE, "not before its time: {:?}", start.elapsed());
    // An enqueue that begins in the outage has the same limit.
    let start = Instant::now();
    assert!(matches!(manager.lock("b"), Err(Error::Unavailable { .. })));
    assert!(start.elapsed() <= OUTAGE + T + SLACK);
    server.cont();
    drop(holder);
    // The waiters have left, so nobody is before the next.
    let guard = manager.try_lock_for("a", SOON).unwrap().expect("nobody has it");
    guard.unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
    Record::of(&server, "b").comes_to_rest();
}

#[test]
fn a_try_at_its_deadline_in_silence_is_unavailable_and_not_none() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let _holder = other.lock("a").unwrap();
    assert!(ours.try_lock_for("a", 2 * T).unwrap().is_none(), "while Redis answers");
    let mut waiter = ours.enqueue("a").unwrap();
    let at_most = P + 3 * T;
    let call = thread::spawn({
        let ours = ours.clone();
        move || {
            let start = Instant::now();
            (ours.try_lock_for("a", at_most), start.elapsed())
        }
    });
    until(SOON, "it stands in the queue", || Record::of(&server, "a").number("r") == 2);
    server.stop();
    let start = Instant::now();
    let end = waiter.wait_for(at_most);
    assert!(start.elapsed() <= at_most + SLACK);
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    let (end, took) = call.join().unwrap();
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    assert!(took <= at_most + T + SLACK, "{took:?}");
    server.cont();
    // The waiter has kept its place, the call has left.
    until(SOON, "one is left", || Record::of(&server, "a").number("r") == 1);
}

#[test]
fn renewals_of_many_leases_outlast_a_flapping_network() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let lost = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&lost);
    let options = LockOptions::new().ttl(STEADY_TTL).on_lost(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let manager = build(steady(proxy.url())).with(options);
    let guards: Vec<_> = (0..40).map(|i| manager.lock(&format!("a{i}")).unwrap()).collect();
    let end = Instant::now() + STEADY_TTL + T;
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(300));
        proxy.reset_all();
    }
    assert!(guards.iter().all(fairlock::LockGuard::is_held));
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}
