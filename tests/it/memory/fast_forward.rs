//! A clock that goes forward by itself while a test waits: no second thread has to advance it.

use std::{
    panic::catch_unwind,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::unbounded;
use fairlock::{
    Error, LockManager, LockOptions, Loss, LossReason, PreviousHolder, Step,
    memory::{Fault, Memory},
};

use super::SOON;

const HOUR: Duration = Duration::from_secs(3600);

fn two(memory: &Memory) -> [LockManager; 2] {
    [(); 2].map(|()| LockManager::connect(memory).unwrap())
}

/// How much later than due the clock may show the end of a wait.
const LATE: Duration = Duration::from_secs(8);
/// Less than the minutes that most of these waits last. A busy machine needs seconds for their steps.
const AT_ONCE: Duration = Duration::from_secs(40);

/// Runs it with a clock that goes forward, and checks that the host's clock does not go with it.
fn at_once<T>(memory: &Memory, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = memory.fast_forward(work);
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    result
}

/// How far the clock of the store goes during this. A fixed lease shows the time.
fn passed<T>(memory: &Memory, during: impl FnOnce() -> T) -> (T, Duration) {
    let day = LockOptions::new().fixed_lease(24 * HOUR);
    let mgr = LockManager::connect(memory).unwrap().with(day);
    let shows_time = mgr.lock("shows the time").unwrap();
    let before = shows_time.remaining();
    let result = during();
    (result, before - shows_time.remaining())
}

#[test]
fn a_deadline_is_reached_while_the_holder_renews() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let guard = theirs.lock("k").unwrap();
    let minute = Duration::from_secs(60);
    let (waited, took) = passed(&memory, || {
        at_once(&memory, || ours.try_lock_for("k", minute).unwrap())
    });
    assert!(waited.is_none());
    assert!(took >= minute && took < minute + LATE, "{took:?}");
    guard.check().unwrap();
    assert!(theirs.stats().renewals_confirmed >= 60 / 4);
    assert_eq!(theirs.stats().renewals_failed, 0);
    let mut waiter = ours.enqueue("k").unwrap();
    assert!(at_once(&memory, || waiter.wait_for(minute).unwrap()).is_none());
    assert_eq!(waiter.position(), Some(1));
}

#[test]
fn a_wait_ends_when_its_turn_comes_and_not_later() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let (sender, losses) = unbounded();
    let limited = LockOptions::new()
        .max_hold(Duration::from_secs(60))
        .on_lost(move |loss: &Loss| sender.send(loss.reason).unwrap());
    let _guard = theirs.with(limited).lock("k").unwrap();
    let (next, took) = passed(&memory, || at_once(&memory, || ours.lock("k").unwrap()));
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert_eq!(losses.recv_timeout(SOON), Ok(LossReason::MaxHold));
    let minute = Duration::from_secs(59)..Duration::from_secs(60) + LATE;
    assert!(minute.contains(&took), "{took:?}");
    next.unlock().unwrap();
}

#[test]
fn an_outage_ends_a_wait_and_a_lost_reply_a_call() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    memory.go_down();
    let end = at_once(&memory, || ours.lock("k"));
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    memory.come_back();
    memory.inject(Fault::LoseReply);
    let end = at_once(&memory, || ours.try_lock("k"));
    let Err(Error::Unavailable { step, waited, .. }) = end else {
        panic!("{end:?}")
    };
    assert_eq!(step, Step::Reply);
    assert!(
        waited >= crate::fixtures::DEFAULT_COMMAND_TIMEOUT,
        "{waited:?}"
    );
    // The unknown grant is rolled back in the background, which takes no wait.
    let next = at_once(&memory, || theirs.lock("k").unwrap());
    assert_eq!(next.previous_holder(), PreviousHolder::Unknown);
}

#[test]
fn a_lost_renewal_is_sent_again_in_time() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let guard = theirs.lock("k").unwrap();
    let mut waiter = ours.enqueue("k").unwrap();
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::LoseReply] {
        memory.inject(fault);
    }
    assert!(at_once(&memory, || waiter.wait_for(HOUR / 60).unwrap()).is_none());
    guard.check().unwrap();
    assert!(!format!("{memory:?}").contains("Lose"), "{memory:?}");
}

#[test]
fn a_shutdown_reaches_the_end_of_its_time() {
    let memory = Memory::new();
    let [ours, _] = two(&memory);
    let guard = ours.lock("k").unwrap();
    let left = at_once(&memory, || ours.shutdown(HOUR / 60).unwrap());
    assert_eq!(left.len(), 1);
    assert!(!guard.is_held());
}

#[test]
fn the_clock_does_not_run_ahead_of_work() {
    let memory = Memory::new();
    let pause = Duration::from_millis(30);
    let started = Instant::now();
    let ((), took) = passed(&memory, || {
        memory.fast_forward(|| {
            let [ours, _] = two(&memory);
            drop(ours.lock("k").unwrap());
            // Time itself is under test: the thread works for this long.
            thread::sleep(pause);
        });
    });
    assert!(took >= pause && took <= started.elapsed(), "{took:?}");
}

#[test]
fn several_threads_wait_together() {
    let memory = Memory::new();
    let managers = two(&memory);
    let second = Duration::from_secs(1);
    let once = LockOptions::new().hold_at_least(second);
    let ((), took) = passed(&memory, || {
        thread::scope(|scope| {
            for mgr in &managers {
                let once = mgr.with(once.clone());
                let memory = &memory;
                scope.spawn(move || {
                    at_once(memory, || {
                        (0..5).for_each(|_| once.lock("k").unwrap().unlock().unwrap());
                    });
                });
            }
        });
    });
    assert!(took >= 9 * second && took < 10 * second + LATE, "{took:?}");
}

#[test]
fn a_panic_and_a_nested_call_leave_the_clock_as_it_was() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let _guard = theirs.lock("k").unwrap();
    let panicked = catch_unwind(|| memory.fast_forward(|| panic!("the test panics here")));
    assert!(panicked.is_err());
    let nested = || memory.fast_forward(|| ours.try_lock_for("k", HOUR / 60).unwrap());
    assert!(at_once(&memory, nested).is_none());
    // After it, the clock runs with the host's.
    let wait = Duration::from_millis(50);
    let started = Instant::now();
    assert!(ours.try_lock_for("k", wait).unwrap().is_none());
    assert!(started.elapsed() >= wait);
}
