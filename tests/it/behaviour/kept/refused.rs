//! Options that do not fit to kept locks are refused before Redis is asked, and the message says how
//! to unset them.

use crate::fixtures::DEFAULT_TTL;
use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, Misuse};

use super::{KEEP, TTL, builder, plain};
use crate::backend::{Backend, on_both_stores};
use crate::fixtures::build;

on_both_stores! {
    keep_out_of_range_is_refused,
    keep_of_a_third_of_any_ttl_is_taken,
    keep_beside_options_that_end_leases_otherwise_is_refused,
    keep_and_notify_wanted_are_refused_for_permits,
    keep_is_refused_where_drop_waits,
    handle_that_unsets_keep_works_with_all_of_these,
    pairs_that_cannot_go_together_are_refused_at_once,
}

/// A change of options.
type Change = fn(LockOptions) -> LockOptions;

/// Each pair is refused by the first that can know of both, and the message names both, and how to
/// unset one. The numbers are out of range for each other, too: that is not the reason.
fn pairs_that_cannot_go_together_are_refused_at_once(backend: &Backend) {
    let lent = [
        (
            NEW.keep_idle(Duration::from_secs(2)),
            "keep_idle",
            "no_keep_idle()",
        ),
        (NEW.keep_idle(Duration::MAX), "keep_idle", "no_keep_idle()"),
        (
            NEW.notify_wanted(true),
            "notify_wanted",
            "notify_wanted(false)",
        ),
        (
            NEW.local_handovers(2),
            "local_handovers",
            "local_handovers(0)",
        ),
        (
            NEW.local_handovers(u32::MAX),
            "local_handovers",
            "local_handovers(0)",
        ),
    ];
    let for_one_guard: [(&str, Change); 4] = [
        ("fixed lease", |options| {
            options.fixed_lease(Duration::from_secs(5))
        }),
        ("fixed lease", |options| {
            options.fixed_lease(Duration::from_millis(10))
        }),
        ("hold_at_least", |options| {
            options.hold_at_least(Duration::from_millis(1))
        }),
        ("hold_at_least", |options| options.hold_at_least(2 * TTL)),
    ];
    let mgr = plain(backend);
    for (options, option, unset) in &lent {
        for (reason, with) in for_one_guard {
            let options = with(options.clone());
            let words = [*option, reason, *unset];
            let built = builder(backend).options(options.clone()).build();
            assert_refused(built.map(drop), &words);
            let handle = mgr.with(options);
            assert_refused(handle.lock("a"), &words);
            assert_refused(handle.try_lock("a"), &words);
            assert_refused(handle.enqueue("a").map(drop), &words);
            assert_refused(handle.lock_all(["a"]).map(drop), &words);
        }
    }
    let waits = || builder(backend).wait_on_drop(true);
    let words = ["keep_idle", "wait_on_drop", "no_keep_idle()"];
    for keep in [KEEP, Duration::MAX] {
        assert_refused(
            waits().options(NEW.keep_idle(keep)).build().map(drop),
            &words,
        );
        assert_refused(build(waits()).with(NEW.keep_idle(keep)).lock("a"), &words);
    }
    // These go together.
    for options in [
        NEW.ttl(TTL)
            .keep_idle(KEEP)
            .local_handovers(2)
            .notify_wanted(true)
            .max_hold(TTL),
        NEW.fixed_lease(TTL).hold_at_least(TTL).max_hold(TTL),
    ] {
        let built = build(builder(backend).options(options));
        drop(built.lock("b").unwrap());
        drop(built.try_lock("c").unwrap());
    }
}

const NEW: LockOptions = LockOptions::new();

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) {
    let error = result.expect_err("it is refused");
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
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
}

