//! The handle of a lock manager, and how it is built. Knows no kind of lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, LockOptions, Wanted};
use crate::engine::{Engine, EngineHandle};
use crate::error::Result;
use crate::key::Key;
use crate::script::CallerId;
use crate::stats::Stats;
#[cfg(feature = "memory")]
use crate::store::memory::{Memory, Session};
use crate::store::{Single, Store, parse_url};

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
    /// Connects to a Redis with all defaults: `builder(to).build()`.
    ///
    /// Opens one connection, and blocks for at most the connect timeout ([`DEFAULT_COMMAND_TIMEOUT`]).
    ///
    /// ```no_run
    /// let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let _g = mgr.lock("invoices:42")?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a URL that is none or a server older than Redis 6.2, [`Error::Unavailable`](crate::Error::Unavailable) if
    /// it cannot be reached, [`Error::Server`](crate::Error::Server) if it refuses, for instance a wrong password.
    ///
    /// [`DEFAULT_COMMAND_TIMEOUT`]: crate::DEFAULT_COMMAND_TIMEOUT
    pub fn connect(to: impl Into<Endpoint>) -> Result<LockManager> {
        LockManager::builder(to).build()
    }

    /// A manager on a [`Memory`](crate::memory::Memory) of its own, with all defaults: locks for the threads of this process,
    /// with no Redis. Needs the feature `memory`.
    ///
    /// ```
    /// let mgr = fairlock::LockManager::in_memory()?;
    /// let _g = mgr.lock("invoices:42")?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if no thread can be started.
    #[cfg(feature = "memory")]
    pub fn in_memory() -> Result<LockManager> {
        LockManager::connect(&Memory::new())
    }

    /// Begins a manager with other settings.
    pub fn builder(to: impl Into<Endpoint>) -> Builder {
        Builder {
            endpoint: to.into(),
            wanted: Wanted::default(),
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

/// Where the locks live. From a URL:
///
/// - `redis://[user:password@]host[:port][/database]`
/// - `redis+unix:///path/to/socket[?db=n&user=u&pass=p]`
///
/// or, with the feature `memory`, from a `&Memory`. What is wrong with a URL is told by [`Builder::build`].
#[derive(Clone)]
pub struct Endpoint(Target);

#[derive(Clone)]
enum Target {
    Url(String),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl From<&str> for Endpoint {
    fn from(url: &str) -> Endpoint {
        Endpoint(Target::Url(url.to_owned()))
    }
}

impl From<String> for Endpoint {
    fn from(url: String) -> Endpoint {
        Endpoint(Target::Url(url))
    }
}

#[cfg(feature = "memory")]
impl From<&Memory> for Endpoint {
    fn from(memory: &Memory) -> Endpoint {
        Endpoint(Target::Memory(memory.clone()))
    }
}

/// Shows where, never the password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Target::Url(url) => match parse_url(url) {
                Ok(info) => write!(f, "Endpoint({})", info.addr()),
                Err(_) => f.write_str("Endpoint(not a URL)"),
            },
            #[cfg(feature = "memory")]
            Target::Memory(_) => f.write_str("Endpoint(in memory)"),
        }
    }
}

/// Settings of a manager. What is not set is derived from the ttl, so that it fits.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    endpoint: Endpoint,
    wanted: Wanted,
}

impl Builder {
    /// What keys and channels begin with: 1 to 128 bytes without braces and control characters. Default
    /// [`DEFAULT_PREFIX`](crate::DEFAULT_PREFIX).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.wanted.prefix = Some(prefix.into());
        self
    }

    /// How locks are taken, unless a handle says otherwise. The timeouts and periods below are derived from
    /// its ttl.
    pub fn options(mut self, options: LockOptions) -> Builder {
        self.wanted.options = options;
        self
    }

    /// Connections for short calls, at most; opened as they are needed. A waiter holds none. Calls that find none
    /// free wait for one, for at most one command timeout, and share its next write. 1 to 10,000,
    /// default [`DEFAULT_POOL_SIZE`](crate::DEFAULT_POOL_SIZE).
    pub fn pool_size(mut self, connections: u32) -> Builder {
        self.wanted.pool_size = Some(connections);
        self
    }

    /// How long opening a connection may take. Default: the command timeout.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.wanted.connect_timeout = Some(timeout);
        self
    }

    /// How long a reply may take (T). Default [`DEFAULT_COMMAND_TIMEOUT`](crate::DEFAULT_COMMAND_TIMEOUT), or a
    /// tenth of the ttl if that is less.
    pub fn command_timeout(mut self, timeout: Duration) -> Builder {
        self.wanted.command_timeout = Some(timeout);
        self
    }

    /// How often a process looks after each name that it waits for (P). Default
    /// [`DEFAULT_CHECK_PERIOD`](crate::DEFAULT_CHECK_PERIOD), or an eighth of the ttl if that is less.
    pub fn check_period(mut self, period: Duration) -> Builder {
        self.wanted.check_period = Some(period);
        self
    }

    /// For how long a silent process keeps its places in queues (H): from P + 3 T to 2/3 − 1/10 of the ttl.
    /// Default [`DEFAULT_HORIZON`](crate::DEFAULT_HORIZON), or half of the ttl if that is less.
    pub fn horizon(mut self, horizon: Duration) -> Builder {
        self.wanted.horizon = Some(horizon);
        self
    }

    /// After so long without a successful reply from Redis a wait ends with an error. At least the command
    /// timeout; `Duration::MAX` waits out every outage. Default
    /// [`DEFAULT_OUTAGE_LIMIT`](crate::DEFAULT_OUTAGE_LIMIT).
    pub fn outage_limit(mut self, limit: Duration) -> Builder {
        self.wanted.outage_limit = Some(limit);
        self
    }

    /// Builds the manager: checks all settings, opens one connection, starts the renewal thread. Blocks for
    /// at most the connect timeout.
    ///
    /// # Errors
    /// As [`LockManager::connect`]; [`Error::Config`](crate::Error::Config) also for settings that do not fit each other.
    pub fn build(self) -> Result<LockManager> {
        let (config, options) = Config::new(self.wanted)?;
        let caller_id = CallerId::new(
            &config.prefix,
            config.check_period + config.command_timeout,
            config.horizon,
        );
        let caller_id = Arc::new(caller_id);
        let store: Box<dyn Store> = match &self.endpoint.0 {
            Target::Url(url) => Box::new(Single::connect(
                parse_url(url)?,
                &config,
                Arc::clone(&caller_id),
            )?),
            #[cfg(feature = "memory")]
            Target::Memory(memory) => Box::new(Session::open(
                memory,
                config.command_timeout,
                Arc::clone(&caller_id),
            )?),
        };
        let running = EngineHandle::start(config, store, caller_id)?;
        Ok(LockManager {
            running: Arc::new(running),
            built_with: Arc::new(options.clone()),
            options,
        })
    }
}
