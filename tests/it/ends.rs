//! Locks that are held when a thread or a process ends. On Redis alone: the holders are processes of their own.

use std::{
    cell::RefCell,
    thread,
    time::{Duration, Instant},
};

use fairlock::{DEFAULT_TTL, LockGuard, PreviousHolder};

use crate::{
    managers::{assert_nothing_left, check_period, manager, owner},
    support::{
        Kid, SLACK, Server,
        kid::{hear, say},
        until,
    },
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(1);

#[test]
fn p5_a_process_that_exits_without_a_drop_leaves_its_lock_to_the_ttl() {
    check_end_of_process("exit");
}

#[test]
fn p5_a_process_that_aborts_leaves_its_lock_to_the_ttl() {
    check_end_of_process("abort");
}

fn check_end_of_process(verb: &str) {
    let server = Server::start();
    let mut kid = worker::start(&server.url(), TTL);
    kid.tell("lock k");
    expect_got(&kid, "k", SOON);
    let mgr = manager(server.url(), TTL);
    kid.tell(verb);
    kid.wait(SOON);
    let start = Instant::now();
    let guard = mgr.lock("k").unwrap();
    assert!(
        start.elapsed() < TTL + check_period(TTL) + SLACK,
        "{:?}",
        start.elapsed()
    );
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn p8_a_guard_dropped_in_a_thread_local_destructor_is_released() {
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
    let mgr = manager(args[0].as_str(), DEFAULT_TTL);
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
