//! How a manager is built: from settings to numbers, to the store that its endpoint names, to a
//! running engine. `stores` has a store for each topology.

mod remedy;
mod stores;

#[cfg(feature = "tls")]
use std::path::PathBuf;
#[cfg(feature = "memory")]
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, ReplicaAcks, Settings};
use crate::credentials::{Credentials, CredentialsError, CredentialsRequest};
use crate::endpoint::Endpoint;
#[cfg(feature = "memory")]
use crate::endpoint::Location;
use crate::error::Result;
use crate::local::Running;
use crate::manager::LockManager;
use crate::options::LockOptions;
#[cfg(feature = "unstable-servers")]
use crate::servers::Servers;
#[cfg(feature = "tls")]
use crate::store::Pem;
#[cfg(feature = "memory")]
use crate::store::memory::Session;
use crate::store::{Provider, Store, TlsSettings, Topology};

/// For the first read of all files of certificates. A busy host, or a disk that sleeps, may take longer than
/// a server is given to answer.
const TIME_FOR_FILES: Duration = Duration::from_secs(2);

impl LockManager {
    /// Connects to a Redis with all defaults: `builder(to).build()`.
    ///
    /// Opens one connection. Blocks for at most the connect timeout (500 ms).
    ///
    /// ```no_run
    /// let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let _g = mgr.lock("invoices:42")?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Misused`](crate::Error::Misused): the URL is not valid, or the server is older than Redis 6.2. Or it is a
    ///   replica, or of another topology than the URL says: the error has the URL to use.
    /// - [`Error::Unavailable`](crate::Error::Unavailable): the server cannot be reached.
    /// - [`Error::Refused`](crate::Error::Refused): the server refuses, for instance because the password is wrong. Or the
    ///   server's certificate, the client's, or the URL is not right.
    ///
    pub fn connect(to: impl Into<Endpoint>) -> Result<LockManager> {
        LockManager::builder(to).build()
    }

    /// Starts to build a manager with other settings than the defaults. Never blocks.
    pub fn builder(to: impl Into<Endpoint>) -> Builder {
        Builder {
            endpoint: to.into(),
            tls: TlsSettings::default(),
            credentials: None,
            sentinel_credentials: None,
            settings: Settings::default(),
        }
    }
}

/// Settings of a manager. A setting that you leave out is derived from the ttl, so that it fits.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    endpoint: Endpoint,
    tls: TlsSettings,
    credentials: Option<Provider>,
    sentinel_credentials: Option<Provider>,
    settings: Settings,
}

impl Builder {
    /// How the names of keys and channels begin: 1 to 128 bytes, without braces and control
    /// characters. Default `fairlock`.
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Builder {
        self.settings.prefix = Some(prefix.as_ref().to_owned());
        self
    }

    /// How locks are taken, unless a handle has [other options](LockManager::with). Default
    /// [`LockOptions::new`].
    ///
    /// The timeouts and periods below are derived from the ttl of these options.
    pub fn options(mut self, options: LockOptions) -> Builder {
        self.settings.options = options;
        self
    }

    /// How many connections short calls share. Each is a *lane*: all calls for one name travel on
    /// the same lane, in order. The manager opens a lane when it needs it. A waiter holds none.
    ///
    /// Many threads can have calls on one lane at the same time, so few lanes are best. A slow or
    /// dead connection delays only the names on its lane, and on the first lane also
    /// [`list`](LockManager::list). 1 to 64; default 2.
    pub fn lanes(mut self, lanes: u32) -> Builder {
        self.settings.lanes = Some(lanes);
        self
    }

    /// How many locks the manager [keeps](LockOptions::keep_idle) at a time. A lock that it may keep after
    /// its guard counts while the guard lives, too.
    ///
    /// Each is renewed until it is released. If the manager ends without
    /// [`shutdown`](LockManager::shutdown), all of them stay taken for a ttl. A lock that finds no room
    /// costs what it costs without `keep_idle`, and counts in
    /// [`not_kept_full`](crate::stats::Stats::not_kept_full). A kept lock that is used less often than that one
    /// makes room for it: see [`keep_idle`](LockOptions::keep_idle). 1 to 1,000,000; default 1024.
    pub fn max_kept(mut self, locks: u32) -> Builder {
        self.settings.max_kept = Some(locks);
        self
    }

