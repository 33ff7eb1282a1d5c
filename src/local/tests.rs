//! Lines whose place Redis refuses, or whose tenure is lost, and the order in which a line sends.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::SteppedManager;
use super::lines::{Line, Lines, SlotState};
use super::state::{AfterTurn, TurnEnd};
use super::turns::Ended;
use crate::engine::{
    AtDeadline, Caller, Handovers, HeldLease, QueuedWaiter, Request, WaiterEntry, WantResult,
};
use crate::error::Error;
use crate::key::Key;
use crate::loss::{LossReason, PreviousHolder};
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{LockSpec, Mode, Verb};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

fn request(manager: &LockManager) -> Arc<Request> {
    request_of(manager.key("a").expect("a good name"), 9)
}

fn request_of(key: Key, local_handovers: u32) -> Arc<Request> {
    let options = LockOptions::new().local_handovers(local_handovers);
    Arc::new(request_with(key, &options))
}

fn request_with(key: Key, options: &LockOptions) -> Request {
    let most = options.most_local_handovers();
    let handovers = Handovers {
        most,
        spare_fences: most,
        shared_as: most.min(1).into(),
        ..Handovers::NONE
    };
    Request::with_handovers(LockSpec::MUTEX, key, options, 1, handovers)
}

/// A look at the line of a request, if there is one.
fn with_line<R>(lines: &Lines, request: &Request, look: impl FnOnce(&mut Line) -> R) -> Option<R> {
    let look = |slot: &mut SlotState| slot.known(request).map(look);
    lines.with_known_slot(&request.key.name, look).flatten()
}

fn lines(manager: &LockManager) -> &Arc<Lines> {
    &manager.running().lines
}

/// A line's first member, and the line's place, which is not sent yet.
fn first_of_line(manager: &LockManager) -> (QueuedWaiter, Arc<WaiterEntry>) {
    let request = request(manager);
    let limit = manager.engine().now() + Duration::from_secs(3);
    let subscribed = lines(manager).acquiring.begin(&request, limit);
    subscribed.expect("a thread");
    let (first, place) = lines(manager).join(&request);
    (first, place.expect("it is the first of the line"))
}

/// Sends the place of a line of a free lock. Returns the tenure.
fn take_free_lock(lines: &Lines, place: &Arc<WaiterEntry>) -> Arc<HeldLease> {
    let limit = lines.acquiring.client().now() + Duration::from_secs(3);
    let sent = lines
        .acquiring
        .send_until_queued(place, Time::NEVER, limit, Caller::Waits);
    sent.expect("it is free");
    let tenure = with_line(lines, &place.request, |line| {
        Arc::clone(&line.tenure().expect("held").lease)
    });
    tenure.expect("a line")
}

/// The server refuses the place.
fn refuse(place: &Arc<WaiterEntry>) {
    let _ = place.state.lock().fail(refused());
    place.wake();
}

fn refused() -> Error {
    Error::setting("name", "the server refuses it")
}

#[test]
fn refused_place_fails_only_the_first_member() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let (second, none) = lines(&manager).join(&request(&manager));
    assert!(none.is_none(), "the line has a place");
    refuse(&place);
    let failed = first.wait(Time::NEVER, AtDeadline::Cancel);
    assert!(matches!(failed, Err(Error::Misused { .. })));
    // The renewal thread has sent the line's next place.
    let turn = second.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("it is not refused").expect("the lock is free");
    assert!(turn.is_held(engine.now()));
    assert_eq!(manager.stats().requeues, 0, "it was not queued before");
    let released = lines(&manager).release(&turn, None, Mode::Used, WantResult::Yes);
    released.expect("it was held");
}

#[test]
fn refused_place_of_a_lone_member_leaves_no_line() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let (only, place) = lines(&manager).join(&request(&manager));
    refuse(&place.expect("it is the first"));
    drop(only);
    assert!(with_line(lines(&manager), &request(&manager), |_| ()).is_none());
    assert_eq!(manager.engine().waiters(), 0, "a waiter is left");
}

