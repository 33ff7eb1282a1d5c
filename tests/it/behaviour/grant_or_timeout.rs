//! A grant and a timeout that coincide end in a valid guard or in none, and in nothing between.

use std::{
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fairlock::LockManager;

use crate::{
    backend::{Backend, on_both_stores},
    managers::{assert_nothing_left, patient},
};

/// Rounds of each of the two tests; together they are ten thousand.
const ROUNDS: u64 = 5000;
/// The races run on this many names at a time.
const PAIRS: u64 = 4;

on_both_stores! {
    p7_a_grant_racing_a_local_timeout_is_guard_or_nothing,
    p7_a_grant_racing_a_remote_timeout_is_guard_or_nothing,
}

fn p7_a_grant_racing_a_local_timeout_is_guard_or_nothing(backend: &Backend) {
    let mgr = patient(backend);
    race(backend, &mgr, &mgr);
}

fn p7_a_grant_racing_a_remote_timeout_is_guard_or_nothing(backend: &Backend) {
    race(backend, &patient(backend), &patient(backend));
}

fn race(backend: &Backend, holder: &LockManager, other: &LockManager) {
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for pair in 0..PAIRS {
            let granted = &granted;
            scope.spawn(move || race_for(&format!("k{pair}"), holder, other, granted));
        }
    });
    let granted = granted.into_inner();
    // If one side always came first, the race would not be tested.
    assert!(
        (ROUNDS / 20..ROUNDS * 19 / 20).contains(&granted),
        "{granted} of {ROUNDS} were granted"
    );
    for pair in 0..PAIRS {
        assert_nothing_left(backend, &format!("k{pair}"));
    }
}

fn race_for(name: &str, holder: &LockManager, other: &LockManager, granted: &AtomicU64) {
    // Channels and not barriers: if one side panics, the other does not wait forever.
    let (start, started) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || {
            for max_wait in started {
                let guard = other.try_lock_for(name, max_wait).unwrap();
                let won = guard.is_some();
                if let Some(guard) = guard {
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                }
                end.send(won).unwrap();
            }
        });
        // The time of the release follows the deadline: earlier after each timeout, later after
        // each grant.
        let mut delay = Duration::from_micros(300);
        for round in 0..ROUNDS / PAIRS {
            let guard = holder.try_lock(name).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("round {round}: it is not free at once"));
            start
                .send(Duration::from_micros(300 + round % 300))
                .unwrap();
            // Time itself is under test: the release meets the deadline.
            thread::sleep(delay);
            guard.unlock().unwrap();
            let step = Duration::from_micros(20);
            if ended.recv().unwrap() {
                granted.fetch_add(1, Ordering::Relaxed);
                delay += step;
            } else {
                delay = delay.saturating_sub(step);
            }
        }
        drop(start);
    });
}
