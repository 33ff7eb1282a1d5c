//! A request, a reply or a message is lost, and no other caller notices.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, PreviousHolder, Result, Step};

use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{P, Record, SOON, STEADY_T as T, Waiters, build, warm_up, with_ttl};
use crate::support::{SLACK, until, until_some};

on_both_stores! {
    redis_with_faults:
    a_try_with_a_closed_connection_gets_the_same_grant,
    a_try_without_a_reply_is_unavailable_and_leaves_nothing,
    a_try_whose_request_is_lost_takes_nothing,
    a_lock_without_a_reply_retries_and_is_granted_once,
    a_renewal_with_a_closed_connection_is_sent_again,
    an_unlock_with_a_closed_connection_hands_over_once,
    an_abandon_with_a_closed_connection_succeeds,
    a_forced_release_with_a_closed_connection_succeeds,
    an_unanswered_unlock_is_unavailable_and_frees_the_lock,
    a_background_release_ends_with_its_first_answer,
    an_enqueue_takes_one_place_whatever_happens_to_its_request,
    a_dropped_waiter_leaves_whatever_happens_to_its_request,
    p4_the_next_check_makes_up_for_a_lost_message,
}

/// A manager that sends nothing by itself for longer than a test lasts. So an injected fault hits
/// the test's own call.
pub(super) fn quiet(backend: &Backend) -> LockManager {
    let (ttl, period) = (Duration::from_secs(60), Duration::from_secs(30));
    let builder = with_ttl(backend, ttl)
        .command_timeout(T)
        .check_period(period)
        .horizon(period + 3 * T);
    let manager = build(builder);
    warm_up(&manager);
    manager
}

/// The requests so far without HELLO and TIME, with which each connection begins.
fn calls_sent(manager: &LockManager) -> u64 {
    let stats = manager.stats();
    stats.requests - 2 * stats.connects
}

/// Makes a call that meets a fault. The number of its requests shows whether the fault took effect.
pub(super) fn call_with_fault<R>(
    backend: &Backend,
    fault: InjectedFault,
    manager: &LockManager,
    call: impl FnOnce() -> R,
) -> (R, u64) {
    backend.wait_until_idle();
    let before = calls_sent(manager);
    backend.inject(fault);
    let end = call();
    (end, calls_sent(manager) - before)
}

/// Makes a call whose requests or replies are lost, each time that they are sent.
pub(super) fn call_unanswered<R>(
    backend: &Backend,
    fault: InjectedFault,
    call: impl FnOnce() -> R,
) -> R {
    backend.wait_until_idle();
    backend.inject_lasting(fault);
    let end = call();
    backend.disarm();
    end
}

/// How many requests of an acquire on a closed connection are about rights. Redis may have been
/// replaced meanwhile, so the manager asks again what its user may run.
pub(super) fn asks_for_rights(backend: &Backend) -> u64 {
    u64::from(backend.server().is_some())
}

#[track_caller]
fn assert_unanswered<X: std::fmt::Debug>(end: Result<X>) {
    assert!(
        matches!(
            end,
            Err(Error::Unavailable {
                step: Step::Reply,
                ..
            })
        ),
        "{end:?}"
    );
}

