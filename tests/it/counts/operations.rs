//! The operations whose costs are counted, by the names that they have in docs/OPERATIONS.md.

use std::time::Duration;

use fairlock::{LockGuard, LockManager, LockOptions, Waiter};

use crate::fixtures::{SOON, build, with_ttl};
use crate::support::until;

/// One operation, to be repeated.
pub(super) type Cycle = Box<dyn FnMut()>;

/// Opens what the operation needs at the server with this URL.
type Prepare = fn(&str) -> Cycle;

pub(super) const OPERATIONS: &[(&str, Prepare)] = &[
    ("mutex: lock + unlock", |url| {
        let mutex = quiet(url).mutex("k");
        Box::new(move || mutex.lock().unwrap().unlock().unwrap())
    }),
    ("mutex: lock + drop", |url| {
        let mutex = quiet(url).mutex("k");
        Box::new(move || drop(mutex.lock().unwrap()))
    }),
    ("re-entrant mutex: lock twice + unlock twice", |url| {
        let mutex = quiet(url).reentrant_mutex("k");
        Box::new(move || {
            let outer = mutex.lock().unwrap();
            mutex.lock().unwrap().unlock().unwrap();
            outer.unlock().unwrap();
        })
    }),
    ("reader/writer lock: read + unlock", |url| {
        let lock = quiet(url).rw_lock("k");
        Box::new(move || lock.read().unwrap().unlock().unwrap())
    }),
    ("reader/writer lock: read + drop", |url| {
        let lock = quiet(url).rw_lock("k");
        Box::new(move || drop(lock.read().unwrap()))
    }),
    ("reader/writer lock: write + unlock", |url| {
        let lock = quiet(url).rw_lock("k");
        Box::new(move || lock.write().unwrap().unlock().unwrap())
    }),
    ("semaphore: acquire + unlock", |url| {
        let permits = quiet(url).semaphore("k", 1000);
        Box::new(move || permits.acquire(1).unwrap().unlock().unwrap())
    }),
    ("semaphore: acquire + drop", |url| {
        let permits = quiet(url).semaphore("k", 1000);
        Box::new(move || drop(permits.acquire(1).unwrap()))
    }),
    (
        "semaphore, beside 500 other holders: acquire + unlock",
        |url| {
            let permits = quiet(url).semaphore("k", 1000);
            let others: Vec<_> = (0..500).map(|_| permits.acquire(1).unwrap()).collect();
            Box::new(move || {
                permits.acquire(1).unwrap().unlock().unwrap();
                assert_eq!(others.len(), 500);
            })
        },
    ),
    ("hand-over in a process: enqueue + unlock + wait", |url| {
        hand_overs(vec![quiet(url)])
    }),
    (
        "hand-over between two managers: enqueue + unlock + wait",
        |url| hand_overs(vec![quiet(url), quiet(url)]),
    ),
    ("local hand-over: enqueue + unlock + wait", |url| {
        let options = LockOptions::new().local_handovers(65_535);
        hand_overs(vec![quiet(url).with(options)])
    }),
    ("mutex that is kept: lock + drop", |url| {
        let manager = quiet(url).with(LockOptions::new().keep_idle(Duration::from_secs(200)));
        let mutex = manager.mutex("k");
        until(SOON, "it is kept", || {
            drop(mutex.lock().unwrap());
            manager.stats().kept_turns > 0
        });
        Box::new(move || drop(mutex.lock().unwrap()))
    }),
];

/// A manager that neither renews nor checks anything while a test counts.
pub(super) fn quiet(url: &str) -> LockManager {
    let builder = with_ttl(url, Duration::from_secs(600)).command_timeout(Duration::from_secs(5));
    build(
        builder
            .check_period(Duration::from_secs(60))
            .horizon(Duration::from_secs(100)),
    )
}

/// Each cycle hands the lock from one manager to the next.
fn hand_overs(managers: Vec<LockManager>) -> Cycle {
    let last = managers.len() - 1;
    let mut held: Option<LockGuard> = Some(managers[0].lock("k").unwrap());
    let mut queued: Option<Waiter> = Some(managers[last].enqueue("k").unwrap());
    let mut turns = 0;
    Box::new(move || {
        let next = managers[turns % managers.len()].enqueue("k").unwrap();
        turns += 1;
        held.take().expect("a guard").unlock().unwrap();
        held = Some(queued.replace(next).expect("a waiter").wait().unwrap());
    })
}
