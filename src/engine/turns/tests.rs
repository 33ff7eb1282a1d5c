//! A line whose place Redis refuses.

use std::thread;
use std::time::Duration;

use super::*;
use crate::engine::waiter::AtDeadline;
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::script::LockSpec;

fn request(manager: &LockManager) -> Arc<Request> {
    let key = manager.key("a").expect("a good name");
    let options = LockOptions::new().local_handovers(9);
    Arc::new(Request::in_line(LockSpec::MUTEX, key, &options, 1))
}

fn refused() -> Error {
    Error::config("name", "the server refuses it")
}

#[test]
fn refused_place_fails_only_the_first_member() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    engine.start_subscription().expect("a thread");
    let (first, place) = engine.join_line(&request(&manager));
    let place = place.expect("it is the first of the line");
    let (second, none) = engine.join_line(&request(&manager));
    assert!(none.is_none(), "the line has a place");
    engine.on_waiter_failed(&place, &refused());
    let failed = first.wait(Time::NEVER, AtDeadline::Cancel);
    assert!(matches!(failed, Err(Error::Config { .. })));
    // The renewal thread has sent the line's next place.
    let turn = second.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("it is not refused").expect("the lock is free");
    assert!(turn.is_held(engine.now()));
    assert_eq!(manager.stats().requeued, 0, "it was not queued before");
    engine
        .release(&turn, Mode::Used, WantResult::Yes)
        .expect("it was held");
}

#[test]
fn refused_place_of_a_lone_member_leaves_no_line() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (only, place) = engine.join_line(&request(&manager));
    engine.on_waiter_failed(&place.expect("it is the first"), &refused());
    drop(only);
    assert!(engine.lines.lock().known(&request(&manager)).is_none());
    assert!(engine.waiters.all().is_empty(), "a waiter is left");
}

#[test]
fn member_that_joins_while_the_place_fails_gets_the_lock() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    engine.start_subscription().expect("a thread");
    let (first, place) = engine.join_line(&request(&manager));
    let place = place.expect("it is the first of the line");
    let second = thread::scope(|scope| {
        let held = first.waiter.state.lock();
        scope.spawn(|| engine.on_waiter_failed(&place, &refused()));
        while engine
            .lines
            .lock()
            .known(&request(&manager))
            .is_none_or(|l| l.has_members())
        {
            thread::yield_now();
        }
        let (second, none) = engine.join_line(&request(&manager));
        assert!(none.is_none());
        drop(held);
        second
    });
    let until = engine.now() + Duration::from_secs(3);
    let turn = second.wait(until, AtDeadline::Keep);
    assert!(matches!(turn, Ok(Some(_))), "nobody sends the place");
}

#[test]
fn no_loss_is_reported_to_a_caller_that_left() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    engine.start_subscription().expect("a thread");
    let (first, place) = engine.join_line(&request(&manager));
    let place = place.expect("it is the first of the line");
    let limit = engine.now() + Duration::from_secs(3);
    engine
        .send_until_queued(&place, Time::NEVER, limit)
        .expect("it is free");
    let tenure = {
        let mut lines = engine.lines.lock();
        let line = lines.known(&request(&manager)).expect("a line");
        Arc::clone(&line.tenure().expect("held").lease)
    };
    tenure.lose(LossReason::Expired);
    drop(first); // no guard was ever made
    let lost = engine.on_tenure_lost(&tenure);
    assert!(
        lost.turn.is_none(),
        "a loss is reported for a turn that nobody took"
    );
    assert!(!lost.was_used);
}

#[test]
fn another_place_does_not_restart_the_outage_limit() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (_first, place) = engine.join_line(&request(&manager));
    let (second, _) = engine.join_line(&request(&manager));
    let before = second.waiter.last_reply_at();
    while engine.now() <= before {
        thread::yield_now();
    }
    engine.replace_place(&place.expect("first"));
    assert_eq!(second.waiter.last_reply_at(), before, "nobody has answered");
}
