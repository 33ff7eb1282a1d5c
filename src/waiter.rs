//! A place in the queue of a lock, as RAII.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::{AtDeadline, QueuedWaiter};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::lease::Lease;
use crate::local::Running;
use crate::stats::Count;
use crate::store::clock::Time;

/// A place in the queue of a lock. Dropping it leaves the queue.
///
/// Every waiting verb is made of this: [`enqueue`](crate::LockManager::enqueue), then
/// [`wait`](Waiter::wait). To wait beside other things, use [`ready`](Waiter::ready) in a `select!`.
/// `G` is the guard that the waiter returns: a [`LockGuard`] of a mutex or a writer, a
/// [`SemaphoreGuard`](crate::SemaphoreGuard), or a [`ReadGuard`](crate::ReadGuard). A waiter holds no
/// connection.
///
/// The lock may be granted between two calls of [`wait_for`](Waiter::wait_for). Then the manager
/// renews it until you take it or drop the waiter. If that lock is lost before you take it, the
/// waiter is queued again.
///
/// On a quorum there is no queue. There, a waiter keeps no place and has no position. It asks for
/// the lock while you wait with it, first at once and then after random pauses, which go on over
/// several short waits. [`ready`](Waiter::ready) says when a pause is over. A lock that was lost
/// before you took it is asked for again.
///
/// # Drop
/// Leaves the queue, and releases a lock that was granted. Never panics; blocks for at most one
/// command timeout.
#[must_use = "bind it to a variable: `let _ =` drops it at once, and that leaves the queue"]
pub struct Waiter<G = LockGuard> {
    /// `None` once the waiter has returned its guard.
    queued: Option<QueuedWaiter>,
    running: Arc<Running>,
    /// How the request counts if the waiter is dropped now.
    last_end: Count,
    /// Makes the guard of this kind of lock.
    into_guard: fn(LockGuard) -> G,
}

impl<G> Waiter<G> {
    pub(crate) fn new(
        queued: QueuedWaiter,
        running: &Arc<Running>,
        into_guard: fn(LockGuard) -> G,
    ) -> Waiter<G> {
        Waiter {
            queued: Some(queued),
            running: Arc::clone(running),
            last_end: Count::Cancelled,
            into_guard,
        }
    }

    /// The position in the queue, as last reported by Redis, at most a check period ago. 1 is next.
    ///
    /// An upper bound: it counts waiters that died or gave up. With
    /// [`local_handovers`](crate::LockOptions::local_handovers) it leaves out the waiters of other
    /// managers that come first where the lock leaves this process in between. `None` once the lock
    /// is granted or the wait has failed, while the waiter is being queued again, and on a quorum.
    /// Never blocks.
    pub fn position(&self) -> Option<u64> {
        self.queued.as_ref()?.position()
    }

    /// A channel that says when to look. For `select!` beside other things, such as a stop signal.
    /// Never blocks. It is created on the first call.
    ///
    /// After a message call [`wait_for`](Waiter::wait_for) with [`Duration::ZERO`]. A message comes
    /// each time that this call has something to return:
    ///
    /// - the lock was granted. A grant in doubt is confirmed first. The message comes when a thread
    ///   in [`wait`](Waiter::wait) would wake: at once, or within a check period and a command timeout
    ///   if Redis's message is lost.
    /// - the wait has failed: by a shutdown, or a refusal that will not pass.
    /// - Redis has been silent for the outage limit. It comes up to a check period and two command
    ///   timeouts after that, and again after each check while the silence lasts.
    ///
    /// The call may return `None` all the same: the lock was lost between the message and the call,
    /// or is in doubt by now. The next grant sends another message. So look in a loop. The channel
    /// has room for one message, and a message goes to one receiver.
    ///
    /// On a quorum there is no queue, and a message says that it is time to ask. Then that call asks,
    /// for at most two command timeouts. Until you make it, nothing is asked and no other message
    /// comes. A release by this manager does not end the pause early.
    ///
    /// It is disconnected if this waiter has returned its guard, and in a forked child. A clone of
    /// the receiver is also disconnected when the waiter is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fairlock::crossbeam_channel::{Receiver, select};
    /// use fairlock::{LockGuard, LockManager};
    ///
    /// /// `None`: it was stopped.
    /// fn lock_unless_stopped(
    ///     mgr: &LockManager,
    ///     name: &str,
    ///     stop: &Receiver<()>,
    /// ) -> fairlock::Result<Option<LockGuard>> {
    ///     let mut waiter = mgr.enqueue(name)?;
    ///     loop {
    ///         select! {
    ///             recv(stop) -> _ => return Ok(None), // the drop leaves the queue
    ///             recv(waiter.ready()) -> _ => {}
    ///         }
    ///         if let Some(guard) = waiter.wait_for(Duration::ZERO)? {
    ///             return Ok(Some(guard));
    ///         }
    ///     }
    /// }
    /// ```
    pub fn ready(&self) -> &Receiver<()> {
        match &self.queued {
            Some(queued) => queued.ready(),
            None => self.running.engine().life().disconnected(),
        }
    }

