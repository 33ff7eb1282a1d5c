//! The main loop without a queue, on the store in memory. The store of a quorum has tests of its
//! own on real servers.

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::config::{Config, Settings};
use crate::engine::waiter::{Askers, WaiterState};
use crate::engine::{AtDeadline, QueuedWaiter, Request};
use crate::error::{Error, Misuse};
use crate::local::Running;
use crate::manager::LockManager;
use crate::memory::{Fault, Memory};
use crate::options::LockOptions;
use crate::script::{CallerId, LockSpec, Token};
use crate::store::clock::Time;
use crate::store::memory::Session;

const MINUTE: Duration = Duration::from_secs(60);
/// The time that a loaded machine may take for a step.
const SLACK: Duration = Duration::from_secs(5);

/// A manager on a store that has no queue.
fn manager(memory: &Memory, change: impl FnOnce(&mut Config)) -> LockManager {
    let (mut config, options) = Config::new(Settings::default()).expect("the defaults fit");
    change(&mut config);
    let step = config.check_period + config.command_timeout;
    let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
    let session = Session::open(memory, config.command_timeout, Arc::clone(&caller_id));
    let store = Box::new(session.expect("it is up").without_queue());
    let running = Running::start(config, store, caller_id).expect("threads can start");
    LockManager::new(running, options)
}

fn plain(memory: &Memory) -> LockManager {
    manager(memory, |_| {})
}

/// A manager whose second pause can be so long that only a wake-up ends it in time.
fn patient(memory: &Memory) -> LockManager {
    manager(memory, |config| config.back_off = MINUTE * 60)
}

/// A waiter of this name, whose next pause has no end.
fn sleeper(manager: &LockManager, name: &str) -> QueuedWaiter {
    let key = manager.key(name).expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let state = WaiterState::new(Token::new());
    let queued = QueuedWaiter::register(&manager.engine().acquiring, &request, state, None);
    queued.waiter.state.lock().ask_at = Time::from_nanos(u64::MAX - 1);
    queued
}

fn until_asleep(queued: &QueuedWaiter) {
    let askers = &queued.acquiring.askers;
    while !askers.are_any(&queued.request().key.name) {
        thread::yield_now();
    }
}

fn number_of_fields(memory: &Memory) -> impl PartialEq + Debug + use<> {
    memory.run_command(&["HLEN", "fairlock:{a}"])
}

#[track_caller]
fn assert_no_queue(memory: &Memory) {
    let length = |key| memory.run_command(&["LLEN", key]);
    assert_eq!(length("fairlock:{a}:q"), length("no queue"));
}

#[test]
fn waiter_takes_the_lock_soon_after_another_process_released_it() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let guard = theirs.lock("a").expect("it is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock("a"));
        while ours.stats().waiting == 0 {
            thread::yield_now();
        }
        let fence = guard.fence();
        guard.unlock().expect("it was held");
        let next = waiting.join().expect("no panic").expect("it is free");
        assert!(next.fence() > fence);
    });
    assert_eq!(ours.stats().waiting, 0);
}

#[test]
fn r21_waiters_leave_nothing_in_the_store() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let _guard = theirs.lock("a").expect("it is free");
    let before = number_of_fields(&memory);
    let requests = ours.stats().requests;
    let missed = memory.fast_forward(|| ours.try_lock_for("a", MINUTE));
    assert!(missed.expect("it answers").is_none());
    assert!(
        !ours.engine().subscription.is_started(),
        "nobody subscribes"
    );
    assert_no_queue(&memory);
    assert_eq!(number_of_fields(&memory), before);
    // A pause is a random part of 500 ms, at least a quarter. The first pauses are shorter, and the
    // last request is the one at the deadline. A sync once per second would make 60 more.
    let asked = ours.stats().requests - requests;
    assert!((120..=480 + 20).contains(&asked), "asked {asked} times");
}

#[test]
fn p8_wait_without_a_queue_ends_at_its_deadline() {
    let memory = Memory::new();
    let (ours, theirs) = (patient(&memory), plain(&memory));
    let _guard = theirs.lock("a").expect("it is free");
    let started = ours.engine().now();
    let missed = memory.fast_forward(|| ours.try_lock_for("a", MINUTE));
    assert!(missed.expect("it answers").is_none());
    let waited = ours.engine().now() - started;
    assert!((MINUTE..MINUTE + SLACK).contains(&waited), "{waited:?}");
}

