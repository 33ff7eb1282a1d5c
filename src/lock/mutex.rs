//! The mutex: one holder at a time.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{enqueue, take, take_until, try_take};
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::waiter::Waiter;

impl LockManager {
    /// Takes the lock, waiting its turn for as long as Redis answers.
    ///
    /// Waiters are served first come, first served; one that waits holds no connection. Blocks without a
    /// bound while others hold the lock, and for at most the outage limit while Redis does not answer; up to two
    /// command timeouts longer if it has not been asked lately, since this process was stopped or its host slept. A
    /// thread that holds the lock already waits for itself, and for ever. The first time that anybody waits,
    /// the manager subscribes first, which takes at most one command timeout more.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = mgr.lock("invoices:42")?;
    /// // … the work …
    /// guard.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) for a name or options that are not allowed; [`Unavailable`](crate::Error::Unavailable) or
    /// [`Server`](crate::Error::Server) after the outage limit, at once if the refusal will not pass by itself;
    /// [`WrongKind`](crate::Error::WrongKind); [`Closed`](crate::Error::Closed).
    pub fn lock(&self, name: &str) -> Result<LockGuard> {
        take(self, self.key(name)?, LockSpec::MUTEX)
    }

    /// Takes the lock if it is free and nobody waits for it; `None` if not. Never waits for others.
    ///
    /// Blocks for at most two command timeouts: one for a connection and one for the reply.
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock), without waiting out an outage; and [`Lost`](crate::Error::Lost) for a lease so short,
    /// or a process so slow, that it had lapsed when the reply came.
    pub fn try_lock(&self, name: &str) -> Result<Option<LockGuard>> {
        try_take(self, self.key(name)?, LockSpec::MUTEX)
    }

    /// Takes the lock, waiting its turn for at most so long; `None` if it did not come.
    ///
    /// Blocks for at most `at_most` and one command timeout. Zero is one try; `Duration::MAX` waits for
    /// ever.
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock). `None` means that others had the lock: if Redis was silent at the end, the
    /// answer is [`Unavailable`](crate::Error::Unavailable).
    pub fn try_lock_for(&self, name: &str, at_most: Duration) -> Result<Option<LockGuard>> {
        take_until(
            self,
            self.key(name)?,
            LockSpec::MUTEX,
            self.engine().now() + at_most,
        )
    }

    /// As [`try_lock_for`](LockManager::try_lock_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As [`try_lock_for`](LockManager::try_lock_for).
    pub fn try_lock_until(&self, name: &str, deadline: Instant) -> Result<Option<LockGuard>> {
        take_until(
            self,
            self.key(name)?,
            LockSpec::MUTEX,
            self.engine().at(deadline),
        )
    }

    /// Takes a place in the lock's queue, to wait for it later or bit by bit. If the lock is free, the waiter
    /// is granted at once.
    ///
    /// Blocks for at most two command timeouts while Redis answers (five the first time that the
    /// manager has to wait: it subscribes first), and for the outage limit while it does not.
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock).
    pub fn enqueue(&self, name: &str) -> Result<Waiter> {
        enqueue(self, self.key(name)?, LockSpec::MUTEX, |guard| guard)
    }

    /// The mutex of this name, as a handle of its own with the same verbs.
    ///
    /// Costs no I/O. A name that is not allowed is refused when the mutex is used.
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex {
            manager: self.clone(),
            name: name.into(),
            key: self.key(name).ok(),
        }
    }
}

/// A lock by its name: `Clone`, `'static`, and free to be kept in a struct.
///
/// # Guarantees
/// At most one holder; holders in the order in which Redis ran their requests, over those that stayed alive;
/// every grant has a larger fence than all before it; a dead process delays the others by little more
/// than one TTL.
///
/// # Limits
/// It is not re-entrant: a thread that locks twice waits for itself. What asynchronous replication loses, a
/// lock can lose; see the crate's documentation.
#[derive(Clone)]
pub struct Mutex {
    manager: LockManager,
    name: Arc<str>,
    key: Option<Key>,
}

impl Mutex {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As [`LockManager::lock`].
    ///
    /// # Errors
    /// As there.
    pub fn lock(&self) -> Result<LockGuard> {
        take(&self.manager, self.key()?, LockSpec::MUTEX)
    }

    /// As [`LockManager::try_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        try_take(&self.manager, self.key()?, LockSpec::MUTEX)
    }

    /// As [`LockManager::try_lock_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_lock_for(&self, at_most: Duration) -> Result<Option<LockGuard>> {
        take_until(
            &self.manager,
            self.key()?,
            LockSpec::MUTEX,
            self.manager.engine().now() + at_most,
        )
    }

    /// As [`LockManager::try_lock_until`].
    ///
    /// # Errors
    /// As there.
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        take_until(
            &self.manager,
            self.key()?,
            LockSpec::MUTEX,
            self.manager.engine().at(deadline),
        )
    }

    /// As [`LockManager::enqueue`].
    ///
    /// # Errors
    /// As there.
    pub fn enqueue(&self) -> Result<Waiter> {
        enqueue(&self.manager, self.key()?, LockSpec::MUTEX, |guard| guard)
    }

    pub(super) fn key(&self) -> Result<Key> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => self.manager.key(&self.name),
        }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
