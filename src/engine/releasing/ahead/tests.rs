//! Releases of leases that have ended here: in the background, and written once more.

use std::time::Duration;

use super::*;
use crate::engine::background::RenewalThread;
use crate::engine::{Engine, Request};
use crate::manager::LockManager;
use crate::memory::{Fault, Memory};
use crate::options::LockOptions;
use crate::script::LockSpec;
use crate::store::Deadlines;

const SOON: Duration = Duration::from_secs(8);

fn take(engine: &Engine, name: &str) -> Arc<HeldLease> {
    let key = crate::key::Key::new("fairlock", name).expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let taken = engine.try_acquire(&request);
    taken.expect("it answers").expect("it is free")
}

/// R14 (release first, then send): the lease ends here.
fn end(engine: &Engine, lease: &HeldLease) -> Time {
    let now = engine.now();
    lease.release(now).expect("it is held");
    now
}

/// The renewal thread's next round.
fn run_round(engine: &Engine, thread: &mut RenewalThread) {
    thread.take_in();
    for (task, call) in thread.collect() {
        let deadlines = Deadlines::at_once(engine.now() + SOON);
        let results = engine
            .client()
            .store()
            .run(slice::from_ref(&call), deadlines);
        thread.on_reply(task, &call, single_result(results));
    }
}

fn lost(engine: &Engine) -> u64 {
    engine.client().stats().losses()
}

#[test]
fn receiver_gets_how_a_lease_that_was_released_in_the_background_ended() {
    let memory = Memory::new();
    let (ours, theirs) = [(); 2]
        .map(|()| LockManager::connect(&memory).expect("it is there"))
        .into();
    let engine = ours.engine();
    let lease = take(engine, "a");
    let now = end(engine, &lease);
    let ended = engine
        .releasing()
        .release_ended_in_background(&lease, Mode::Used, now);
    assert_eq!(ended.recv_timeout(SOON), Ok(None));
    assert!(theirs.try_lock("a").expect("it answers").is_some());
    // The next one was taken away before.
    let lease = take(engine, "b");
    assert!(memory.lapse("b"));
    let now = end(engine, &lease);
    let ended = engine
        .releasing()
        .release_ended_in_background(&lease, Mode::Used, now);
    assert_eq!(ended.recv_timeout(SOON), Ok(Some(LossReason::Expired)));
    assert_eq!(lost(engine), 1);
}

#[test]
fn second_copy_of_a_release_frees_the_lock_and_counts_no_loss() {
    let memory = Memory::new();
    let (engine, mut thread) = Engine::without_threads(&memory);
    let releasing = engine.releasing();
    for second_is_first in [true, false] {
        let lease = take(&engine, "a");
        let now = end(&engine, &lease);
        let ended = releasing.release_ended_in_background(&lease, Mode::Used, now);
        if !second_is_first {
            run_round(&engine, &mut thread);
        }
        assert!(releasing.repeat_release(&lease, Mode::Used, engine.now()));
        let next = take(&engine, "a");
        run_round(&engine, &mut thread);
        assert_eq!(
            ended.try_recv(),
            Ok(None),
            "second is first: {second_is_first}"
        );
        assert_eq!(lost(&engine), 0);
        let now = engine.now();
        assert!(next.is_held(now), "neither copy is about the next lease");
        engine.renew(&[Arc::clone(&next)]).expect("it is held");
        let next_ended = end(&engine, &next);
        assert!(releasing.repeat_release(&next, Mode::Used, next_ended));
    }
}

#[test]
fn loss_that_both_copies_find_counts_once() {
    let memory = Memory::new();
    let (engine, mut thread) = Engine::without_threads(&memory);
    let lease = take(&engine, "a");
    assert!(memory.lapse("a"));
    let now = end(&engine, &lease);
    let releasing = engine.releasing();
    let ended = releasing.release_ended_in_background(&lease, Mode::Used, now);
    assert!(releasing.repeat_release(&lease, Mode::Used, engine.now()));
    run_round(&engine, &mut thread);
    assert_eq!(ended.try_recv(), Ok(Some(LossReason::Expired)));
    assert_eq!(lost(&engine), 1);
}

#[test]
fn second_copy_that_is_refused_says_so() {
    let memory = Memory::new();
    let (engine, mut thread) = Engine::without_threads(&memory);
    let lease = take(&engine, "a");
    let now = end(&engine, &lease);
    let releasing = engine.releasing();
    let ended = releasing.release_ended_in_background(&lease, Mode::Used, now);
    memory.inject(Fault::Refuse("LOADING not yet".to_owned()));
    assert!(!releasing.repeat_release(&lease, Mode::Used, engine.now()));
    run_round(&engine, &mut thread);
    assert_eq!(ended.try_recv(), Ok(None));
}
