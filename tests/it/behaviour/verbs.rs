//! The verbs, what they count, and how their types are shown by `Debug`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fairlock::{
    Error, LockGuard, LockManager, LockOptions, Result, endpoint::Endpoint, stats::Stats,
};

use crate::backend::{Backend, on_both_stores};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);

on_both_stores! {
    every_verb_of_manager_and_mutex_locks_the_same_name,
    a_new_manager_has_only_connected,
    held_waiting_granted_and_missed_count_what_happens,
    a_grant_by_message_counts_as_handed_over,
    losses_renewals_failures_and_background_releases_are_counted,
    debug_shows_what_matters,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn every_verb_of_manager_and_mutex_locks_the_same_name(backend: &Backend) {
    let mgr = manager(backend);
    let mutex = mgr.mutex("n");
    assert_eq!(mutex.name(), "n");
    let soon = Duration::from_millis(30);
    type Verb<'a> = (&'a str, Box<dyn Fn() -> Result<Option<LockGuard>> + 'a>);
    let verbs: [Verb<'_>; 8] = [
        ("lock", Box::new(|| mgr.lock("n").map(Some))),
        ("try_lock", Box::new(|| mgr.try_lock("n"))),
        ("try_lock_for", Box::new(|| mgr.try_lock_for("n", soon))),
        ("enqueue", Box::new(|| mgr.enqueue("n")?.wait_for(soon))),
        ("Mutex::lock", Box::new(|| mutex.lock().map(Some))),
        ("Mutex::try_lock", Box::new(|| mutex.try_lock())),
        ("Mutex::try_lock_for", Box::new(|| mutex.try_lock_for(soon))),
        (
            "Mutex::enqueue",
            Box::new(|| mutex.enqueue()?.wait_for(soon)),
        ),
    ];
    let mut last = 0;
    for (name, verb) in &verbs {
        let guard = verb()
            .unwrap()
            .unwrap_or_else(|| panic!("{name} found it taken"));
        assert!(guard.fence() > last, "{name}");
        last = guard.fence();
        assert!(mutex.try_lock().unwrap().is_none(), "{name}");
        guard.unlock().unwrap();
    }
    let guard = mgr.lock("n").unwrap();
    for (name, verb) in &verbs {
        if !name.ends_with("::lock") && *name != "lock" {
            let start = Instant::now();
            assert!(verb().unwrap().is_none(), "{name}");
            let took = start.elapsed();
            assert!(
                took < soon + COMMAND_TIMEOUT + SLACK,
                "{name} took {took:?}"
            );
            assert!(
                name.ends_with("try_lock") || took >= soon,
                "{name} took {took:?}"
            );
        }
    }
    assert_eq!(mgr.inspect("n").unwrap().unwrap().waiters, 0);
    guard.unlock().unwrap();
}

fn a_new_manager_has_only_connected(backend: &Backend) {
    let stats = manager(backend).stats();
    // In memory there is no connection to open.
    assert_eq!(stats.connects, u64::from(backend.server().is_some()));
    let idle = Stats::default();
    assert_eq!((stats.held, stats.waiting, stats.granted()), (0, 0, 0));
    assert_eq!((idle.connects, idle.requests), (0, 0));
}

fn held_waiting_granted_and_missed_count_what_happens(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    assert_eq!((mgr.stats().held, mgr.stats().granted()), (1, 1));
    assert!(mgr.stats().requests > 0);
    assert!(mgr.try_lock("n").unwrap().is_none());
    assert_eq!(mgr.stats().acquisitions_timed_out, 1);
    assert!(
        mgr.try_lock_for("n", Duration::from_millis(10))
            .unwrap()
            .is_none()
    );
    assert_eq!(mgr.stats().acquisitions_timed_out, 2);
    let waiter = mgr.enqueue("n").unwrap();
    assert_eq!(mgr.stats().waiting, 1);
    guard.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    let stats = mgr.stats();
    assert_eq!(
        (
            stats.held,
            stats.waiting,
            stats.granted(),
            stats.handovers,
            stats.acquisitions_timed_out
        ),
        (1, 0, 2, 1, 2)
    );
    drop(guard);
    assert_eq!(mgr.stats().held, 0);
    // The calls of a handle count with its manager.
    let handle = mgr.with(LockOptions::new());
    drop(handle.lock("n").unwrap());
    assert_eq!(
        format!("{:?}", handle.stats()),
        format!("{:?}", mgr.stats())
    );
    assert_eq!(mgr.stats().granted(), 3);
}

fn a_grant_by_message_counts_as_handed_over(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = other.lock("n").unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    guard.unlock().unwrap();
    let _guard = waiter.wait().unwrap();
    until(SLACK, "it is counted", || mgr.stats().handovers == 1);
    assert_eq!(other.stats().handovers, 0);
}

fn losses_renewals_failures_and_background_releases_are_counted(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    until(TTL + SLACK, "a renewal", || {
        mgr.stats().renewals_confirmed > 0
    });
    let forced = mgr.lock("forced").unwrap();
    assert!(mgr.force_release("forced", forced.fence()).unwrap());
    until(TTL + SLACK, "the loss", || mgr.stats().losses() == 1);
    let before = mgr.stats();
    assert_eq!((before.renewals_failed, before.background_releases), (0, 0));
    backend.go_away();
    until(TTL + SLACK, "a renewal that fails", || {
        mgr.stats().renewals_failed > 0
    });
    assert!(matches!(guard.unlock(), Err(Error::Unavailable { .. })));
    backend.come_back();
    until(TTL + SLACK, "a release in the background", || {
        mgr.stats().background_releases > 0
    });
    assert!(mgr.try_lock_for("n", TTL + SLACK).unwrap().is_some());
    assert_eq!(
        mgr.stats().connects > before.connects,
        backend.server().is_some()
    );
}

fn debug_shows_what_matters(backend: &Backend) {
    let mgr = manager(backend).with(LockOptions::new().label("why"));
    let guard = mgr.lock("n").unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    for (shown, words) in [
        (format!("{mgr:?}"), &["fairlock", "why", "2s"][..]),
        (
            format!("{guard:?}"),
            &["\"n\"", &guard.fence().to_string(), "held: true"],
        ),
        (format!("{waiter:?}"), &["\"n\"", "Some(1)"]),
        (format!("{:?}", mgr.mutex("n")), &["\"n\""]),
        (
            format!("{:?}", Endpoint::from("redis://user:pw@host:1/2")),
            &["host:1"],
        ),
    ] {
        for word in words {
            assert!(shown.contains(word), "{shown} lacks {word}");
        }
    }
    let _arc: Arc<LockGuard> = Arc::new(guard);
}