fn a_try_with_a_closed_connection_gets_the_same_grant(backend: &Backend) {
    let ours = quiet(backend);
    let (guard, requests) = call_with_fault(backend, InjectedFault::Disconnect, &ours, || {
        ours.try_lock("a").unwrap()
    });
    let guard = guard.expect("it is free");
    assert_eq!(requests, 2 + asks_for_rights(backend));
    let record = Record::of(backend, "a");
    assert_eq!(
        (record.number("f"), record.number("g")),
        (guard.fence(), guard.fence()),
        "it was granted once"
    );
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn a_try_without_a_reply_is_unavailable_and_leaves_nothing(backend: &Backend) {
    let (ours, other) = (quiet(backend), quiet(backend));
    let start = Instant::now();
    let end = call_unanswered(backend, InjectedFault::ReplyLost, || ours.try_lock("a"));
    assert!(start.elapsed() <= 2 * T + SLACK, "{:?}", start.elapsed());
    assert_unanswered(end);
    let record = Record::of(backend, "a");
    assert!(record.field("f").is_some(), "it had been granted");
    record.comes_to_rest();
    let next = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(
        next.previous_holder(),
        PreviousHolder::Unknown,
        "it was never used"
    );
}

fn a_try_whose_request_is_lost_takes_nothing(backend: &Backend) {
    let ours = quiet(backend);
    let end = call_unanswered(backend, InjectedFault::RequestLost, || ours.try_lock("a"));
    assert_unanswered(end);
    assert_eq!(Record::of(backend, "a").field("f"), None);
    ours.try_lock("a")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}

fn a_lock_without_a_reply_retries_and_is_granted_once(backend: &Backend) {
    for fault in [InjectedFault::RequestLost, InjectedFault::ReplyLost] {
        // A new manager for each fault: otherwise the fault could hit background work of the last
        // one.
        let ours = quiet(backend);
        let (guard, requests) = call_with_fault(backend, fault, &ours, || ours.lock("a").unwrap());
        assert!(requests >= 2, "{fault:?} did not happen");
        let record = Record::of(backend, "a");
        assert_eq!(
            (record.number("f"), record.number("g")),
            (guard.fence(), guard.fence()),
            "{fault:?}"
        );
        guard.unlock().unwrap();
        record.comes_to_rest();
    }
}

fn a_renewal_with_a_closed_connection_is_sent_again(backend: &Backend) {
    let ours = quiet(backend);
    let guard = ours.lock("a").unwrap();
    let (end, requests) =
        call_with_fault(backend, InjectedFault::Disconnect, &ours, || guard.renew());
    end.unwrap();
    assert_eq!(requests, 2);
    guard.check().unwrap();
    guard.unlock().unwrap();
}

fn an_unlock_with_a_closed_connection_hands_over_once(backend: &Backend) {
    let (ours, other) = (quiet(backend), quiet(backend));
    let guard = ours.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    queue.add(&other);
    let (end, requests) =
        call_with_fault(backend, InjectedFault::Disconnect, &ours, || guard.unlock());
    end.unwrap();
    assert!(requests >= 2, "it was sent again");
    let first = queue.expect_grant(0, SOON);
    assert!(
        queue.none_ended(),
        "a release that is sent twice releases once"
    );
    assert_eq!(first.previous_holder(), PreviousHolder::Released);
    first.unlock().unwrap();
    queue.expect_grant(1, SOON).unlock().unwrap();
    Record::of(backend, "a").comes_to_rest();
}

/// The second answer to a mutex is that the lease lapsed, since the first one recorded it so.
fn an_abandon_with_a_closed_connection_succeeds(backend: &Backend) {
    let ours = quiet(backend);
    let fault = InjectedFault::Disconnect;
    let guard = ours.lock("a").unwrap();
    let (end, requests) = call_with_fault(backend, fault, &ours, || guard.abandon());
    end.unwrap();
    assert!(requests > 1, "it was sent {requests} times");
    let next = ours.lock("a").unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let semaphore = ours.semaphore("s", 1);
    let permit = semaphore.acquire(1).unwrap();
    let (end, requests) = call_with_fault(backend, fault, &ours, || permit.abandon());
    end.unwrap();
    assert!(requests > 1, "it was sent {requests} times");
    let next = semaphore.acquire(1).unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

/// It ends a lease, or the cooling after a release, of a mutex or of permits.
fn a_forced_release_with_a_closed_connection_succeeds(backend: &Backend) {
    let ours = quiet(backend);
    let once = ours.with(LockOptions::new().hold_at_least(Duration::from_secs(50)));
    let held = ours.lock("held").unwrap();
    let permit = ours.semaphore("permit", 1).acquire(1).unwrap();
    let (cooling, permit_cooling) = (
        once.lock("cooling").unwrap(),
        once.semaphore("permit-cooling", 1).acquire(1).unwrap(),
    );
    let lost = once.lock("lost").unwrap();
    let fences = [
        ("held", held.fence(), PreviousHolder::Forced),
        ("permit", permit.fence(), PreviousHolder::Forced),
        ("cooling", cooling.fence(), PreviousHolder::Released),
        (
            "permit-cooling",
            permit_cooling.fence(),
            PreviousHolder::Released,
        ),
        ("lost", lost.fence(), PreviousHolder::Lapsed),
    ];
    cooling.unlock().unwrap();
    permit_cooling.unlock().unwrap();
    lost.abandon().unwrap();
    for (name, fence, previous) in fences {
        // So that no request is sent twice for another reason.
        let _ = ours.force_release(name, 1).unwrap();
        let (end, requests) = call_with_fault(backend, InjectedFault::Disconnect, &ours, || {
            ours.force_release(name, fence)
        });
        assert!(end.unwrap(), "{name} was taken, and is free now");
        assert!(requests > 1, "{name}: {requests}");
        assert!(!ours.force_release(name, fence).unwrap(), "{name} is free");
        let next = if name.starts_with("permit") {
            ours.semaphore(name, 1)
                .acquire(1)
                .unwrap()
                .previous_holder()
        } else {
            ours.lock(name).unwrap().previous_holder()
        };
        assert_eq!(next, previous, "{name}");
    }
}

fn an_unanswered_unlock_is_unavailable_and_frees_the_lock(backend: &Backend) {
    for fault in [InjectedFault::ReplyLost, InjectedFault::RequestLost] {
        // A new manager for each fault: otherwise the fault could hit background work of the last
        // one.
        let (ours, other) = (quiet(backend), quiet(backend));
        let guard = ours.lock("a").unwrap();
        let start = Instant::now();
        let before = ours.stats().background_releases;
        let end = call_unanswered(backend, fault, || guard.unlock());
        assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
        assert_unanswered(end);
        // With a lost reply the lock is free at once. With a lost request the background release
        // frees it.
        let next = other
            .try_lock_for("a", SOON)
            .unwrap()
            .expect("it is released");
        assert_eq!(
            next.previous_holder(),
            PreviousHolder::Released,
            "{fault:?}"
        );
        until(SOON, "the background release is done", || {
            ours.stats().background_releases > before
        });
        next.renew()
            .expect("a late copy of the release does not hit the successor");
        next.unlock().unwrap();
    }
}

fn a_background_release_ends_with_its_first_answer(backend: &Backend) {
    let ours = quiet(backend);
    // R7 (late copies): an acquire on a connection that is dead by then is sent twice, and so is
    // its release. So no acquire comes after a fault.
    let guards = ["a", "b", "c"].map(|name| ours.lock(name).unwrap());
    for guard in guards {
        let name = guard.name().to_owned();
        let before = ours.stats().background_releases;
        let lost = InjectedFault::RequestLost;
        assert_unanswered(call_unanswered(backend, lost, || guard.unlock()));
        until(SOON, "it is released", || {
            Record::of(backend, &name).owner().is_none()
        });
        until(SOON, "that is known", || {
            ours.stats().background_releases > before
        });
    }
    let before = calls_sent(&ours);
    // A release that is not done is sent again after T.
    backend.pass(T + SLACK);
    assert_eq!(calls_sent(&ours), before, "a release was sent once more");
}

fn an_enqueue_takes_one_place_whatever_happens_to_its_request(backend: &Backend) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        // A new manager for each fault: otherwise the fault could hit background work of the last
        // one.
        let (ours, other) = (quiet(backend), quiet(backend));
        let holder = other.lock("a").unwrap();
        let (waiter, requests) =
            call_with_fault(backend, fault, &ours, || ours.enqueue("a").unwrap());
        assert!(requests >= 2, "{fault:?} did not happen");
        assert_eq!(waiter.position(), Some(1));
        let record = Record::of(backend, "a");
        assert_eq!(
            (
                record.tokens().len(),
                record.number("n"),
                record.number("r")
            ),
            (1, 1, 1),
            "{fault:?}"
        );
        holder.unlock().unwrap();
        waiter.wait().unwrap().unlock().unwrap();
        record.comes_to_rest();
    }
}