    /// Whether dropping a guard waits for Redis's reply, as [`unlock`](crate::LockGuard::unlock)
    /// does. Default `false`: mostly, drop writes the release and returns without waiting.
    /// [`LockGuard`](crate::LockGuard#drop) says when it waits, and what is true when it returns.
    ///
    /// With `true`, Redis has run the release when drop returns, unless it refused the release or
    /// did not answer within the command timeout. Each drop then takes a round trip, and blocks for
    /// at most one command timeout. Use it if another process or manager must find the lock free at
    /// once, and you cannot call `unlock`.
    pub fn wait_on_drop(mut self, wait: bool) -> Builder {
        self.settings.wait_on_drop = wait;
        self
    }

    /// How long the manager may take to open a connection: to resolve the host's name, connect and
    /// log in. 1 ms to 24 h; default: the command timeout.
    ///
    /// A name may have several addresses. Each is tried within this time: the next one begins when
    /// one fails, or when it is silent for 250 ms (less, if the timeout has no room for all of
    /// them). The first address that is ready for calls is used.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.settings.connect_timeout = Some(timeout);
        self
    }

    /// How long a reply may take (T). 1 ms to 24 h; default
    /// 500 ms, or a tenth of the ttl if that is less.
    pub fn command_timeout(mut self, timeout: Duration) -> Builder {
        self.settings.command_timeout = Some(timeout);
        self
    }

    /// How often a process checks each name that it waits for (P). 1 ms to 24 h; default 1 s,
    /// or an eighth of the ttl if that is less.
    pub fn check_period(mut self, period: Duration) -> Builder {
        self.settings.check_period = Some(period);
        self
    }

    /// How long a silent process keeps its places in queues (H). From P + 3 T to 17/30 of the
    /// ttl; default 5 s, or half of the ttl if that is less.
    pub fn horizon(mut self, horizon: Duration) -> Builder {
        self.settings.horizon = Some(horizon);
        self
    }

    /// How long Redis may go without a successful reply before a wait ends with an error.
    ///
    /// At least the command timeout. With `Duration::MAX` a wait outlasts every outage. Default 10 s.
    pub fn outage_limit(mut self, limit: Duration) -> Builder {
        self.settings.outage_limit = Some(limit);
        self
    }

    /// How long a wait for a lock may last before the log warns of it.
    ///
    /// The warning has the name, the label, the position and the time waited. It comes again each
    /// time the wait has doubled. One line speaks for all waiters of this manager for the name. The
    /// waiting thread writes it, so a caller that waits by [`ready`](crate::Waiter::ready) alone has
    /// none.
    ///
    /// At least 1 ms; `Duration::MAX` turns it off. Default
    /// 10 s.
    pub fn long_wait(mut self, limit: Duration) -> Builder {
        self.settings.long_wait = Some(limit);
        self
    }

    /// Logs in with credentials that this provider gives, for a login that changes: tokens that end,
    /// or a password that is rotated. Default: the login in the URL.
    ///
    /// The provider is asked for each new connection to a server that keeps locks, and once more
    /// if the server refuses its answer. If it says when the credentials end, it is asked before,
    /// and every open connection logs in anew. For a password in a file, call
    /// [`PasswordFile::credentials`](crate::credentials::PasswordFile::credentials) in it. A `Memory`
    /// has no login, so it asks no provider.
    ///
    /// The manager calls it on a thread of its own, with no mutex held. Several threads may call it
    /// at the same time. It may block: the connection that it is asked for waits for it.
    ///
    /// The connect timeout bounds the connection and the provider together. An error, a panic or a
    /// timeout of the provider fails that connection alone, with [`Error::Unavailable`](crate::Error::Unavailable) at the
    /// step [`Credentials`](crate::Step::Credentials). It is tried again as if the server were
    /// unavailable, and connections that are open stay in use.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fairlock::{LockManager, credentials::Credentials};
    ///
    /// # fn token_for(_: &str) -> std::io::Result<String> { Ok(String::new()) }
    /// let mgr = LockManager::builder("rediss://redis.internal/")
    ///     .credentials(|request| {
    ///         let token = token_for(request.server())?;
    ///         Ok(Credentials::new("billing", token).valid_for(Duration::from_secs(900)))
    ///     })
    ///     .build()?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`build`](Builder::build) fails with [`Error::Misused`](crate::Error::Misused) if the endpoint has a login of its
    /// own, and with [`Error::Unavailable`](crate::Error::Unavailable) if the provider fails.
    pub fn credentials(
        mut self,
        provider: impl Fn(&CredentialsRequest) -> Result<Credentials, CredentialsError>
        + Send
        + Sync
        + 'static,
    ) -> Builder {
        self.credentials = Some(Provider::new(provider));
        self
    }

    /// The same for the logins at sentinels, which have users of their own. Default: the login of
    /// the [`Endpoint`], or none.
    ///
    /// The provider is asked for each new connection to a sentinel. It may block for half of the
    /// connect timeout; then the other sentinels decide.
    ///
    /// # Errors
    /// [`build`](Builder::build) fails with [`Error::Misused`](crate::Error::Misused) if the endpoint
    /// is no Sentinel, or has a login for sentinels of its own.
    pub fn sentinel_credentials(
        mut self,
        provider: impl Fn(&CredentialsRequest) -> Result<Credentials, CredentialsError>
        + Send
        + Sync
        + 'static,
    ) -> Builder {
        self.sentinel_credentials = Some(Provider::new(provider));
        self
    }

    /// The authorities whose certificates count: one or more certificates in PEM, in place of the
    /// system's. Needs the feature `tls`. Default: the authorities in the file that the variable
    /// `SSL_CERT_FILE` names, or else the system's.
    ///
    /// It is for every TLS connection of the manager. [`build`](Builder::build) reads it once, and
    /// connects within the connect timeout.
    ///
    /// # Errors
    /// [`build`](Builder::build) fails with [`Error::Misused`](crate::Error::Misused) if the certificates cannot be used,
    /// or if the URL has no TLS. It fails with [`Error::Refused`](crate::Error::Refused) if the server's certificate does not
    /// count.
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, certificates: impl AsRef<[u8]>) -> Builder {
        self.tls.ca = Some(Pem::Given(certificates.as_ref().to_vec()));
        self
    }

    /// The same, from a file, which is read again for each new connection.
    ///
    /// So an authority that is added there counts without a restart. While the file cannot be read or
    /// used, what it had before counts. Reading takes at most half of the connect timeout, in
    /// [`build`](Builder::build) 2 s.
    ///
    /// # Errors
    /// As [`tls_ca`](Builder::tls_ca), also if the file cannot be read by
    /// [`build`](Builder::build).
    #[cfg(feature = "tls")]
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.tls.ca = Some(Pem::File(path.into()));
        self
    }

    /// The client's own certificate, for servers that demand one, and its private key. Both are in
    /// PEM. Certificates between it and the authority follow it, if there are any. The key is not
    /// encrypted. Needs the feature `tls`. Default: none.
    ///
    /// It is for every TLS connection of the manager. [`build`](Builder::build) reads it once, and
    /// connects within the connect timeout.
    ///
    /// # Errors
    /// [`build`](Builder::build) fails with [`Error::Misused`](crate::Error::Misused) if the certificate or the key cannot
    /// be used, or if the URL has no TLS. It fails with [`Error::Refused`](crate::Error::Refused) if the server does not
    /// accept it.
    #[cfg(feature = "tls")]
    pub fn tls_identity(
        mut self,
        certificates: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Builder {
        let given = |pem: &[u8]| Pem::Given(pem.to_vec());
        self.tls.identity = Some((given(certificates.as_ref()), given(key.as_ref())));
        self
    }

    /// The same, from two files, which are read again for each new connection.
    ///
    /// So a certificate that is renewed there is used without a restart. While the files cannot be
    /// read, or the key does not belong to the certificate, those before count. Reading takes at most
    /// half of the connect timeout.
    ///
    /// # Errors
    /// As [`tls_identity`](Builder::tls_identity), also if a file cannot be read by
    /// [`build`](Builder::build).
    #[cfg(feature = "tls")]
    pub fn tls_identity_files(
        mut self,
        certificates: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Builder {
        let files = (Pem::File(certificates.into()), Pem::File(key.into()));
        self.tls.identity = Some(files);
        self
    }

    /// Makes a lock count only when `replicas` replicas of the server have acknowledged it within
    /// `timeout`. 0 replicas: off, which is the default.
    ///
    /// Without this, a failover loses the grants that the new master had not received yet. With it,
    /// each grant is sent to the replicas before you get the lock (`WAIT` of Redis). If fewer
    /// acknowledge it in time, the lock is released and the call fails with
    /// [`Error::Unavailable`](crate::Error::Unavailable). A renewal counts only if it is acknowledged, too. A guard is lost
    /// when the time of its last acknowledged renewal is over. Releases need no acknowledgement. So
    /// after a failover, a lock that was released just before may look taken until its ttl is over.
    ///
    /// Only if `replicas` is the number of *all* replicas, every grant survives every failover to
    /// one of them. Otherwise the new master may be one of those that did not acknowledge. With all
    /// of them, no lock can be taken while a replica is away. After a failover, this lasts until
    /// the old master is back as a replica.
    ///
    /// A replica acknowledges what it has received, not what it has on disk. The server's
    /// `min-replicas-to-write` is no replacement: it checks that replicas were there lately, and not
    /// that they have this grant. But it ends the grants of an old master that is cut off from its
    /// replicas.
    ///
    /// A call that takes a lock may block for `timeout` and one command timeout longer, and for one
    /// more if too few replicas acknowledge it. [`renew`](crate::Lease::renew) then blocks for
    /// `timeout` and one command timeout at most. A call mostly takes two round trips in place of one,
    /// and the time to the replicas. The manager has two more connections, in a cluster for each
    /// master. The user needs the right `+wait`.
    ///
    /// `timeout` is 1 ms to half the command timeout. In a cluster, each master needs this many
    /// replicas.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let mgr = fairlock::LockManager::builder("redis://127.0.0.1/")
    ///     .replica_acks(2, Duration::from_millis(200))
    ///     .build()?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`build`](Builder::build) fails with [`Error::Misused`](crate::Error::Misused) for a quorum and for a `Memory`, which
    /// have no replicas, and if the timeout does not fit.
    pub fn replica_acks(mut self, replicas: u32, timeout: Duration) -> Builder {
        self.settings.replica_acks = Some(ReplicaAcks {
            wanted: replicas,
            timeout,
        });
        self
    }

    /// Whether a node of a quorum is refused while its server has run for less than the ttl. Other
    /// topologies ignore it. Default `true`.
    ///
    /// A server that restarted without its data has forgotten its locks and fences. If it voted at
    /// once, two clients could hold one lock, and fences could fall. After one ttl everything that
    /// it forgot is over. So all managers of a quorum must use the same ttl in their
    /// [options](Builder::options): the longest that one of them needs. No lease may be longer than
    /// that.
    ///
    /// Until a majority of the servers have run for that long, calls fail with
    /// [`Error::Unavailable`](crate::Error::Unavailable) within their bounds, and its cause says why. The check makes no call
    /// block longer.
    ///
    /// The check needs the right to run `INFO`. It does not notice FLUSHALL. Turn it off only if
    /// your servers keep every write across a restart (`appendfsync always`), or in tests, whose
    /// servers have just started.
    pub fn uptime_check(mut self, check: bool) -> Builder {
        self.settings.uptime_check = Some(check);
        self
    }

    /// Builds the manager: checks all settings, opens one connection, and starts the renewal
    /// thread.
    ///
    /// Blocks for at most the connect timeout; with [`Builder::replica_acks`] for one command timeout
    /// more, to see whether the user may run `WAIT`; with TLS for 2 s more, to read files of
    /// certificates.
    ///
    /// # Errors
    /// As [`LockManager::connect`]. [`Error::Misused`](crate::Error::Misused) also if settings do not
    /// fit each other. [`Error::Unavailable`](crate::Error::Unavailable) at the step
    /// [`Certificates`](crate::Step::Certificates) if a file was not read in time.
    pub fn build(self) -> Result<LockManager> {
        let (config, options) = Config::new(self.settings.clone())?;
        let caller_id = stores::caller_id(&config, &options);
        let store: Box<dyn Store> = match &self.endpoint.0 {
            #[cfg(feature = "memory")]
            Location::Memory(_) if config.replica_acks.is_some() => {
                return Err(stores::no_replicas());
            }
            #[cfg(feature = "memory")]
            Location::Memory(memory) => Box::new(Session::open(
                memory,
                config.command_timeout,
                Arc::clone(&caller_id),
            )?),
            _ => stores::connect(self.topology()?, &config, &options, &caller_id)?,
        };
        let running = Running::start(config, store, caller_id)?;
        Ok(LockManager::new(running, options))
    }

    /// The servers that the endpoint names, for commands of the program's own: see [`Servers`].
    /// Reads the files of certificates, for 2 s at most, and sends nothing.
    ///
    /// # Errors
    /// [`Error::Misused`](crate::Error::Misused): the URL, the certificates, the credentials or other
    /// settings are not valid. Or the endpoint is a [`Memory`](crate::memory::Memory), which has no servers.
    #[cfg(feature = "unstable-servers")]
    #[doc(hidden)]
    pub fn servers(&self) -> Result<Servers> {
        Config::new(self.settings.clone())?;
        self.topology().map(Servers)
    }

    /// The endpoint's topology with this builder's certificates and providers.
    fn topology(&self) -> Result<Topology> {
        let topology = self.endpoint.topology()?;
        let of_servers = self.credentials.clone();
        let of_sentinels = self.sentinel_credentials.clone();
        let topology = topology.with_credentials(of_servers, of_sentinels)?;
        topology.with_tls(self.tls.clone(), TIME_FOR_FILES)
    }
}
