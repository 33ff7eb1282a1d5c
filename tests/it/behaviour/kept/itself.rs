//! A manager's own calls never find its kept lock in the way, whatever they ask for.

use std::time::Duration;

use fairlock::{LockManager, LockOptions};

use super::{KEEP, TTL, gets, keeper, keeping, patient, plain};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::SOON;
use crate::keeping::keep;
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    own_calls_of_each_kind_take_a_kept_name,
    handles_with_other_options_take_a_kept_name,
    own_kept_name_can_be_deleted,
    lock_all_takes_kept_names_and_leaves_none_behind,
    name_changes_its_kind_while_it_is_kept,
    handles_that_keep_differently_share_a_name,
}

const SHORT: Duration = Duration::from_millis(1);

/// One way to take a name; whether it got it.
type Way = (&'static str, fn(&LockManager, &str) -> bool);

/// A manager takes its own kept name in this way, again and again.
#[track_caller]
fn assert_takes(backend: &Backend, ways: &[Way]) {
    let (mgr, other) = (keeper(backend), patient(backend));
    for (what, way) in ways {
        // A name that another handle has kept for one turn is not kept for a while.
        for name in ["a", "b", "c"].map(|name| format!("{name} {what}")) {
            keep(&mgr, &name);
            assert!(way(&mgr, &name), "{what}: its own kept lock is in the way");
            assert!(way(&mgr, &name), "{what}: again");
            drop(gets(&other, &name, SLACK));
        }
    }
    assert_eq!(
        (mgr.stats().losses(), mgr.stats().held, mgr.stats().waiting),
        (0, 0, 0)
    );
}

fn own_calls_of_each_kind_take_a_kept_name(backend: &Backend) {
    assert_takes(
        backend,
        &[
            ("lock_all", |m, n| m.lock_all([n, "other"]).is_ok()),
            ("try_lock_all", |m, n| {
                m.try_lock_all([n, "other"]).unwrap().is_some()
            }),
            ("try_lock_all_for", |m, n| {
                m.try_lock_all_for([n, "other"], SHORT).unwrap().is_some()
            }),
            ("try_lock_all of one", |m, n| {
                m.try_lock_all([n]).unwrap().is_some()
            }),
            ("reentrant", |m, n| {
                m.reentrant_mutex(n).try_lock().unwrap().is_some()
            }),
            ("mutex", |m, n| {
                m.mutex(n).try_lock_for(SHORT).unwrap().is_some()
            }),
            ("enqueue", |m, n| {
                m.enqueue(n).unwrap().wait_for(SHORT).unwrap().is_some()
            }),
        ],
    );
}

/// The handle that keeps is `m`; each way uses other options.
fn handles_with_other_options_take_a_kept_name(backend: &Backend) {
    fn with(m: &LockManager, options: LockOptions) -> LockManager {
        m.with(options)
    }
    const NEW: LockOptions = LockOptions::new();
    assert_takes(
        backend,
        &[
            ("ttl", |m, n| {
                with(m, NEW.ttl(2 * TTL)).try_lock(n).unwrap().is_some()
            }),
            ("ttl, waiting", |m, n| {
                with(m, NEW.ttl(2 * TTL))
                    .try_lock_for(n, SHORT)
                    .unwrap()
                    .is_some()
            }),
            ("ttl, enqueued", |m, n| {
                let mut waiter = with(m, NEW.ttl(2 * TTL)).enqueue(n).unwrap();
                waiter.wait_for(SHORT).unwrap().is_some()
            }),
            ("label", |m, n| {
                with(m, NEW.label("x")).try_lock(n).unwrap().is_some()
            }),
            ("label, enqueued", |m, n| {
                let mut waiter = with(m, NEW.label("y")).enqueue(n).unwrap();
                waiter.wait_for(SHORT).unwrap().is_some()
            }),
            ("local_handovers", |m, n| {
                with(m, NEW.local_handovers(7))
                    .try_lock(n)
                    .unwrap()
                    .is_some()
            }),
            ("local_handovers, waiting", |m, n| {
                with(m, NEW.local_handovers(7))
                    .try_lock_for(n, SHORT)
                    .unwrap()
                    .is_some()
            }),
            ("no_keep", |m, n| {
                with(m, NEW.no_keep_idle()).try_lock(n).unwrap().is_some()
            }),
            ("no_keep, waiting", |m, n| {
                with(m, NEW.no_keep_idle())
                    .try_lock_for(n, SHORT)
                    .unwrap()
                    .is_some()
            }),
            ("no_keep, enqueued", |m, n| {
                let mut waiter = with(m, NEW.no_keep_idle()).enqueue(n).unwrap();
                waiter.wait_for(SHORT).unwrap().is_some()
            }),
            ("no_keep, local_handovers", |m, n| {
                let other = with(m, NEW.no_keep_idle().local_handovers(5));
                other.try_lock_for(n, SHORT).unwrap().is_some()
            }),
            ("no_keep, notify_wanted", |m, n| {
                let other = with(m, NEW.no_keep_idle().notify_wanted(true));
                other.try_lock(n).unwrap().is_some()
            }),
            ("fixed_lease", |m, n| {
                let other = with(m, NEW.no_keep_idle().fixed_lease(TTL));
                other.try_lock(n).unwrap().is_some()
            }),
            ("hold_at_least", |m, n| {
                let other = with(m, NEW.no_keep_idle().hold_at_least(SHORT));
                other.try_lock_for(n, SLACK).unwrap().is_some()
            }),
            ("max_hold", |m, n| {
                with(m, NEW.max_hold(TTL)).try_lock(n).unwrap().is_some()
            }),
            ("on_lost", |m, n| {
                with(m, NEW.on_lost(|_| {})).try_lock(n).unwrap().is_some()
            }),
        ],
    );
}

fn own_kept_name_can_be_deleted(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "a");
    assert!(mgr.delete("a").unwrap(), "its own kept lock is in the way");
    assert_eq!(backend.keys("a"), [""; 0]);
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    assert!(!mgr.delete("a").unwrap(), "a guard has it");
    guard.check().unwrap();
}

