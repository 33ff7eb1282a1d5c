//! How many names are kept at a time, and which one makes room for another.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, Misuse};

use super::{builder, gets, patient};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::build;
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    loops_over_thousands_of_names_keep_as_many_as_they_may,
    name_in_use_takes_the_room_of_one_that_is_not,
    names_with_a_handle_or_a_guard_make_no_room,
    guards_that_are_only_told_take_no_room,
    threads_that_find_the_last_room_keep_no_more,
    number_of_kept_names_has_a_range,
}

/// A busy machine takes seconds for a few turns of many names, and no name may be idle for so long.
const KEEP: Duration = Duration::from_secs(24);

fn with_room(backend: &Backend, names: u32) -> LockManager {
    let keeping = LockOptions::new().ttl(3 * KEEP).keep_idle(KEEP);
    let mgr = build(builder(backend).max_kept(names)).with(keeping);
    keep(&mgr, "warm");
    mgr.lock("warm").unwrap().unlock().unwrap();
    mgr
}

/// Locks each name, once after the other. Returns how many of these were kept, and not for want of room.
fn lap(mgr: &LockManager, names: u64) -> [u64; 2] {
    let before = mgr.stats();
    for i in 0..names {
        drop(mgr.lock(format!("n{i}")).unwrap());
    }
    let after = mgr.stats();
    [
        after.kept_turns - before.kept_turns,
        after.not_kept_full - before.not_kept_full,
    ]
}

/// In a loop, the name that was not used for the longest time is the next one: it makes no room.
fn loops_over_thousands_of_names_keep_as_many_as_they_may(backend: &Backend) {
    for (room, names) in [(4_096, 3_000), (1_024, 3_000)] {
        let mgr = with_room(backend, room);
        let most = u64::from(room).min(names);
        let [_, mut full] = lap(&mgr, names);
        assert_eq!(full, 0, "each is new");
        // Laps are counted, since a busy machine takes seconds for one.
        let are_kept = (0..20).any(|_| {
            let kept;
            [kept, full] = lap(&mgr, names);
            assert!(kept <= most, "{kept} of {names}");
            kept >= most * 19 / 20
        });
        assert!(are_kept, "as many as may be are kept");
        assert_eq!(full > 0, names > most, "{full} found no room");
        let stats = mgr.stats();
        assert_eq!((stats.recalls, stats.cold_names, stats.losses()), (0, 0, 0));
    }
}

/// The others were locked often, and then no more. They are kept for longer than this takes.
fn name_in_use_takes_the_room_of_one_that_is_not(backend: &Backend) {
    let mgr = with_room(backend, 20);
    let old: Vec<String> = (0..20).map(|i| format!("old{i}")).collect();
    old.iter().for_each(|name| keep(&mgr, name));
    for _ in 0..3 {
        drop(mgr.lock("new").unwrap());
    }
    assert!(!costs_nothing(&mgr, || drop(mgr.lock("new").unwrap())));
    assert!(mgr.stats().not_kept_full > 0);
    backend.pass(KEEP / 4);
    // These are in use, and fewer than may be kept. After the jump, nothing is kept before the manager
    // has heard from Redis again.
    let new: Vec<String> = (0..5).map(|i| format!("new{i}")).collect();
    let used = old[..10].iter().chain(&new);
    used.clone().for_each(|name| keep(&mgr, name));
    for name in used {
        assert!(
            costs_nothing(&mgr, || drop(mgr.lock(name).unwrap())),
            "{name}"
        );
    }
    for name in &old {
        drop(gets(&patient(backend), name, SLACK));
    }
    assert_eq!((mgr.stats().cold_names, mgr.stats().losses()), (0, 0));
}

fn names_with_a_handle_or_a_guard_make_no_room(backend: &Backend) {
    let mgr = with_room(backend, 2);
    let handle = mgr.mutex("handle");
    until(SLACK, "the handle has it at hand", || {
        let before = mgr.stats().kept_turns;
        drop(handle.lock().unwrap());
        mgr.stats().kept_turns > before
    });
    keep(&mgr, "guard");
    let guard = mgr.lock("guard").unwrap();
    backend.pass(KEEP / 3);
    let before = mgr.stats();
    until(SLACK, "there is no room, and nothing is kept", || {
        drop(mgr.lock("new").unwrap());
        assert_eq!(mgr.stats().kept_turns, before.kept_turns);
        mgr.stats().not_kept_full > before.not_kept_full + 3
    });
    guard.check().unwrap();
    drop(guard);
    for name in ["handle", "guard"] {
        assert!(
            costs_nothing(&mgr, || drop(mgr.lock(name).unwrap())),
            "{name}"
        );
    }
}

fn guards_that_are_only_told_take_no_room(backend: &Backend) {
    let mgr = with_room(backend, 2);
    let told = mgr.with(
        fairlock::LockOptions::new()
            .no_keep_idle()
            .notify_wanted(true),
    );
    let guards = ["a", "b", "c"].map(|name| told.lock(name).unwrap());
    keep(&mgr, "d");
    keep(&mgr, "e");
    assert_eq!(mgr.stats().not_kept_full, 0);
    drop(guards);
}

/// Each asks before the others have a grant.
fn threads_that_find_the_last_room_keep_no_more(backend: &Backend) {
    let mgr = with_room(backend, 3);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mgr = &mgr;
            scope.spawn(move || {
                for _ in 0..50 {
                    drop(mgr.lock(format!("n{thread}")).unwrap());
                }
            });
        }
    });
    let is_kept = |i: &u32| costs_nothing(&mgr, || drop(mgr.lock(format!("n{i}")).unwrap()));
    let other = patient(backend);
    let taken = |i: &u32| {
        let info = other.inspect(format!("n{i}")).unwrap();
        info.is_some_and(|info| !info.holders.is_empty())
    };
    until(SLACK, "the others are released", || {
        (0..8).filter(taken).count() <= 3
    });
    assert!((0..8).filter(is_kept).count() <= 3);
}

fn number_of_kept_names_has_a_range(backend: &Backend) {
    for names in [0, 1_000_001, u32::MAX] {
        let error = builder(backend).max_kept(names).build().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Misused {
                    misuse: Misuse::Setting { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("max_kept") && text.contains("1 to 1000000"),
            "{text}"
        );
    }
    for names in [1, 1_000_000] {
        build(builder(backend).max_kept(names));
    }
}
