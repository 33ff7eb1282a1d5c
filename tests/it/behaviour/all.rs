//! Several mutexes at once: all of them or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::crossbeam_channel::TryRecvError;
use fairlock::{Error, LockManager, LockOptions, LossReason, Misuse, PreviousHolder};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON, Waiters};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, until};

const TTL: Duration = Duration::from_secs(2);
const CHECK_PERIOD: Duration = Duration::from_millis(250);
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);

on_both_stores! {
    all_names_are_taken_or_none,
    free_names_cost_one_request_each,
    opposite_orders_of_names_never_deadlock,
    a_repeated_name_is_taken_once,
    no_names_or_too_many_are_refused_before_any_write,
    one_deadline_covers_all_names_and_releases_all,
    p6_losing_an_early_lock_ends_the_wait_and_releases_all,
    p6_losing_one_lock_loses_the_group,
    dropping_the_guard_hands_each_name_to_its_first_waiter,
    unlock_reports_a_lost_name_and_releases_the_others,
    an_unused_grant_keeps_the_previous_holder_for_the_next,
    a_shutdown_waits_for_a_group_and_names_its_members,
    a_loss_and_a_grant_at_once_leave_nothing_behind,
    locks_of_an_unfinished_group_are_not_guards,
    a_permanent_error_is_returned_at_once,
    a_missed_group_is_counted_once,
    a_clean_release_disconnects_the_loss_channel,
    renewing_a_group_starts_its_fixed_leases_again,
    renewing_a_group_reports_a_lost_name_and_renews_the_others,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn renewing_a_group_starts_its_fixed_leases_again(backend: &Backend) {
    let mgr = manager(backend).with(LockOptions::new().fixed_lease(2 * TTL));
    let guard = mgr.lock_all(["a", "b", "c"]).unwrap();
    until(SOON, "some of it is over", || {
        guard.remaining() < TTL + TTL / 2
    });
    guard.renew().unwrap();
    assert!(guard.remaining() > TTL + TTL / 2, "{:?}", guard.remaining());
    guard.unlock().unwrap();
}

fn renewing_a_group_reports_a_lost_name_and_renews_the_others(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let ours = ours.with(LockOptions::new().fixed_lease(6 * TTL));
    let guard = ours.lock_all(["a", "b"]).unwrap();
    let left = || theirs.inspect("b").unwrap().unwrap().time_left;
    until(SOON, "some of it is over", || left() < 5 * TTL);
    let before = left();
    let fence = guard.fence("a").unwrap();
    assert!(theirs.force_release("a", fence).unwrap());
    let error = guard.renew().unwrap_err();
    assert!(
        matches!(&error, Error::Lost { loss, .. } if &*loss.lock == "a"),
        "{error:?}"
    );
    assert!(left() > before, "the other is renewed");
}

fn all_names_are_taken_or_none(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = theirs.lock("b").unwrap();
    assert!(ours.try_lock_all(["a", "b", "c"]).unwrap().is_none());
    assert!(
        ours.try_lock_all_for(["c", "b", "a"], CHECK_PERIOD)
            .unwrap()
            .is_none()
    );
    for name in ["a", "c"] {
        theirs
            .try_lock(name)
            .unwrap()
            .expect("it was released again")
            .unlock()
            .unwrap();
    }
    taken.unlock().unwrap();
    let guard = ours.lock_all(["c", "b", "a"]).unwrap();
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        assert_eq!(
            guard.fence(name),
            Some(ours.inspect(name).unwrap().expect("it is held").fence)
        );
        assert!(theirs.try_lock(name).unwrap().is_none());
    }
    assert_eq!(guard.fence("d"), None);
    assert!(guard.is_held() && guard.remaining() > TTL / 2);
    guard.check().unwrap();
    guard.unlock().unwrap();
    assert!(theirs.try_lock_all(["a", "b", "c"]).unwrap().is_some());
}

fn free_names_cost_one_request_each(backend: &Backend) {
    let mgr = manager(backend);
    // The first call loads the scripts; it would add requests to the counts below.
    mgr.lock_all(["a", "b", "c"]).unwrap().unlock().unwrap();
    let before = mgr.stats().requests;
    let guard = mgr.lock_all(["a", "b", "c"]).unwrap();
    assert_eq!(mgr.stats().requests - before, 3);
    guard.unlock().unwrap();
    assert_eq!(mgr.stats().requests - before, 6);
    assert_eq!(mgr.stats().held, 0);
}

