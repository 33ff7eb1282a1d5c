//! `LockManager::delete`: a name that nobody uses goes, and no other.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, Misuse, PreviousHolder, inspect::LockState};

use super::changes::plant_dead_waiters;
use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{Record, SOON, T, builder, manager, micros, server_time};
use crate::permits::{AnyGuard, Permits, Want};

on_both_stores! {
    a_released_name_is_deleted_whatever_kind_it_was,
    a_deleted_name_gets_a_larger_fence,
    an_absent_name_counts_as_deleted,
    a_held_name_is_not_deleted,
    an_awaited_name_goes_to_its_waiter,
    a_cooling_name_is_not_deleted,
    a_fence_ahead_of_the_clock_keeps_rising,
    a_lapsed_name_is_deleted_and_its_holder_has_lost_it,
    dead_waiters_do_not_keep_a_name,
    a_name_that_changed_its_kind_is_deleted_with_all_its_keys,
    p10_a_delete_spares_keys_that_are_not_of_a_lock,
}

on_both_stores! { redis_with_faults: a_delete_without_a_reply_is_sent_again }

const KINDS: [Want; 4] = [Want::Mutex, Want::Permits(2, 3), Want::Read, Want::Write];

/// Two managers of which none counts the other as dead while a test lasts.
fn patient(backend: &Backend) -> LockManager {
    let options = LockOptions::new().ttl(Duration::from_secs(60));
    let times = builder(backend)
        .options(options)
        .command_timeout(Duration::from_secs(4));
    let built = times
        .check_period(Duration::from_secs(20))
        .horizon(Duration::from_secs(32));
    built.build().unwrap()
}

fn a_released_name_is_deleted_whatever_kind_it_was(backend: &Backend) {
    let (ours, other) = (patient(backend), patient(backend));
    for want in KINDS {
        want.take(&ours, "n").unwrap().unlock().unwrap();
        assert_ne!(backend.keys("n"), [""; 0], "{want:?}");
        assert!(other.delete("n").unwrap(), "{want:?}");
        assert_eq!(backend.keys("n"), [""; 0], "{want:?}");
    }
}

fn a_deleted_name_gets_a_larger_fence(backend: &Backend) {
    let mgr = patient(backend);
    let mut fence = 0;
    for want in KINDS.into_iter().chain(KINDS) {
        let guard = want.take(&mgr, "n").unwrap();
        assert!(guard.fence() >= fence, "{want:?}");
        // Only readers share a fence.
        assert!(want == Want::Read || guard.fence() > fence, "{want:?}");
        assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
        fence = guard.fence();
        guard.unlock().unwrap();
        assert!(mgr.delete("n").unwrap(), "{want:?}");
    }
}

fn an_absent_name_counts_as_deleted(backend: &Backend) {
    let mgr = patient(backend);
    assert!(mgr.delete("n").unwrap());
    assert_eq!(backend.keys("n"), [""; 0]);
    assert!(matches!(
        mgr.delete(""),
        Err(Error::Misused {
            misuse: Misuse::Name,
            ..
        })
    ));
}

fn a_held_name_is_not_deleted(backend: &Backend) {
    let (ours, other) = (patient(backend), patient(backend));
    for want in KINDS {
        let guard = want.take(&ours, "n").unwrap();
        assert!(!other.delete("n").unwrap(), "{want:?}");
        assert!(!ours.delete("n").unwrap(), "{want:?}");
        guard.renew().unwrap();
        let fence = guard.fence();
        guard.unlock().unwrap();
        let next = want.take(&ours, "n").unwrap();
        assert!(next.fence() >= fence, "{want:?}");
        let previous = next.previous_holder();
        // The end of a reader says nothing.
        assert!(
            want == Want::Read || previous == PreviousHolder::Released,
            "{want:?}"
        );
        next.unlock().unwrap();
        assert!(other.delete("n").unwrap(), "{want:?}");
    }
}

/// The lease is over, and nobody has noticed it yet.
fn an_awaited_name_goes_to_its_waiter(backend: &Backend) {
    let (ours, theirs, other) = (patient(backend), patient(backend), patient(backend));
    let guard = ours.lock("a").unwrap();
    let mut waiter = theirs.enqueue("a").unwrap();
    assert!(!other.delete("a").unwrap(), "it is held");
    let past = server_time(backend) - micros(T);
    Record::of(backend, "a").set(&[("e", &past.to_string())]);
    assert!(!other.delete("a").unwrap(), "it is awaited");
    let next = waiter.wait_for(SOON).unwrap().expect("it is its turn");
    assert!(next.fence() > guard.fence());
    assert!(!other.delete("a").unwrap(), "it is held again");
    next.unlock().unwrap();

    let holder = ours.semaphore("b", 2).acquire(2).unwrap();
    let mut waiter = theirs.semaphore("b", 2).enqueue(1).unwrap();
    Permits::of(backend, "b").was_away(T);
    assert!(!other.delete("b").unwrap(), "it is awaited");
    let next = waiter.wait_for(SOON).unwrap().expect("it is its turn");
    assert!(next.fence() > holder.fence());
    next.unlock().unwrap();
    assert!(other.delete("b").unwrap());
}

