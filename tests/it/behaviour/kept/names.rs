//! Which names are kept: those that are locked again soon, and that no other manager wants as often.

use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions};

use super::{SHORT_TTL, gets, keeper, patient, plain, short};
use crate::backend::{Backend, on_both_stores};
use crate::keeping::{costs_nothing, keep};
use crate::support::{SLACK, until};

on_both_stores! {
    names_that_are_locked_once_cost_no_more_than_without_keep,
    name_that_goes_to_and_fro_is_not_kept_for_a_while,
    name_that_others_want_often_is_not_kept_for_a_while,
    name_that_was_worth_keeping_is_kept_again_after_a_recall,
    name_that_is_locked_too_seldom_is_not_kept,
    unused_kept_lock_is_released_after_its_time,
}

/// The requests for one lock and drop of each of these names.
fn requests_for(mgr: &LockManager, names: u32) -> u64 {
    // The scripts are known, and all connections are open.
    for i in 0..8 {
        drop(mgr.lock(format!("first{i}")).unwrap());
    }
    let before = mgr.stats().requests;
    for i in 0..names {
        drop(mgr.lock(format!("n{i}")).unwrap());
    }
    mgr.stats().requests - before
}

fn names_that_are_locked_once_cost_no_more_than_without_keep(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    let names = 10_000;
    // A lock and a drop each. On a busy machine a PING may come between.
    let few = u64::from(2 * names)..=u64::from(2 * names + names / 100);
    for mgr in [&other, &mgr] {
        let requests = requests_for(mgr, names);
        assert!(few.contains(&requests), "{requests}");
    }
    let stats = mgr.stats();
    assert_eq!(
        (stats.kept_turns, stats.recalls, stats.cold_names),
        (0, 0, 0)
    );
}

fn name_that_goes_to_and_fro_is_not_kept_for_a_while(backend: &Backend) {
    let managers = [keeper(backend), keeper(backend)];
    // Each hears, and has locked the name lately.
    managers.iter().for_each(|mgr| keep(mgr, "warm"));
    let alternate = |turns: u32| {
        for _ in 0..turns {
            for mgr in &managers {
                drop(mgr.lock("a").unwrap());
            }
        }
    };
    alternate(20);
    for mgr in &managers {
        assert!(mgr.stats().cold_names >= 1, "{:?}", mgr.stats());
    }
    // From now on each lock costs what it costs without `keep`.
    let recalls = || managers.iter().map(|mgr| mgr.stats().recalls).sum::<u64>();
    let before = recalls();
    assert!((0..5).any(|_| {
        let requests = managers.each_ref().map(|mgr| mgr.stats().requests);
        alternate(20);
        let now = managers.each_ref().map(|mgr| mgr.stats().requests);
        // Without a PING between.
        (0..2).all(|i| now[i] - requests[i] == 40)
    }));
    assert_eq!(recalls(), before);
    // Alone, it asks for each lock for 30 s at least.
    assert!(!costs_nothing(&managers[0], || drop(
        managers[0].lock("a").unwrap()
    )));
}

/// The other manager keeps nothing itself.
fn name_that_others_want_often_is_not_kept_for_a_while(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "warm");
    for _ in 0..6 {
        for _ in 0..3 {
            drop(mgr.lock("a").unwrap());
        }
        drop(other.lock("a").unwrap());
    }
    let stats = mgr.stats();
    assert_eq!((stats.recalls, stats.cold_names), (1, 1), "{stats:?}");
    assert!(!costs_nothing(&mgr, || drop(mgr.lock("a").unwrap())));
    // Other names are kept as before.
    assert!(costs_nothing(&mgr, || drop(mgr.lock("warm").unwrap())));
}

fn name_that_was_worth_keeping_is_kept_again_after_a_recall(backend: &Backend) {
    let (mgr, other) = (keeper(backend), patient(backend));
    for _ in 0..5 {
        keep(&mgr, "a");
        drop(gets(&other, "a", SLACK));
    }
    let stats = mgr.stats();
    assert_eq!((stats.recalls, stats.cold_names), (5, 0), "{stats:?}");
}

fn name_that_is_locked_too_seldom_is_not_kept(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "warm");
    let seldom = mgr.with(LockOptions::new().keep(Duration::from_millis(20)));
    for _ in 0..5 {
        drop(seldom.lock("a").unwrap());
        until(SLACK, "it is free", || {
            other.try_lock("a").unwrap().is_some()
        });
        backend.pass(Duration::from_millis(40));
    }
    assert_eq!(mgr.stats().cold_names, 0);
}

fn unused_kept_lock_is_released_after_its_time(backend: &Backend) {
    let keep_time = SHORT_TTL / 3;
    let mgr = short(backend, LockOptions::new().keep(keep_time));
    keep(&mgr, "a");
    let used = Instant::now();
    let renewed = mgr.stats().renewed;
    let is_taken = || {
        mgr.inspect("a")
            .unwrap()
            .is_some_and(|info| !info.holders.is_empty())
    };
    assert!(is_taken());
    until(keep_time * 3 / 2 + SLACK, "it is released", || {
        backend.pass(Duration::from_millis(5));
        !is_taken()
    });
    if backend.server().is_some() {
        assert!(used.elapsed() >= keep_time / 2, "{:?}", used.elapsed());
    }
    assert!(mgr.stats().renewed - renewed <= 1, "it was not used");
    drop(gets(&plain(backend), "a", SLACK));
    assert_eq!((mgr.stats().lost, mgr.stats().recalls), (0, 0));
}
