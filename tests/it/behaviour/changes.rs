//! A change of mind: another capacity, fewer permits, another kind of lock.

use fairlock::{
    Error, Lease, LockGuard, LockManager, LockOptions, LossReason, Misuse, PreviousHolder, Result,
    RwLock, SemaphoreGuard, Waiter,
    inspect::{Kind, Party},
};

use super::semaphore::{comes_to_rest, end_leases, served, wait};
use crate::backend::{Backend, InjectedFault, Keyspace, on_both_stores};
use crate::fixtures::{P, SOON, STEADY_TTL as TTL, build, steady};
use crate::support::until;

on_both_stores! {
    a_lower_capacity_counts_what_others_hold,
    a_higher_capacity_counts_at_once,
    a_waiter_with_a_lower_capacity_is_not_overtaken,
    a_waiter_is_served_by_its_own_capacity,
    a_guard_releases_some_permits_and_keeps_the_others,
    a_guard_keeps_at_least_one_permit,
    released_permits_do_not_cool,
    a_lost_guard_releases_no_permits,
    inspect_shows_readers_writers_and_permits,
    an_unused_name_becomes_any_kind_at_once,
    a_name_in_use_stays_its_kind,
    a_dead_holders_name_becomes_another_kind,
    dead_waiters_do_not_keep_a_name_its_kind,
    a_vacated_name_is_not_shown_and_every_key_has_a_ttl,
    a_forgotten_waiter_gets_a_name_that_was_another_kind,
    a_forgotten_waiter_fails_if_its_name_cannot_change,
}

on_both_stores! { redis_with_faults: an_unanswered_release_of_some_permits_takes_effect }

fn manager(backend: &Backend) -> LockManager {
    build(steady(backend))
}

#[track_caller]
fn capacity(mgr: &LockManager) -> u32 {
    match mgr.inspect("n").unwrap().unwrap().kind {
        Kind::Semaphore { permits, .. } => permits,
        kind => panic!("a {kind}"),
    }
}

fn a_lower_capacity_counts_what_others_hold(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let (old, new) = (ours.semaphore("n", 8), theirs.semaphore("n", 5));
    let held = old.acquire(4).unwrap();
    let more = [old.acquire(1).unwrap(), old.acquire(1).unwrap()];
    assert!(new.try_acquire(1).unwrap().is_none(), "six are taken");
    let seventh = old.try_acquire(1).unwrap().expect("of eight");
    assert_eq!(capacity(&ours), 8);
    let waits = wait(&ours, &new, 1);
    drop((more, seventh));
    let fifth = served(&waits);
    assert!(held.is_held() && capacity(&ours) == 5);
    held.renew().unwrap();
    assert!(new.try_acquire(1).unwrap().is_none(), "five are taken");
    let sixth = old.try_acquire(1).unwrap().expect("of eight");
    assert!(held.fence() < fifth.fence() && fifth.fence() < sixth.fence());
    for guard in [held, fifth, sixth] {
        guard.unlock().unwrap();
    }
    comes_to_rest(backend, &ours, "n");
}

fn a_higher_capacity_counts_at_once(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let (old, new) = (ours.semaphore("n", 2), theirs.semaphore("n", 3));
    let held = old.acquire(2).unwrap();
    let third = new.try_acquire(1).unwrap().expect("of three");
    assert!(old.try_acquire(1).unwrap().is_none() && new.try_acquire(1).unwrap().is_none());
    assert_eq!(capacity(&ours), 3);
    held.unlock().unwrap();
    let second = old.try_acquire(1).unwrap().expect("of two");
    assert_eq!(capacity(&ours), 2);
    drop((second, third));
    comes_to_rest(backend, &ours, "n");
}

fn a_waiter_with_a_lower_capacity_is_not_overtaken(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let (old, new) = (ours.semaphore("n", 8), theirs.semaphore("n", 5));
    let held = [0; 6].map(|_| old.acquire(1).unwrap());
    let first = wait(&ours, &new, 2);
    let second = wait(&ours, &old, 1);
    assert!(old.try_acquire(1).unwrap().is_none(), "others came first");
    let mut held = held.into_iter();
    held.next().unwrap().unlock().unwrap();
    held.next().unwrap().unlock().unwrap();
    assert!(old.try_acquire(1).unwrap().is_none());
    assert!(first.is_empty() && second.is_empty());
    held.next().unwrap().unlock().unwrap();
    let (first, second) = (served(&first), served(&second));
    assert!(first.fence() < second.fence(), "in their order");
    drop((held, first, second));
    comes_to_rest(backend, &ours, "n");
}

