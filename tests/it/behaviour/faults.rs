//! One request, one reply or one message is lost, and nobody else notices.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, PreviousHolder, Result, Step};

use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{P, Record, SOON, STEADY_T as T, Waiters, build, warm_up, with_ttl};
use crate::support::{SLACK, until, until_some};

on_both_stores! {
    redis_with_faults:
    a_try_whose_connection_ends_is_answered_the_same_grant,
    a_try_that_hears_nothing_is_unavailable_and_leaves_nothing_behind,
    a_try_whose_request_is_lost_takes_nothing,
    a_lock_that_hears_nothing_asks_again_and_is_granted_once,
    a_renewal_whose_connection_ends_is_asked_for_again,
    an_unlock_whose_connection_ends_is_ok_and_hands_over_once,
    an_unlock_that_hears_nothing_is_unavailable_and_the_lock_is_free,
    a_release_in_the_background_is_over_with_its_first_answer,
    a_place_is_taken_once_whatever_becomes_of_its_request,
    a_place_is_given_up_whatever_becomes_of_its_request,
    p4_a_message_that_is_lost_is_made_up_for_by_the_next_check,
}

/// Sends nothing by itself for longer than a test lasts, so that what is injected strikes the test's own call.
pub(super) fn calm(backend: &Backend) -> LockManager {
    let (ttl, period) = (Duration::from_secs(60), Duration::from_secs(30));
    let builder = with_ttl(backend, ttl)
        .command_timeout(T)
        .check_period(period)
        .horizon(period + 3 * T);
    let manager = build(builder);
    warm_up(&manager);
    manager
}

/// A call that meets a mishap; how many requests it took tells whether it did.
pub(super) fn meet<R>(
    backend: &Backend,
    fault: InjectedFault,
    manager: &LockManager,
    call: impl FnOnce() -> R,
) -> (R, u64) {
    backend.settle();
    let before = manager.stats().requests;
    backend.inject(fault);
    let end = call();
    (end, manager.stats().requests - before)
}

