//! Which names are kept: those that are locked again soon, and that no other manager wants as often.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager, LockOptions};

use super::{SHORT_TTL, gets, keeper, patient, plain, short};
use crate::backend::{Backend, on_both_stores};
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    names_that_are_locked_once_cost_no_more_than_without_keep,
    name_that_goes_to_and_fro_is_not_kept_for_a_while,
    name_that_others_want_often_is_not_kept_for_a_while,
    name_that_was_worth_keeping_is_kept_again_after_a_recall,
    name_that_is_locked_too_seldom_is_not_kept,
    unused_kept_lock_is_released_after_its_time,
    unlock_now_and_then_costs_no_other_turn,
    no_end_but_a_recall_makes_a_name_cold,
    no_call_of_its_own_manager_makes_a_name_cold,
}

/// How a guard ends.
type End = fn(LockGuard);
/// How a lock is asked for.
type Asks<'a> = &'a dyn Fn(&str);

/// In how many of 200 turns the lock was kept, if each tenth guard ends like this.
fn kept_turns(mgr: &LockManager, name: &str, end: End) -> u64 {
    let before = mgr.stats().kept_turns;
    for turn in 0..200 {
        let guard = mgr.lock(name).unwrap();
        if turn % 10 == 3 {
            end(guard)
        } else {
            drop(guard)
        }
    }
    mgr.stats().kept_turns - before
}

/// Of ten turns one ends with a release, and the next asks Redis.
fn unlock_now_and_then_costs_no_other_turn(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "warm");
    let kept = kept_turns(&mgr, "a", |guard| guard.unlock().unwrap());
    assert!(kept >= 150, "{kept}");
    assert_eq!(mgr.stats().cold_names, 0);
}

fn panics(guard: LockGuard) {
    let end = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        resume_unwind(Box::new(()));
    }));
    assert!(end.is_err());
}

/// Each ends the first turns of its names, when few turns were worth keeping them.
fn no_end_but_a_recall_makes_a_name_cold(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "warm");
    let ends: [(&str, End); 5] = [
        ("unlock", |guard| guard.unlock().unwrap()),
        ("abandon", |guard| guard.abandon().unwrap()),
        ("detach", |guard| drop(guard.detach(SLACK).unwrap())),
        ("panic", panics),
        ("check and renew", |guard| {
            guard.check().unwrap();
            guard.renew().unwrap();
        }),
    ];
    for (what, end) in ends {
        for turn in 0..6 {
            let name = format!("{what} in turn {turn}");
            for _ in 0..turn {
                drop(mgr.lock(&name).unwrap());
            }
            end(mgr.lock(&name).unwrap());
            assert_eq!(mgr.stats().cold_names, 0, "{name}");
            keep(&mgr, &name);
        }
        let kept = kept_turns(&mgr, what, end);
        assert!(kept >= 150, "{what}: {kept}");
    }
    // Nobody used them.
    let keep_time = SHORT_TTL / 6;
    let short = short(backend, LockOptions::new().keep_idle(keep_time));
    keep(&short, "warm");
    for _ in 0..3 {
        for _ in 0..3 {
            drop(short.lock("unused").unwrap());
        }
        backend.pass(keep_time * 2);
    }
    keep(&short, "unused");
    assert_eq!(short.stats().cold_names, 0);
}

/// It asks in another way while a guard has the lock, so it is told of itself.
fn no_call_of_its_own_manager_makes_a_name_cold(backend: &Backend) {
    let mgr = keeper(backend);
    keep(&mgr, "warm");
    let others = mgr.with(LockOptions::new().no_keep_idle());
    let soon = Duration::from_millis(5);
    let ways: [(&str, Asks<'_>); 6] = [
        ("try_lock", &|name| {
            assert!(others.try_lock(name).unwrap().is_none());
        }),
        ("try_lock_for", &|name| {
            assert!(others.try_lock_for(name, soon).unwrap().is_none());
        }),
        ("enqueue", &|name| drop(others.enqueue(name).unwrap())),
        ("try_lock_all", &|name| {
            assert!(others.try_lock_all([name]).unwrap().is_none());
        }),
        ("hand-overs", &|name| {
            let handle = others.with(LockOptions::new().local_handovers(3));
            assert!(handle.try_lock_for(name, soon).unwrap().is_none());
        }),
        ("the same", &|name| {
            assert!(mgr.try_lock(name).unwrap().is_none());
            assert!(mgr.try_lock_for(name, soon).unwrap().is_none());
            drop(mgr.enqueue(name).unwrap());
        }),
    ];
    for (what, ask) in ways {
        for _ in 0..6 {
            let guard = mgr.lock(what).unwrap();
            ask(what);
            drop(guard);
        }
        assert_eq!(mgr.stats().cold_names, 0, "{what}");
        keep(&mgr, what);
    }
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
    // From now on each lock costs what it costs without `keep_idle`.
    let recalls = || managers.iter().map(|mgr| mgr.stats().recalls).sum::<u64>();
    let before = recalls();
    assert!((0..100).any(|_| {
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
    let seldom = mgr.with(LockOptions::new().keep_idle(Duration::from_millis(20)));
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
    let mgr = short(backend, LockOptions::new().keep_idle(keep_time));
    keep(&mgr, "a");
    let used = Instant::now();
    let renewed = mgr.stats().renewals_confirmed;
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
    assert!(
        mgr.stats().renewals_confirmed - renewed <= 1,
        "it was not used"
    );
    drop(gets(&plain(backend), "a", SLACK));
    assert_eq!((mgr.stats().losses(), mgr.stats().recalls), (0, 0));
}
