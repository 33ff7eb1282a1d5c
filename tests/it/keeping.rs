//! A manager keeps a lock: how a test brings that about, and sees it. For every topology. On no store.

use std::time::Duration;

use fairlock::LockManager;

use crate::support::until;

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(30);

/// Locks and drops the name until the manager keeps it, and then so often that it was worth it.
#[track_caller]
pub(crate) fn keep(mgr: &LockManager, name: &str) {
    let before = mgr.stats().kept_turns;
    until(SOON, "the lock is kept", || {
        drop(mgr.lock(name).unwrap());
        mgr.stats().kept_turns >= before + 10
    });
}

/// Whether this sends no request. A PING may come between, so it is tried a few times.
pub(crate) fn costs_nothing(mgr: &LockManager, mut cycle: impl FnMut()) -> bool {
    (0..20).any(|_| {
        let before = mgr.stats().requests;
        cycle();
        mgr.stats().requests == before
    })
}