#[test]
fn caller_asks_once_more_at_its_deadline() {
    let memory = Memory::new();
    let ours = plain(&memory);
    let queued = sleeper(&ours, "a");
    let until = ours.engine().now() + Duration::from_millis(20);
    let lease = queued.wait(until, AtDeadline::Cancel).expect("it answers");
    assert!(lease.is_some(), "the lock was free all the time");
}

#[test]
fn p8_shutdown_ends_a_pause_at_once() {
    let memory = Memory::new();
    let ours = plain(&memory);
    let queued = sleeper(&ours, "a");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| queued.wait(Time::NEVER, AtDeadline::Cancel));
        until_asleep(&queued);
        ours.shutdown(Duration::ZERO).expect("it answers");
        let ended = waiting.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)));
    });
}

#[test]
fn release_wakes_the_first_waiter_of_its_manager() {
    let memory = Memory::new();
    let ours = plain(&memory);
    let guard = ours.lock("a").expect("it is free");
    let (first, second) = (sleeper(&ours, "a"), sleeper(&ours, "a"));
    thread::scope(|scope| {
        // They do not ask at this deadline.
        let until = ours.engine().now() + SLACK;
        let last = &second;
        scope.spawn(move || {
            let _ = last.wait(until + SLACK, AtDeadline::Keep);
        });
        until_asleep(last);
        let waiting = scope.spawn(move || first.wait(until, AtDeadline::Keep));
        while ours.engine().base.askers.count("a") < 2 {
            thread::yield_now();
        }
        guard.unlock().expect("it was held");
        let lease = waiting.join().expect("no panic").expect("it answers");
        assert!(lease.is_some(), "the lock was free");
        assert_eq!(
            ours.engine().base.askers.count("a"),
            1,
            "the second waits on"
        );
        ours.shutdown(Duration::ZERO).expect("it answers");
    });
}

/// A release that comes while the request is under way may have come after the request found the
/// lock taken.
#[test]
fn waiter_woken_during_its_request_asks_again_at_once() {
    let mut state = WaiterState::new(Token::new());
    let now = Time::from_nanos(1_000_000_000);
    state.ask_at = Time::from_nanos(0);
    state.begin_pause(now, MINUTE);
    assert!(state.ask_at < now);
    state.ask_at = Time::NEVER;
    state.begin_pause(now, MINUTE);
    assert!(state.ask_at > now);
}

#[test]
fn p9_every_sixteenth_release_wakes_nobody_here() {
    let memory = Memory::new();
    let ours = plain(&memory);
    let queued = sleeper(&ours, "a");
    let askers = Askers::new();
    let _asking = askers.enter(&queued.waiter);
    let mut wakes = 0;
    for _ in 0..160 {
        queued.waiter.state.lock().ask_at = Time::NEVER;
        askers.wake_first("a");
        wakes += u32::from(queued.waiter.state.lock().ask_at != Time::NEVER);
    }
    assert_eq!(wakes, 150);
}

/// Otherwise a thread that releases and locks again would overtake the thread that its release has
/// just woken.
#[test]
fn newcomer_does_not_overtake_a_waiter_of_its_manager() {
    let memory = Memory::new();
    let ours = patient(&memory);
    let queued = sleeper(&ours, "a");
    let _asking = ours.engine().base.askers.enter(&queued.waiter);
    let requests = ours.stats().requests;
    let _late = ours.enqueue("a").expect("it answers");
    assert_eq!(ours.stats().requests, requests, "it has not asked");
    assert!(ours.try_lock("a").expect("it answers").is_some());
}

