//! The handle of a lock manager, its options and its end. Knows no kind of lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;
use crate::key::Key;
use crate::local::Running;
use crate::options::LockOptions;
use crate::stats::Stats;

/// Gives out locks that live in Redis.
///
/// A manager is a handle, and cheap to clone. All clones share a few connections and one
/// renewal thread. They also share one subscription, from the first time that a caller has to wait.
/// Guards, waiters and handles keep these alive. Dropping the last of them ends the threads, which
/// takes at most one command timeout.
///
/// After a `fork` the copies in the child are dead. Every verb returns
/// [`Error::Closed`](crate::Error::Closed), and dropping them leaves the locks of the parent alone.
#[derive(Clone)]
pub struct LockManager {
    running: Arc<Running>,
    pub(crate) options: LockOptions,
}

impl LockManager {
    pub(crate) fn new(running: Running, options: LockOptions) -> LockManager {
        LockManager {
            running: Arc::new(running),
            options,
        }
    }

    /// A handle that takes its locks, of every kind, with these options.
    ///
    /// An option that you do not set is the one of this handle. So `mgr.with(a).with(b)` has all
    /// of `b`, then what `a` sets beyond that, then the options of `mgr`. [`LockOptions`] says how
    /// to get a default back.
    ///
    /// Never blocks; costs no connection and no thread. This call checks nothing. If the options do
    /// not fit the numbers of the manager, a call that takes a lock returns
    /// [`Error::Misused`](crate::Error::Misused).
    #[must_use = "this handle keeps its options; the returned handle has the new ones"]
    pub fn with(&self, options: LockOptions) -> LockManager {
        let mut handle = self.clone();
        handle.options = options.over(&self.options);
        handle
    }

    /// Counts of this manager's work so far. Never blocks. It copies some 800 numbers, so it is for
    /// a look every second, and not for every lock.
    ///
    /// In a forked child, the counts of connections and requests are 0.
    pub fn stats(&self) -> Stats {
        self.engine().client().stats()
    }

    /// Ends the manager in good order.
    ///
    /// From now on the manager grants no lock, and every wait ends with
    /// [`Error::Closed`](crate::Error::Closed). Guards have the time `within` to be dropped. After
    /// that, each guard that is still alive loses its lock with
    /// [`LossReason::Shutdown`](crate::LossReason::Shutdown). The manager releases those locks, and
    /// all that was still to be released: locks whose guards were dropped, and places in queues.
    ///
    /// `Ok`: Redis has confirmed all of these releases, so the process can exit, and the locks are
    /// free. It has the names of the locks whose guards were still alive after `within`, in
    /// alphabetical order, one for each guard. A call of another thread that is taking or releasing
    /// a lock at this moment still ends by itself.
    ///
    /// Blocks until the last guard is dropped, for at most `within`. Then it blocks until the
    /// releases are answered, for at most three command timeouts. You may call it again, to give
    /// open releases more time, and from several threads at once.
    ///
    /// # Errors
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if Redis has not confirmed all releases
    ///   after that time. Its cause has their names, if the renewal thread answers: of locks that
    ///   this call ended, of locks whose guards were dropped before, and of places in queues. It also
    ///   has the names that `Ok` would have, which no later call repeats. The manager goes on with the
    ///   releases. If the process exits, such a lock ends by its TTL, and such a place is skipped as
    ///   that of a dead process.
    /// - [`Error::Closed`](crate::Error::Closed) in a forked child.
    pub fn shutdown(&self, within: Duration) -> Result<Vec<Arc<str>>> {
        self.running.shut_down(self.engine().now() + within)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.running.engine()
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    pub(crate) fn key(&self, name: &str) -> Result<Key> {
        Key::new(&self.engine().config().prefix, name)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("prefix", &self.engine().config().prefix)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
