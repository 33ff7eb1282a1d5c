//! P1 and P2: one holder at a time, each with a larger fence than all before it.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use fairlock::FenceGate;

use crate::{
    backend::{Backend, on_both_stores},
    fixtures::Record,
    managers::patient,
};

const MANAGERS: usize = 8;
const THREADS: usize = 4;
const TURNS: usize = 25;

on_both_stores! {
    p2_fences_rise_also_after_the_record_is_deleted,
    p2_a_fence_gate_refuses_an_overtaken_holder,
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
    let granted: u64 = managers.iter().map(|mgr| mgr.stats().granted).sum();
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
