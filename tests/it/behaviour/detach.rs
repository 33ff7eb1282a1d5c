//! A lock goes to another manager: its guard detaches it, and the bearer attaches it.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{
    DetachedLock, Error, LockManager, LockOptions, LossReason, Misuse, PreviousHolder,
    inspect::{LockInfo, LockState},
};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON, Waiters};
use crate::managers;
use crate::sums::Sums;
use crate::support::{SLACK, throughout, until, until_some};

const TTL: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);
/// A detached lock that is to lapse is valid for this time.
const SHORT: Duration = Duration::from_millis(300);

on_both_stores! {
    detached_lock_goes_ahead_of_the_queue_with_a_larger_fence,
    detached_lock_outlives_the_manager_that_detached_it,
    detached_lock_is_attached_once,
    one_of_several_bearers_attaches_it,
    detached_lock_lapses_and_all_waiters_keep_their_places,
    detached_lock_that_lapsed_or_was_forced_is_not_attached,
    attached_lock_is_renewed_and_has_the_options_of_its_handle,
    attached_lock_is_detached_again,
    record_has_no_secret_and_no_manager,
    detached_lock_is_shown_until_it_lapses,
    hold_at_least_goes_along,
    unattached_lock_is_held_for_its_least_time,
    fences_that_guards_had_are_passed,
    guard_keeps_a_lock_that_cannot_be_detached,
    another_name_or_prefix_is_not_attached,
    fixed_lease_is_detached,
    warning_of_half_done_work_goes_along,
    name_of_another_kind_is_not_attached,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn detach(mgr: &LockManager, valid_for: Duration) -> DetachedLock {
    let guard = mgr.lock("n").unwrap();
    guard.detach(valid_for).unwrap()
}

fn look(mgr: &LockManager) -> LockInfo {
    mgr.inspect("n").unwrap().expect("somebody uses it")
}

#[track_caller]
fn assert_lost<T>(end: fairlock::Result<T>, why: LossReason) {
    match end.map(|_| ()) {
        Err(Error::Lost { loss, .. }) => assert_eq!((&*loss.lock, loss.reason), ("n", why)),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_refused<T>(end: fairlock::Result<T>, what: &str) {
    match end.map(|_| ()) {
        Err(Error::Misused {
            misuse: Misuse::Setting { name, .. },
            lock: Some(_),
            ..
        }) => assert_eq!(name, what),
        other => panic!("{other:?}"),
    }
}

fn detached_lock_goes_ahead_of_the_queue_with_a_larger_fence(backend: &Backend) {
    let (ours, theirs, workers) = (manager(backend), manager(backend), manager(backend));
    let guard = ours.lock("n").unwrap();
    let fence = guard.fence();
    let mut waiters = Waiters::of("n");
    waiters.add(&ours);
    waiters.add(&theirs);
    let losses = guard.lost().clone();
    let detached = guard.detach(LONG).unwrap();
    assert_eq!(detached.name(), "n");
    assert!(losses.recv().is_err(), "it is no loss");
    throughout(2 * managers::check_period(TTL), "nobody has it", || {
        waiters.none_ended() && workers.try_lock("n").unwrap().is_none()
    });
    let text = detached.secret_text();
    let attached = workers.attach(&text.parse().unwrap()).unwrap();
    assert!(attached.fence() > detached.fence() && detached.fence() > fence);
    assert_eq!(attached.previous_holder(), PreviousHolder::Unknown);
    assert!(attached.is_held() && waiters.none_ended());
    attached.unlock().unwrap();
    for number in 0..2 {
        let next = waiters.expect_grant(number, SOON);
        assert_eq!(next.previous_holder(), PreviousHolder::Released);
    }
    let stats = ours.stats();
    assert_eq!((stats.losses(), stats.held), (0, 0));
}

fn detached_lock_outlives_the_manager_that_detached_it(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let guard = ours.lock("n").unwrap();
    let detached = guard.detach(LONG).unwrap();
    assert!(ours.shutdown(Duration::ZERO).unwrap().is_empty());
    drop(ours);
    backend.pass(TTL + TTL / 2);
    assert!(theirs.try_lock("n").unwrap().is_none());
    theirs.attach(&detached).unwrap().unlock().unwrap();
}

fn detached_lock_is_attached_once(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let detached = detach(&ours, LONG);
    let guard = theirs.attach(&detached).unwrap();
    for bearer in [&ours, &theirs] {
        assert_lost(bearer.attach(&detached), LossReason::NotOwner);
    }
    assert!(guard.is_held());
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert_lost(theirs.attach(&detached), LossReason::NotOwner);
    let next = ours.try_lock("n").unwrap().expect("it is free");
    assert_lost(theirs.attach(&detached), LossReason::NotOwner);
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    next.unlock().unwrap();
    managers::assert_nothing_left(backend, "n");
}

fn one_of_several_bearers_attaches_it(backend: &Backend) {
    let bearers: Vec<_> = (0..4).map(|_| manager(backend)).collect();
    for _ in 0..20 {
        let detached = detach(&bearers[0], LONG);
        let start = Barrier::new(bearers.len());
        let ends: Vec<_> = thread::scope(|scope| {
            let attach = |mgr| {
                start.wait();
                LockManager::attach(mgr, &detached)
            };
            let attaching: Vec<_> = bearers
                .iter()
                .map(|mgr| scope.spawn(move || attach(mgr)))
                .collect();
            attaching
                .into_iter()
                .map(|one| one.join().unwrap())
                .collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "{won:?}");
        for end in lost {
            assert_lost(end, LossReason::NotOwner);
        }
        won.into_iter()
            .for_each(|guard| guard.unwrap().unlock().unwrap());
    }
}

fn detached_lock_lapses_and_all_waiters_keep_their_places(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let guard = ours.lock("n").unwrap();
    let mut waiters = Waiters::of("n");
    for mgr in [&ours, &theirs, &ours, &theirs] {
        waiters.add(mgr);
    }
    let start = Instant::now();
    let detached = guard.detach(SHORT).unwrap();
    let within = SHORT + managers::check_period(TTL) + managers::command_timeout(TTL) + SLACK;
    let first = waiters.expect_grant(0, within);
    assert!(start.elapsed() >= SHORT || backend.server().is_none());
    assert!(first.fence() > detached.fence());
    assert_eq!(first.previous_holder(), PreviousHolder::Lapsed);
    assert_lost(theirs.attach(&detached), LossReason::Expired);
    first.unlock().unwrap();
    for number in 1..4 {
        waiters.expect_grant(number, SOON).unlock().unwrap();
    }
}

fn detached_lock_that_lapsed_or_was_forced_is_not_attached(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let detached = detach(&ours, SHORT);
    backend.pass(SHORT + SLACK / 10);
    assert_lost(theirs.attach(&detached), LossReason::Expired);
    let next = theirs.try_lock("n").unwrap().expect("it lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert_lost(theirs.attach(&detached), LossReason::Expired);
    next.unlock().unwrap();
    assert_lost(theirs.attach(&detached), LossReason::Expired);
    let detached = detach(&ours, LONG);
    assert!(!theirs.force_release("n", detached.fence() - 1).unwrap());
    assert!(theirs.force_release("n", detached.fence()).unwrap());
    assert_lost(theirs.attach(&detached), LossReason::Forced);
    let detached = detach(&ours, LONG);
    backend.delete("n");
    assert_lost(theirs.attach(&detached), LossReason::NotOwner);
}

fn attached_lock_is_renewed_and_has_the_options_of_its_handle(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let label = |text: &str| LockOptions::new().label(text);
    let detached = detach(&ours.with(label("giver")), LONG);
    let guard = theirs.with(label("worker")).attach(&detached).unwrap();
    let seen = look(&ours);
    let holder = seen.holder.expect("it is held");
    assert_eq!((seen.state, &*holder.label), (LockState::Held, "worker"));
    assert_eq!((holder.ttl, holder.fixed_lease), (TTL, false));
    for _ in 0..6 {
        backend.pass(TTL / 4);
    }
    assert!(guard.is_held());
    let again = guard.detach(LONG).unwrap();
    let brief = LockOptions::new().max_hold(SHORT);
    let guard = theirs.with(brief).attach(&again).unwrap();
    backend.pass(SHORT);
    until(SOON, "max_hold ends it", || !guard.is_held());
    assert_lost(guard.check(), LossReason::MaxHold);
}

fn attached_lock_is_detached_again(backend: &Backend) {
    let managers = [manager(backend), manager(backend)];
    let mut guard = managers[0].lock("n").unwrap();
    for turn in 1..10 {
        let fence = guard.fence();
        let detached = guard.detach(LONG).unwrap();
        guard = managers[turn % 2].attach(&detached).unwrap();
        assert!(guard.fence() > fence);
    }
    guard.unlock().unwrap();
    managers::assert_nothing_left(backend, "n");
}

fn record_has_no_secret_and_no_manager(backend: &Backend) {
    let mgr = manager(backend);
    let detached = detach(&mgr, LONG);
    let text = detached.secret_text();
    let secret = text.rsplit(':').next().expect("it is the last part");
    let record = Record::of(backend, "n");
    let fields = record.fields();
    for (field, value) in &fields {
        assert!(
            !field.contains(secret) && !value.contains(secret),
            "{fields:?}"
        );
    }
    // No manager, ticket 0, and nobody renews it. Old versions read that as any fixed lease.
    let request = record.field("a").expect("it has an owner");
    let words: Vec<&str> = request.split(' ').collect();
    assert_eq!(
        (words[0], &words[2..]),
        ("0", &["-", "60000", "1", "0"][..])
    );
    let owner = record.owner().expect("it is taken");
    assert!(owner.len() == 32 && owner != secret, "{owner}");
    let attached = mgr.attach(&detached).unwrap();
    assert!(
        record
            .owner()
            .is_some_and(|now| now != owner && now != secret)
    );
    drop(attached);
}

fn detached_lock_is_shown_until_it_lapses(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let detached = detach(&ours.with(LockOptions::new().label("web")), 4 * SHORT);
    let seen = look(&theirs);
    assert_eq!(
        (seen.state, seen.fence),
        (LockState::Detached, detached.fence())
    );
    assert!(
        seen.time_left <= 4 * SHORT && seen.time_left > SHORT,
        "{seen}"
    );
    let holder = seen.holder.as_ref().expect("the guard that detached it");
    assert_eq!((&*holder.manager, &*holder.label), ("-", "web"));
    assert!(seen.to_string().contains("detached by process "), "{seen}");
    backend.pass(4 * SHORT);
    let state = || look(&theirs).state;
    until(SOON, "it lapses", || state() == LockState::Lapsed);
    // Then the least time, for which the lock is not valid any more.
    let slow = ours.with(LockOptions::new().hold_at_least(LONG));
    let detached = slow
        .try_lock("n")
        .unwrap()
        .expect("it lapsed")
        .detach(SHORT);
    assert_eq!(state(), LockState::Detached);
    backend.pass(SHORT);
    until(SOON, "it cools", || state() == LockState::Cooling);
    assert_lost(theirs.attach(&detached.unwrap()), LossReason::Expired);
}

/// The time that the lock must be held counts from the first grant, whoever has it.
fn hold_at_least_goes_along(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let least = 4 * SHORT;
    let slow = ours.with(LockOptions::new().hold_at_least(least));
    let taken = Instant::now();
    let guard = slow.lock("n").unwrap();
    let detached = guard.detach(LONG).unwrap();
    theirs.attach(&detached).unwrap().unlock().unwrap();
    assert_eq!(look(&theirs).state, LockState::Cooling);
    if backend.server().is_some() {
        let next = until_some(least + SOON, "it is over", || theirs.try_lock("n").unwrap());
        assert!(taken.elapsed() >= least, "{:?}", taken.elapsed());
        assert_eq!(next.previous_holder(), PreviousHolder::Released);
    } else {
        backend.pass(least / 2);
        assert!(theirs.try_lock("n").unwrap().is_none());
        backend.pass(least / 2 + SHORT);
        let next = theirs.try_lock("n").unwrap().expect("it is over");
        assert_eq!(next.previous_holder(), PreviousHolder::Released);
    }
    // A longer time of the handle that attaches it counts from then on.
    let detached = detach(&ours, LONG);
    drop(
        theirs
            .with(LockOptions::new().hold_at_least(LONG))
            .attach(&detached)
            .unwrap(),
    );
    let left = || {
        theirs
            .inspect("n")
            .unwrap()
            .map(|seen| (seen.state, seen.time_left))
    };
    until(SOON, "it cools", || {
        left().is_some_and(|(state, left)| state == LockState::Cooling && left > LONG / 2)
    });
}

fn unattached_lock_is_held_for_its_least_time(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let slow = ours.with(LockOptions::new().hold_at_least(4 * SHORT));
    let _detached = detach(&slow, SHORT);
    backend.pass(2 * SHORT);
    assert!(theirs.try_lock("n").unwrap().is_none());
    backend.pass(3 * SHORT);
    let next = until_some(SOON, "it is over", || theirs.try_lock("n").unwrap());
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

/// P2 (rising fences): the clock is behind, so the next fence is the next number.
fn fences_that_guards_had_are_passed(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    let record = Record::of(backend, "n");
    let request = record.field("a").expect("it has an owner");
    let ahead = guard.fence() + 1_000_000_000_000;
    // As a guard with local hand-overs that wants to be told of waiters.
    record.set(&[
        ("a", &format!("{request} 1000 1")),
        ("f", &ahead.to_string()),
    ]);
    let moved = |from: &str| -> u64 {
        let key = "fairlock:{n}";
        let sha = format!("{}{}", from, "0".repeat(32 - from.len()));
        let owner = record.owner().expect("it has an owner");
        let source = crate::backend::with_parts(include_str!("../../../src/script/mutex_pass.lua"));
        let command = [
            "EVAL",
            &source,
            "1",
            key,
            "manager",
            "1",
            "1",
            "fairlock:grants:",
            &sha,
            "9007199254740992",
            "detach",
            &owner,
            &ahead.to_string(),
            "1000 1 0 h\t1\tt#1\t",
            &(ahead + 1000).to_string(),
        ];
        backend.query::<redis::Value>(&command);
        record.number("f")
    };
    assert!(moved("a") > ahead + 1000);
    let request = record.field("a").expect("it has an owner");
    assert!(
        request.ends_with(" - 1000 1 0"),
        "nobody tells it: {request}"
    );
}

fn guard_keeps_a_lock_that_cannot_be_detached(backend: &Backend) {
    let mgr = manager(backend);
    let mut guard = mgr.lock("n").unwrap();
    for valid_for in [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_secs(24 * 3600) + SHORT,
        Duration::MAX,
    ] {
        let error = guard.detach(valid_for).unwrap_err();
        assert!(error.to_string().starts_with("valid_for: "), "{error}");
        guard = error.into_parts().0;
        assert!(guard.is_held());
    }
    guard.unlock().unwrap();
    // A turn of a line is refused for the same reasons.
    let handed = mgr.with(LockOptions::new().local_handovers(3));
    let refused = handed.lock("n").unwrap().detach(Duration::MAX);
    let (guard, error) = refused.unwrap_err().into_parts();
    assert!(error.to_string().starts_with("valid_for: "), "{error}");
    // `?` drops the guard.
    assert_refused(
        guard.detach(Duration::ZERO).map_err(Error::from),
        "valid_for",
    );
    assert!(mgr.try_lock("n").unwrap().is_some());
}

fn another_name_or_prefix_is_not_attached(backend: &Backend) {
    let mgr = manager(backend);
    let detached = detach(&mgr, LONG);
    assert_refused(mgr.mutex("other").attach(&detached), "detached lock");
    let other = crate::fixtures::with_ttl(backend, TTL).prefix("other");
    let other = crate::fixtures::build(other);
    assert_refused(other.attach(&detached), "detached lock");
    mgr.mutex("n").attach(&detached).unwrap().unlock().unwrap();
}

fn fixed_lease_is_detached(backend: &Backend) {
    let mgr = manager(backend);
    let fixed = mgr.with(LockOptions::new().fixed_lease(SHORT));
    let guard = fixed.try_lock("n").unwrap().expect("it is free");
    let detached = guard.detach(LONG).unwrap();
    backend.pass(2 * SHORT);
    let guard = fixed.attach(&detached).unwrap();
    backend.pass(2 * SHORT);
    assert!(!guard.is_held());
    assert_lost(guard.detach(LONG).map_err(Error::from), LossReason::Expired);
}

/// A warning about half done work goes along, until a guard releases the lock.
fn warning_of_half_done_work_goes_along(backend: &Backend) {
    let mgr = manager(backend);
    mgr.lock("n").unwrap().abandon().unwrap();
    let guard = mgr.lock("n").unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    let attached = mgr.attach(&guard.detach(LONG).unwrap()).unwrap();
    assert_eq!(attached.previous_holder(), PreviousHolder::Lapsed);
}

fn name_of_another_kind_is_not_attached(backend: &Backend) {
    let mgr = manager(backend);
    let detached = detach(&mgr, LONG);
    assert!(mgr.rw_lock("n").try_read().is_err(), "it is in use");
    assert!(!mgr.delete("n").unwrap(), "it is in use");
    assert!(mgr.force_release("n", detached.fence()).unwrap());
    let reader = mgr.rw_lock("n").read().unwrap();
    assert_lost(mgr.attach(&detached), LossReason::Forced);
    drop(reader);
}
