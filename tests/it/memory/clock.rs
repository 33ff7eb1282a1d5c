//! The server and all managers share one clock. A thread that sleeps by it wakes when a test
//! advances it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fairlock::{
    Error, LockManager, LockOptions, LossReason, PreviousHolder,
    memory::{Fault, Memory},
};

use super::SOON;
use crate::reply::{Commands, Reply};
use crate::support::{EndLoops, SLACK, until};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A manager whose leases outlast any hour.
fn lasting(memory: &Memory) -> LockManager {
    LockManager::builder(memory)
        .options(LockOptions::new().ttl(DAY))
        .build()
        .unwrap()
}

/// Advances the clock once this many threads wait for `name`.
fn advance_when_awaited(memory: &Memory, by: Duration, name: &str, waiters: u64) {
    let look = LockManager::connect(memory).unwrap();
    until(SOON, "they wait", || {
        look.inspect(name)
            .unwrap()
            .is_some_and(|info| info.waiters == waiters)
    });
    memory.advance(by);
}

#[test]
fn p6_a_lease_not_renewed_in_time_is_reported_lost() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    let started = Instant::now();
    memory.advance(crate::fixtures::DEFAULT_TTL);
    assert!(!guard.is_held());
    let loss = guard.lost().recv_timeout(SOON).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(
        started.elapsed() < crate::fixtures::DEFAULT_TTL / 3,
        "that did not come from the advanced clock"
    );
    let next = LockManager::connect(&memory)
        .unwrap()
        .try_lock("k")
        .unwrap()
        .expect("it lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
}

/// Exact to the millisecond. A test in real time could not tell one check period from two.
#[test]
fn p4_a_lost_message_costs_at_most_one_check_period() {
    let memory = Memory::new();
    let [holder, waiting] = [(); 2].map(|()| LockManager::connect(&memory).unwrap());
    for _ in 0..5 {
        let guard = holder.lock("k").unwrap();
        let mut waiter = waiting.enqueue("k").unwrap();
        memory.advance(crate::fixtures::DEFAULT_CHECK_PERIOD * 3 / 2);
        memory.inject(Fault::LoseMessage);
        guard.unlock().unwrap();
        memory.advance(crate::fixtures::DEFAULT_CHECK_PERIOD);
        waiter
            .wait_for(Duration::ZERO)
            .unwrap()
            .expect("the check is over")
            .unlock()
            .unwrap();
    }
}

#[test]
fn due_work_is_done_when_advance_returns() {
    let memory = Memory::new();
    let managers = [(); 3].map(|()| LockManager::connect(&memory).unwrap());
    for round in 0..100 {
        let name = format!("k{round}");
        let guard = managers[round % 3].lock(&name).unwrap();
        let kept = managers[(round + 1) % 3].lock("kept").unwrap();
        assert!(memory.lapse(&name));
        memory.advance(crate::fixtures::DEFAULT_TTL / 3);
        assert!(
            !guard.is_held(),
            "round {round}: its renewal found the loss"
        );
        assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Expired);
        assert!(
            kept.remaining() > crate::fixtures::DEFAULT_TTL / 2,
            "round {round}: it was renewed"
        );
    }
}

#[test]
fn advance_may_be_called_from_a_loss_callback() {
    let memory = Memory::new();
    let (report, reported) = crossbeam_channel::unbounded();
    let options = LockOptions::new().on_lost({
        let memory = memory.clone();
        move |_| {
            memory.advance(HOUR);
            report.send(()).unwrap();
        }
    });
    let mgr = LockManager::connect(&memory).unwrap().with(options);
    let guards = [mgr.lock("a").unwrap(), mgr.lock("b").unwrap()];
    memory.advance(crate::fixtures::DEFAULT_TTL);
    for _ in &guards {
        reported.recv_timeout(SOON).unwrap();
    }
}

#[test]
fn renewals_keep_up_with_a_clock_that_steps() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    for step in 1..=20 {
        memory.advance(crate::fixtures::DEFAULT_TTL / 3);
        assert!(
            mgr.stats().renewals_confirmed >= step,
            "the renewal that was due"
        );
    }
    assert!(guard.is_held());
    assert!(guard.remaining() > crate::fixtures::DEFAULT_TTL / 2);
    guard.unlock().unwrap();
}

