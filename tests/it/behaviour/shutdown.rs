//! An orderly shutdown of a manager.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, unbounded};
use fairlock::{
    Error, LockManager, LockOptions, LossReason, PreviousHolder, Result,
    crossbeam_channel::TryRecvError, endpoint::Endpoint,
};

use crate::backend::{Backend, on_both_stores};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, throughout, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// A shutdown may take this much longer than the time it gives to guards.
const OVERHEAD: Duration = COMMAND_TIMEOUT.saturating_mul(2).saturating_add(SLACK);
/// As above, while releases get no reply.
const SILENT_OVERHEAD: Duration = COMMAND_TIMEOUT.saturating_mul(3).saturating_add(SLACK);

on_both_stores! {
    every_verb_is_closed_after_a_shutdown,
    a_shutdown_with_nothing_held_returns_at_once,
    a_shutdown_ends_all_waits_at_once_emptying_the_queue,
    a_shutdown_waits_for_guards_which_stay_renewed,
    at_its_deadline_a_shutdown_releases_and_names_guards,
    a_second_shutdown_ends_guards_the_first_waits_for,
    p8_a_shutdown_in_silence_is_bounded_and_reports_losses,
    the_last_handle_may_drop_during_a_shutdown,
    p8_a_silent_shutdown_names_all_that_is_unreleased,
    shutdowns_of_many_threads_release_all_locks_between_them,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs `body` on a thread that a failed test leaves behind: a call that never ends must not block
/// the other tests.
pub(crate) fn aside<T: Send + 'static>(
    mgr: &LockManager,
    body: impl FnOnce(&LockManager) -> T + Send + 'static,
) -> Receiver<T> {
    let mgr = mgr.clone();
    let (sender, outcome) = unbounded();
    thread::spawn(move || sender.send(body(&mgr)));
    outcome
}

#[track_caller]
pub(crate) fn assert_closed<T>(result: Result<T>) {
    match result {
        Err(Error::Closed) => {}
        Err(error) => panic!("not Closed: {error:?}"),
        Ok(_) => panic!("not Closed but granted, or queued"),
    }
}

fn every_verb_is_closed_after_a_shutdown(backend: &Backend) {
    let mgr = manager(backend);
    let clone = mgr.clone();
    let handle = mgr.with(LockOptions::new().label("x"));
    let mutex = mgr.mutex("n");
    assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
    for mgr in [&mgr, &clone, &handle] {
        assert_closed(mgr.lock("n"));
        assert_closed(mgr.try_lock("n"));
        assert_closed(mgr.try_lock_for("n", ms(10)));
        assert_closed(mgr.enqueue("n"));
        assert_closed(mgr.mutex("n").lock());
    }
    assert_closed(mutex.lock());
    assert_closed(mutex.try_lock());
    assert_closed(mutex.try_lock_for(ms(10)));
    assert_closed(mutex.enqueue());
    assert_eq!(backend.keys("n"), [""; 0]);
    // Verbs that take nothing still answer.
    assert!(mgr.inspect("n").unwrap().is_none());
    assert_eq!(mgr.list("*").count(), 0);
    assert!(!mgr.force_release("n", 1).unwrap());
    assert_eq!(mgr.stats().held, 0);
}

fn a_shutdown_with_nothing_held_returns_at_once(backend: &Backend) {
    let mgr = manager(backend);
    drop(mgr.lock("n").unwrap());
    for within in [Duration::from_secs(60), Duration::MAX] {
        let start = Instant::now();
        assert!(mgr.shutdown(within).unwrap().is_empty());
        assert!(start.elapsed() < OVERHEAD, "{:?}", start.elapsed());
    }
}