fn a_waiter_is_served_by_its_own_capacity(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let held = ours.semaphore("n", 3).acquire(3).unwrap();
    let head = theirs.semaphore("n", 3).enqueue(1).unwrap();
    let behind = wait(&ours, &ours.semaphore("n", 5), 2);
    let last = wait(&ours, &ours.semaphore("n", 3), 1);
    assert!(behind.is_empty(), "it is not at the head");
    drop(head);
    let behind = served(&behind);
    assert!(held.is_held() && last.is_empty());
    drop((held, behind));
    drop(served(&last));
    comes_to_rest(backend, &ours, "n");
}

fn a_guard_releases_some_permits_and_keeps_the_others(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let n = ours.semaphore("n", 5);
    let mut guard = n.acquire(5).unwrap();
    let heavy = wait(&ours, &theirs.semaphore("n", 5), 2);
    let light = wait(&ours, &n, 1);
    assert_eq!(guard.permits(), 5);
    let fence = guard.fence();
    guard.release_permits(1).unwrap();
    assert!(heavy.is_empty() && light.is_empty() && n.try_acquire(1).unwrap().is_none());
    guard.release_permits(2).unwrap();
    let (heavy, light) = (served(&heavy), served(&light));
    assert_eq!((guard.permits(), guard.fence()), (2, fence));
    assert!(format!("{guard:?}").contains("permits: 2"));
    guard.renew().unwrap();
    assert!(n.try_acquire(1).unwrap().is_none(), "2 + 2 + 1 are taken");
    guard.release_permits(1).unwrap();
    let fifth = n.try_acquire(1).unwrap().expect("one is left");
    let holders = ours.inspect("n").unwrap().unwrap().holders;
    let own = holders.iter().find(|party| party.fence == Some(fence));
    assert_eq!(own.map(|party| party.permits), Some(1));
    guard.unlock().unwrap();
    assert!(n.try_acquire(2).unwrap().is_none());
    drop((heavy, light, fifth));
    comes_to_rest(backend, &ours, "n");
}

fn a_guard_keeps_at_least_one_permit(backend: &Backend) {
    let mgr = manager(backend);
    let mut guard = mgr.semaphore("n", 3).acquire(3).unwrap();
    let asked = mgr.stats().requests;
    for permits in [0, 3, 4, u32::MAX] {
        let error = guard.release_permits(permits).unwrap_err();
        assert!(
            matches!(&error, Error::Misused { misuse: Misuse::Setting { name: "permits", .. }, message, .. }
                if message.contains("this guard holds 3")),
            "{error:?}"
        );
    }
    assert_eq!((guard.permits(), mgr.stats().requests), (3, asked));
    guard.release_permits(2).unwrap();
    assert!(guard.release_permits(1).is_err() && guard.is_held());
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn released_permits_do_not_cool(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 2);
    let least = mgr.with(LockOptions::new().hold_at_least(20 * TTL));
    let mut guard = least.semaphore("n", 2).acquire(2).unwrap();
    guard.release_permits(1).unwrap();
    let other = n.try_acquire(1).unwrap().expect("it is free at once");
    guard.unlock().unwrap();
    assert!(n.try_acquire(1).unwrap().is_none(), "the kept one cools");
    drop(other);
    assert!(n.try_acquire(2).unwrap().is_none());
    assert!(n.try_acquire(1).unwrap().is_some());
}

fn a_lost_guard_releases_no_permits(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let label = theirs.with(LockOptions::new().label("goes"));
    let mut goes = label.semaphore("n", 3).acquire(3).unwrap();
    let next = wait(&ours, &ours.semaphore("n", 3), 3);
    end_leases(backend, "n", "\tgoes");
    let next = served(&next);
    let error = goes.release_permits(1).unwrap_err();
    assert!(
        matches!(&error, Error::Lost { loss, .. } if loss.reason == LossReason::Expired),
        "{error:?}"
    );
    assert!(next.is_held() && goes.permits() == 3);
    assert!(ours.semaphore("n", 3).try_acquire(1).unwrap().is_none());
    next.unlock().unwrap();
    drop(goes);
    comes_to_rest(backend, &ours, "n");
}