#[track_caller]
fn assert_unheard<X: std::fmt::Debug>(end: Result<X>) {
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

fn a_try_whose_connection_ends_is_answered_the_same_grant(backend: &Backend) {
    let ours = calm(backend);
    let (guard, requests) = meet(backend, InjectedFault::Disconnect, &ours, || {
        ours.try_lock("a").unwrap()
    });
    let guard = guard.expect("it is free");
    assert_eq!(requests, 2);
    let record = Record::of(backend, "a");
    assert_eq!(
        (record.number("f"), record.number("g")),
        (guard.fence(), guard.fence()),
        "it was granted once"
    );
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn a_try_that_hears_nothing_is_unavailable_and_leaves_nothing_behind(backend: &Backend) {
    let (ours, other) = (calm(backend), calm(backend));
    let start = Instant::now();
    let (end, _) = meet(backend, InjectedFault::ReplyLost, &ours, || {
        ours.try_lock("a")
    });
    assert!(start.elapsed() <= 2 * T + SLACK, "{:?}", start.elapsed());
    assert_unheard(end);
    let record = Record::of(backend, "a");
    assert!(record.field("f").is_some(), "it had been granted");
    record.comes_to_rest();
    let next = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(
        next.previous_holder(),
        PreviousHolder::Unknown,
        "nobody ever had it"
    );
}

fn a_try_whose_request_is_lost_takes_nothing(backend: &Backend) {
    let ours = calm(backend);
    let (end, _) = meet(backend, InjectedFault::RequestLost, &ours, || {
        ours.try_lock("a")
    });
    assert_unheard(end);
    assert_eq!(Record::of(backend, "a").field("f"), None);
    ours.try_lock("a")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}

fn a_lock_that_hears_nothing_asks_again_and_is_granted_once(backend: &Backend) {
    for fault in [InjectedFault::RequestLost, InjectedFault::ReplyLost] {
        // New ones each time: the mishap is not for what the last ones still do in the background.
        let ours = calm(backend);
        let (guard, requests) = meet(backend, fault, &ours, || ours.lock("a").unwrap());
        assert!(requests >= 2, "{fault:?} did not strike");
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

fn a_renewal_whose_connection_ends_is_asked_for_again(backend: &Backend) {
    let ours = calm(backend);
    let guard = ours.lock("a").unwrap();
    let (end, requests) = meet(backend, InjectedFault::Disconnect, &ours, || guard.renew());
    end.unwrap();
    assert_eq!(requests, 2);
    guard.check().unwrap();
    guard.unlock().unwrap();
}

fn an_unlock_whose_connection_ends_is_ok_and_hands_over_once(backend: &Backend) {
    let (ours, other) = (calm(backend), calm(backend));
    let guard = ours.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    queue.add(&other);
    let (end, requests) = meet(backend, InjectedFault::Disconnect, &ours, || guard.unlock());
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

fn an_unlock_that_hears_nothing_is_unavailable_and_the_lock_is_free(backend: &Backend) {
    for fault in [InjectedFault::ReplyLost, InjectedFault::RequestLost] {
        // New ones each time: the mishap is not for what the last ones still do in the background.
        let (ours, other) = (calm(backend), calm(backend));
        let guard = ours.lock("a").unwrap();
        let (start, before) = (Instant::now(), ours.stats().background_releases);
        let (end, _) = meet(backend, fault, &ours, || guard.unlock());
        assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
        assert_unheard(end);
        // The one is free at once, the other by the release that goes on in the background.
        let next = other
            .try_lock_for("a", SOON)
            .unwrap()
            .expect("it is released");
        assert_eq!(
            next.previous_holder(),
            PreviousHolder::Released,
            "{fault:?}"
        );
        until(SOON, "the background is done", || {
            ours.stats().background_releases > before
        });
        next.renew()
            .expect("what comes late is not the successor's");
        next.unlock().unwrap();
    }
}

fn a_release_in_the_background_is_over_with_its_first_answer(backend: &Backend) {
    let ours = calm(backend);
    let before = ours.stats().requests;
    // What is not settled is put again after T; so long does the next of these take.
    for name in ["a", "b", "c"] {
        let guard = ours.lock(name).unwrap();
        assert_unheard(
            meet(backend, InjectedFault::RequestLost, &ours, || {
                guard.unlock()
            })
            .0,
        );
        until(SOON, "it is released", || {
            Record::of(backend, name).owner().is_none()
        });
    }
    assert_eq!(
        ours.stats().requests - before,
        9,
        "each was taken, and given back once in vain and once more"
    );
}

fn a_place_is_taken_once_whatever_becomes_of_its_request(backend: &Backend) {
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        // New ones each time: the mishap is not for what the last ones still do in the background.
        let (ours, other) = (calm(backend), calm(backend));
        let holder = other.lock("a").unwrap();
        let (waiter, requests) = meet(backend, fault, &ours, || ours.enqueue("a").unwrap());
        assert!(requests >= 2, "{fault:?} did not strike");
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

fn a_place_is_given_up_whatever_becomes_of_its_request(backend: &Backend) {
    let (ours, other) = (calm(backend), calm(backend));
    let holder = other.lock("a").unwrap();
    let record = Record::of(backend, "a");
    for fault in [
        InjectedFault::Disconnect,
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
    ] {
        let waiter = ours.enqueue("a").unwrap();
        let start = Instant::now();
        let before = ours.stats().requests;
        meet(backend, fault, &ours, || drop(waiter));
        assert!(
            start.elapsed() <= T + SLACK,
            "{fault:?}: {:?}",
            start.elapsed()
        );
        until(SOON, "it is asked for again", || {
            ours.stats().requests >= before + 2
        });
        until(SOON, "the place is given up", || record.number("r") == 0);
    }
    holder.unlock().unwrap();
    record.comes_to_rest();
}

fn p4_a_message_that_is_lost_is_made_up_for_by_the_next_check(backend: &Backend) {
    let (ours, other) = (calm(backend), calm(backend));
    let checking = build(
        with_ttl(backend, Duration::from_secs(20))
            .check_period(P)
            .command_timeout(T)
            .horizon(P + 4 * T),
    );
    warm_up(&checking);
    // A new subscription lets all places be looked after once, and on a busy machine so late that it is here.
    let unchecked = until_some(
        SOON,
        "nothing comes without its message, since the next check is far off",
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
        .expect("the check brings what the message did not");
    guard.unlock().unwrap();
    drop(unchecked);
    Record::of(backend, "a").comes_to_rest();
}
