//! Other managers get a kept lock in a message's time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::LockManager;

use super::{T, gets, granted, keeper, keeping, patient};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::build;
use crate::keeping::keep;
use crate::managers;
use crate::sums::Sums;
use crate::support::{EndLoops, SLACK, throughout, until};

on_both_stores! {
    another_manager_gets_a_kept_lock_in_a_message_time,
    running_guard_keeps_the_lock_until_its_drop,
    queued_waiters_of_others_are_served_before_the_keeper_again,
    keepers_that_all_wait_pass_a_lock_without_a_stall,
    each_grant_says_that_others_wait_behind_it,
}

fn another_manager_gets_a_kept_lock_in_a_message_time(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let fence = mgr.lock(name).unwrap().fence();
        let guard = gets(&other, name, SLACK);
        assert!(guard.fence() > fence);
        assert!(
            mgr.try_lock(name).unwrap().is_none(),
            "it is not kept any more"
        );
    }
    assert_eq!(
        (
            mgr.stats().recalls,
            mgr.stats().cold_names,
            mgr.stats().losses()
        ),
        (3, 0, 0)
    );
}

fn running_guard_keeps_the_lock_until_its_drop(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    assert!(!guard.is_wanted());
    let mut waiter = other.enqueue("a").unwrap();
    until(SLACK, "the guard learns of it", || guard.is_wanted());
    throughout(T, "the guard has the lock", || {
        waiter.position().is_some() && guard.is_held()
    });
    let fence = guard.fence();
    drop(guard);
    let theirs = waiter.wait_for(SLACK).unwrap().expect("it is the next");
    assert!(theirs.fence() > fence);
}

/// A loop that locks again at once does not overtake them.
fn queued_waiters_of_others_are_served_before_the_keeper_again(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(mgr.lock("a").unwrap());
            }
        });
        let waiters = [(); 3].map(|()| other.enqueue("a").unwrap());
        for waiter in waiters {
            drop(granted(waiter));
        }
    });
}

/// How long a message that is missing delays its waiter, at most.
const CHECK: Duration = Duration::from_secs(20);

/// Keepers that ask again only after all bounds of these tests.
fn patient_keepers(backend: &Backend) -> [LockManager; 3] {
    let timeout = Duration::from_secs(4);
    let builder = managers::patient_builder(backend).command_timeout(timeout);
    let builder = builder.check_period(CHECK).horizon(CHECK + 3 * timeout);
    [(); 3].map(|()| build(builder.clone()).with(keeping()))
}

/// Each of them has kept the name before, so each asks to be told.
fn warm(managers: &[LockManager; 3], name: &str) {
    managers.iter().for_each(|mgr| keep(mgr, name));
}

/// A message that is missing would cost a check period here. A busy machine costs less.
fn keepers_that_all_wait_pass_a_lock_without_a_stall(backend: &Backend) {
    let managers = patient_keepers(backend);
    for round in 0..3 {
        let name = format!("n{round}");
        warm(&managers, &name);
        let longest = thread::scope(|scope| {
            let loops = managers.iter().flat_map(|mgr| [mgr, mgr]).map(|mgr| {
                let name = &name;
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    for _ in 0..40 {
                        let start = Instant::now();
                        let guard = mgr.lock(name).unwrap();
                        longest = longest.max(start.elapsed());
                        guard.check().unwrap();
                    }
                    longest
                })
            });
            let loops: Vec<_> = loops.collect();
            loops.into_iter().map(|one| one.join().unwrap()).max()
        });
        assert!(longest.unwrap() < CHECK / 4, "{longest:?}");
    }
}

fn each_grant_says_that_others_wait_behind_it(backend: &Backend) {
    let managers = patient_keepers(backend);
    for round in 0..5 {
        let name = format!("n{round}");
        warm(&managers, &name);
        let [a, b, c] = &managers;
        let guard = a.lock(&name).unwrap();
        let behind = [b.enqueue(&name).unwrap(), c.enqueue(&name).unwrap()];
        until(SLACK, "the guard learns of it", || guard.is_wanted());
        let last = a.enqueue(&name).unwrap();
        drop(guard);
        for waiter in behind {
            let guard = granted(waiter);
            assert!(guard.is_wanted(), "others wait");
            guard.wanted().try_recv().expect("a message");
            drop(guard);
        }
        let guard = granted(last);
        assert!(!guard.is_wanted(), "nobody waits");
    }
}
