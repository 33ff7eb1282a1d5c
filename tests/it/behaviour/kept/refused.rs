//! Options that do not fit to kept locks are refused before Redis is asked, and the message says how
//! to unset them.

use std::time::Duration;

use fairlock::{DEFAULT_TTL, Error, LockManager, LockOptions};

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
}

const NEW: LockOptions = LockOptions::new();

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) {
    let error = result.expect_err("it is refused");
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
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
        let options = NEW.ttl(ttl).keep(keep);
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
        let options = NEW.ttl(TTL).keep(keep);
        let handle = mgr.with(options.clone());
        assert_refused(handle.lock("a"), &["keep"]);
        assert_refused(handle.try_lock("a"), &["keep"]);
        assert_refused(handle.enqueue("a"), &["keep"]);
        assert_refused(handle.mutex("a").lock(), &["keep"]);
        assert_refused(handle.reentrant_mutex("a").lock().map(drop), &["keep"]);
        assert_refused(
            builder(backend).options(options).build().map(drop),
            &["keep"],
        );
    }
    backend.come_back();
}

fn keep_of_a_third_of_any_ttl_is_taken(backend: &Backend) {
    let mgr = plain(backend);
    for ttl in [DEFAULT_TTL, TTL, Duration::from_millis(10_001)] {
        drop(mgr.with(NEW.ttl(ttl).keep(ttl / 3)).lock("a").unwrap());
    }
}

fn keep_beside_options_that_end_leases_otherwise_is_refused(backend: &Backend) {
    let mgr = plain(backend).with(NEW.keep(KEEP));
    let handles = [
        (mgr.with(NEW.fixed_lease(TTL)), "fixed lease"),
        (
            mgr.with(NEW.hold_at_least(Duration::from_millis(1))),
            "hold_at_least",
        ),
    ];
    for (handle, option) in handles {
        assert_refused(handle.lock("a"), &["keep", "no_keep()", option]);
        assert_refused(handle.try_lock("a"), &["keep", "no_keep()", option]);
        assert_refused(handle.enqueue("a"), &["keep", "no_keep()", option]);
        drop(handle.with(NEW.no_keep()).lock("a").unwrap());
    }
}

fn keep_and_notify_wanted_are_refused_for_permits(backend: &Backend) {
    let mgr = plain(backend);
    for (options, words) in [
        (NEW.keep(KEEP), ["keep", "no_keep()"]),
        (
            NEW.notify_wanted(true),
            ["notify_wanted", "notify_wanted(false)"],
        ),
    ] {
        let handle = mgr.with(options);
        assert_refused(handle.semaphore("s", 3).acquire().map(drop), &words);
        assert_refused(handle.semaphore("s", 3).try_acquire().map(drop), &words);
        assert_refused(handle.semaphore("s", 3).enqueue().map(drop), &words);
        assert_refused(handle.rw_lock("r").read().map(drop), &words);
        assert_refused(handle.rw_lock("r").try_write().map(drop), &words);
        assert_refused(handle.rw_lock("r").enqueue_write().map(drop), &words);
    }
}

fn keep_is_refused_where_drop_waits(backend: &Backend) {
    let waiting = || builder(backend).wait_on_drop(true);
    let built = waiting().options(NEW.keep(KEEP)).build();
    assert_refused(built.map(drop), &["keep", "wait_on_drop", "no_keep()"]);
    let mgr = build(waiting()).with(NEW.keep(KEEP));
    assert_refused(mgr.lock("a"), &["keep", "wait_on_drop", "no_keep()"]);
    assert_refused(mgr.try_lock("a"), &["keep", "wait_on_drop", "no_keep()"]);
}

fn handle_that_unsets_keep_works_with_all_of_these(backend: &Backend) {
    let keeps: LockManager = plain(backend).with(NEW.keep(KEEP).notify_wanted(true));
    let mgr = keeps.with(NEW.no_keep().notify_wanted(false));
    drop(mgr.semaphore("s", 3).acquire().unwrap());
    drop(mgr.rw_lock("r").read().unwrap());
    drop(mgr.with(NEW.fixed_lease(TTL)).lock("a").unwrap());
    drop(mgr.lock_all(["b", "c"]).unwrap());
    // It takes no part in keeping, and is not refused.
    drop(keeps.lock_all(["b", "c"]).unwrap());
}