fn keep_out_of_range_is_refused(backend: &Backend) {
    let mgr = plain(backend);
    for (keep, ttl) in [
        (Duration::from_millis(1), TTL),
        (TTL / 3, TTL),
        (Duration::from_secs(20), 2 * TTL),
    ] {
        let options = NEW.ttl(ttl).keep_idle(keep);
        drop(mgr.with(options.clone()).lock("a").unwrap());
        build(builder(backend).options(options));
    }
    // A call that asked Redis would fail otherwise.
    backend.go_away();
    for keep in [
        Duration::ZERO,
        Duration::from_micros(999),
        TTL / 3 + Duration::from_millis(1),
        TTL,
        Duration::MAX,
    ] {
        let options = NEW.ttl(TTL).keep_idle(keep);
        let handle = mgr.with(options.clone());
        assert_refused(handle.lock("a"), &["keep_idle"]);
        assert_refused(handle.try_lock("a"), &["keep_idle"]);
        assert_refused(handle.enqueue("a"), &["keep_idle"]);
        assert_refused(handle.mutex("a").lock(), &["keep_idle"]);
        assert_refused(handle.reentrant_mutex("a").lock().map(drop), &["keep_idle"]);
        assert_refused(
            builder(backend).options(options).build().map(drop),
            &["keep_idle"],
        );
    }
    backend.come_back();
}

fn keep_of_a_third_of_any_ttl_is_taken(backend: &Backend) {
    let mgr = plain(backend);
    for ttl in [DEFAULT_TTL, TTL, Duration::from_millis(10_001)] {
        drop(mgr.with(NEW.ttl(ttl).keep_idle(ttl / 3)).lock("a").unwrap());
    }
}

fn keep_beside_options_that_end_leases_otherwise_is_refused(backend: &Backend) {
    let mgr = plain(backend).with(NEW.keep_idle(KEEP));
    let handles = [
        (mgr.with(NEW.fixed_lease(TTL)), "fixed lease"),
        (
            mgr.with(NEW.hold_at_least(Duration::from_millis(1))),
            "hold_at_least",
        ),
    ];
    for (handle, option) in handles {
        assert_refused(handle.lock("a"), &["keep_idle", "no_keep_idle()", option]);
        assert_refused(
            handle.try_lock("a"),
            &["keep_idle", "no_keep_idle()", option],
        );
        assert_refused(
            handle.enqueue("a"),
            &["keep_idle", "no_keep_idle()", option],
        );
        drop(handle.with(NEW.no_keep_idle()).lock("a").unwrap());
    }
}

fn keep_and_notify_wanted_are_refused_for_permits(backend: &Backend) {
    let mgr = plain(backend);
    for (options, words) in [
        (NEW.keep_idle(KEEP), ["keep_idle", "no_keep_idle()"]),
        (
            NEW.notify_wanted(true),
            ["notify_wanted", "notify_wanted(false)"],
        ),
    ] {
        let handle = mgr.with(options);
        assert_refused(handle.semaphore("s", 3).acquire(1).map(drop), &words);
        assert_refused(handle.semaphore("s", 3).try_acquire(1).map(drop), &words);
        assert_refused(handle.semaphore("s", 3).enqueue(1).map(drop), &words);
        assert_refused(handle.rw_lock("r").read().map(drop), &words);
        assert_refused(handle.rw_lock("r").try_write().map(drop), &words);
        assert_refused(handle.rw_lock("r").enqueue_write().map(drop), &words);
    }
}

fn keep_is_refused_where_drop_waits(backend: &Backend) {
    let waiting = || builder(backend).wait_on_drop(true);
    let built = waiting().options(NEW.keep_idle(KEEP)).build();
    assert_refused(
        built.map(drop),
        &["keep_idle", "wait_on_drop", "no_keep_idle()"],
    );
    let mgr = build(waiting()).with(NEW.keep_idle(KEEP));
    assert_refused(
        mgr.lock("a"),
        &["keep_idle", "wait_on_drop", "no_keep_idle()"],
    );
    assert_refused(
        mgr.try_lock("a"),
        &["keep_idle", "wait_on_drop", "no_keep_idle()"],
    );
}

fn handle_that_unsets_keep_works_with_all_of_these(backend: &Backend) {
    let keeps: LockManager = plain(backend).with(NEW.keep_idle(KEEP).notify_wanted(true));
    let mgr = keeps.with(NEW.no_keep_idle().notify_wanted(false));
    drop(mgr.semaphore("s", 3).acquire(1).unwrap());
    drop(mgr.rw_lock("r").read().unwrap());
    drop(mgr.with(NEW.fixed_lease(TTL)).lock("a").unwrap());
    drop(mgr.lock_all(["b", "c"]).unwrap());
    // It takes no part in keeping, and is not refused.
    drop(keeps.lock_all(["b", "c"]).unwrap());
}