fn a_shutdown_ends_all_waits_at_once_emptying_the_queue(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    let ungranted = mgr.enqueue("granted").unwrap();
    let waits = [
        aside(&mgr, |mgr| mgr.lock("n").map(drop)),
        aside(&mgr, |mgr| mgr.try_lock_for("n", Duration::MAX).map(drop)),
        aside(&mgr, |mgr| mgr.mutex("n").lock().map(drop)),
        aside(&mgr, |mgr| {
            mgr.enqueue("n").and_then(|waiter| waiter.wait()).map(drop)
        }),
    ];
    until(SLACK, "all wait", || {
        other.inspect("n").unwrap().unwrap().waiters == 5
    });
    let start = Instant::now();
    assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
    for wait in waits {
        assert_closed(wait.recv_timeout(OVERHEAD).expect("the wait ends"));
    }
    assert!(start.elapsed() < OVERHEAD, "{:?}", start.elapsed());
    // A waiter stays closed for every later call.
    let repeated = aside(&mgr, move |_| {
        for _ in 0..3 {
            assert_closed(waiter.wait_for(Duration::MAX));
        }
        assert_eq!(waiter.position(), None);
        assert_closed(waiter.wait());
    });
    repeated.recv_timeout(SLACK).expect("it returns at once");
    assert_closed(ungranted.wait());
    until(SLACK, "the queue is empty", || {
        other.inspect("n").unwrap().unwrap().waiters == 0
    });
    assert!(other.try_lock_for("granted", SLACK).unwrap().is_some());
    assert_eq!(mgr.stats().waiting, 0);
    guard.check().unwrap();
}

fn a_shutdown_waits_for_guards_which_stay_renewed(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    let lost = guard.lost().clone();
    let holder = thread::spawn(move || {
        throughout(TTL * 5 / 4, "it is held", || guard.check().is_ok());
        guard.renew()?;
        guard.unlock()
    });
    let start = Instant::now();
    let shutdown = mgr.shutdown(Duration::from_secs(60)).unwrap();
    let took = start.elapsed();
    assert!(shutdown.is_empty(), "{shutdown:?}");
    assert!(
        took >= TTL && took < TTL * 5 / 4 + COMMAND_TIMEOUT + OVERHEAD,
        "{took:?}"
    );
    holder.join().unwrap().unwrap();
    assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(mgr.stats().losses(), 0);
    assert!(manager(backend).try_lock("n").unwrap().is_some());
}

