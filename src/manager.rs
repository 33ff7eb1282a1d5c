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
    /// When this returns, Redis has confirmed these releases, or
    /// [`unreleased`](Shutdown::unreleased) has their names. So the process can exit, and the locks
    /// are free. A call of another thread that is taking or releasing a lock at this moment still
    /// ends by itself.
    ///
    /// Blocks until the last guard is dropped, for at most `within`. Then it blocks until the
    /// releases are answered, for at most three command timeouts. You may call it again, to give
    /// open releases more time, and from several threads at once.
    ///
    /// # Errors
    /// - [`Error::Closed`](crate::Error::Closed) in a forked child.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the renewal thread does not answer
    ///   within three command timeouts after `within`.
    pub fn shutdown(&self, within: Duration) -> Result<Shutdown> {
        let engine = self.engine();
        let report = self.running.shut_down(engine.now() + within)?;
        Ok(Shutdown {
            ended: report.ended,
            unreleased: report.unreleased,
        })
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

/// The locks and releases that [`LockManager::shutdown`] could not finish in good order.
#[non_exhaustive]
#[derive(Debug)]
pub struct Shutdown {
    /// The names of the locks whose guards were still alive at the deadline, in alphabetical order: one
    /// for each guard. Empty if all guards were dropped in time.
    pub ended: Vec<Arc<str>>,
    /// The names with something that Redis did not confirm as released, each once, in alphabetical
    /// order. Empty if Redis answered in time.
    ///
    /// It may be a lock that this shutdown ended, a lock whose guard was dropped before, or a place
    /// in a queue. The manager goes on with these releases. If the process exits, Redis ends such a
    /// lock by its TTL, and skips such a place as that of a dead process.
    pub unreleased: Vec<Arc<str>>,
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ended.is_empty() {
            f.write_str("all guards were dropped in time")?;
        } else {
            write!(f, "these locks were still held: {}", self.ended.join(", "))?;
        }
        if !self.unreleased.is_empty() {
            let names = self.unreleased.join(", ");
            write!(f, "; not confirmed as released: {names}")?;
        }
        Ok(())
    }
}
