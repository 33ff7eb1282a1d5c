//! P1 and P2: one holder at a time, each with a larger fence than all before.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::{
    managers::{assert_nothing_left, patient},
    place::{Place, on_both_stores},
};

const MANAGERS: usize = 8;
const THREADS: usize = 4;
const TURNS: usize = 50;

on_both_stores! {
    turns_of_eight_managers_never_overlap_and_their_fences_rise,
}

fn turns_of_eight_managers_never_overlap_and_their_fences_rise(place: &Place) {
    let managers: Vec<_> = (0..MANAGERS).map(|_| patient(place)).collect();
    let inside = AtomicBool::new(false);
    let newest = AtomicU64::new(0);
    thread::scope(|scope| {
        for i in 0..MANAGERS * THREADS {
            let (mgr, inside, newest) = (&managers[i % MANAGERS], &inside, &newest);
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
    assert_nothing_left(place, "till");
}