#[test]
fn a_timed_wait_ends_when_the_clock_passes_its_deadline() {
    let memory = Memory::new();
    let (ours, theirs) = (lasting(&memory), lasting(&memory));
    let _guard = ours.lock("k").unwrap();
    thread::scope(|scope| {
        let same_process = scope.spawn(|| ours.try_lock_for("k", HOUR));
        let another = scope.spawn(|| theirs.try_lock_for("k", HOUR));
        advance_when_awaited(&memory, HOUR, "k", 2);
        until(SOON, "both end", || {
            same_process.is_finished() && another.is_finished()
        });
        assert!(same_process.join().unwrap().unwrap().is_none());
        assert!(another.join().unwrap().unwrap().is_none());
    });
}

#[test]
fn the_clock_wakes_a_waiter_that_keeps_its_place() {
    let memory = Memory::new();
    let mgr = lasting(&memory);
    let guard = mgr.lock("k").unwrap();
    let mut waiter = mgr.enqueue("k").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.wait_for(HOUR).unwrap().is_none());
        // The steps are small, so the sleeper must notice each of them to reach its hour.
        until(SOON, "it sleeps through the first half", || {
            memory.advance(HOUR / 60);
            waiting.is_finished()
        });
        assert!(waiting.join().unwrap());
    });
    guard.unlock().unwrap();
    assert!(waiter.wait_for(SOON).unwrap().is_some());
}

#[test]
fn a_sleep_after_an_outage_does_not_count_as_outage() {
    for _ in 0..20 {
        let memory = Memory::new();
        let (holder, waiting) = (lasting(&memory), lasting(&memory));
        let guard = holder.lock("k").unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.lock("k").map(drop));
            until(SLACK, "it waits", || {
                holder.inspect("k").unwrap().unwrap().waiters == 1
            });
            memory.go_down();
            // A sync is due, and fails.
            memory.advance(Duration::from_secs(2));
            memory.come_back();
            memory.advance(HOUR);
            drop(guard);
            waiter
                .join()
                .unwrap()
                .expect("the store is up, and no request was sent since");
        });
    }
}

#[test]
fn a_waiter_outlives_the_lease_of_its_holder() {
    let memory = Memory::new();
    let holder = lasting(&memory).with(LockOptions::new().fixed_lease(HOUR));
    let waiting = lasting(&memory);
    let guard = holder.lock("k").unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.lock("k").unwrap().previous_holder());
        advance_when_awaited(&memory, HOUR, "k", 1);
        until(SOON, "it is granted", || waiter.is_finished());
        assert_eq!(waiter.join().unwrap(), PreviousHolder::Lapsed);
    });
    assert!(!guard.is_held());
}

#[test]
fn max_hold_and_hold_at_least_follow_the_clock() {
    let memory = Memory::new();
    let mgr = lasting(&memory);
    let held = mgr
        .with(LockOptions::new().max_hold(HOUR))
        .lock("held")
        .unwrap();
    mgr.with(LockOptions::new().hold_at_least(HOUR))
        .lock("cooling")
        .unwrap()
        .unlock()
        .unwrap();
    assert!(mgr.try_lock("cooling").unwrap().is_none());
    memory.advance(HOUR);
    assert_eq!(
        held.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::MaxHold
    );
    assert!(!held.is_held());
    assert!(mgr.try_lock("cooling").unwrap().is_some());
}

#[test]
fn the_clock_wakes_a_shutdown_that_waits_for_guards() {
    let memory = Memory::new();
    let mgr = lasting(&memory);
    let guard = mgr.lock("k").unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| mgr.shutdown(HOUR).unwrap());
        until(SOON, "it waits", || {
            matches!(mgr.try_lock("other"), Err(Error::Closed))
        });
        memory.advance(HOUR);
        until(SOON, "it ends", || ending.is_finished());
        assert_eq!(ending.join().unwrap(), [Arc::<str>::from("k")]);
    });
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Shutdown
    );
}

