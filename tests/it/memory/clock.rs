//! One clock for the server and all managers: whoever sleeps by it is woken when it is put forward.

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
    memory::{Fault, Memory, Reply},
};

use super::SOON;
use crate::{
    managers::EndLoops,
    support::{SLACK, until},
};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A manager whose leases outlast any hour.
fn lasting(memory: &Memory) -> LockManager {
    LockManager::builder(memory)
        .options(LockOptions::new().ttl(DAY))
        .build()
        .unwrap()
}

/// Puts the clock forward when this many threads wait for `name`, and not before they do.
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
fn p6_a_lease_that_is_not_renewed_in_time_is_lost_and_told() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    let started = Instant::now();
    memory.advance(fairlock::DEFAULT_TTL);
    assert!(!guard.is_held());
    let loss = guard.lost().recv_timeout(SOON).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(
        started.elapsed() < fairlock::DEFAULT_TTL / 3,
        "that was not the clock that was put forward"
    );
    let next = LockManager::connect(&memory)
        .unwrap()
        .try_lock("k")
        .unwrap()
        .expect("it lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
}

/// To the millisecond, which no test with real time could tell from two.
#[test]
fn p4_a_message_that_is_lost_costs_one_check_period_and_no_more() {
    let memory = Memory::new();
    let [holder, waiting] = [(); 2].map(|()| LockManager::connect(&memory).unwrap());
    for _ in 0..5 {
        let guard = holder.lock("k").unwrap();
        let mut waiter = waiting.enqueue("k").unwrap();
        memory.advance(fairlock::DEFAULT_CHECK_PERIOD * 3 / 2);
        memory.inject(Fault::LoseMessage);
        guard.unlock().unwrap();
        memory.advance(fairlock::DEFAULT_CHECK_PERIOD);
        waiter
            .wait_for(Duration::ZERO)
            .unwrap()
            .expect("the check is over")
            .unlock()
            .unwrap();
    }
}

#[test]
fn what_was_due_is_done_when_advance_returns() {
    let memory = Memory::new();
    let managers = [(); 3].map(|()| LockManager::connect(&memory).unwrap());
    for round in 0..100 {
        let name = format!("k{round}");
        let guard = managers[round % 3].lock(&name).unwrap();
        let kept = managers[(round + 1) % 3].lock("kept").unwrap();
        assert!(memory.lapse(&name));
        memory.advance(fairlock::DEFAULT_TTL / 3);
        assert!(!guard.is_held(), "round {round}: its renewal found out");
        assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Expired);
        assert!(
            kept.remaining() > fairlock::DEFAULT_TTL / 2,
            "round {round}: it was renewed"
        );
    }
}

#[test]
fn advance_may_be_called_where_a_loss_is_told() {
    let memory = Memory::new();
    let (tell, told) = crossbeam_channel::unbounded();
    let options = LockOptions::new().on_lost({
        let memory = memory.clone();
        move |_| {
            memory.advance(HOUR);
            tell.send(()).unwrap();
        }
    });
    let mgr = LockManager::connect(&memory).unwrap().with(options);
    let guards = [mgr.lock("a").unwrap(), mgr.lock("b").unwrap()];
    memory.advance(fairlock::DEFAULT_TTL);
    for _ in &guards {
        told.recv_timeout(SOON).unwrap();
    }
}

#[test]
fn renewals_keep_pace_with_a_clock_that_goes_in_steps() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    for step in 1..=20 {
        memory.advance(fairlock::DEFAULT_TTL / 3);
        assert!(mgr.stats().renewed >= step, "the renewal that was due");
    }
    assert!(guard.is_held());
    assert!(guard.remaining() > fairlock::DEFAULT_TTL / 2);
    guard.unlock().unwrap();
}

#[test]
fn a_wait_with_a_deadline_ends_when_the_clock_passes_it() {
    let memory = Memory::new();
    let (ours, theirs) = (lasting(&memory), lasting(&memory));
    let _guard = ours.lock("k").unwrap();
    thread::scope(|scope| {
        let same_process = scope.spawn(|| ours.try_lock_for("k", HOUR));
        let another = scope.spawn(|| theirs.try_lock_until("k", Instant::now() + HOUR));
        advance_when_awaited(&memory, HOUR, "k", 2);
        until(SOON, "both end", || {
            same_process.is_finished() && another.is_finished()
        });
        assert!(same_process.join().unwrap().unwrap().is_none());
        assert!(another.join().unwrap().unwrap().is_none());
    });
}

#[test]
fn a_waiter_that_keeps_its_place_is_woken_by_the_clock() {
    let memory = Memory::new();
    let mgr = lasting(&memory);
    let guard = mgr.lock("k").unwrap();
    let mut waiter = mgr.enqueue("k").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.wait_for(HOUR).unwrap().is_none());
        // A time so short of the hour that the clock alone would not come there.
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
fn a_sleep_after_a_short_outage_is_not_held_against_a_store_that_is_back() {
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
                .expect("the store is up, and nobody has asked it since");
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
fn max_hold_and_hold_at_least_go_by_the_clock() {
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
fn a_shutdown_that_waits_for_guards_is_woken_by_the_clock() {
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
        assert_eq!(ending.join().unwrap().ended, [Arc::<str>::from("k")]);
    });
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Shutdown
    );
}

#[test]
fn a_request_without_a_reply_ends_when_the_clock_passes_its_timeout() {
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
    until(SOON, "what nobody knows of is given back", || {
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
        until(SOON, "the holder hears of it", || {
            guard.lost().try_recv().is_ok()
        });
        until(SOON, "nobody waits", || {
            waiting.is_finished() && trying.is_finished()
        });
        for ended in [waiting.join().unwrap(), trying.join().unwrap()] {
            assert!(matches!(ended, Ok(true)), "{ended:?}");
        }
    });
    // At the end of time the clock runs on.
    memory.advance(Duration::MAX);
    let fences: Vec<u64> = (0..3).map(|_| ours.lock("k").unwrap().fence()).collect();
    assert!(
        fences.is_sorted() && guard.fence() < fences[0],
        "{fences:?}"
    );
    assert!(ours.lock("k").unwrap().remaining() > fairlock::DEFAULT_TTL / 2);
    ours.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn a_clock_that_jumps_all_the_time_hangs_nobody() {
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
                        // Any of them may come too late for its lease or its deadline; none may hang.
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
fn time_passes_without_being_put_forward() {
    let memory = Memory::new();
    let lease = Duration::from_millis(100);
    let holder = LockManager::connect(&memory)
        .unwrap()
        .with(LockOptions::new().fixed_lease(lease));
    let guard = holder.try_lock("k").unwrap().unwrap();
    until(lease + SLACK, "its time is over", || !guard.is_held());
    // The holder's margin comes first.
    let next = LockManager::connect(&memory).unwrap();
    until(SLACK, "the server's is over too", || {
        next.try_lock("k").unwrap().is_some()
    });
}