    /// Waits for the lock, for as long as Redis answers.
    ///
    /// Blocks without a bound while others hold the lock. While Redis does not answer, blocks for
    /// at most the outage limit, or up to two command timeouts more if Redis was not asked lately.
    /// The grant wakes it, a shutdown, a refusal that will not pass, or the outage limit.
    ///
    /// # Errors
    /// - [`Error::Closed`] after a shutdown.
    /// - [`Error::Unavailable`] or [`Error::Refused`] after the outage limit. `Unavailable` at once, at
    ///   [`Step::Replicas`](crate::Step::Replicas), if the lock came and too few replicas acknowledged it.
    /// - [`Error::Refused`] or [`Error::Misused`] at once if Redis lost its data and refuses to
    ///   queue this waiter again.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn wait(mut self) -> Result<G> {
        loop {
            if let Some(guard) = self.wait_until(Time::NEVER, AtDeadline::Cancel)? {
                return Ok(guard);
            }
        }
    }

    /// Waits for the lock, for at most `at_most`. `None`: not yet, and the waiter keeps its place
    /// in the queue.
    ///
    /// `Duration::MAX` means forever. The same events wake it as [`wait`](Waiter::wait).
    ///
    /// Blocks for at most `at_most`, until Redis has been silent for the outage limit. From then on
    /// every call returns an error at once. There is one exception: if Redis was not asked lately,
    /// because this process was stopped or its host slept, the call asks it first. Then it may take
    /// up to two command timeouts more, even past `at_most`. On a quorum any call may take that
    /// long, if it is time to ask.
    ///
    /// The outage limit counts from the last answer of Redis, over all calls. So many short waits
    /// end like one long wait. `None` does not say who has the lock, nor whether Redis answers.
    ///
    /// # Errors
    /// As [`wait`](Waiter::wait). After an outage the waiter still has its place, and you may wait
    /// again. [`Error::Misused`] if this waiter has returned its guard already.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn wait_for(&mut self, at_most: Duration) -> Result<Option<G>> {
        let now = self.running.engine().now();
        self.wait_until(now + at_most, AtDeadline::Keep)
    }

    fn wait_until(&mut self, until: Time, at_deadline: AtDeadline) -> Result<Option<G>> {
        let Some(queued) = &self.queued else {
            return Err(Error::setting(
                "waiter",
                "a waiter returns one guard, and this one has returned it",
            ));
        };
        let end = queued.wait(until, at_deadline);
        self.last_end = match &end {
            Ok(_) | Err(Error::Closed) => Count::Cancelled,
            Err(_) => Count::Failed,
        };
        let Some(lease) = end? else {
            return Ok(None);
        };
        self.queued = None;
        let guard = LockGuard {
            lease: Lease::new(lease, &self.running),
        };
        Ok(Some((self.into_guard)(guard)))
    }
}

impl<G> Drop for Waiter<G> {
    fn drop(&mut self) {
        let Some(queued) = self.queued.take() else {
            return;
        };
        let engine = self.running.engine();
        if engine.is_forked() {
            // As with the engine, the child leaks its copy: the waiter is the parent's.
            std::mem::forget(queued);
            return;
        }
        engine.client().on_not_granted(self.last_end);
    }
}

impl<G> fmt::Debug for Waiter<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self
            .queued
            .as_ref()
            .map(|queued| &queued.request().key.name);
        f.debug_struct("Waiter")
            .field("name", &name)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
