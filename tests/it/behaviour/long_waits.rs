//! Waiting for a holder that keeps its lock for longer than its ttl.

use std::time::Duration;

use fairlock::PreviousHolder;

use crate::{
    backend::{Backend, on_both_stores},
    managers::{assert_nothing_left, manager},
    support::throughout,
};

on_both_stores! {
    p1_a_live_holder_keeps_its_lock_over_several_ttls,
}

fn p1_a_live_holder_keeps_its_lock_over_several_ttls(backend: &Backend) {
    let ttl = Duration::from_millis(1500);
    let holder = manager(backend, ttl);
    let other = manager(backend, ttl);
    let guard = holder.lock("k").unwrap();
    let waiter = other.enqueue("k").unwrap();
    let neighbour = holder.enqueue("k").unwrap();
    throughout(3 * ttl, "it is held", || {
        // A busy machine may answer late. A second guard is never allowed.
        assert!(!matches!(other.try_lock("k"), Ok(Some(_))));
        assert_eq!(waiter.position(), Some(1));
        assert_eq!(neighbour.position(), Some(2));
        guard.check().is_ok()
    });
    assert!(
        holder.stats().renewals_confirmed >= 3,
        "{:?}",
        holder.stats()
    );
    let fence = guard.fence();
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    assert!(next.fence() > fence);
    next.unlock().unwrap();
    neighbour.wait().unwrap().unlock().unwrap();
    assert_nothing_left(backend, "k");
}
