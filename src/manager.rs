//! The handle of a lock manager, its options and its end. Knows no kind of lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, EngineHandle};
use crate::error::Result;
use crate::key::Key;
use crate::options::LockOptions;
use crate::stats::Stats;

/// Hands out locks that live in Redis.
///
/// A handle: cloning it is cheap, and all clones share one pool of connections, one renewal thread and, once
/// somebody has to wait, one subscription. Guards, waiters and handles keep these alive; the last one
/// dropped ends the threads, which takes at most one command timeout.
///
/// After a `fork` the child's copies are dead: every verb answers [`Error::Closed`](crate::Error::Closed), and dropping them
/// leaves the parent's locks alone.
#[derive(Clone)]
pub struct LockManager {
    running: Arc<EngineHandle>,
    pub(crate) options: LockOptions,
    /// What [`LockManager::with`] falls back on for the ttl.
    built_with: Arc<LockOptions>,
}

impl LockManager {
    pub(crate) fn new(running: EngineHandle, options: LockOptions) -> LockManager {
        LockManager {
            running: Arc::new(running),
            built_with: Arc::new(options.clone()),
            options,
        }
    }

    /// A handle whose locks are taken with these options instead, for every kind.
    ///
    /// Costs no connection and no thread. Options that say nothing of ttl or fixed lease take the builder's.
    /// What does not fit the manager's numbers is refused with [`Error::Config`](crate::Error::Config) when a lock is asked for.
    #[must_use]
    pub fn with(&self, options: LockOptions) -> LockManager {
        let mut handle = self.clone();
        handle.options = options;
        if handle.options.ttl.is_none() {
            handle.options.ttl = self.built_with.ttl;
            handle.options.fixed = self.built_with.fixed;
        }
        handle
    }

    /// What this manager has done so far. Never blocks.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Ends the manager in good order: no lock is granted any more, waits end with [`Error::Closed`](crate::Error::Closed), and
    /// guards have until `within` to be dropped. One that is alive then is told
    /// [`LossReason::Shutdown`](crate::LossReason::Shutdown), its lock is released, and its name is in the answer.
    ///
    /// Blocks for at most `within` and two command timeouts. A second call does no harm.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) in a forked child.
    pub fn shutdown(&self, within: Duration) -> Result<Shutdown> {
        let engine = self.engine();
        Ok(Shutdown {
            ended: engine.shut_down(engine.now() + within)?,
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.running.engine()
    }

    pub(crate) fn running(&self) -> &Arc<EngineHandle> {
        &self.running
    }

    pub(crate) fn key(&self, name: &str) -> Result<Key> {
        Key::new(&self.engine().config.prefix, name)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("prefix", &self.engine().config.prefix)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What [`LockManager::shutdown`] left.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The names of the locks whose guards were still alive at the deadline, in alphabetical order. Empty
    /// when all were dropped in time.
    pub ended: Vec<Arc<str>>,
}
