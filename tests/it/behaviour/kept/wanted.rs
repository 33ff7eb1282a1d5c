//! A guard learns that somebody waits for its lock: `is_wanted` and `wanted`.

use std::thread;

use fairlock::{LockManager, LockOptions};

use super::{P, T, keeper, patient, plain};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::SOON;
use crate::keeping::keep;
use crate::support::{SLACK, throughout, until};

on_both_stores! {
    guard_with_notify_wanted_learns_of_another_manager,
    guard_of_a_kept_lock_learns_of_another_manager,
    guard_without_these_options_learns_of_nobody_elsewhere,
    guard_learns_of_a_local_waiter,
    wanted_receives_one_message,
    each_new_guard_starts_unwanted,
    holder_that_is_wanted_can_let_others_go_first,
    try_of_another_manager_tells_the_holder,
}

const NOTIFIED: LockOptions = LockOptions::new().notify_wanted(true);

fn notified(backend: &Backend) -> LockManager {
    plain(backend).with(NOTIFIED)
}

fn guard_with_notify_wanted_learns_of_another_manager(backend: &Backend) {
    let (mgr, other) = (notified(backend), patient(backend));
    for _ in 0..3 {
        let guard = mgr.lock("a").unwrap();
        assert!(!guard.is_wanted());
        let mut waiter = other.enqueue("a").unwrap();
        until(SLACK, "the guard learns of it", || guard.is_wanted());
        drop(guard);
        drop(waiter.wait_for(SLACK).unwrap().expect("it is the next"));
    }
    assert_eq!(mgr.stats().kept_turns, 0);
}

fn guard_of_a_kept_lock_learns_of_another_manager(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let wanted = guard.wanted().clone();
    let _waiter = other.enqueue("a").unwrap();
    wanted.recv_timeout(SLACK).expect("a message");
    assert!(guard.is_wanted());
}

fn guard_without_these_options_learns_of_nobody_elsewhere(backend: &Backend) {
    let (mgr, other) = (plain(backend), plain(backend));
    let handles = [mgr.clone(), mgr.with(LockOptions::new().local_handovers(5))];
    for mgr in handles {
        let guard = mgr.lock("a").unwrap();
        let waiter = other.enqueue("a").unwrap();
        throughout(P + T, "nobody tells it", || {
            !guard.is_wanted() && guard.wanted().is_empty()
        });
        drop(waiter);
    }
}

fn guard_learns_of_a_local_waiter(backend: &Backend) {
    let kept = keeper(backend);
    keep(&kept, "kept");
    let mgr = plain(backend);
    for (mgr, name) in [(kept, "kept"), (mgr.with(NOTIFIED), "notified")] {
        let guard = mgr.lock(name).unwrap();
        assert!(!guard.is_wanted());
        let mut waiter = mgr.enqueue(name).unwrap();
        until(SLACK, "the guard learns of it", || guard.is_wanted());
        guard.wanted().try_recv().expect("a message");
        drop(guard);
        drop(waiter.wait_for(SLACK).unwrap().expect("it is the next"));
    }
}

fn wanted_receives_one_message(backend: &Backend) {
    let (mgr, other) = (notified(backend), patient(backend));
    let guard = mgr.lock("a").unwrap();
    let waiters = [(); 3].map(|()| other.enqueue("a").unwrap());
    let local = mgr.enqueue("a").unwrap();
    guard.wanted().recv_timeout(SLACK).expect("a message");
    // Nor when it looks again, as all of them ask again.
    throughout(2 * P, "there is one", || {
        guard.wanted().is_empty() && guard.is_wanted()
    });
    drop((waiters, local));
    assert!(guard.is_wanted(), "it stays true");
    // A channel that is made later has it, too.
    drop(guard);
    let guard = mgr.lock("a").unwrap();
    let _waiter = other.enqueue("a").unwrap();
    until(SLACK, "the guard learns of it", || guard.is_wanted());
    guard.wanted().try_recv().expect("a message");
}

fn each_new_guard_starts_unwanted(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    for _ in 0..5 {
        keep(&mgr, "a");
        let guard = mgr.lock("a").unwrap();
        assert!(!guard.is_wanted(), "of an older grant");
        let waiter = other.enqueue("a").unwrap();
        until(SLACK, "the guard learns of it", || guard.is_wanted());
        drop((waiter, guard));
    }
}

fn holder_that_is_wanted_can_let_others_go_first(backend: &Backend) {
    let (mgr, other) = (notified(backend), patient(backend));
    thread::scope(|scope| {
        let (mgr, other) = (&mgr, &other);
        let working = scope.spawn(move || {
            let mut rounds = 0;
            while rounds < 5 {
                let guard = mgr.lock("a").unwrap();
                guard.wanted().recv_timeout(SOON).expect("somebody waits");
                guard.unlock().unwrap();
                rounds += 1;
            }
        });
        while !working.is_finished() {
            drop(other.lock("a").unwrap());
        }
        working.join().unwrap();
    });
}

/// It does not wait, so the holder learns of it by that request alone.
fn try_of_another_manager_tells_the_holder(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    assert!(other.try_lock("a").unwrap().is_none(), "a guard has it");
    until(SLACK, "the guard learns of it", || guard.is_wanted());
    drop(guard);
    until(SLACK, "it is not kept", || {
        other.try_lock("a").unwrap().is_some()
    });
}
