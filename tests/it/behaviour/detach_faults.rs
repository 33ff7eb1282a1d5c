//! Requests and replies are lost while a lock goes to another manager.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LossReason, PreviousHolder};

use super::faults::{call_with_fault, quiet};
use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{Record, SOON, STEADY_T as T};
use crate::managers;
use crate::support::{SLACK, until};

const LONG: Duration = Duration::from_secs(60);

on_both_stores! {
    redis_with_faults:
    detach_with_a_closed_connection_is_sent_again,
    detach_without_a_reply_returns_the_guard,
    detach_whose_request_is_lost_changes_nothing,
    guard_of_an_unanswered_detach_ends_before_the_other_lease,
    attach_with_a_closed_connection_gets_the_same_grant,
    attach_without_a_reply_leaves_the_text_valid,
    attach_whose_request_is_lost_can_be_repeated,
}

/// A manager whose server knows the script, so that a fault hits the call that counts.
fn warm(backend: &Backend) -> LockManager {
    let mgr = quiet(backend);
    let guard = mgr.lock("warm").unwrap();
    let detached = guard.detach(LONG).unwrap();
    mgr.attach(&detached).unwrap().unlock().unwrap();
    mgr
}

fn detach_with_a_closed_connection_is_sent_again(backend: &Backend) {
    let mgr = warm(backend);
    let guard = mgr.lock("n").unwrap();
    let fault = InjectedFault::Disconnect;
    let (detached, sent) = call_with_fault(backend, fault, &mgr, || guard.detach(LONG));
    let detached = detached.unwrap();
    assert!(sent >= 2, "{sent}");
    assert_eq!(detached.fence(), Record::of(backend, "n").number("f"));
    mgr.attach(&detached).unwrap().unlock().unwrap();
    managers::assert_nothing_left(backend, "n");
}

fn detach_without_a_reply_returns_the_guard(backend: &Backend) {
    for is_renewed in [false, true] {
        let mgr = warm(backend);
        let guard = mgr.lock("n").unwrap();
        let owner = Record::of(backend, "n").owner();
        backend.inject_lasting(InjectedFault::ReplyLost);
        let start = Instant::now();
        let error = guard.detach(LONG).unwrap_err();
        assert!(start.elapsed() <= 2 * T + SLACK);
        backend.disarm();
        let (guard, error) = error.into_parts();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(guard.is_held(), "nobody else can have it yet");
        assert_ne!(Record::of(backend, "n").owner(), owner, "it was passed on");
        assert!(mgr.try_lock("n").unwrap().is_none());
        if is_renewed {
            let lost = guard.renew().unwrap_err();
            assert!(
                matches!(&lost, Error::Lost { loss, .. } if loss.reason == LossReason::NotOwner),
                "{lost}"
            );
        }
        drop(guard);
        // The token that nobody has is released, too.
        Record::of(backend, "n").comes_to_rest();
        let next = mgr.lock("n").unwrap();
        assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
        next.unlock().unwrap();
    }
}

fn detach_whose_request_is_lost_changes_nothing(backend: &Backend) {
    let mgr = warm(backend);
    let guard = mgr.lock("n").unwrap();
    backend.inject_lasting(InjectedFault::RequestLost);
    let error = guard.detach(LONG).unwrap_err();
    backend.disarm();
    let guard = error.into_parts().0;
    assert!(guard.is_held());
    // A renewal that runs after all copies of the request confirms it.
    until(SOON, "it is confirmed", || {
        guard.renew().unwrap();
        guard.remaining() > LONG / 2
    });
    let attached = mgr.attach(&guard.detach(LONG).unwrap()).unwrap();
    attached.unlock().unwrap();
    managers::assert_nothing_left(backend, "n");
}

/// P1 (one holder): the lock may be another's when that time is over.
fn guard_of_an_unanswered_detach_ends_before_the_other_lease(backend: &Backend) {
    let ours = warm(backend);
    let guard = ours.lock("n").unwrap();
    let valid_for = 5 * T;
    backend.inject_lasting(InjectedFault::ReplyLost);
    let guard = guard.detach(valid_for).unwrap_err().into_parts().0;
    backend.disarm();
    // In memory the fault hits the next request of any manager, so there was no other until now.
    let theirs = quiet(backend);
    assert!(guard.remaining() < valid_for, "{:?}", guard.remaining());
    let losses = guard.lost().clone();
    let taken = until_taken(backend, || {
        let is_held = guard.is_held();
        let taken = theirs.try_lock("n").unwrap();
        assert!(taken.is_none() || !is_held, "two have it");
        taken
    });
    let lost = losses.recv_timeout(SOON).unwrap();
    assert_eq!(lost.reason, LossReason::Expired);
    drop(guard);
    backend.pass(T);
    taken.renew().unwrap();
}

fn until_taken<G>(backend: &Backend, mut look: impl FnMut() -> Option<G>) -> G {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < SOON, "it never lapses");
        backend.pass(T / 20);
    }
}

fn attach_with_a_closed_connection_gets_the_same_grant(backend: &Backend) {
    let mgr = warm(backend);
    let detached = mgr.lock("n").unwrap().detach(LONG).unwrap();
    let fault = InjectedFault::Disconnect;
    let (guard, sent) = call_with_fault(backend, fault, &mgr, || mgr.attach(&detached));
    let guard = guard.unwrap();
    assert!(sent >= 2, "{sent}");
    assert_eq!(guard.fence(), Record::of(backend, "n").number("f"));
    guard.unlock().unwrap();
    managers::assert_nothing_left(backend, "n");
}

fn attach_without_a_reply_leaves_the_text_valid(backend: &Backend) {
    let mgr = warm(backend);
    let detached = mgr.lock("n").unwrap().detach(LONG).unwrap();
    backend.inject_lasting(InjectedFault::ReplyLost);
    let start = Instant::now();
    let error = mgr.attach(&detached).unwrap_err();
    assert!(start.elapsed() <= 2 * T + SLACK);
    backend.disarm();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // In the background, the lock is given back to the text.
    let other = warm(backend);
    assert!(
        other.try_lock("n").unwrap().is_none(),
        "nobody gets in between"
    );
    let is_back = || Record::of(backend, "n").number("f") == detached.fence();
    until(SOON, "it is detached again", is_back);
    let guard = other.attach(&detached).unwrap();
    assert!(guard.fence() > detached.fence());
    assert_ne!(guard.previous_holder(), PreviousHolder::Lapsed);
    guard.unlock().unwrap();
    let again = mgr.attach(&detached).unwrap_err();
    assert!(matches!(again, Error::Lost { .. }), "it is spent: {again}");
}

fn attach_whose_request_is_lost_can_be_repeated(backend: &Backend) {
    let mgr = warm(backend);
    let detached = mgr.lock("n").unwrap().detach(LONG).unwrap();
    backend.inject_lasting(InjectedFault::RequestLost);
    let error = mgr.attach(&detached).unwrap_err();
    backend.disarm();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let guard = mgr.attach(&detached).unwrap();
    // The release of the first try's token does not touch it.
    backend.pass(3 * T);
    guard.renew().unwrap();
}
