//! P1 and P2: one holder at a time, each with a larger fence than all before it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use fairlock::{FenceGate, LockGuard, LockManager, LockOptions};

use crate::sums::Sums;
use crate::{
    backend::{Backend, on_both_stores},
    fixtures::{Record, SOON, server_time},
    managers::patient,
    support::until,
};

const MANAGERS: usize = 8;
const THREADS: usize = 4;
const TURNS: usize = 25;

on_both_stores! {
    p2_fences_rise_also_after_the_record_is_deleted,
    p2_a_fence_gate_refuses_an_overtaken_holder,
    p2_fences_rise_over_a_loss_after_many_ends_in_a_row,
    p2_forced_ends_in_a_row_leave_the_fence_near_the_clock,
    p1_turns_of_eight_managers_never_overlap,
}

fn p1_turns_of_eight_managers_never_overlap(backend: &Backend) {
    let managers: Vec<_> = (0..MANAGERS).map(|_| patient(backend)).collect();
    let inside = AtomicBool::new(false);
    let newest = AtomicU64::new(0);
    thread::scope(|scope| {
        for i in 0..MANAGERS * THREADS {
            let mgr = &managers[i % MANAGERS];
            let inside = &inside;
            let newest = &newest;
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let guard = mgr.lock("till").unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold it at once");
                    let before = newest.swap(guard.fence(), Ordering::SeqCst);
                    assert!(guard.fence() > before, "{} after {before}", guard.fence());
                    thread::yield_now();
                    assert!(guard.is_held());
                    inside.store(false, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    let granted: u64 = managers.iter().map(|mgr| mgr.stats().granted()).sum();
    assert_eq!(granted, (MANAGERS * THREADS * TURNS) as u64);
    Record::of(backend, "till").comes_to_rest();
}

fn p2_fences_rise_also_after_the_record_is_deleted(backend: &Backend) {
    let managers = [patient(backend), patient(backend)];
    let mut last = 0;
    for turn in 0..30 {
        let guard = managers[turn % 2].lock("n").unwrap();
        assert!(
            guard.fence() > last,
            "turn {turn}: {} after {last}",
            guard.fence()
        );
        last = guard.fence();
        match turn % 5 {
            0 => drop(guard),
            1 => guard.unlock().unwrap(),
            2 => {
                backend.delete("n");
                drop(guard);
            }
            3 => {
                backend.flush_all();
                drop(guard);
            }
            _ => {
                assert!(managers[0].force_release("n", guard.fence()).unwrap());
                drop(guard);
            }
        }
    }
    // A fence follows the server's clock, so it keeps rising even after the server has lost all its
    // data.
    assert!(last > 1_600_000_000_000_000, "{last}");
}

fn p2_a_fence_gate_refuses_an_overtaken_holder(backend: &Backend) {
    let (mgr, other) = (patient(backend), patient(backend));
    let gate = FenceGate::new();
    let old = mgr.lock("n").unwrap();
    assert!(gate.admit(old.fence()));
    assert!(other.force_release("n", old.fence()).unwrap());
    let new = other.lock("n").unwrap();
    // The old holder may still believe that it holds the lock; the gate refuses it.
    assert!(gate.admit(new.fence()));
    assert!(!gate.admit(old.fence()));
}

/// Each grant of these reserves as many fences as it may.
fn lending(mgr: &LockManager) -> [LockManager; 2] {
    [
        mgr.with(LockOptions::new().keep_idle(Duration::from_secs(10))),
        mgr.with(LockOptions::new().local_handovers(65_535)),
    ]
}

const VALID: Duration = Duration::from_secs(10);

type End = fn(&LockManager, LockGuard);

/// The ways in which a process ends a grant.
const ENDS: [(&str, End); 8] = [
    ("abandon", |_, guard| guard.abandon().unwrap()),
    ("panic", |_, guard| {
        let end = catch_unwind(AssertUnwindSafe(|| {
            let _held = guard;
            resume_unwind(Box::new("the test panics here"));
        }));
        assert!(end.is_err());
    }),
    ("unlock", |_, guard| guard.unlock().unwrap()),
    ("drop", |_, guard| drop(guard)),
    ("detach and attach", |other, guard| {
        let detached = guard.detach(VALID).unwrap();
        other.attach(&detached).unwrap().unlock().unwrap();
    }),
    ("attach and abandon", |other, guard| {
        let detached = guard.detach(VALID).unwrap();
        other.attach(&detached).unwrap().abandon().unwrap();
    }),
    ("recall", |other, guard| {
        drop(guard);
        other.lock("n").unwrap().unlock().unwrap();
    }),
    ("max_hold", |_, guard| {
        let lost = guard.lost().clone();
        until(SOON, "it is lost", || lost.try_recv().is_ok());
        // A guard that has lost the lock can take the next of the reserved fences.
        assert!(guard.fence() > 0);
    }),
];

fn p2_fences_rise_over_a_loss_after_many_ends_in_a_row(backend: &Backend) {
    let (mgr, other) = (patient(backend), patient(backend));
    for (how, end) in ENDS {
        for lending in lending(&mgr) {
            let (lending, ends) = match how {
                "max_hold" => {
                    let short = LockOptions::new().max_hold(Duration::from_millis(5));
                    (lending.with(short), 12)
                }
                "recall" => (lending, 12),
                _ => (lending, 100),
            };
            let mut last = 0;
            for _ in 0..ends {
                let guard = lending.lock("n").unwrap();
                let fence = guard.fence();
                assert!(fence > last, "{how}: {fence} after {last}");
                last = fence;
                end(&other, guard);
            }
            backend.flush_all();
            let next = other.lock("n").unwrap();
            let fence = next.fence();
            assert!(fence > last, "{how}: {fence} after {last}, and a loss");
            next.unlock().unwrap();
        }
    }
}

/// Nobody says how many fences such a grant has used.
fn p2_forced_ends_in_a_row_leave_the_fence_near_the_clock(backend: &Backend) {
    let (mgr, other) = (patient(backend), patient(backend));
    for lending in lending(&mgr) {
        let mut last = 0;
        for _ in 0..50 {
            let guard = lending.lock("n").unwrap();
            assert!(guard.fence() > last);
            last = guard.fence();
            assert!(other.force_release("n", last).unwrap());
            assert!(guard.abandon().is_err());
        }
        let ahead = last.saturating_sub(server_time(backend));
        assert!(ahead <= 65_535 + 1024, "{ahead} µs ahead");
        until(SOON, "the clock is there", || server_time(backend) > last);
        backend.flush_all();
        let next = other.lock("n").unwrap();
        assert!(next.fence() > last);
        next.unlock().unwrap();
    }
}
