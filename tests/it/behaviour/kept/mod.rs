//! Kept locks: a manager keeps a lock after its guard was dropped, until somebody else wants it.
//!
//! | module | subject |
//! |---|---|
//! | `turns` | the next guard has the lock without Redis; what ends that |
//! | `names` | which names are kept, how many, and for how long |
//! | `others` | other managers get a kept lock |
//! | `itself` | the manager's own calls never find its kept lock in the way |
//! | `wanted` | a guard learns that somebody waits |
//! | `told` | in whichever way its lease came, and in which order they come |
//! | `room` | how many names are kept, and which one makes room |
//! | `ends` | shutdown, `max_hold`, losses |
//! | `detached` | no guard that may be kept is detached |
//! | `refused` | options that do not fit |

mod detached;
mod ends;
mod itself;
mod names;
mod others;
mod refused;
mod room;
mod told;
mod turns;
mod wanted;

use std::time::Duration;

use fairlock::{
    Builder, LockGuard, LockManager, LockOptions, PreviousHolder, Waiter, endpoint::Endpoint,
};

use crate::fixtures::{build, with_ttl};
use crate::support::SLACK;

/// Others learn of lost messages within this time, and not by a renewal: the ttl is long.
pub(crate) const P: Duration = Duration::from_millis(500);
pub(crate) const T: Duration = Duration::from_millis(500);
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// Unused for so long, a kept lock is released: later than any other bound of these tests.
pub(crate) const KEEP: Duration = Duration::from_secs(10);

pub(crate) fn builder(to: impl Into<Endpoint>) -> Builder {
    with_ttl(to, TTL).check_period(P).command_timeout(T)
}

pub(crate) fn keeping() -> LockOptions {
    LockOptions::new().keep_idle(KEEP)
}

/// A manager that keeps its locks.
pub(crate) fn keeper(to: impl Into<Endpoint>) -> LockManager {
    build(builder(to)).with(keeping())
}

/// A manager with the same settings that keeps nothing.
pub(crate) fn plain(to: impl Into<Endpoint>) -> LockManager {
    build(builder(to))
}

/// The ttl of [`short`].
pub(crate) const SHORT_TTL: Duration = Duration::from_millis(4200);

/// A manager whose renewals come soon: they find losses, and tell it what messages did not.
pub(crate) fn short(to: impl Into<Endpoint>, options: LockOptions) -> LockManager {
    let builder = with_ttl(to, SHORT_TTL).check_period(P).command_timeout(T);
    // The ttl is the builder's, so that the horizon fits to it.
    build(builder.horizon(2 * P + 2 * T)).with(options)
}

/// A manager that keeps nothing, and that asks again only after all bounds of these tests. So only a
/// message can tell it that it is granted a lock, and only its first request that it waits.
pub(crate) fn patient(to: impl Into<Endpoint>) -> LockManager {
    let period = Duration::from_secs(6);
    build(builder(to).check_period(period).horizon(period + 4 * T))
}

/// The lock that a manager gets within this time, after a clean release.
#[track_caller]
pub(crate) fn gets(mgr: &LockManager, name: &str, within: Duration) -> LockGuard {
    let guard = mgr.try_lock_for(name, within).unwrap();
    let guard = guard.unwrap_or_else(|| panic!("{name} is not free within {within:?}"));
    assert_eq!(guard.previous_holder(), PreviousHolder::Released, "{name}");
    guard
}

/// The guard of a waiter that has the lock by now, or will have it at once.
#[track_caller]
pub(crate) fn granted(mut waiter: Waiter) -> LockGuard {
    let guard = waiter.wait_for(SLACK).unwrap();
    guard.expect("it is the next")
}