fn lock_all_takes_kept_names_and_leaves_none_behind(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    let names = ["a", "b", "c", "d"];
    for _ in 0..3 {
        names.iter().for_each(|name| keep(&mgr, name));
        let group = mgr.try_lock_all(names).unwrap().expect("all are kept");
        for name in names {
            assert!(mgr.try_lock(name).unwrap().is_none());
            assert!(other.try_lock(name).unwrap().is_none());
        }
        group.check().unwrap();
        drop(group);
        names.iter().for_each(|name| drop(gets(&other, name, SOON)));
    }
}

/// A permit of another kind needs the name free.
fn name_changes_its_kind_while_it_is_kept(backend: &Backend) {
    let mgr = keeper(backend);
    let plain_handle = mgr.with(LockOptions::new().no_keep_idle());
    for _ in 0..3 {
        keep(&mgr, "a");
        let permits = plain_handle.semaphore("a", 3);
        drop(
            permits
                .try_acquire(1)
                .unwrap()
                .expect("the mutex is only kept"),
        );
        until(SLACK, "the permit is released", || {
            mgr.try_lock("a").unwrap().is_some()
        });
        keep(&mgr, "a");
        let lock = plain_handle.rw_lock("a");
        drop(lock.try_write().unwrap().expect("the mutex is only kept"));
        until(SLACK, "the writer has left", || {
            mgr.try_lock("a").unwrap().is_some()
        });
        keep(&mgr, "a");
        drop(lock.try_read().unwrap().expect("the mutex is only kept"));
        until(SLACK, "the reader has left", || {
            mgr.try_lock("a").unwrap().is_some()
        });
    }
}

fn handles_that_keep_differently_share_a_name(backend: &Backend) {
    let mgr = keeper(backend);
    let handles = [
        mgr.clone(),
        mgr.with(LockOptions::new().keep_idle(KEEP / 2)),
        mgr.with(LockOptions::new().ttl(2 * TTL)),
        mgr.with(LockOptions::new().local_handovers(3)),
        mgr.with(LockOptions::new().label("x")),
        mgr.with(keeping().max_hold(TTL)),
        mgr.with(LockOptions::new().no_keep_idle()),
    ];
    let mut last = 0;
    for i in 0..200 {
        // Some in a row.
        let mgr = &handles[(i / 3) % handles.len()];
        let guard = match i % 2 {
            0 => mgr.try_lock("a").unwrap(),
            _ => mgr.try_lock_for("a", SHORT).unwrap(),
        };
        let guard = guard.unwrap_or_else(|| panic!("{i}: it is in its own way"));
        assert!(guard.fence() > last);
        last = guard.fence();
        if i % 7 == 0 {
            guard.unlock().unwrap();
        }
    }
    drop(gets(&patient(backend), "a", SLACK));
    assert_eq!(mgr.stats().losses(), 0);
}