fn an_unanswered_release_of_some_permits_takes_effect(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    for fault in [
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
        InjectedFault::Disconnect,
    ] {
        let mut guard = ours.semaphore("n", 4).acquire(4).unwrap();
        let next = wait(&ours, &theirs.semaphore("n", 4), 1);
        backend.inject(fault);
        guard.release_permits(1).unwrap();
        guard.release_permits(1).unwrap();
        let next = served(&next);
        let fourth = theirs.semaphore("n", 4);
        let mut last = None;
        until(SOON, "both are free", || {
            last = fourth.try_acquire(1).unwrap();
            last.is_some()
        });
        assert!(guard.is_held() && next.is_held(), "{fault:?}");
        assert!(fourth.try_acquire(1).unwrap().is_none(), "two are kept");
        guard.unlock().unwrap();
        drop((next, last));
        comes_to_rest(backend, &theirs, "n");
    }
}

fn inspect_shows_readers_writers_and_permits(backend: &Backend) {
    let mgr = manager(backend);
    let shown = |parties: &[Party]| -> Vec<(bool, u32)> {
        let mut shown: Vec<_> = parties.iter().map(|p| (p.shared, p.permits)).collect();
        shown.sort_unstable();
        shown
    };
    let look = || mgr.inspect("n").unwrap().unwrap();
    let n = mgr.rw_lock("n");
    let writer = n.write().unwrap();
    let queued: Result<Vec<Waiter<_>>> = (0..2).map(|_| n.enqueue_read()).collect();
    let last = n.enqueue_write().unwrap();
    let info = look();
    assert_eq!(shown(&info.holders), [(false, 1)]);
    let queue: Vec<bool> = info.queue.iter().map(|party| party.shared).collect();
    assert_eq!(queue, [true, true, false]);
    let reader = RwLock::downgrade(writer).unwrap();
    let info = look();
    assert_eq!(shown(&info.holders), [(true, 1); 3]);
    let line = info.to_string();
    assert!(line.contains(", reader, and 2 other holders, "), "{line}");
    drop((reader, queued, last));
    comes_to_rest(backend, &mgr, "n");

    let n = mgr.semaphore("n", 5);
    let mut guards = [n.acquire(4).unwrap(), n.acquire(1).unwrap()];
    let waiter = n.enqueue(3).unwrap();
    guards[0].release_permits(2).unwrap();
    let info = look();
    assert_eq!(shown(&info.holders), [(false, 1), (false, 2)]);
    let line = info.to_string();
    assert!(line.contains(", and 1 other holder, "), "{line}");
    assert_eq!(shown(&info.queue), [(false, 3)]);
    let waiter_line = info.queue[0].to_string();
    assert!(waiter_line.ends_with(", 3 permits"), "{waiter_line}");
    assert_eq!(info.queue[0].label, "");
    drop((guards, waiter));

    let _lock = mgr.lock("m").unwrap();
    let info = mgr.inspect("m").unwrap().unwrap();
    assert_eq!(shown(&info.holders), [(false, 1)]);
}

/// Takes a name as some kind of lock, by some verb, and releases it. Returns its fence.
type Use = fn(&LockManager) -> Result<u64>;

const AS_MUTEX: [(&str, Use); 6] = [
    ("lock", |mgr| release(mgr.lock("n")?)),
    ("try_lock", |mgr| release(taken(mgr.try_lock("n")?))),
    ("try_lock_for", |mgr| {
        release(taken(mgr.try_lock_for("n", TTL)?))
    }),
    ("enqueue", |mgr| release(mgr.enqueue("n")?.wait()?)),
    ("lock_all", |mgr| {
        let all = mgr.lock_all(["m", "n"])?;
        let fence = all.fence("n").expect("it has n");
        all.unlock().map(|()| fence)
    }),
    ("try_lock_all", |mgr| {
        let all = taken(mgr.try_lock_all(["l", "n"])?);
        let fence = all.fence("n").expect("it has n");
        all.unlock().map(|()| fence)
    }),
];

const AS_PERMITS: [(&str, Use); 6] = [
    ("acquire", |mgr| {
        release_permits(mgr.semaphore("n", 2).acquire(1)?)
    }),
    ("try_acquire", |mgr| {
        release_permits(taken(mgr.semaphore("n", 3).try_acquire(1)?))
    }),
    ("enqueue", |mgr| {
        release_permits(mgr.semaphore("n", 3).enqueue(2)?.wait()?)
    }),
    ("write", |mgr| {
        let writer = mgr.rw_lock("n").write()?;
        let fence = writer.fence();
        writer.unlock().map(|()| fence)
    }),
    ("try_write_for", |mgr| {
        let writer = taken(mgr.rw_lock("n").try_write_for(TTL)?);
        let fence = writer.fence();
        writer.unlock().map(|()| fence)
    }),
    ("try_acquire_for", |mgr| {
        release_permits(taken(mgr.semaphore("n", 3).try_acquire_for(1, TTL)?))
    }),
];

