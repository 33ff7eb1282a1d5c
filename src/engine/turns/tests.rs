//! What becomes of a line whose place Redis refuses.

use super::*;
use crate::engine::waiter::AtDeadline;
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::script::LockSpec;

fn request(manager: &LockManager) -> Arc<Request> {
    let key = manager.key("a").expect("a good name");
    let options = LockOptions::new().local_handovers(9);
    Arc::new(Request::in_line(LockSpec::MUTEX, key, &options))
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
