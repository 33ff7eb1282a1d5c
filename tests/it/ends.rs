//! Locks that are held when a thread or a process ends. On Redis alone: the holders are separate
//! processes.

use crate::fixtures::DEFAULT_TTL;
use std::{
    cell::RefCell,
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockGuard, PreviousHolder};

use crate::{
    managers::{assert_nothing_left, check_period, manager, owner},
    support::{
        Child, SLACK, Server,
        child::{receive, report},
        until,
    },
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(1);

#[test]
fn p5_a_lock_of_an_exited_process_ends_with_its_ttl() {
    check_end_of_process("exit");
}

#[test]
fn p5_a_lock_of_an_aborted_process_ends_with_its_ttl() {
    check_end_of_process("abort");
}

fn check_end_of_process(verb: &str) {
    let server = Server::start();
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    let mgr = manager(server.url(), TTL);
    child.send(verb);
    child.wait(SOON);
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
fn a_thread_local_destructor_may_drop_the_last_handle() {
    check_thread_local("guard is last");
}

fn check_thread_local(mode: &str) {
    let server = Server::start();
    let mut child = Child::spawn("thread_local", &[&server.url(), mode]);
    child.expect("locked", SOON);
    assert!(owner(&server, "k").is_some());
    child.send("end");
    child.expect("ended", SOON);
    until(SLACK, "the lock is free", || owner(&server, "k").is_none());
    child.close_stdin();
    child.join();
    assert_nothing_left(&server, "k");
}

/// Keeps a guard in a thread-local, whose destructor drops it when the thread ends.
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
            report("locked");
            receive();
        })
    };
    let kept = (args[1] == "manager stays").then_some(mgr);
    thread.join().unwrap();
    report("ended");
    receive();
    drop(kept);
}