fn a_dropped_waiter_leaves_whatever_happens_to_its_request(backend: &Backend) {
    let (ours, other) = (quiet(backend), quiet(backend));
    let holder = other.lock("a").unwrap();
    let record = Record::of(backend, "a");
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        let waiter = ours.enqueue("a").unwrap();
        let start = Instant::now();
        let before = calls_sent(&ours);
        call_with_fault(backend, fault, &ours, || drop(waiter));
        assert!(
            start.elapsed() <= T + SLACK,
            "{fault:?}: {:?}",
            start.elapsed()
        );
        until(SOON, "it is sent again", || calls_sent(&ours) >= before + 2);
        until(SOON, "the queue entry is removed", || {
            record.number("r") == 0
        });
    }
    holder.unlock().unwrap();
    record.comes_to_rest();
}

fn p4_the_next_check_makes_up_for_a_lost_message(backend: &Backend) {
    let (ours, other) = (quiet(backend), quiet(backend));
    let checking = build(
        with_ttl(backend, Duration::from_secs(20))
            .check_period(P)
            .command_timeout(T)
            .horizon(P + 4 * T),
    );
    warm_up(&checking);
    // A new subscription triggers one check of all waiters. On a busy machine that check can be
    // late enough to fall into this test.
    let unchecked = until_some(
        SOON,
        "nothing arrives without its message, since the next check is far off",
        || {
            let holder = other.lock("a").unwrap();
            let mut unchecked = ours.enqueue("a").unwrap();
            backend.inject(InjectedFault::MessageLost);
            holder.unlock().unwrap();
            match unchecked.wait_for(SLACK).unwrap() {
                None => Some(unchecked),
                Some(guard) => guard.unlock().map(|()| None).unwrap(),
            }
        },
    );
    let another = other.lock("b").unwrap();
    let mut checked = checking.enqueue("b").unwrap();
    backend.inject(InjectedFault::MessageLost);
    another.unlock().unwrap();
    let guard = checked
        .wait_for(P + T + SLACK)
        .unwrap()
        .expect("the check finds the grant whose message was lost");
    guard.unlock().unwrap();
    drop(unchecked);
    Record::of(backend, "a").comes_to_rest();
}