fn at_its_deadline_a_shutdown_releases_and_names_guards(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let (sender, losses) = unbounded();
    let handle =
        mgr.with(LockOptions::new().on_lost(move |loss| sender.send(loss.clone()).unwrap()));
    let guards: Vec<_> = ["b", "a", "c"]
        .map(|name| handle.lock(name).unwrap())
        .into();
    let early = handle.lock("early").unwrap();
    let waiter = other.enqueue("a").unwrap();
    let within = ms(300);
    let start = Instant::now();
    let shutdown = thread::scope(|scope| {
        scope.spawn(|| drop(early));
        mgr.shutdown(within).unwrap()
    });
    let took = start.elapsed();
    assert!(took >= within && took < within + OVERHEAD, "{took:?}");
    let names: Vec<&str> = shutdown.iter().map(|name| &**name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for guard in &guards {
        assert!(!guard.is_held());
        let loss = guard.lost().recv_timeout(SLACK).unwrap();
        assert_eq!(
            (&*loss.lock, loss.fence, loss.reason),
            (guard.name(), guard.fence(), LossReason::Shutdown)
        );
        assert_eq!(
            losses.recv_timeout(SLACK).unwrap().reason,
            LossReason::Shutdown
        );
    }
    // No waiter waits for a ttl: one name is handed over, and the others are free.
    let next = waiter.wait().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    for name in ["b", "c", "early"] {
        assert!(other.try_lock_for(name, SLACK).unwrap().is_some(), "{name}");
    }
    assert!(
        start.elapsed() < within + OVERHEAD * 2 + SLACK,
        "{:?}",
        start.elapsed()
    );

    // A second shutdown has nothing left to end, and dropping these guards now has no effect on
    // Redis.
    assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
    for guard in guards {
        let name = guard.name().to_owned();
        let fence = guard.fence();
        if name == "b" {
            let Err(Error::Lost { loss, .. }) = guard.unlock() else {
                panic!("unlock succeeded on a lost lock")
            };
            assert_eq!((loss.fence, loss.reason), (fence, LossReason::Shutdown));
        } else {
            drop(guard);
        }
    }
    next.renew().unwrap();
    assert_eq!(mgr.stats().held, 0);
    assert_eq!(mgr.stats().losses(), 3);
}

fn a_second_shutdown_ends_guards_the_first_waits_for(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.lock("n").unwrap();
    let first = aside(&mgr, |mgr| mgr.shutdown(Duration::from_secs(60)));
    until(SLACK, "the first one has begun", || {
        matches!(mgr.try_lock("probe"), Err(Error::Closed))
    });
    guard.check().unwrap();
    let second = mgr.shutdown(Duration::ZERO).unwrap();
    assert_eq!(second.len(), 1);
    assert!(!guard.is_held());
    assert!(other.try_lock_for("n", SLACK).unwrap().is_some());
    drop(guard);
    assert!(
        first
            .recv_timeout(OVERHEAD)
            .expect("nothing is left to wait for")
            .unwrap()
            .is_empty()
    );
}

fn p8_a_shutdown_in_silence_is_bounded_and_reports_losses(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    backend.go_away();
    let within = ms(100);
    let start = Instant::now();
    assert_unreleased(mgr.shutdown(within), "n; still held at the end: n");
    assert!(
        start.elapsed() < within + SILENT_OVERHEAD,
        "{:?}",
        start.elapsed()
    );
    let loss = guard.lost().recv_timeout(COMMAND_TIMEOUT + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::Shutdown);
    assert_closed(waiter.wait());
    backend.come_back();
    assert!(
        manager(backend)
            .try_lock_for("n", TTL + SLACK)
            .unwrap()
            .is_some()
    );
}

fn the_last_handle_may_drop_during_a_shutdown(backend: &Backend) {
    let other = manager(backend);
    let mgr = manager(backend);
    std::mem::forget(mgr.mutex("n").lock().unwrap());
    assert_eq!(mgr.shutdown(Duration::ZERO).unwrap().len(), 1);
    drop(mgr);
    assert!(other.try_lock_for("n", SLACK).unwrap().is_some());
}

/// The shutdown failed, and ends with the names that are not released and those that were held.
#[track_caller]
pub(crate) fn assert_unreleased(shutdown: Result<Vec<Arc<str>>>, names: &str) {
    let error = shutdown.expect_err("something is not released");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let words = format!("not confirmed as released: {names}");
    assert!(error.to_string().ends_with(&words), "{error}");
}

/// How soon a manager with time for the others' slack gets an answer, at most.
const LONG_TIMEOUT: Duration = SLACK.saturating_mul(2);

/// A manager that has more time for a release than a busy machine delays one.
pub(crate) fn patient(to: impl Into<Endpoint>) -> LockManager {
    let options = LockOptions::new().ttl(LONG_TIMEOUT * 20);
    let builder = LockManager::builder(to).options(options);
    let builder = builder
        .command_timeout(LONG_TIMEOUT)
        .horizon(LONG_TIMEOUT * 6);
    builder.build().unwrap()
}

fn p8_a_silent_shutdown_names_all_that_is_unreleased(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let _taken = other.lock("place").unwrap();
    let dropped = [mgr.lock("dropped").unwrap(), mgr.lock("unlocked").unwrap()];
    let waiter = mgr.enqueue("place").unwrap();
    std::mem::forget(mgr.lock("ended").unwrap());
    backend.go_away();
    let [first, second] = dropped;
    drop(first);
    assert!(matches!(second.unlock(), Err(Error::Unavailable { .. })));
    for ended in ["; still held at the end: ended", ""] {
        let start = Instant::now();
        let shutdown = mgr.shutdown(Duration::ZERO);
        let took = start.elapsed();
        assert!(took < SILENT_OVERHEAD, "{took:?}");
        assert_unreleased(shutdown, &format!("dropped, ended, place, unlocked{ended}"));
    }
    assert_closed(waiter.wait());
    // The manager goes on with the releases, and another shutdown sees them done.
    backend.come_back();
    until(SLACK + TTL, "all are released", || {
        mgr.shutdown(Duration::ZERO).is_ok()
    });
    for name in ["dropped", "ended", "unlocked"] {
        assert!(other.try_lock(name).unwrap().is_some(), "{name}");
    }
    assert_eq!(other.inspect("place").unwrap().unwrap().waiters, 0);
}

fn shutdowns_of_many_threads_release_all_locks_between_them(backend: &Backend) {
    let (mgr, other) = (patient(backend), patient(backend));
    let locks: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
    for name in &locks {
        std::mem::forget(mgr.lock(name).unwrap());
    }
    let ended = thread::scope(|scope| {
        let all_in_its_own_thread = (0..8).map(|_| {
            scope.spawn(|| {
                let shutdown = mgr.shutdown(Duration::ZERO).unwrap();
                // A lock is released when any of them returns, even if another one ended it.
                for name in &locks {
                    assert_eq!(other.inspect(name).unwrap(), None);
                }
                shutdown.len()
            })
        });
        let threads: Vec<_> = all_in_its_own_thread.collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .sum::<usize>()
    });
    assert_eq!(ended, locks.len());
}
