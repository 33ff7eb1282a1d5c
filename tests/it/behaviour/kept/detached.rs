//! Detached locks beside handles that keep.

use std::time::Duration;

use super::{keeper, plain};
use crate::backend::{Backend, on_both_stores};
use crate::keeping::keep;
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    lock_of_a_handle_that_keeps_is_detached,
    waiters_of_a_detached_turn_keep_their_order,
}

const VALID: Duration = Duration::from_secs(10);

/// Kept already or not: else a program would work until its third lock.
fn lock_of_a_handle_that_keeps_is_detached(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    for round in 0..6 {
        if round == 4 {
            keep(&mgr, "a");
        }
        let guard = mgr.lock("a").unwrap();
        let fence = guard.fence();
        let detached = guard.detach(VALID).unwrap();
        assert!(other.try_lock("a").unwrap().is_none(), "it is detached");
        assert!(mgr.try_lock("a").unwrap().is_none(), "nothing is kept");
        let guard = other.attach(&detached).unwrap();
        assert!(guard.fence() > fence);
        guard.unlock().unwrap();
    }
    assert_eq!(mgr.stats().losses(), 0);
}

fn waiters_of_a_detached_turn_keep_their_order(backend: &Backend) {
    let (mgr, other) = (keeper(backend), plain(backend));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let [first, second] = [(); 2].map(|()| mgr.enqueue("a").unwrap());
    let detached = guard.detach(VALID).unwrap();
    let guard = other.attach(&detached).unwrap();
    let is_queued = || (first.position(), second.position()) == (Some(1), Some(2));
    until(SLACK, "they have a place again", is_queued);
    guard.unlock().unwrap();
    drop(first.wait().unwrap());
    drop(second.wait().unwrap());
}
