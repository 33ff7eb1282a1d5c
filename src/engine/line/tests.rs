//! Lines whose place Redis refuses, or whose tenure is lost, and the order in which a line sends.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::state::{AfterTurn, TurnEnd};
use super::*;
use crate::engine::acquiring::Caller;
use crate::engine::upkeep::Command;
use crate::engine::{AtDeadline, Engine, QueuedWaiter, WantResult};
use crate::error::Error;
use crate::key::Key;
use crate::loss::{LossReason, PreviousHolder};
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{LockSpec, Mode, Verb, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

fn request(manager: &LockManager) -> Arc<Request> {
    request_of(manager.key("a").expect("a good name"), 9)
}

fn request_of(key: Key, local_handovers: u32) -> Arc<Request> {
    let options = LockOptions::new().local_handovers(local_handovers);
    Arc::new(Request::in_line(LockSpec::MUTEX, key, &options, 1))
}

/// A line's first member, and the line's place, which is not sent yet.
fn first_of_line(manager: &LockManager) -> (QueuedWaiter, Arc<WaiterEntry>) {
    let engine = manager.engine();
    engine.subscription.start().expect("a thread");
    let (first, place) = engine.acquiring.join_line(&request(manager));
    (first, place.expect("it is the first of the line"))
}

/// Sends the place of a line of a free lock. Returns the tenure.
fn take_free_lock(engine: &Arc<Engine>, place: &Arc<WaiterEntry>) -> Arc<Lease> {
    let limit = engine.now() + Duration::from_secs(3);
    engine
        .acquiring
        .send_until_queued(place, Time::NEVER, limit, Caller::Waits)
        .expect("it is free");
    let mut lines = engine.base.lines.lock();
    let line = lines.known(&place.request).expect("a line");
    Arc::clone(&line.tenure().expect("held").lease)
}

fn refused() -> Error {
    Error::config("name", "the server refuses it")
}

#[test]
fn refused_place_fails_only_the_first_member() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let (second, none) = engine.acquiring.join_line(&request(&manager));
    assert!(none.is_none(), "the line has a place");
    engine.base.waiting.on_waiter_failed(&place, &refused());
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
    let (only, place) = engine.acquiring.join_line(&request(&manager));
    engine
        .base
        .waiting
        .on_waiter_failed(&place.expect("it is the first"), &refused());
    drop(only);
    assert!(engine.base.lines.lock().known(&request(&manager)).is_none());
    assert!(engine.base.registry.all().is_empty(), "a waiter is left");
}

#[test]
fn member_that_joins_while_the_place_fails_gets_the_lock() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let second = thread::scope(|scope| {
        let held = first.waiter.state.lock();
        scope.spawn(|| engine.base.waiting.on_waiter_failed(&place, &refused()));
        while engine
            .base
            .lines
            .lock()
            .known(&request(&manager))
            .is_none_or(|l| l.has_members())
        {
            thread::yield_now();
        }
        let (second, none) = engine.acquiring.join_line(&request(&manager));
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
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(engine, &place);
    tenure.lose(LossReason::Expired);
    drop(first); // no guard was ever made
    let lost = engine.base.lines.on_tenure_lost(&tenure, engine.now());
    assert!(
        lost.turn.is_none(),
        "a loss is reported for a turn that nobody took"
    );
    assert_eq!(lost.mode, Mode::Unused);
}

/// Says whether another thread can lock the lines while this is dropped.
struct LockedAtDrop(Arc<Engine>, mpsc::Sender<bool>);

impl Drop for LockedAtDrop {
    fn drop(&mut self) {
        let (engine, (done, wait)) = (Arc::clone(&self.0), mpsc::channel());
        thread::spawn(move || {
            drop(engine.base.lines.lock());
            done.send(())
        });
        let is_free = wait.recv_timeout(Duration::from_secs(3)).is_ok();
        let _ = self.1.send(is_free);
    }
}

#[test]
fn callback_of_a_caller_that_left_is_dropped_without_the_mutex_of_the_lines() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    engine.subscription.start().expect("a thread");
    let (sender, dropped) = mpsc::channel();
    let captured = LockedAtDrop(Arc::clone(engine), sender);
    let options = LockOptions::new().local_handovers(9).on_lost(move |_| {
        let _ = &captured;
    });
    let key = manager.key("a").expect("a good name");
    let request = Arc::new(Request::in_line(LockSpec::MUTEX, key, &options, 1));
    drop(options);
    let (first, place) = engine.acquiring.join_line(&request);
    let tenure = take_free_lock(engine, &place.expect("it is the first of the line"));
    tenure.lose(LossReason::Expired);
    drop((first, request));
    drop(engine.base.lines.on_tenure_lost(&tenure, engine.now()));
    drop(tenure);
    // The renewal thread may look at the line just now, and be the last owner.
    let was_free = dropped.recv_timeout(Duration::from_secs(9));
    assert_eq!(was_free, Ok(true), "the mutex was locked");
}

