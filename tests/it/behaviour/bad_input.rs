//! Invalid input is refused before anything is written, and the error names what is allowed. Every
//! other value works.

use std::time::{Duration, Instant};

use fairlock::{Builder, Error, LockManager, LockOptions, Misuse, Result};

use crate::{
    backend::{Backend, Keyspace as _, on_both_stores},
    fixtures::Record,
    managers,
    support::{SLACK, until},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

on_both_stores! {
    p10_an_empty_or_too_long_name_is_refused_everywhere,
    p10_a_ttl_out_of_range_is_refused_everywhere,
    a_ttl_at_the_edge_of_its_range_works,
    p10_a_ttl_too_short_for_its_manager_names_the_remedy,
    p10_a_fixed_lease_too_short_for_waiting_allows_only_try,
    p10_timeouts_that_contradict_each_other_are_refused,
    p10_an_unusable_number_of_lanes_or_prefix_is_refused,
    p10_options_out_of_range_are_refused_everywhere,
    p10_a_key_of_the_wrong_type_is_left_unchanged,
    p10_a_hash_of_another_program_is_left_unchanged,
    p10_a_queue_key_of_the_wrong_type_refuses_waiters,
    a_queue_that_changes_its_type_refuses_new_waiters,
    p10_endless_waits_and_past_deadlines_are_no_errors,
    largest_settings_build_and_work,
}

/// Requires a `Misused` error about `of` whose message contains each of `allowed`.
#[track_caller]
pub(crate) fn assert_config<T>(result: Result<T>, of: &str, allowed: &[&str]) {
    let Err(Error::Misused {
        misuse, message, ..
    }) = result
    else {
        panic!(
            "no misuse of {of:?} but {:?}",
            result.err().map(|e| e.to_string())
        );
    };
    let name = match misuse {
        Misuse::Name => "name",
        Misuse::Server => "server",
        Misuse::Setting { name, .. } => name,
        other => panic!("{other:?}: {message}"),
    };
    assert_eq!(name, of, "{message}");
    for words in allowed {
        assert!(
            message.contains(words),
            "the error of {of:?} does not say {words:?}: {message}"
        );
    }
}

#[track_caller]
fn assert_nothing_written(backend: &Backend) {
    assert_eq!(backend.keys("n"), [""; 0]);
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, Duration::from_secs(2))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn p10_an_empty_or_too_long_name_is_refused_everywhere(backend: &Backend) {
    let mgr = manager(backend);
    for name in [String::new(), "n".repeat(513), "é".repeat(257)] {
        let length = name.len().to_string();
        let allowed = ["1 to 512 bytes", &length];
        assert_config(mgr.lock(&name), "name", &allowed);
        assert_config(mgr.try_lock(&name), "name", &allowed);
        assert_config(mgr.try_lock_for(&name, ms(1)), "name", &allowed);
        assert_config(mgr.enqueue(&name), "name", &allowed);
        assert_config(mgr.inspect(&name), "name", &allowed);
        assert_config(mgr.force_release(&name, 1), "name", &allowed);
        let mutex = mgr.mutex(&name);
        assert_eq!(mutex.name(), name);
        assert_config(mutex.lock(), "name", &allowed);
        assert_config(mutex.try_lock(), "name", &allowed);
        assert_config(mutex.try_lock_for(ms(1)), "name", &allowed);
        assert_config(mutex.enqueue(), "name", &allowed);
    }
    assert_nothing_written(backend);
}

fn shown(duration: Duration) -> String {
    match duration {
        Duration::ZERO => "0s".to_owned(),
        Duration::MAX => "more than 100 years".to_owned(),
        other => format!("{other:?}"),
    }
}

fn p10_a_ttl_out_of_range_is_refused_everywhere(backend: &Backend) {
    let mgr = manager(backend);
    let renewed = [
        Duration::ZERO,
        ms(1),
        ms(999),
        DAY + Duration::from_nanos(1),
        Duration::MAX,
    ];
    for ttl in renewed {
        let options = LockOptions::new().ttl(ttl);
        let allowed = ["1s to 24h", &shown(ttl)];
        assert_config(
            LockManager::builder(backend)
                .options(options.clone())
                .build(),
            "ttl",
            &allowed,
        );
        assert_config(mgr.with(options.clone()).lock("n"), "ttl", &allowed);
        assert_config(mgr.with(options.clone()).try_lock("n"), "ttl", &allowed);
        assert_config(mgr.with(options).mutex("n").enqueue(), "ttl", &allowed);
    }
    let fixed = [
        Duration::ZERO,
        Duration::from_micros(9_999),
        DAY + ms(1),
        Duration::MAX,
    ];
    for lease in fixed {
        let options = LockOptions::new().fixed_lease(lease);
        let allowed = ["10ms to 24h", &shown(lease)];
        assert_config(
            LockManager::builder(backend)
                .options(options.clone())
                .build(),
            "fixed_lease",
            &allowed,
        );
        assert_config(mgr.with(options).try_lock("n"), "fixed_lease", &allowed);
    }
    assert_nothing_written(backend);
}

fn a_ttl_at_the_edge_of_its_range_works(backend: &Backend) {
    for ttl in [Duration::from_secs(1), DAY] {
        let options = LockOptions::new().ttl(ttl);
        let mgr = LockManager::builder(backend)
            .options(options)
            .build()
            .unwrap();
        assert!(mgr.lock("n").unwrap().remaining() > ttl / 2);
    }
    let mgr = manager(backend).with(LockOptions::new().fixed_lease(DAY));
    assert!(mgr.try_lock("n").unwrap().unwrap().remaining() > DAY / 2);
    // So short a lease may end before its reply arrives.
    let shortest = mgr
        .with(LockOptions::new().fixed_lease(ms(10)))
        .try_lock("n");
    assert!(
        matches!(shortest, Ok(Some(_)) | Err(Error::Lost { .. })),
        "{shortest:?}"
    );
}

fn p10_a_ttl_too_short_for_its_manager_names_the_remedy(backend: &Backend) {
    let mgr = LockManager::connect(backend).unwrap();
    let short = mgr.with(LockOptions::new().ttl(Duration::from_secs(2)));
    // H is 5 s, and H × 30/17 is 8.824 s.
    assert_config(
        short.try_lock("n"),
        "ttl",
        &[
            "8.824s",
            "horizon",
            "5s",
            "it is 2s",
            "give the builder this ttl",
        ],
    );
    assert_config(short.lock("n"), "ttl", &["8.824s"]);
    assert_nothing_written(backend);
    let enough = mgr.with(LockOptions::new().ttl(ms(8824)));
    assert!(enough.try_lock("n").unwrap().is_some());
}

fn p10_a_fixed_lease_too_short_for_waiting_allows_only_try(backend: &Backend) {
    let mgr = LockManager::connect(backend).unwrap();
    // P + 2 T is 2 s here, and the lease must be longer.
    for lease in [ms(10), ms(999), Duration::from_secs(2)] {
        let short = mgr.with(LockOptions::new().fixed_lease(lease));
        let allowed = ["at least 1s", "more than", "2s", "try_lock"];
        assert_config(short.lock("n"), "fixed_lease", &allowed);
        assert_config(short.enqueue("n"), "fixed_lease", &allowed);
        assert_config(short.try_lock_for("n", ms(5)), "fixed_lease", &allowed);
        assert_nothing_written(backend);
    }
    let short = mgr.with(LockOptions::new().fixed_lease(ms(999)));
    assert!(short.try_lock("n").unwrap().is_some());
    // A deadline in the past means one try, so nothing waits.
    assert!(short.try_lock_for("n", Duration::ZERO).unwrap().is_some());
    assert!(
        mgr.with(LockOptions::new().fixed_lease(ms(2001)))
            .lock("n")
            .is_ok()
    );
}

fn p10_timeouts_that_contradict_each_other_are_refused(backend: &Backend) {
    let of = |set: fn(Builder) -> Builder, what: &str, allowed: &[&str]| {
        assert_config(set(LockManager::builder(backend)).build(), what, allowed);
    };
    let zero = |b: Builder| b.command_timeout(Duration::ZERO);
    of(zero, "command_timeout", &["1ms to 24h"]);
    of(
        |b| b.command_timeout(Duration::MAX),
        "command_timeout",
        &["1ms to 24h"],
    );
    of(
        |b| b.connect_timeout(Duration::ZERO),
        "connect_timeout",
        &["1ms to 24h"],
    );
    of(
        |b| b.connect_timeout(Duration::MAX),
        "connect_timeout",
        &["1ms to 24h"],
    );
    of(
        |b| b.check_period(Duration::ZERO),
        "check_period",
        &["1ms to 24h"],
    );
    of(
        |b| b.check_period(Duration::MAX),
        "check_period",
        &["1ms to 24h"],
    );
    of(|b| b.horizon(Duration::ZERO), "horizon", &["1ms to 24h"]);
    of(|b| b.horizon(Duration::MAX), "horizon", &["1ms to 24h"]);
    // P + 3 T is 2.5 s with the defaults.
    of(
        |b| b.horizon(ms(2499)),
        "horizon",
        &["check_period + 3 × command_timeout", "2.5s", "2.499s"],
    );
    // 2/3 − 1/10 of the ttl of 10 s is 5.667 s. The horizon is P + 3 T at least. The setting that was
    // made is to blame, and not what follows from it.
    of(
        |b| b.command_timeout(ms(1600)),
        "command_timeout",
        &["at most 1.555s", "ttl of at least 10.236s", "it is 1.6s"],
    );
    of(
        |b| b.check_period(ms(4200)),
        "check_period",
        &["at most 4.166s", "ttl of at least 10.059s"],
    );
    of(
        |b| b.horizon(ms(5700)),
        "horizon",
        &["at most 5.666s", "ttl of at least 10.059s"],
    );
    of(
        |b| b.check_period(ms(3000)).command_timeout(ms(1500)),
        "ttl",
        &["at least 13.236s with command_timeout 1.5s and check_period 3s"],
    );
    of(
        |b| b.outage_limit(ms(499)),
        "outage_limit",
        &["at least the command timeout", "500ms"],
    );
    assert_nothing_written(backend);
}

fn p10_an_unusable_number_of_lanes_or_prefix_is_refused(backend: &Backend) {
    for size in [0, 65, u32::MAX] {
        assert_config(
            LockManager::builder(backend).lanes(size).build(),
            "lanes",
            &["1 to 64"],
        );
    }
    let long = "p".repeat(129);
    for prefix in ["", "a{b", "a}b", "a\nb", "\0", &long] {
        assert_config(
            LockManager::builder(backend).prefix(prefix).build(),
            "prefix",
            &["1 to 128 bytes", "without braces and control characters"],
        );
    }
    assert_nothing_written(backend);
}

fn p10_options_out_of_range_are_refused_everywhere(backend: &Backend) {
    let mgr = manager(backend);
    let refused = |options: LockOptions, what: &str, allowed: &[&str]| {
        let options = options.ttl(Duration::from_secs(2));
        assert_config(
            LockManager::builder(backend)
                .options(options.clone())
                .build(),
            what,
            allowed,
        );
        assert_config(mgr.with(options.clone()).lock("n"), what, allowed);
        assert_config(mgr.with(options).try_lock("n"), what, allowed);
    };
    let label = ["at most 256 bytes", "without control characters"];
    refused(LockOptions::new().label("l".repeat(257)), "label", &label);
    refused(LockOptions::new().label("é".repeat(129)), "label", &label);
    for text in ["a\tb", "a\nb", "\0", "\u{7f}", "\u{85}"] {
        refused(LockOptions::new().label(text), "label", &label);
    }
    refused(
        LockOptions::new().max_hold(Duration::ZERO),
        "max_hold",
        &["more than zero"],
    );
    let cap = ["at most 24h"];
    refused(
        LockOptions::new().hold_at_least(DAY + ms(1)),
        "hold_at_least",
        &cap,
    );
    refused(
        LockOptions::new().hold_at_least(Duration::MAX),
        "hold_at_least",
        &cap,
    );
    assert_nothing_written(backend);
}

#[track_caller]
fn assert_code(error: &Error, expected: &str) {
    let Error::Refused { code, message, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(code, expected, "{error:?}");
    assert!(!message.is_empty());
}

fn p10_a_key_of_the_wrong_type_is_left_unchanged(backend: &Backend) {
    let mgr = manager(backend);
    let _: () = backend.query(&["RPUSH", "fairlock:{n}", "mine"]);
    for result in [
        mgr.lock("n").map(drop),
        mgr.try_lock("n").map(drop),
        mgr.try_lock_for("n", ms(50)).map(drop),
        mgr.enqueue("n").map(drop),
        mgr.inspect("n").map(drop),
        mgr.force_release("n", 1).map(drop),
    ] {
        let error = result.unwrap_err();
        assert_code(&error, "WRONGTYPE");
        assert!(error.to_string().contains("\"n\""), "{error}");
    }
    assert_eq!(
        backend.query::<Vec<String>>(&["LRANGE", "fairlock:{n}", "0", "-1"]),
        ["mine"]
    );
    assert_eq!(backend.keys("n"), ["fairlock:{n}"]);
}

fn p10_a_hash_of_another_program_is_left_unchanged(backend: &Backend) {
    let mgr = manager(backend);
    let _: i64 = backend.query(&["HSET", "fairlock:{n}", "a", "mine"]);
    for result in [
        mgr.lock("n").map(drop),
        mgr.try_lock("n").map(drop),
        mgr.enqueue("n").map(drop),
        mgr.rw_lock("n").read().map(drop),
        mgr.semaphore("n", 2).acquire(1).map(drop),
        mgr.force_release("n", 1).map(drop),
        mgr.delete("n").map(drop),
    ] {
        assert_code(&result.unwrap_err(), "WRONGTYPE");
    }
    assert_eq!(
        backend.query::<Vec<String>>(&["HGETALL", "fairlock:{n}"]),
        ["a", "mine"]
    );
    assert_eq!(backend.query::<i64>(&["PTTL", "fairlock:{n}"]), -1);
    assert_eq!(backend.keys("n"), ["fairlock:{n}"]);
}

fn p10_a_queue_key_of_the_wrong_type_refuses_waiters(backend: &Backend) {
    let mgr = manager(backend);
    let _: () = backend.query(&["HSET", "fairlock:{n}:q", "mine", "1"]);
    let guard = mgr.lock("n").unwrap();
    let before = Record::of(backend, "n").fields();
    let started = Instant::now();
    assert_code(&mgr.lock("n").unwrap_err(), "WRONGTYPE");
    assert_code(&mgr.enqueue("n").unwrap_err(), "WRONGTYPE");
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    assert_eq!(Record::of(backend, "n").fields(), before);
    assert_eq!(
        backend.query::<Vec<String>>(&["HGETALL", "fairlock:{n}:q"]),
        ["mine", "1"]
    );
    assert_eq!(mgr.stats().waiting, 0);
    guard.unlock().unwrap();
}

fn a_queue_that_changes_its_type_refuses_new_waiters(backend: &Backend) {
    let mgr = managers::patient(backend);
    let _guard = mgr.lock("n").unwrap();
    let record = Record::of(backend, "n");
    record.set(&[("n", "1"), ("r", "1")]);
    let _: () = backend.query(&["HSET", "fairlock:{n}:q", "mine", "1"]);
    let before = record.fields();
    assert_code(&mgr.enqueue("n").unwrap_err(), "WRONGTYPE");
    assert_eq!(record.fields(), before);
    assert!(mgr.try_lock("n").unwrap().is_none());
    assert_eq!(
        record.fields(),
        before,
        "a call that does not wait writes nothing"
    );
}

fn p10_endless_waits_and_past_deadlines_are_no_errors(backend: &Backend) {
    let mgr = manager(backend);
    let mutex = mgr.mutex("n");
    // The lock is free: each call takes it.
    drop(mgr.try_lock_for("n", Duration::MAX).unwrap().unwrap());
    drop(mgr.try_lock_for("n", Duration::ZERO).unwrap().unwrap());
    drop(mutex.try_lock_for(Duration::MAX).unwrap().unwrap());
    drop(
        mgr.enqueue("n")
            .unwrap()
            .wait_for(Duration::MAX)
            .unwrap()
            .unwrap(),
    );

    let guard = mgr.lock("n").unwrap();
    // The lock is taken: no time is one try.
    assert!(mgr.try_lock_for("n", Duration::ZERO).unwrap().is_none());
    assert!(mutex.try_lock_for(Duration::ZERO).unwrap().is_none());
    assert_eq!(mgr.stats().waiting, 0);
    // The lock is taken: a call without a deadline waits.
    std::thread::scope(|scope| {
        let waits: [Box<dyn FnOnce() -> bool + Send>; 3] = [
            Box::new(|| mgr.try_lock_for("n", Duration::MAX).unwrap().is_some()),
            Box::new(|| {
                mgr.try_lock_for("n", Duration::from_nanos(u64::MAX))
                    .unwrap()
                    .is_some()
            }),
            Box::new(|| {
                mgr.enqueue("n")
                    .unwrap()
                    .wait_for(Duration::MAX - Duration::from_nanos(1))
                    .unwrap()
                    .is_some()
            }),
        ];
        let waits = waits.map(|wait| scope.spawn(wait));
        until(SLACK, "all three wait", || mgr.stats().waiting == 3);
        drop(guard);
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
    });
    // A shutdown accepts an endless timeout and has nothing to wait for.
    mgr.shutdown(Duration::MAX).unwrap();
}

fn largest_settings_build_and_work(backend: &Backend) {
    let mgr = LockManager::builder(backend)
        .options(
            LockOptions::new()
                .ttl(DAY)
                .max_hold(Duration::MAX)
                .hold_at_least(DAY),
        )
        .outage_limit(Duration::MAX)
        .connect_timeout(DAY)
        .command_timeout(Duration::from_secs(3600))
        .check_period(Duration::from_secs(3600))
        .horizon(Duration::from_secs(12 * 3600))
        .lanes(64)
        .prefix("p".repeat(128))
        .build()
        .unwrap();
    let guard = mgr.lock("n".repeat(512)).unwrap();
    assert!(guard.remaining() > DAY / 2);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert!(backend.keys_without_ttl().is_empty());
}
