//! How long others wait for a name that a manager keeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use fairlock::LockManager;

use crate::support::figure::Bound;
use crate::support::{
    Rounds, bare_connection, manager, median, micros, now, quantile, round_trip, rounds, sized,
};
use crate::{figure, keeper, warm_up};

/// As many turns make a name worth keeping.
const TURNS: usize = 10;

#[derive(Default)]
struct Waits {
    p50: Rounds,
    p99: Rounds,
    trips: Rounds,
}

pub(crate) fn measure(url: &str) {
    let mut pinged = bare_connection(url);
    let (keeping, other) = (keeper(url), manager(url, None));
    let mut waits: [Waits; 5] = Default::default();
    let mut trips = Vec::new();
    for _ in 0..rounds(7) {
        let trip = round_trip(&mut pinged);
        trips.push(trip);
        let busy = busy(&keeping, &other);
        let seen = [
            free(&keeping, &other),
            idle(&keeping, &other),
            tried(&keeping, &other),
            busy.iter().map(|(took, _)| *took).collect(),
            busy.iter().map(|(_, last)| *last).collect(),
        ];
        for (waits, times) in waits.iter_mut().zip(seen) {
            let half = median(times.iter().copied());
            waits.p50.add(half as f64);
            waits.p99.add(quantile(&times, 0.99) as f64);
            waits.trips.add(half as f64 / trip as f64);
        }
    }
    let trip = micros(median(trips));
    println!("recall: another manager takes a name; a bare round trip takes {trip}");
    println!("  {:<38}{:>12}{:>12}   p50 / round trip", "", "p50", "p99");
    let kinds = [
        "free",
        "kept",
        "kept, by try_lock until it succeeds",
        "kept, and locked again and again",
        "until that keeper's last lock before",
    ];
    for (kind, Waits { p50, p99, trips }) in kinds.into_iter().zip(&waits) {
        let [half, most] = [p50, p99].map(|times| micros(times.median() as u64));
        println!("  {kind:<38}{half:>12}{most:>12}   {trips:.1}");
        figure(
            "Lock of a name that another manager has",
            kind,
            "round trips",
        )
        .beside(format!("p50 {half}, p99 {most}, round trip {trip}"))
        .bound(Bound::None)
        .note(trips);
    }
}

/// The name was released before.
fn free(keeping: &LockManager, other: &LockManager) -> Vec<u64> {
    each(|name| {
        let guard = keeping.lock(name).expect("a lock");
        guard.unlock().expect("it is still held");
        take(other, name)
    })
}

/// The other manager keeps it, and does nothing.
fn idle(keeping: &LockManager, other: &LockManager) -> Vec<u64> {
    each(|name| {
        keep(keeping, name);
        take(other, name)
    })
}

fn tried(keeping: &LockManager, other: &LockManager) -> Vec<u64> {
    each(|name| {
        keep(keeping, name);
        let began = now();
        let guard = loop {
            if let Some(guard) = other.try_lock(name).expect("a Redis that answers") {
                break guard;
            }
        };
        let took = now() - began;
        guard.unlock().expect("it is still held");
        took
    })
}

/// The other manager has a thread that never stops locking it. Returns how long the wait was, and when in
/// it that thread had its last lock.
fn busy(keeping: &LockManager, other: &LockManager) -> Vec<(u64, u64)> {
    each(|name| {
        keep(keeping, name);
        let over = AtomicBool::new(false);
        let last_at = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _guard = keeping.lock(name).expect("a lock");
                    last_at.store(now(), Ordering::Relaxed);
                }
            });
            sleep(Duration::from_millis(1));
            let began = now();
            let guard = other.lock(name).expect("a lock");
            let took = now() - began;
            let last = last_at.load(Ordering::Relaxed);
            over.store(true, Ordering::Relaxed);
            guard.unlock().expect("it is still held");
            (took, last.saturating_sub(began).min(took))
        })
    })
}

/// Each sample has a name of its own: the manager may find one not worth keeping.
fn each<T>(mut sample: impl FnMut(&str) -> T) -> Vec<T> {
    let names = (0..sized(3, 100, 300)).map(|_| format!("bench:recall:{}", now()));
    names.map(|name| sample(&name)).collect()
}

fn keep(keeping: &LockManager, name: &str) {
    warm_up(keeping, name);
    for _ in 0..TURNS {
        drop(keeping.lock(name).expect("a lock"));
    }
}

fn take(other: &LockManager, name: &str) -> u64 {
    let began = now();
    let guard = other.lock(name).expect("a lock");
    let took = now() - began;
    guard.unlock().expect("it is still held");
    took
}