#[test]
fn another_place_does_not_restart_the_outage_limit() {
    let (engine, _renewal) = Engine::without_threads(&Memory::new());
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = request_of(key, 9);
    let (_first, place) = engine.acquiring.join_line(&request);
    let (second, _) = engine.acquiring.join_line(&request);
    let before = second.waiter.last_reply_at();
    while engine.now() <= before {
        thread::yield_now();
    }
    engine.base.waiting.replace_place(&place.expect("first"));
    assert_eq!(second.waiter.last_reply_at(), before, "nobody has answered");
}

/// The thread's pipelines are collected here, as if no connection had been open before.
#[test]
fn place_of_a_line_is_sent_before_the_release_of_its_tenure() {
    let (engine, mut renewal) = Engine::without_threads(&Memory::new());
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = request_of(key, 1);
    let (first, place) = engine.acquiring.join_line(&request);
    take_free_lock(&engine, &place.expect("it is the first of the line"));
    let members = [(); 2].map(|()| engine.acquiring.join_line(&request).0);
    let [second, third] = members;
    drop(first);
    // The tenure may have no third turn.
    drop(second);
    renewal.take_in();
    let calls = renewal.collect().into_iter().map(|(_, call)| call.verb);
    let names: Vec<&str> = calls
        .map(|verb| match verb {
            Verb::Acquire { .. } => "acquire",
            Verb::Release { .. } => "release",
            _ => "other",
        })
        .collect();
    assert_eq!(names, ["acquire", "release"]);
    drop(third);
}

#[test]
fn loss_that_the_last_release_of_a_tenure_finds_is_counted_once() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(engine, &place);
    let turn = first.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("no error").expect("the lock is free");
    drop(first);
    let other = LockManager::connect(&memory).expect("a manager");
    let forced = other.force_release("a", tenure.fence);
    assert!(forced.expect("redis answers"));
    let ended = lose_at_the_last_step(engine, &turn, LossReason::Forced);
    assert_eq!(manager.stats().lost, 0, "counted where a mutex is held");
    let unlocked = engine
        .releasing
        .finish_turn(&turn, ended, engine.now(), WantResult::Yes);
    assert!(matches!(unlocked, Err(Error::Lost { .. })));
    assert_eq!(manager.stats().lost, 1);
    engine.base.upkeep.send(Command::ReportLoss(tenure));
    // Returns when the renewal thread has the reply to its release.
    memory.advance(Duration::from_millis(1));
    assert!(engine.base.lines.lock().known(&request(&manager)).is_none());
    assert_eq!(manager.stats().lost, 1, "no guard has lost it again");
}

#[test]
fn guard_that_loses_the_lock_as_it_unlocks_has_lapsed() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(engine, &place);
    let turn = first.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("no error").expect("the lock is free");
    drop(first);
    let _ = lose_at_the_last_step(engine, &turn, LossReason::Expired);
    engine.base.upkeep.send(Command::ReportLoss(tenure));
    let other = LockManager::connect(&memory).expect("a manager");
    let next = other.lock("a").expect("it is released");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

/// Ends the last turn of a tenure. The renewal thread learns of a loss between the two steps of that.
fn lose_at_the_last_step(engine: &Arc<Engine>, turn: &Arc<Lease>, reason: LossReason) -> Ended {
    let tenure = turn.renewed_lease();
    let now = engine.now();
    let mut lines = engine.base.lines.lock();
    turn.end(now).expect("it is held");
    tenure.note_last_turn(turn);
    let line = lines.line_of_tenure(tenure).expect("it has the lock");
    let next = line.end_turn(TurnEnd::Finished, tenure.remaining(now), turn.request.ttl);
    assert_eq!(next, AfterTurn::Leave);
    tenure.lose(reason);
    let ended = engine
        .base
        .lines
        .end_tenure(&mut lines, tenure, TurnEnd::Finished, now);
    assert!(matches!(ended, Ended::Lost(found) if found == reason));
    ended
}

#[test]
fn answer_about_a_migration_reaches_all_members() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let (second, _) = engine.acquiring.join_line(&request(&manager));
    let token = engine.base.waiting.token_to_send(&place, engine.now());
    let call = place.request.acquire(token.expect("new"), Wait::Yes);
    memory.advance(Duration::from_secs(1));
    let now = engine.now();
    let fault = StoreFault::server("TRYAGAIN", "the slot is in migration");
    let _ = engine
        .base
        .waiting
        .on_acquire_reply(&place, &call, CallResult::not_sent(fault));
    for member in [&first, &second] {
        assert!(member.waiter.last_reply_at() >= now, "a node has answered");
    }
}