fn a_cooling_name_is_not_deleted(backend: &Backend) {
    let mgr = patient(backend);
    let once = mgr.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    for (name, want) in [("a", Want::Mutex), ("b", Want::Permits(1, 1))] {
        want.take(&once, name).unwrap().unlock().unwrap();
        assert!(!mgr.delete(name).unwrap(), "{want:?}");
        let info = mgr.inspect(name).unwrap().expect("it cools");
        assert_eq!(info.state, LockState::Cooling);
        assert!(mgr.force_release(name, info.fence).unwrap());
        assert!(mgr.delete(name).unwrap(), "{want:?}");
    }
    assert_eq!(backend.keys("a"), [""; 0]);
}

/// P2: another master gave it, or the clock has gone back.
fn a_fence_ahead_of_the_clock_keeps_rising(backend: &Backend) {
    let mgr = patient(backend);
    let ahead = server_time(backend) + micros(Duration::from_secs(1800));
    mgr.lock("a").unwrap().unlock().unwrap();
    Record::of(backend, "a").set(&[("f", &ahead.to_string())]);
    for _ in 0..2 {
        assert!(!mgr.delete("a").unwrap());
    }
    let guard = mgr.lock("a").unwrap();
    assert_eq!(guard.fence(), ahead + 1);
    guard.unlock().unwrap();
    assert!(!mgr.delete("a").unwrap());

    // A vacated name hands its fence on to permits.
    let permit = mgr.semaphore("a", 2).acquire(1).unwrap();
    assert_eq!(permit.fence(), ahead + 2);
    permit.unlock().unwrap();
    assert!(!mgr.delete("a").unwrap());
    let writer = mgr.rw_lock("a").write().unwrap();
    assert_eq!(writer.fence(), ahead + 3);
}

fn a_lapsed_name_is_deleted_and_its_holder_has_lost_it(backend: &Backend) {
    let (ours, other) = (patient(backend), patient(backend));
    for want in KINDS {
        let guard = want.take(&ours, "n").unwrap();
        match want {
            Want::Mutex => {
                let past = server_time(backend) - micros(T);
                Record::of(backend, "n").set(&[("e", &past.to_string())]);
            }
            _ => Permits::of(backend, "n").was_away(T),
        }
        assert!(other.delete("n").unwrap(), "{want:?}");
        assert_eq!(backend.keys("n"), [""; 0], "{want:?}");
        let lost: Result<(), Error> = guard.unlock();
        assert!(
            matches!(lost, Err(Error::Lost { .. })),
            "{want:?}: {lost:?}"
        );
        assert_eq!(backend.keys("n"), [""; 0], "{want:?}");
    }
}

fn dead_waiters_do_not_keep_a_name(backend: &Backend) {
    let mgr = patient(backend);
    for want in KINDS {
        want.take(&mgr, "n").unwrap().unlock().unwrap();
        plant_dead_waiters(backend, "n");
        assert!(mgr.delete("n").unwrap(), "{want:?}");
        assert_eq!(backend.keys("n"), [""; 0], "{want:?}");
    }
}

/// Holders that lapsed leave entries behind when the name becomes a mutex.
fn a_name_that_changed_its_kind_is_deleted_with_all_its_keys(backend: &Backend) {
    let (ours, other) = (patient(backend), patient(backend));
    let permit = Want::Permits(1, 1).take(&ours, "n").unwrap();
    Permits::of(backend, "n").was_away(T);
    other.lock("n").unwrap().unlock().unwrap();
    assert_eq!(backend.keys("n"), ["fairlock:{n}", "fairlock:{n}:h"]);
    assert!(other.delete("n").unwrap());
    assert_eq!(backend.keys("n"), [""; 0]);
    drop::<AnyGuard>(permit);
}

/// Another program uses the key of the queue.
fn p10_a_delete_spares_keys_that_are_not_of_a_lock(backend: &Backend) {
    let mgr = patient(backend);
    let Permits { key, queue, .. } = Permits::of(backend, "n");
    for want in [None, Some(Want::Mutex), Some(Want::Permits(2, 3))] {
        if let Some(want) = want {
            want.take(&mgr, "n").unwrap().unlock().unwrap();
        }
        let _: i64 = backend.query(&["HSET", &queue, "theirs", "1"]);
        let contents = || {
            let record: BTreeMap<String, Vec<u8>> = backend.query(&["HGETALL", &key]);
            (record, backend.keys("n"))
        };
        let before = contents();
        let refused = mgr.delete("n");
        assert!(
            matches!(&refused, Err(Error::Refused { code, .. }) if code == "WRONGTYPE"),
            "{want:?}: {refused:?}"
        );
        assert_eq!(contents(), before, "{want:?}");
        assert_eq!(backend.query::<String>(&["HGET", &queue, "theirs"]), "1");
        let _: i64 = backend.query(&["DEL", &queue]);
        assert!(mgr.delete("n").unwrap(), "{want:?}");
    }
}

/// The first copy has deleted the name already.
fn a_delete_without_a_reply_is_sent_again(backend: &Backend) {
    let mgr = manager(backend);
    for (name, want) in [("a", Want::Mutex), ("b", Want::Permits(1, 1))] {
        want.take(&mgr, name).unwrap().unlock().unwrap();
        backend.inject(InjectedFault::Disconnect);
        assert!(mgr.delete(name).unwrap(), "{want:?}");
        assert_eq!(backend.keys(name), [""; 0], "{want:?}");
    }
}