#[test]
fn p8_wait_ends_at_the_outage_limit_without_a_queue() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let _guard = theirs.lock("a").expect("it is free");
    let mut waiter = ours.enqueue("a").expect("it answers");
    memory.go_down();
    let limit = ours.engine().config().outage_limit;
    let started = ours.engine().now();
    let ended = memory.fast_forward(|| ours.lock("a"));
    let waited = ours.engine().now() - started;
    assert!(matches!(ended, Err(Error::Unavailable { .. })));
    assert!((limit..limit + SLACK).contains(&waited), "{waited:?}");
    let ended = memory.fast_forward(|| waiter.wait_for(MINUTE));
    assert!(matches!(ended, Err(Error::Unavailable { .. })));
    // The same waiter may wait on. The other lease is over by now.
    memory.come_back();
    let guard = memory.fast_forward(|| waiter.wait_for(MINUTE));
    assert!(guard.expect("it answers").is_some());
}

#[test]
fn p8_try_for_a_time_reports_a_silent_server() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let _guard = theirs.lock("a").expect("it is free");
    let second = Duration::from_secs(1);
    let started = ours.engine().now();
    for _ in 0..100 {
        memory.inject(Fault::LoseRequest);
    }
    let ended = memory.fast_forward(|| ours.try_lock_for("a", second));
    let waited = ours.engine().now() - started;
    assert!(matches!(ended, Err(Error::Unavailable { .. })));
    let bound = second + ours.engine().config().command_timeout + SLACK;
    assert!(waited < bound, "{waited:?}");
}

#[test]
fn waiter_asks_bit_by_bit_and_has_no_position() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let guard = theirs.lock("a").expect("it is free");
    let mut waiter = ours.enqueue("a").expect("it answers");
    assert_eq!(waiter.position(), None);
    let requests = ours.stats().requests;
    for _ in 0..1000 {
        let early = waiter.wait_for(Duration::ZERO).expect("it answers");
        assert!(early.is_none());
    }
    let asked = ours.stats().requests - requests;
    assert!(
        asked < 500,
        "short waits keep the pauses: asked {asked} times"
    );
    guard.unlock().expect("it was held");
    let guard = memory.fast_forward(|| waiter.wait_for(MINUTE));
    assert!(guard.expect("it answers").is_some());
}

#[test]
fn lock_lost_before_it_is_taken_is_asked_for_again() {
    let memory = Memory::new();
    let (ours, theirs) = (plain(&memory), plain(&memory));
    let mut waiter = ours.enqueue("a").expect("it is free");
    assert!(
        !ours.engine().subscription.is_started(),
        "nobody subscribes"
    );
    assert!(memory.lapse("a"));
    let guard = theirs.lock("a").expect("it is free");
    // The renewal finds the loss.
    memory.advance(Duration::from_secs(4));
    let early = waiter.wait_for(Duration::ZERO).expect("it answers");
    assert!(early.is_none());
    assert_no_queue(&memory);
    guard.unlock().expect("it was held");
    let guard = memory.fast_forward(|| waiter.wait_for(MINUTE));
    assert!(guard.expect("it answers").is_some());
}

#[test]
fn several_names_are_taken_in_one_order_by_asking() {
    let memory = Memory::new();
    let managers = [plain(&memory), plain(&memory)];
    thread::scope(|scope| {
        for (manager, names) in managers.iter().zip([["a", "b"], ["b", "a"]]) {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..10 {
                        let guard = manager.lock_all(names).expect("both are taken in turn");
                        assert!(guard.is_held());
                    }
                });
            }
        }
    });
    let again = managers[0].reentrant_mutex("a");
    let outer = again.lock().expect("it is free");
    let inner = again.lock().expect("this thread has it");
    assert_eq!(inner.fence(), outer.fence());
}

#[test]
fn p10_store_of_mutexes_refuses_other_kinds_and_writes_nothing() {
    let memory = Memory::new();
    let ours = plain(&memory);
    let requests = ours.stats().requests;
    let refused = [
        ours.semaphore("a", 2).acquire(1).err(),
        ours.semaphore("a", 2).try_acquire(1).err(),
        ours.semaphore("a", 2).enqueue(1).err(),
        ours.rw_lock("a").read().err(),
        ours.rw_lock("a").try_write().err(),
        ours.rw_lock("a").enqueue_write().err(),
    ];
    for error in refused {
        assert!(
            matches!(
                error,
                Some(Error::Misused {
                    misuse: Misuse::Setting { .. },
                    ..
                })
            ),
            "{error:?}"
        );
    }
    assert_eq!(ours.stats().requests, requests, "nothing is sent");
}
