//! A place in a lock's queue, as RAII.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{AtDeadline, EngineHandle, QueuedWaiter};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::store::clock::Time;

/// A place in the queue of a lock; dropping it leaves the queue.
///
/// Every waiting verb is made of this: [`enqueue`](crate::LockManager::enqueue) and [`wait`](Waiter::wait). `G` is the guard
/// that it becomes: a [`LockGuard`] of a mutex or a semaphore, a [`ReadGuard`](crate::ReadGuard) or a
/// [`WriteGuard`](crate::WriteGuard) of a reader/writer lock. A waiter
/// holds no connection. If the lock is granted between two calls of [`wait_for`](Waiter::wait_for), it is kept
/// renewed until it is claimed or the waiter is dropped; if it is lost meanwhile, the waiter stands in the
/// queue again.
#[must_use = "dropping a waiter leaves the queue"]
pub struct Waiter<G = LockGuard> {
    standing: Option<QueuedWaiter>,
    running: Arc<EngineHandle>,
    /// Of the guard of any kind, the kind's own.
    own: fn(LockGuard) -> G,
}

impl<G> Waiter<G> {
    pub(crate) fn new(
        standing: QueuedWaiter,
        running: &Arc<EngineHandle>,
        own: fn(LockGuard) -> G,
    ) -> Waiter<G> {
        Waiter {
            standing: Some(standing),
            running: Arc::clone(running),
            own,
        }
    }

    /// The place in the queue as last heard, at most a check period ago: 1 is next. An upper bound, since it
    /// counts waiters that died or gave up. `None` once the lock is granted or the wait
    /// has failed, and while the place is being taken again.
    pub fn position(&self) -> Option<u64> {
        self.standing.as_ref()?.position()
    }

    /// Waits for the lock, for as long as Redis answers. Woken by the grant, a shutdown, or after the outage
    /// limit without a reply.
    ///
    /// # Errors
    /// [`Error::Closed`] by a shutdown; [`Error::Unavailable`] or [`Error::Server`] after the outage limit.
    pub fn wait(mut self) -> Result<G> {
        loop {
            if let Some(guard) = self.wait_until(Time::NEVER, AtDeadline::Cancel)? {
                return Ok(guard);
            }
        }
    }

    /// Waits for the lock for at most so long. `None`: not yet, and the place is kept.
    ///
    /// Blocks for no longer than `at_most`; `Duration::MAX` means for ever. What wakes it is what wakes
    /// [`wait`](Waiter::wait). `None` says nothing of who has the lock, nor whether Redis answers: an outage ends a wait
    /// only after the outage limit, however it is cut in pieces, and then takes up to one command timeout more.
    ///
    /// # Errors
    /// As [`wait`](Waiter::wait), counted from the last answer of Redis; the place is kept then as well. [`Error::Config`]
    /// if this waiter has given its guard before.
    pub fn wait_for(&mut self, at_most: Duration) -> Result<Option<G>> {
        let now = self.running.engine().now();
        self.wait_until(now + at_most, AtDeadline::Keep)
    }

    fn wait_until(&mut self, until: Time, at_deadline: AtDeadline) -> Result<Option<G>> {
        let Some(standing) = &self.standing else {
            return Err(Error::config(
                "waiter",
                "it gives one guard, and has given it",
            ));
        };
        let Some(lease) = standing.wait(until, at_deadline)? else {
            return Ok(None);
        };
        self.standing = None;
        Ok(Some((self.own)(LockGuard::new(lease, &self.running))))
    }
}

impl<G> fmt::Debug for Waiter<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter")
            .field(
                "name",
                &self
                    .standing
                    .as_ref()
                    .map(|standing| &standing.request().key.name),
            )
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
