//! A grant and a timeout that meet: a valid guard or none, and nothing in between.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fairlock::{DEFAULT_TTL, LockManager};

use crate::{
    managers::{assert_nothing_left, manager},
    support::Server,
};

/// Of each of the two tests; ten thousand together.
const ROUNDS: u64 = 5000;
/// Names on which this goes on side by side.
const PAIRS: u64 = 4;

#[test]
fn a_grant_that_meets_a_timeout_in_one_process_is_a_guard_or_nothing() {
    let server = Server::start();
    let mgr = manager(&server.url(), DEFAULT_TTL);
    race(&server, &mgr, &mgr);
}

#[test]
fn a_grant_that_meets_a_timeout_elsewhere_is_a_guard_or_nothing() {
    let server = Server::start();
    race(
        &server,
        &manager(&server.url(), DEFAULT_TTL),
        &manager(&server.url(), DEFAULT_TTL),
    );
}

fn race(server: &Server, holder: &LockManager, other: &LockManager) {
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for pair in 0..PAIRS {
            let granted = &granted;
            scope.spawn(move || race_for(&format!("k{pair}"), holder, other, granted));
        }
    });
    let granted = granted.into_inner();
    // One order alone would not be the meeting that is under test.
    assert!(
        (ROUNDS / 20..ROUNDS * 19 / 20).contains(&granted),
        "{granted} of {ROUNDS} were granted"
    );
    for pair in 0..PAIRS {
        assert_nothing_left(server, &format!("k{pair}"));
    }
}

fn race_for(name: &str, holder: &LockManager, other: &LockManager, granted: &AtomicU64) {
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    let won = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS / PAIRS {
                start.wait();
                let patience = Duration::from_micros(300 + round % 300);
                if let Some(guard) = other.try_lock_for(name, patience).unwrap() {
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                    won.fetch_add(1, Ordering::Relaxed);
                }
                end.wait();
            }
        });
        // The release is moved about the deadline: sooner after each timeout, later after each grant.
        let mut delay = Duration::from_micros(300);
        for round in 0..ROUNDS / PAIRS {
            let guard = holder.try_lock(name).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("round {round}: it is not free at once"));
            let before = won.load(Ordering::Relaxed);
            start.wait();
            let begun = Instant::now();
            thread::sleep(delay.saturating_sub(begun.elapsed()));
            guard.unlock().unwrap();
            end.wait();
            let step = Duration::from_micros(20);
            let won = won.load(Ordering::Relaxed) > before;
            delay = if won { delay + step } else { delay.saturating_sub(step) };
        }
    });
    granted.fetch_add(won.into_inner(), Ordering::Relaxed);
}
