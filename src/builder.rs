//! How a manager is built: settings, then the store that its endpoint names, then the engine.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Settings};
use crate::endpoint::{Endpoint, Target};
use crate::engine::EngineHandle;
use crate::error::Result;
use crate::manager::LockManager;
use crate::options::LockOptions;
use crate::script::CallerId;
#[cfg(feature = "memory")]
use crate::store::memory::{Memory, Session};
use crate::store::{Single, Store, parse_url};

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
            settings: Settings::default(),
        }
    }
}

/// Settings of a manager. What is not set is derived from the ttl, so that it fits.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    endpoint: Endpoint,
    settings: Settings,
}

impl Builder {
    /// What keys and channels begin with: 1 to 128 bytes without braces and control characters. Default
    /// [`DEFAULT_PREFIX`](crate::DEFAULT_PREFIX).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.settings.prefix = Some(prefix.into());
        self
    }

    /// How locks are taken, unless a handle says otherwise. The timeouts and periods below are derived from
    /// its ttl.
    pub fn options(mut self, options: LockOptions) -> Builder {
        self.settings.options = options;
        self
    }

    /// Connections for short calls, at most; opened as they are needed. A waiter holds none. Calls that find none
    /// free wait for one, for at most one command timeout, and share its next write. 1 to 10,000,
    /// default [`DEFAULT_POOL_SIZE`](crate::DEFAULT_POOL_SIZE).
    pub fn pool_size(mut self, connections: u32) -> Builder {
        self.settings.pool_size = Some(connections);
        self
    }

    /// How long opening a connection may take. Default: the command timeout.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.settings.connect_timeout = Some(timeout);
        self
    }

    /// How long a reply may take (T). Default [`DEFAULT_COMMAND_TIMEOUT`](crate::DEFAULT_COMMAND_TIMEOUT), or a
    /// tenth of the ttl if that is less.
    pub fn command_timeout(mut self, timeout: Duration) -> Builder {
        self.settings.command_timeout = Some(timeout);
        self
    }

    /// How often a process looks after each name that it waits for (P). Default
    /// [`DEFAULT_CHECK_PERIOD`](crate::DEFAULT_CHECK_PERIOD), or an eighth of the ttl if that is less.
    pub fn check_period(mut self, period: Duration) -> Builder {
        self.settings.check_period = Some(period);
        self
    }

    /// For how long a silent process keeps its places in queues (H): from P + 3 T to 2/3 − 1/10 of the ttl.
    /// Default [`DEFAULT_HORIZON`](crate::DEFAULT_HORIZON), or half of the ttl if that is less.
    pub fn horizon(mut self, horizon: Duration) -> Builder {
        self.settings.horizon = Some(horizon);
        self
    }

    /// After so long without a successful reply from Redis a wait ends with an error. At least the command
    /// timeout; `Duration::MAX` waits out every outage. Default
    /// [`DEFAULT_OUTAGE_LIMIT`](crate::DEFAULT_OUTAGE_LIMIT).
    pub fn outage_limit(mut self, limit: Duration) -> Builder {
        self.settings.outage_limit = Some(limit);
        self
    }

    /// Builds the manager: checks all settings, opens one connection, starts the renewal thread. Blocks for
    /// at most the connect timeout.
    ///
    /// # Errors
    /// As [`LockManager::connect`]; [`Error::Config`](crate::Error::Config) also for settings that do not fit each other.
    pub fn build(self) -> Result<LockManager> {
        let (config, options) = Config::new(self.settings)?;
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
        Ok(LockManager::new(running, options))
    }
}
