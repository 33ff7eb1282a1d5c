//! A semaphore with `hold_at_least` limits how many grants there are in any window of that length.
//! The limiter of the example limits how many calls a service sees.

#[path = "../../../examples/rate_limiter/limiter.rs"]
mod limiter;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, LockOptions};

use crate::backend::{Backend, on_both_stores};
use crate::managers::{check_period, manager};
use crate::support::SLACK;
use limiter::Limiter;

const TTL: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_millis(400);
const PERMITS: u32 = 3;

on_both_stores! {
    released_permits_make_an_exact_rate_limit,
    a_long_holder_lowers_the_rate_and_never_raises_it,
    service_sees_no_more_calls_than_the_limit,
}

/// The fences of calls that each hold a permit for this long. A fence is the server's time in µs at
/// the grant; grants of one moment have neighbouring fences.
fn calls(limited: &LockManager, calls: usize, held_for: Duration) -> Vec<u64> {
    let limiter = limited.semaphore("n", PERMITS);
    let call = |_| {
        let permit = limiter.acquire(1).unwrap();
        // Time itself is under test: it holds the permit for a while.
        thread::sleep(held_for);
        let fence = permit.fence();
        permit.unlock().unwrap();
        fence
    };
    (0..calls).map(call).collect()
}

/// The grants of four processes that make this many calls each.
fn grants(backend: &Backend, each: usize, held_for: impl Fn(usize) -> Duration) -> Vec<u64> {
    let options = LockOptions::new().hold_at_least(WINDOW);
    let processes: Vec<_> = (0..4)
        .map(|_| manager(backend, TTL).with(options.clone()))
        .collect();
    let mut grants: Vec<u64> = thread::scope(|scope| {
        let started: Vec<_> = processes
            .iter()
            .enumerate()
            .map(|(i, process)| {
                let held_for = held_for(i);
                scope.spawn(move || calls(process, each, held_for))
            })
            .collect();
        let joined = started.into_iter().map(|calls| calls.join().unwrap());
        joined.flatten().collect()
    });
    grants.sort_unstable();
    grants
}

#[track_caller]
fn assert_limited(grants: &[u64]) {
    let permits = PERMITS as usize;
    for window in grants.windows(permits + 1) {
        let between = Duration::from_micros(window[permits] - window[0]);
        // Up to `permits` grants of one moment have fences that are 1 µs apart.
        let bump = Duration::from_micros(PERMITS.into());
        assert!(between + bump >= WINDOW, "{between:?} in {grants:?}");
    }
}

fn released_permits_make_an_exact_rate_limit(backend: &Backend) {
    let started = Instant::now();
    let grants = grants(backend, 4, |_| Duration::ZERO);
    let took = started.elapsed();
    assert_eq!(grants.len(), 16);
    assert_limited(&grants);
    // The limit is also reached: a permit is granted when its window is over, or by the next check.
    let windows = 16_u32.div_ceil(PERMITS) - 1;
    let most = windows * (WINDOW + check_period(TTL)) + SLACK;
    assert!(took < most, "{took:?}");
}

fn a_long_holder_lowers_the_rate_and_never_raises_it(backend: &Backend) {
    let grants = grants(backend, 3, |i| match i {
        0 => WINDOW * 3 / 2,
        _ => Duration::ZERO,
    });
    assert_eq!(grants.len(), 12);
    assert_limited(&grants);
}

/// Counts at the service, by its own clock, when a call comes. Calls take from nothing to twice the
/// margin on their way, so neighbours in the order of grants come in any order. Some panic after that.
fn service_sees_no_more_calls_than_the_limit(backend: &Backend) {
    const LIMIT: usize = 50;
    const THREADS: usize = 15;
    const EACH: usize = 6;
    let second = Duration::from_secs(1);
    let margin = Duration::from_millis(250);
    let came = Mutex::new(Vec::new());
    let limiters: Vec<Limiter> = (0..4)
        .map(|_| manager(backend, crate::fixtures::DEFAULT_TTL))
        .map(|process| Limiter::new(&process, "api", LIMIT as u32, second, margin))
        .collect();
    thread::scope(|scope| {
        for (process, limiter) in limiters.iter().enumerate() {
            for thread in 0..THREADS {
                let came = &came;
                scope.spawn(move || {
                    for call in 0..EACH {
                        // Most are quick, and one in nine is too late.
                        let nth = process + 3 * thread + 5 * call;
                        let way =
                            margin * 2 * u32::from(nth % 9 == 0) + margin / 20 * (nth % 7) as u32;
                        let serve = || {
                            // Time itself is under test: the network is slow.
                            thread::sleep(way);
                            came.lock().unwrap().push(Instant::now());
                            if nth % 4 == 0 {
                                resume_unwind(Box::new(()));
                            }
                        };
                        let called = catch_unwind(AssertUnwindSafe(|| limiter.call(serve)));
                        assert_eq!(called.is_err(), nth % 4 == 0);
                        let _ = called.map(|called| called.unwrap());
                    }
                });
            }
        }
    });
    let came = came.into_inner().unwrap();
    assert_eq!(came.len(), 4 * THREADS * EACH);
    for calls in came.windows(LIMIT + 1) {
        let between = calls[LIMIT] - calls[0];
        assert!(between >= second, "{} calls in {between:?}", LIMIT + 1);
    }
}