fn opposite_orders_of_names_never_deadlock(backend: &Backend) {
    let managers = [managers::patient(backend), managers::patient(backend)];
    let orders = [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ];
    thread::scope(|scope| {
        for (i, order) in orders.iter().enumerate() {
            let manager = &managers[i % 2];
            scope.spawn(move || {
                for _ in 0..25 {
                    drop(
                        manager
                            .try_lock_all_for(order, Duration::from_secs(60))
                            .unwrap()
                            .expect("no deadlock"),
                    );
                }
            });
        }
    });
    for name in ["a", "b", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn a_repeated_name_is_taken_once(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock_all(["a", "b", "a", "a"]).unwrap();
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(mgr.stats().held, 2);
    guard.unlock().unwrap();
    assert!(mgr.try_lock("a").unwrap().is_some());
}

fn no_names_or_too_many_are_refused_before_any_write(backend: &Backend) {
    let mgr = manager(backend);
    let none: [&str; 0] = [];
    let many: Vec<String> = (0..257).map(|i| i.to_string()).collect();
    for refused in [
        mgr.lock_all(none),
        mgr.lock_all(&many),
        mgr.lock_all(["a", ""]),
    ] {
        assert!(
            matches!(
                refused,
                Err(Error::Misused {
                    misuse: Misuse::Name | Misuse::Setting { .. },
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(backend.keys("a"), [""; 0]);
    drop(mgr.lock_all(&many[1..]).unwrap());
}

fn one_deadline_covers_all_names_and_releases_all(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = [theirs.lock("b").unwrap(), theirs.lock("c").unwrap()];
    let wait = 2 * CHECK_PERIOD;
    let start = Instant::now();
    assert!(
        ours.try_lock_all_for(["a", "b", "c"], wait)
            .unwrap()
            .is_none()
    );
    let took = start.elapsed();
    assert!(
        took >= wait && took < wait + 2 * COMMAND_TIMEOUT + SLACK,
        "{took:?}"
    );
    assert_eq!((ours.stats().held, ours.stats().waiting), (0, 0));
    theirs
        .try_lock("a")
        .unwrap()
        .expect("it was released again")
        .unlock()
        .unwrap();
    drop(taken);
    for name in ["a", "b", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn p6_losing_an_early_lock_ends_the_wait_and_releases_all(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = theirs.lock("c").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b", "c"]));
        until(SOON, "it waits for the last name", || {
            theirs.inspect("c").unwrap().is_some_and(|c| c.waiters == 1)
        });
        let fence = theirs.inspect("a").unwrap().expect("it is held").fence;
        assert!(theirs.force_release("a", fence).unwrap());
        let end = waiting.join().unwrap();
        assert!(
            matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.lock == "a" && loss.reason == LossReason::Forced),
            "{end:?}"
        );
    });
    assert_eq!((ours.stats().held, ours.stats().waiting), (0, 0));
    taken.unlock().unwrap();
    for name in ["a", "b", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn p6_losing_one_lock_loses_the_group(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock_all(["a", "b", "c"]).unwrap();
    assert!(guard.lost().try_recv().is_err());
    assert!(mgr.force_release("b", guard.fence("b").unwrap()).unwrap());
    let loss = guard
        .lost()
        .recv_timeout(TTL + SLACK)
        .expect("the loss is reported");
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        ("b", guard.fence("b").unwrap(), LossReason::Forced)
    );
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert!(matches!(guard.check(), Err(Error::Lost { loss, .. }) if &*loss.lock == "b"));
    drop(guard);
    for name in ["a", "b", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn dropping_the_guard_hands_each_name_to_its_first_waiter(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let guard = ours.lock_all(["a", "b"]).unwrap();
    let mut queues = ["a", "b"].map(Waiters::of);
    queues[0].add(&theirs);
    queues[1].add(&ours);
    drop(guard);
    for queue in &queues {
        queue.expect_grant(0, SOON).unlock().unwrap();
    }
}

fn unlock_reports_a_lost_name_and_releases_the_others(backend: &Backend) {
    // The default ttl puts the next renewal far off, so only `unlock` can find the loss.
    let mgr = LockManager::connect(backend).unwrap();
    let guard = mgr.lock_all(["a", "b", "c"]).unwrap();
    assert!(mgr.force_release("b", guard.fence("b").unwrap()).unwrap());
    let end = guard.unlock();
    assert!(
        matches!(&end, Err(Error::Lost { loss, .. }) if &*loss.lock == "b" && loss.reason == LossReason::Forced),
        "{end:?}"
    );
    for name in ["a", "b", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn an_unused_grant_keeps_the_previous_holder_for_the_next(backend: &Backend) {
    let mgr = manager(backend);
    let forced = mgr.lock("a").unwrap();
    assert!(mgr.force_release("a", forced.fence()).unwrap());
    let taken = mgr.lock("b").unwrap();
    assert!(mgr.try_lock_all(["a", "b"]).unwrap().is_none());
    taken.unlock().unwrap();
    let guard = mgr.lock_all(["a", "b"]).unwrap();
    assert_eq!(guard.previous_holder("a"), Some(PreviousHolder::Forced));
    assert_eq!(guard.previous_holder("b"), Some(PreviousHolder::Released));
    drop(forced);
}

fn a_shutdown_waits_for_a_group_and_names_its_members(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr
        .with(LockOptions::new().label("both"))
        .lock_all(["a", "b"])
        .unwrap();
    let mut ended = mgr.shutdown(Duration::ZERO).unwrap();
    ended.sort_unstable();
    assert_eq!(
        ended.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(!guard.is_held());
    assert_eq!(
        guard
            .lost()
            .recv_timeout(SOON)
            .expect("the loss is reported")
            .reason,
        LossReason::Shutdown
    );
    assert!(matches!(mgr.lock_all(["a"]), Err(Error::Closed)));
}

fn a_loss_and_a_grant_at_once_leave_nothing_behind(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = theirs.lock("c").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "c"]));
        until(SOON, "it waits for the last name", || {
            theirs.inspect("c").unwrap().is_some_and(|c| c.waiters == 1)
        });
        let fence = theirs.inspect("a").unwrap().expect("it is held").fence;
        assert!(theirs.force_release("a", fence).unwrap());
        // Either of the two may come first, and either order must end well.
        taken.unlock().unwrap();
        match waiting.join().unwrap() {
            Ok(guard) => until(TTL + SLACK, "the loss is noticed later", || {
                !guard.is_held()
            }),
            Err(error) => assert!(matches!(error, Error::Lost { .. }), "{error}"),
        }
    });
    for name in ["a", "c"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn locks_of_an_unfinished_group_are_not_guards(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = theirs.lock("c").unwrap();
    let reported = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reported);
    let options = LockOptions::new().on_lost(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.with(options).lock_all(["a", "b", "c"]));
        until(SOON, "it waits for the last name", || {
            theirs.inspect("c").unwrap().is_some_and(|c| c.waiters == 1)
        });
        assert_eq!(
            ours.shutdown(Duration::ZERO).unwrap(),
            [""; 0].map(Arc::from)
        );
        assert!(waiting.join().unwrap().is_err());
    });
    assert_eq!(reported.load(Ordering::Relaxed), 0);
    assert_eq!((ours.stats().losses(), ours.stats().granted()), (0, 0));
    let next = theirs.lock("a").unwrap();
    assert_ne!(next.previous_holder(), PreviousHolder::Lapsed);
    drop((next, taken));
}

fn a_permanent_error_is_returned_at_once(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    backend.query::<redis::Value>(&["RPUSH", "fairlock:{z}", "not a record"]);
    let taken = theirs.lock("a").unwrap();
    for refused in [
        ours.try_lock_all(["a", "z"]),
        ours.try_lock_all_for(["a", "z"], SOON),
        ours.lock_all(["a", "z"]).map(Some),
    ] {
        assert!(
            matches!(&refused, Err(Error::Refused { code, .. }) if code == "WRONGTYPE"),
            "{refused:?}"
        );
    }
    taken.unlock().unwrap();
    backend.delete("z");
    Record::of(backend, "a").comes_to_rest();
}

fn a_missed_group_is_counted_once(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let taken = theirs.lock("b").unwrap();
    assert!(
        ours.try_lock_all_for(["a", "b"], CHECK_PERIOD)
            .unwrap()
            .is_none()
    );
    assert_eq!(ours.stats().acquisitions_timed_out, 1);
    assert!(ours.try_lock_all(["a", "b"]).unwrap().is_none());
    assert_eq!(ours.stats().acquisitions_timed_out, 2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).unwrap());
        until(SOON, "it waits", || {
            theirs.inspect("b").unwrap().is_some_and(|b| b.waiters == 1)
        });
        taken.unlock().unwrap();
        drop(waiting.join().unwrap());
    });
    assert_eq!(ours.stats().acquisitions_timed_out, 2);
}

fn a_clean_release_disconnects_the_loss_channel(backend: &Backend) {
    let mgr = LockManager::connect(backend).unwrap();
    for unlock in [true, false] {
        let guard = mgr.lock_all(["a", "b"]).unwrap();
        let lost = guard.lost().clone();
        if unlock {
            guard.unlock().unwrap();
        } else {
            drop(guard);
        }
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    }
}