fn release(guard: LockGuard) -> Result<u64> {
    let fence = guard.fence();
    guard.unlock().map(|()| fence)
}

fn release_permits(guard: SemaphoreGuard) -> Result<u64> {
    let fence = guard.fence();
    guard.unlock().map(|()| fence)
}

fn taken<G>(guard: Option<G>) -> G {
    guard.expect("nobody uses it")
}

fn an_unused_name_becomes_any_kind_at_once(backend: &Backend) {
    let managers = [manager(backend), manager(backend)];
    let mut last = 0;
    // The first round is before the subscription, the second after it.
    for round in 0..2 {
        for (at, (mutex, permits)) in AS_MUTEX.iter().zip(AS_PERMITS).enumerate() {
            for (verb, take) in [*mutex, permits] {
                // Both sides of a change may be the same process, or two.
                let mgr = &managers[(round + at) % 2];
                let fence = take(mgr).unwrap_or_else(|e| panic!("{round} {verb}: {e}"));
                assert!(fence > last, "P2: {verb}: {fence} after {last}");
                last = fence;
            }
        }
    }
    comes_to_rest(backend, &managers[0], "n");
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, is: &str) {
    let error = result.unwrap_err();
    let Error::Misused {
        misuse: Misuse::Kind { is: found, .. },
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(found.to_string(), is, "{error}");
    assert!(error.to_string().ends_with("while it is in use"), "{error}");
}

fn a_name_in_use_stays_its_kind(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let least = LockOptions::new().hold_at_least(P);
    // Held, awaited, and cooling; as a mutex and as permits.
    let guard = ours.lock("n").unwrap();
    assert_refused(theirs.semaphore("n", 2).try_acquire(1), "mutex");
    let waiter = ours.enqueue("n").unwrap();
    assert_refused(theirs.rw_lock("n").try_read(), "mutex");
    drop(guard);
    until(SOON, "it is handed over", || waiter.position().is_none());
    assert_refused(theirs.rw_lock("n").write(), "mutex");
    drop(waiter);
    ours.with(least.clone())
        .lock("n")
        .unwrap()
        .unlock()
        .unwrap();
    assert_refused(theirs.semaphore("n", 2).try_acquire(1), "mutex");
    until(SOON, "it has cooled", || {
        theirs.semaphore("n", 2).try_acquire(1).is_ok()
    });

    let permit = ours.semaphore("n", 2).acquire(1).unwrap();
    assert_refused(theirs.try_lock("n"), "semaphore of 2 permits");
    let waiter = ours.semaphore("n", 2).enqueue(2).unwrap();
    drop(permit);
    until(SOON, "they are handed over", || waiter.position().is_none());
    assert_refused(theirs.lock("n"), "semaphore of 2 permits");
    assert_refused(theirs.try_lock_all(["m", "n"]), "semaphore of 2 permits");
    assert!(theirs.inspect("m").unwrap().is_none(), "all or none");
    drop(waiter);
    let cools = ours.with(least).rw_lock("n").read().unwrap();
    cools.unlock().unwrap();
    assert_refused(theirs.enqueue("n"), "reader/writer lock");
    until(SOON, "it has cooled", || theirs.try_lock("n").is_ok());
    comes_to_rest(backend, &ours, "n");
}

fn a_dead_holders_name_becomes_another_kind(backend: &Backend) {
    let mgr = manager(backend);
    let fixed = mgr.with(LockOptions::new().fixed_lease(TTL / 2));
    let lapses = fixed.try_lock("n").unwrap().unwrap();
    let mut next = None;
    until(SOON, "it lapses", || {
        next = mgr.semaphore("n", 2).try_acquire(1).unwrap_or_default();
        next.is_some()
    });
    let next = next.unwrap();
    follows_a_lapse(&next, &lapses);
    expired(lapses.unlock());
    assert!(next.is_held());
    next.unlock().unwrap();

    let lapses = fixed.semaphore("n", 2).try_acquire(1).unwrap().unwrap();
    let mut next = None;
    until(SOON, "it lapses", || {
        next = mgr.try_lock("n").unwrap_or_default();
        next.is_some()
    });
    let next = next.unwrap();
    follows_a_lapse(&next, &lapses);
    expired(lapses.unlock());
    next.renew().unwrap();
    next.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

#[track_caller]
fn follows_a_lapse(next: &Lease, lapsed: &Lease) {
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > lapsed.fence());
}

#[track_caller]
fn expired(end: Result<()>) {
    let error = end.unwrap_err();
    assert!(
        matches!(&error, Error::Lost { loss, .. } if loss.reason == LossReason::Expired),
        "{error:?}"
    );
}

fn dead_waiters_do_not_keep_a_name_its_kind(backend: &Backend) {
    let mgr = manager(backend);
    for as_mutex in [true, false] {
        if as_mutex {
            drop(mgr.lock("n").unwrap());
        } else {
            drop(mgr.semaphore("n", 2).acquire(1).unwrap());
        }
        plant_dead_waiters(backend, "n");
        let fence = if as_mutex {
            release_permits(taken(mgr.semaphore("n", 2).try_acquire(1).unwrap()))
        } else {
            release(taken(mgr.try_lock("n").unwrap()))
        };
        fence.unwrap();
        comes_to_rest(backend, &mgr, "n");
    }
}

/// Puts 100 entries into the queue whose waiters are gone. One call passes over 64 at most.
pub(super) fn plant_dead_waiters(backend: &Backend, name: &str) {
    let key = format!("fairlock:{{{name}}}");
    let script = "local field = redis.call('HEXISTS', KEYS[1], 's') == 1 and 'q' or 'n'
        local clock = redis.call('TIME')
        local now = clock[1] * 1000000 + clock[2]
        for i = 1, 100 do redis.call('RPUSH', KEYS[2], 'dead' .. i) end
        redis.call('PEXPIREAT', KEYS[2], 1000 * clock[1] + 3600000)
        redis.call('HSET', KEYS[1], field,
                   struct.pack('<I4I4ddddI4', 100, 0, now, 0, 100, 0, clock[1] + 3600))
        return 1";
    let planted: i64 = backend.query(&["EVAL", script, "2", &key, &format!("{key}:q")]);
    assert_eq!(planted, 1);
}

fn a_vacated_name_is_not_shown_and_every_key_has_a_ttl(backend: &Backend) {
    let mgr = manager(backend);
    let writer = mgr.rw_lock("n").write().unwrap();
    drop(writer);
    let held = mgr.semaphore("m", 1).acquire(1).unwrap();
    // The name is vacated, and then one of its group is taken.
    assert!(mgr.try_lock_all(["m", "n"]).is_err());
    assert!(mgr.inspect("n").unwrap().is_none());
    assert_eq!(
        mgr.list("*")
            .map(|info| info.unwrap().name.to_string())
            .collect::<Vec<_>>(),
        ["m"]
    );
    let backend: &dyn Keyspace = backend;
    assert_eq!(backend.keys_without_ttl(), [""; 0]);
    assert!(!mgr.force_release("n", 1).unwrap());
    drop(held);
    drop(mgr.lock_all(["m", "n"]).unwrap());
    assert_eq!(backend.keys_without_ttl(), [""; 0]);
}

/// Redis loses the waiters, and others use the name as another kind of lock before the waiters find
/// out.
fn a_forgotten_waiter_gets_a_name_that_was_another_kind(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let holder = theirs.lock("n").unwrap();
    let mut waiter = ours.enqueue("n").unwrap();
    backend.flush_all();
    let permit = theirs.semaphore("n", 2).acquire(1).unwrap();
    permit.unlock().unwrap();
    let guard = waiter.wait_for(SOON).unwrap().expect("its turn comes");
    assert!(guard.fence() > holder.fence());
    guard.unlock().unwrap();

    let mut holds = ours.semaphore("n", 2).acquire(2).unwrap();
    let mut queued = ours.semaphore("n", 2).enqueue(1).unwrap();
    backend.flush_all();
    theirs.lock("n").unwrap().unlock().unwrap();
    let guard = queued.wait_for(SOON).unwrap().expect("its turn comes");
    assert!(holds.release_permits(1).is_err() && guard.is_held());
    guard.unlock().unwrap();
    drop(holder);
    comes_to_rest(backend, &ours, "n");
}

/// The server refuses to clear the name, and always will.
fn a_forgotten_waiter_fails_if_its_name_cannot_change(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let _holder = theirs.lock("n").unwrap();
    let mut waiter = ours.enqueue("n").unwrap();
    backend.flush_all();
    drop(theirs.semaphore("n", 2).acquire(1).unwrap());
    // Another program's data takes the place of the holders.
    let _: i64 = backend.query(&["DEL", "fairlock:{n}:h"]);
    let _: i64 = backend.query(&["RPUSH", "fairlock:{n}:h", "x"]);
    let error = waiter.wait_for(SOON).expect_err("the name stays taken");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "WRONGTYPE"),
        "{error}"
    );
}
