//! The ways in which the holding of a lock comes to its end, other than a drop in its place.

use std::{
    cell::RefCell,
    mem,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fairlock::{DEFAULT_TTL, LockGuard, LockOptions, LossReason, PreviousHolder};

use crate::{
    managers::{assert_nothing_left, check_period, command_timeout, manager, owner, patient},
    support::{
        Kid, SLACK, Server,
        kid::{hear, say},
        until,
    },
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(1);

#[test]
fn a_guard_is_released_by_the_thread_that_it_was_moved_to() {
    let server = Server::start();
    let mgr = patient(&server.url());
    let guard = mgr.lock("k").unwrap();
    let waiter = mgr.enqueue("k").unwrap();
    let moved = thread::spawn(move || {
        assert!(guard.is_held());
        guard.unlock()
    });
    moved.join().unwrap().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert_nothing_left(&server, "k");
}

#[test]
fn a_panic_releases_what_is_held() {
    let server = Server::start();
    let mgr = patient(&server.url());
    let holder = mgr.clone();
    let waiting = mgr.clone();
    let (locked, is_locked) = mpsc::channel();
    let (queued, is_queued) = mpsc::channel();
    let panicking = thread::spawn(move || {
        let _guard = holder.lock("k").unwrap();
        locked.send(()).unwrap();
        is_queued.recv().unwrap();
        panic!("as the test wants it");
    });
    is_locked.recv().unwrap();
    let waiter = waiting.enqueue("k").unwrap();
    queued.send(()).unwrap();
    assert!(panicking.join().is_err());
    let guard = waiter.wait().unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    guard.unlock().unwrap();
    assert_nothing_left(&server, "k");
}

#[test]
fn a_guard_that_is_forgotten_is_renewed_until_max_hold() {
    let server = Server::start();
    let limit = TTL + TTL / 2;
    let (told, losses) = mpsc::channel();
    let options = LockOptions::new().max_hold(limit).on_lost(move |loss| told.send(loss.clone()).unwrap());
    let holder = manager(&server.url(), TTL);
    let start = Instant::now();
    let guard = holder.with(options).lock("k").unwrap();
    let fence = guard.fence();
    mem::forget(guard);
    let guard = manager(&server.url(), TTL).lock("k").unwrap();
    let took = start.elapsed();
    assert!(took >= limit, "the leaked guard's lease ended after {took:?}");
    assert!(took < limit + command_timeout(TTL) + SLACK, "{took:?}");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    let loss = losses.recv_timeout(SLACK).unwrap();
    assert_eq!((&*loss.name, loss.fence, loss.reason), ("k", fence, LossReason::MaxHold));
    assert!(losses.try_recv().is_err(), "it was told twice");
}

#[test]
fn a_process_that_exits_without_a_drop_leaves_its_lock_to_the_ttl() {
    check_end_of_process("exit");
}

#[test]
fn a_process_that_aborts_leaves_its_lock_to_the_ttl() {
    check_end_of_process("abort");
}

fn check_end_of_process(verb: &str) {
    let server = Server::start();
    let mut kid = worker::start(&server.url(), TTL);
    kid.tell("lock k");
    expect_got(&kid, "k", SOON);
    let mgr = manager(&server.url(), TTL);
    kid.tell(verb);
    kid.wait(SOON);
    let start = Instant::now();
    let guard = mgr.lock("k").unwrap();
    assert!(start.elapsed() < TTL + check_period(TTL) + SLACK, "{:?}", start.elapsed());
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn a_guard_dropped_in_a_thread_local_destructor_is_released() {
    check_thread_local("manager stays");
}

#[test]
fn a_guard_dropped_in_a_thread_local_destructor_may_be_the_last_handle() {
    check_thread_local("guard is last");
}

fn check_thread_local(mode: &str) {
    let server = Server::start();
    let mut kid = Kid::spawn("thread_local", &[&server.url(), mode]);
    kid.expect("locked", SOON);
    assert!(owner(&server, "k").is_some());
    kid.tell("end");
    kid.expect("ended", SOON);
    until(SLACK, "the lock is free", || owner(&server, "k").is_none());
    kid.hush();
    kid.join(SOON);
    assert_nothing_left(&server, "k");
}

/// Leaves a guard to the destructors of a thread that ends.
pub(crate) fn thread_local(args: &[String]) {
    thread_local! {
        static KEPT: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    let mgr = manager(&args[0], DEFAULT_TTL);
    let thread = {
        let mgr = mgr.clone();
        thread::spawn(move || {
            KEPT.set(Some(mgr.lock("k").unwrap()));
            drop(mgr);
            say("locked");
            hear();
        })
    };
    let kept = (args[1] == "manager stays").then_some(mgr);
    thread.join().unwrap();
    say("ended");
    hear();
    drop(kept);
}