#[test]
fn an_unanswered_request_ends_when_the_clock_passes_its_timeout() {
    let memory = Memory::new();
    let mgr = LockManager::builder(&memory)
        .options(LockOptions::new().ttl(DAY))
        .command_timeout(HOUR)
        .check_period(HOUR)
        .horizon(4 * HOUR)
        .outage_limit(DAY)
        .build()
        .unwrap();
    memory.inject(fairlock::memory::Fault::LoseReply);
    thread::scope(|scope| {
        let asking = scope.spawn(|| mgr.try_lock("k"));
        until(SOON, "it is carried out", || {
            memory.command(&["HEXISTS", "fairlock:{k}", "o"]) == Reply::Int(1)
        });
        assert!(!asking.is_finished());
        memory.advance(HOUR);
        until(SOON, "it ends", || asking.is_finished());
        assert!(matches!(
            asking.join().unwrap(),
            Err(Error::Unavailable { .. })
        ));
    });
    until(SOON, "the unknown grant is released", || {
        mgr.inspect("k").unwrap().is_none()
    });
}

#[test]
fn the_furthest_jump_hangs_nobody() {
    let memory = Memory::new();
    let (ours, theirs) = (
        LockManager::connect(&memory).unwrap(),
        LockManager::connect(&memory).unwrap(),
    );
    let guard = ours.lock("k").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| theirs.lock("k").map(|guard| guard.is_held()));
        let trying = scope.spawn(|| {
            ours.try_lock_for("k", Duration::MAX)
                .map(|guard| guard.is_some())
        });
        advance_when_awaited(&memory, Duration::MAX, "k", 2);
        until(SOON, "the holder learns of it", || {
            guard.lost().try_recv().is_ok()
        });
        until(SOON, "nobody waits", || {
            waiting.is_finished() && trying.is_finished()
        });
        for ended in [waiting.join().unwrap(), trying.join().unwrap()] {
            assert!(matches!(ended, Ok(true)), "{ended:?}");
        }
    });
    // At the end of time the clock keeps running.
    memory.advance(Duration::MAX);
    let fences: Vec<u64> = (0..3).map(|_| ours.lock("k").unwrap().fence()).collect();
    assert!(
        fences.is_sorted() && guard.fence() < fences[0],
        "{fences:?}"
    );
    assert!(ours.lock("k").unwrap().remaining() > crate::fixtures::DEFAULT_TTL / 2);
    ours.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn a_constantly_jumping_clock_hangs_nobody() {
    let memory = Memory::new();
    let managers = [(); 2].map(|()| LockManager::connect(&memory).unwrap());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = EndLoops(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    memory.advance(Duration::from_millis(400));
                    thread::yield_now();
                }
            });
        }
        let working: Vec<_> = (0..8)
            .map(|i| {
                let mgr = &managers[i % 2];
                scope.spawn(move || {
                    for _ in 0..100 {
                        // Any of these calls may miss its lease or its deadline, but none may hang.
                        match if i < 4 {
                            mgr.lock("k").map(Some)
                        } else {
                            mgr.try_lock_for("k", HOUR)
                        } {
                            Ok(Some(guard)) => drop(guard.unlock()),
                            Ok(None) | Err(Error::Unavailable { .. } | Error::Lost { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        until(4 * SOON, "all are through", || {
            working.iter().all(|thread| thread.is_finished())
        });
        drop(end);
    });
    until(SOON, "nothing is left", || {
        managers[0].inspect("k").unwrap().is_none()
    });
    assert!(managers[1].lock("k").unwrap().is_held());
}

#[test]
fn the_clock_also_runs_in_real_time() {
    let memory = Memory::new();
    let lease = Duration::from_millis(100);
    let holder = LockManager::connect(&memory)
        .unwrap()
        .with(LockOptions::new().fixed_lease(lease));
    let guard = holder.try_lock("k").unwrap().unwrap();
    until(lease + SLACK, "its time is over", || !guard.is_held());
    // The holder's deadline is earlier by the safety margin.
    let next = LockManager::connect(&memory).unwrap();
    until(SLACK, "the server's is over too", || {
        next.try_lock("k").unwrap().is_some()
    });
}
