//! Detached locks beside handles that keep.

use std::time::Duration;

use super::{keeping, plain};
use crate::backend::{Backend, on_both_stores};

on_both_stores! {
    attached_guard_is_not_kept,
}

const VALID: Duration = Duration::from_secs(10);

fn attached_guard_is_not_kept(backend: &Backend) {
    let (mgr, other) = (plain(backend), plain(backend));
    let keeps = mgr.with(keeping());
    for _ in 0..5 {
        let detached = mgr.lock("a").unwrap().detach(VALID).unwrap();
        let guard = keeps.attach(&detached).unwrap();
        guard.unlock().unwrap();
        drop(other.try_lock("a").unwrap().expect("it is free"));
    }
    assert_eq!(keeps.stats().kept_turns, 0);
}