#[test]
fn member_that_joins_while_the_place_fails_gets_the_lock() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let (first, place) = first_of_line(&manager);
    let second = thread::scope(|scope| {
        let held = first.waiter.state.lock();
        scope.spawn(|| refuse(&place));
        let has_members = |line: &mut Line| line.has_members();
        while with_line(lines(&manager), &request(&manager), has_members) != Some(false) {
            thread::yield_now();
        }
        let (second, none) = lines(&manager).join(&request(&manager));
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
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(lines(&manager), &place);
    tenure.lose(LossReason::Expired);
    drop(first); // no guard was ever made
    assert_eq!(lose(lines(&manager), &tenure), Mode::Unused);
    assert_eq!(manager.stats().losses(), 0, "nobody took the turn");
}

/// As the engine says that the tenure is lost. Returns how it is released.
fn lose(lines: &Lines, tenure: &HeldLease) -> Mode {
    let loss = tenure.loss_for(LossReason::Expired);
    let (mode, _) = lines.on_tenure_lost(&tenure.request, tenure.token, &loss);
    mode
}

/// Says whether another thread can lock the lines while this is dropped.
struct LockedAtDrop(Arc<Lines>, mpsc::Sender<bool>);

impl Drop for LockedAtDrop {
    fn drop(&mut self) {
        let (lines, (done, wait)) = (Arc::clone(&self.0), mpsc::channel());
        thread::spawn(move || {
            lines.with_slot(&"a".into(), |_| ());
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
    let lines = lines(&manager);
    let (sender, dropped) = mpsc::channel();
    let captured = LockedAtDrop(Arc::clone(lines), sender);
    let options = LockOptions::new().local_handovers(9).on_lost(move |_| {
        let _ = &captured;
    });
    let key = manager.key("a").expect("a good name");
    let request = Arc::new(request_with(key, &options));
    drop(options);
    let limit = manager.engine().now() + Duration::from_secs(3);
    lines.acquiring.begin(&request, limit).expect("a thread");
    let (first, place) = lines.join(&request);
    let tenure = take_free_lock(lines, &place.expect("it is the first of the line"));
    tenure.lose(LossReason::Expired);
    drop((first, request));
    lose(lines, &tenure);
    drop(tenure);
    // The renewal thread may look at the line just now, and be the last owner.
    let was_free = dropped.recv_timeout(Duration::from_secs(9));
    assert_eq!(was_free, Ok(true), "the mutex was locked");
}

#[test]
fn another_place_does_not_restart_the_outage_limit() {
    let manager = SteppedManager::on_memory(&Memory::new());
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = request_of(key, 9);
    let (_first, place) = manager.lines.join(&request);
    let (second, _) = manager.lines.join(&request);
    let before = second.waiter.last_reply_at();
    while manager.engine().now() <= before {
        thread::yield_now();
    }
    manager.lines.replace_place(&place.expect("first"));
    assert_eq!(second.waiter.last_reply_at(), before, "nobody has answered");
}

/// The thread's pipelines are collected here, as if no connection had been open before.
#[test]
fn place_of_a_line_is_sent_before_the_release_of_its_tenure() {
    let mut manager = SteppedManager::on_memory(&Memory::new());
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = request_of(key, 1);
    let (first, place) = manager.lines.join(&request);
    take_free_lock(&manager.lines, &place.expect("it is the first of the line"));
    let members = [(); 2].map(|()| manager.lines.join(&request).0);
    let [second, third] = members;
    drop(first);
    // The tenure may have no third turn.
    drop(second);
    let (_, calls) = manager.collect();
    let calls = calls.into_iter().map(|call| call.verb);
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

/// More lines lose their tenures at once than one pipeline has room for.
#[test]
fn new_places_are_sent_before_the_releases_of_lost_tenures() {
    let memory = Memory::new();
    let mut manager = SteppedManager::on_memory(&memory);
    let mut members = Vec::new();
    for n in 0..200 {
        let key = Key::new("fairlock", &format!("n{n}")).expect("a good name");
        let request = request_of(key, 5);
        let (first, place) = manager.lines.join(&request);
        take_free_lock(&manager.lines, &place.expect("it is the first of the line"));
        members.push((first, manager.lines.join(&request).0));
    }
    manager.collect();
    // No renewal was sent.
    memory.advance(LockOptions::new().lease_length());
    let mut acquired = HashSet::new();
    let mut released = HashSet::new();
    while released.len() < members.len() {
        let (_, calls) = manager.collect();
        for call in calls {
            match call.verb {
                Verb::Acquire { .. } => _ = acquired.insert(call.key.name),
                Verb::Release { .. } => {
                    let name = &call.key.name;
                    assert!(acquired.contains(name), "{name:?} is released first");
                    released.insert(Arc::clone(name));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn loss_that_the_last_release_of_a_tenure_finds_is_counted_once() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let engine = manager.engine();
    let lines = lines(&manager);
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(lines, &place);
    let turn = first.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("no error").expect("the lock is free");
    drop(first);
    let other = LockManager::connect(&memory).expect("a manager");
    let forced = other.force_release("a", tenure.fence());
    assert!(forced.expect("redis answers"));
    let ended = lose_at_the_last_step(lines, &turn, LossReason::Forced);
    assert_eq!(manager.stats().losses(), 0, "counted where a mutex is held");
    let unlocked = lines.finish_turn(&turn, ended, engine.now(), WantResult::Yes);
    assert!(matches!(unlocked, Err(Error::Lost { .. })));
    assert_eq!(manager.stats().losses(), 1);
    engine.report_loss(tenure);
    // Returns when the renewal thread has the reply to its release.
    memory.advance(Duration::from_millis(1));
    assert!(with_line(lines, &request(&manager), |_| ()).is_none());
    assert_eq!(manager.stats().losses(), 1, "no guard has lost it again");
}

#[test]
fn guard_that_loses_the_lock_as_it_unlocks_has_lapsed() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory).build().expect("a manager");
    let (first, place) = first_of_line(&manager);
    let tenure = take_free_lock(lines(&manager), &place);
    let turn = first.wait(Time::NEVER, AtDeadline::Cancel);
    let turn = turn.expect("no error").expect("the lock is free");
    drop(first);
    let _ = lose_at_the_last_step(lines(&manager), &turn, LossReason::Expired);
    manager.engine().report_loss(tenure);
    let other = LockManager::connect(&memory).expect("a manager");
    let next = other.lock("a").expect("it is released");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

/// Ends the last turn of a tenure. The renewal thread learns of a loss between the two steps of that.
fn lose_at_the_last_step(lines: &Lines, turn: &Arc<HeldLease>, reason: LossReason) -> Ended {
    let tenure = turn.renewed_lease();
    let now = lines.acquiring.client().now();
    let ended = lines.with_known_slot(&tenure.request.key.name, |slot| {
        turn.end(now).expect("it is held");
        let line = slot.line_of_tenure(&tenure.request, tenure.token);
        let line = line.expect("it has the lock");
        let next = line.end_turn(TurnEnd::Finished, true, false);
        assert_eq!(next, AfterTurn::Leave);
        tenure.lose(reason);
        lines.end_tenure(slot, tenure, TurnEnd::Finished, now)
    });
    let ended = ended.expect("a line");
    assert!(matches!(ended, Ended::Lost(found) if found == reason));
    ended
}

#[test]
fn answer_about_a_migration_reaches_all_members() {
    let memory = Memory::new();
    let manager = SteppedManager::on_memory(&memory);
    let request = request_of(Key::new("fairlock", "a").expect("a good name"), 9);
    let (first, place) = manager.register(&request);
    let (second, _) = manager.register(&request);
    let place = place.expect("it is the first of the line");
    let sent = manager.engine().now();
    let call = manager.begin_place(&place, sent).expect("it is new");
    memory.advance(Duration::from_secs(1));
    let now = manager.engine().now();
    let fault = StoreFault::server("TRYAGAIN", "the slot is in migration");
    manager.on_place_reply(&place, &call, CallResult::not_sent(fault));
    for member in [&first, &second] {
        assert!(member.waiter.last_reply_at() >= now, "a node has answered");
    }
}
