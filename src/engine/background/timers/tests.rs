//! When timers are called, and what they keep from happening: nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::engine::Engine;
use crate::manager::LockManager;
use crate::memory::Memory;

const SOON: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(20);

/// Counts its calls, and asks for the next one after a pause, a few times.
#[derive(Default)]
struct Counting {
    calls: AtomicU32,
    again: u32,
    panics: bool,
}

impl Timer for Counting {
    fn on_time(&self, now: Time) -> Option<Time> {
        let calls = self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics || calls > 0, "a panic that a test wants");
        (calls < self.again).then(|| now + PAUSE)
    }
}

impl Counting {
    fn new(again: u32) -> Arc<Counting> {
        Arc::new(Counting {
            again,
            ..Counting::default()
        })
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn await_calls(&self, calls: u32) {
        let started = Instant::now();
        while self.calls() < calls {
            assert!(
                started.elapsed() < SOON,
                "{} of {calls} calls",
                self.calls()
            );
            thread::yield_now();
        }
    }
}

#[test]
fn timer_is_called_at_its_time_and_again_when_it_asks_for_that() {
    let (engine, _thread) = Engine::without_threads(&Memory::new());
    let mut timers = Timers::new(&engine.base.client);
    let timer = Counting::new(1);
    let at = engine.now() + PAUSE;
    timers.put(at, Arc::clone(&timer) as _);
    assert_eq!(timers.next_due(), at);
    timers.run(engine.now());
    assert_eq!(timer.calls(), 0, "it is early");
    timers.run(at);
    assert_eq!((timer.calls(), timers.next_due()), (1, at + PAUSE));
    timers.run(at + PAUSE);
    assert_eq!((timer.calls(), timers.next_due()), (2, Time::NEVER));
}

#[test]
fn timer_that_panics_is_called_again_later() {
    let (engine, _thread) = Engine::without_threads(&Memory::new());
    let mut timers = Timers::new(&engine.base.client);
    let timer = Arc::new(Counting {
        panics: true,
        ..Counting::default()
    });
    let other = Counting::new(0);
    let now = engine.now();
    timers.put(now, Arc::clone(&timer) as _);
    timers.put(now, Arc::clone(&other) as _);
    timers.run(now);
    assert_eq!(other.calls(), 1, "the next one is called all the same");
    let again = now + engine.config().check_period;
    assert_eq!(timers.next_due(), again);
    timers.run(again);
    assert_eq!((timer.calls(), timers.next_due()), (2, Time::NEVER));
}

#[test]
fn timer_wakes_the_sleeping_thread() {
    let manager = LockManager::connect(&Memory::new()).expect("it is there");
    let engine = manager.engine();
    // The thread of an idle manager sleeps without an end.
    let at = engine.now() + PAUSE;
    let timer = Counting::new(3);
    engine.acquiring().call_at(at, Arc::clone(&timer) as _);
    timer.await_calls(4);
    assert!(engine.now() >= at + PAUSE * 3);
    // A later one does not put an earlier one off.
    let late = Counting::new(0);
    engine
        .acquiring()
        .call_at(engine.now() + SOON * 100, Arc::clone(&late) as _);
    let soon = Counting::new(0);
    engine
        .acquiring()
        .call_at(engine.now() + PAUSE, Arc::clone(&soon) as _);
    soon.await_calls(1);
    assert_eq!(late.calls(), 0);
}

#[test]
fn timers_of_an_idle_manager_send_nothing() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let engine = manager.engine();
    let requests = manager.stats().requests;
    let timer = Counting::new(50);
    engine
        .acquiring()
        .call_at(engine.now(), Arc::clone(&timer) as _);
    timer.await_calls(51);
    assert_eq!(manager.stats().requests, requests);
    let (_, mut thread) = Engine::without_threads(&memory);
    assert!(thread.collect().is_empty());
    assert_eq!(thread.next_due(), Time::NEVER);
}

/// So a test that lets the clock go forward meets each timer at its time.
#[test]
fn clock_that_goes_forward_stops_at_timers() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let engine = manager.engine();
    let long = Duration::from_secs(600);
    let at = engine.now() + long;
    let timer = Counting::new(0);
    engine.acquiring().call_at(at, Arc::clone(&timer) as _);
    let _guard = manager.lock("a").expect("it is free");
    let other = LockManager::connect(&memory).expect("it is there");
    let missed = memory.fast_forward(|| other.try_lock_for("a", long * 2));
    assert!(missed.expect("it answers").is_none());
    assert_eq!(timer.calls(), 1);
}
