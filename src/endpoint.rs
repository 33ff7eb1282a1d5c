//! Where the locks of a manager live: a URL, or the same with types.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
#[cfg(feature = "memory")]
use crate::store::memory::Memory;
use crate::store::{
    Address, ClusterSettings, Login, SentinelSettings, ServerSettings, Topology, parse_url,
};

/// Where the locks live. A URL, in one of these forms:
///
/// - one server: `redis://[user:password@]host[:port][/database]`, port 6379 if you leave it out,
///   or `redis+unix:///path/to/socket[?db=n&user=u&pass=p]`
/// - Sentinel: `redis-sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]`,
///   port 26379, with the parameters `node=host:port` (a further sentinel),
///   `sentinelServiceName`, `sentinelUsername` and `sentinelPassword`
/// - Cluster: `redis-cluster://[user:password@]host[:port][,host[:port]...]`, port 6379, with the
///   parameter `node=host:port` (a further node)
///
/// - a quorum: the URLs of its 3 or 5 servers, with spaces between them
///
/// `valkey` stands for `redis` in all of them. `rediss` and `valkeys` stand for TLS, with the
/// feature `tls`.
///
/// So one variable configures any topology. `Display` shows these URLs again, without logins.
///
/// Or the same with types: a [`Server`], a [`Sentinel`], a [`Cluster`], a [`Quorum`]. With the
/// feature `memory` also a `&Memory`. [`Builder::build`](crate::Builder::build) reports what is wrong
/// with an endpoint, and `str::parse` does so for a text at once.
///
/// ```
/// use fairlock::endpoint::Endpoint;
///
/// let quorum: Endpoint = "redis://:secret@a redis://:secret@b redis://:secret@c".parse()?;
/// assert_eq!(quorum.to_string(), "redis://a:6379 redis://b:6379 redis://c:6379");
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Endpoint(pub(crate) Location);

#[derive(Clone)]
pub(crate) enum Location {
    /// As the user wrote it. Not checked yet, and it may contain a password.
    Url(String),
    /// Checked.
    Typed(Box<Result<Topology>>),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

/// Any text: `&str`, `String`, `&String`, `Arc<str>` and so on.
impl<T: AsRef<str>> From<T> for Endpoint {
    fn from(url: T) -> Endpoint {
        Endpoint(Location::Url(url.as_ref().to_owned()))
    }
}

/// Reads the text and reports what is wrong in it. Never blocks.
impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint> {
        parse_url(text)?;
        Ok(Endpoint::from(text))
    }
}

/// The URL without the login, or the URLs of a quorum.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parsed = match &self.0 {
            Location::Url(text) => &parse_url(text),
            Location::Typed(checked) => &**checked,
            #[cfg(feature = "memory")]
            Location::Memory(_) => return f.write_str("in memory"),
        };
        match parsed {
            Ok(topology) => f.write_str(&topology.url()),
            Err(_) => f.write_str("not a URL"),
        }
    }
}

#[cfg(feature = "memory")]
impl From<&Memory> for Endpoint {
    fn from(memory: &Memory) -> Endpoint {
        Endpoint(Location::Memory(memory.clone()))
    }
}

/// The address, as errors show it: host and port, or the path of a unix socket.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(settings) => settings.address.fmt(f),
            Err(_) => f.write_str("not valid"),
        }
    }
}

impl From<Server> for Endpoint {
    fn from(server: Server) -> Endpoint {
        Endpoint::typed("server", server.0.map(Topology::Single))
    }
}

impl From<Sentinel> for Endpoint {
    fn from(sentinel: Sentinel) -> Endpoint {
        Endpoint::typed("sentinel", Ok(Topology::Sentinel(sentinel.0)))
    }
}

impl From<Cluster> for Endpoint {
    fn from(cluster: Cluster) -> Endpoint {
        Endpoint::typed("cluster", Ok(Topology::Cluster(cluster.0)))
    }
}

impl From<Quorum> for Endpoint {
    fn from(quorum: Quorum) -> Endpoint {
        let servers: Result<Vec<_>> = quorum.0.into_iter().map(|server| server.0).collect();
        Endpoint::typed("quorum", servers.map(Topology::Quorum))
    }
}

impl Endpoint {
    fn typed(what: &str, topology: Result<Topology>) -> Endpoint {
        let checked = topology.and_then(|topology| {
            let refused = topology.check();
            refused.map_err(|why| Error::setting(what, why))
        });
        Endpoint(Location::Typed(Box::new(checked)))
    }
}

/// Shows the addresses, never a password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::Url(url) => match parse_url(url) {
                Ok(topology) => write!(f, "Endpoint({topology})"),
                Err(_) => f.write_str("Endpoint(not a URL)"),
            },
            Location::Typed(checked) => match &**checked {
                Ok(topology) => write!(f, "Endpoint({topology})"),
                Err(_) => f.write_str("Endpoint(not valid)"),
            },
            #[cfg(feature = "memory")]
            Location::Memory(_) => f.write_str("Endpoint(in memory)"),
        }
    }
}

/// One Redis server. It is an [`Endpoint`] alone, and a member of a [`Quorum`].
///
/// A URL of one server is a `Server`, too: `Server::from("redis://host:6379/")`. Nothing is sent
/// and nothing is reported before [`Builder::build`](crate::Builder::build), which blocks for at
/// most the connect timeout. It returns [`Error::Misused`] for settings that are not valid.
///
/// ```no_run
/// use fairlock::{LockManager, endpoint::Server};
///
/// let server = Server::new("redis.internal", 6379).password("secret").database(2);
/// let mgr = LockManager::connect(server)?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Server(pub(crate) Result<ServerSettings>);

impl Server {
    /// A server at this host and port. The host is a name, an IPv4 address or an IPv6 address.
    pub fn new(host: impl AsRef<str>, port: u16) -> Server {
        Server::at(tcp(host, port))
    }

    /// A server on this host, at a unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Server {
        Server::at(Address::Unix(path.into()))
    }

    fn at(address: Address) -> Server {
        let login = Login::default();
        Server(Ok(ServerSettings { address, login }))
    }

    /// The user to log in as. Needs a [password](Server::password). Default: the server's default
    /// user.
    pub fn user(self, user: impl Into<String>) -> Server {
        self.with(|login| login.user = Some(user.into()))
    }

    /// The password. Default: no login.
    pub fn password(self, password: impl Into<String>) -> Server {
        self.with(|login| login.password = Some(password.into()))
    }

    /// The number of the database. Default 0.
    pub fn database(self, database: u32) -> Server {
        self.with(|login| login.database = database.into())
    }

    /// Encrypts the connections. Needs the feature `tls`. Default: plain text.
    pub fn tls(self) -> Server {
        self.with(|login| login.tls = Some(Arc::default()))
    }

    /// Changes the login, unless the server's URL was not understood.
    fn with(mut self, change: impl FnOnce(&mut Login)) -> Server {
        if let Ok(settings) = &mut self.0 {
            change(&mut settings.login);
        }
        self
    }
}

/// The URL of one server.
impl<T: AsRef<str>> From<T> for Server {
    fn from(url: T) -> Server {
        Server(parse_url(url.as_ref()).and_then(|topology| match topology {
            Topology::Single(settings) => Ok(settings),
            _ => Err(Error::setting(
                "url",
                "the URL of one server, redis:// or redis+unix://; this one names several servers",
            )),
        }))
    }
}

/// The master of a service that sentinels watch.
///
/// Some of the sentinels are enough: one that answers names the master. Nothing is sent before
/// [`Builder::build`](crate::Builder::build), which blocks for at most the connect timeout. It
/// returns [`Error::Misused`] for settings that are not valid, and [`Error::Unavailable`] if no
/// master is found.
///
/// ```no_run
/// use fairlock::{LockManager, endpoint::Sentinel};
///
/// let sentinels = [("sentinel-1", 26379), ("sentinel-2", 26379), ("sentinel-3", 26379)];
/// let mgr = LockManager::connect(Sentinel::new("mymaster", sentinels).password("secret"))?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Sentinel(SentinelSettings);

impl Sentinel {
    /// The service by its name, and the sentinels by host and port.
    pub fn new<H: AsRef<str>>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> Sentinel {
        Sentinel(SentinelSettings {
            sentinels: tcp_all(sentinels),
            service: service.into(),
            sentinel_login: Login::default(),
            login: Login::default(),
        })
    }

    /// The user to log in as at the master. Needs a [password](Sentinel::password). Default: the
    /// server's default user.
    pub fn user(mut self, user: impl Into<String>) -> Sentinel {
        self.0.login.user = Some(user.into());
        self
    }

    /// The password at the master. Default: no login.
    pub fn password(mut self, password: impl Into<String>) -> Sentinel {
        self.0.login.password = Some(password.into());
        self
    }

    /// The number of the database. Default 0.
    pub fn database(mut self, database: u32) -> Sentinel {
        self.0.login.database = database.into();
        self
    }

    /// The user to log in as at the sentinels. Needs a
    /// [password](Sentinel::sentinel_password). Default: the sentinel's default user.
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Sentinel {
        self.0.sentinel_login.user = Some(user.into());
        self
    }

    /// The password at the sentinels. Default: no login there.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Sentinel {
        self.0.sentinel_login.password = Some(password.into());
        self
    }

    /// Encrypts the connections, to the sentinels and to the master. Needs the feature `tls`.
    /// Default: plain text.
    pub fn tls(mut self) -> Sentinel {
        self.0.login.tls = Some(Arc::default());
        self.0.sentinel_login.tls.clone_from(&self.0.login.tls);
        self
    }
}

/// The masters of a cluster.
///
/// Some of the nodes are enough: one that answers names the others. Nothing is sent before
/// [`Builder::build`](crate::Builder::build), which blocks for at most the connect timeout. It
/// returns [`Error::Misused`] for settings that are not valid, and [`Error::Unavailable`] if no node
/// answers.
///
/// ```no_run
/// use fairlock::{LockManager, endpoint::Cluster};
///
/// let nodes = [("node-1", 7000), ("node-2", 7000)];
/// let mgr = LockManager::connect(Cluster::new(nodes).user("billing").password("secret"))?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Cluster(ClusterSettings);

impl Cluster {
    /// The cluster to which these nodes belong, each by host and port.
    pub fn new<H: AsRef<str>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Cluster {
        Cluster(ClusterSettings {
            seeds: tcp_all(nodes),
            login: Login::default(),
        })
    }

    /// The user to log in as, at every node. Needs a [password](Cluster::password). Default: the
    /// server's default user.
    pub fn user(mut self, user: impl Into<String>) -> Cluster {
        self.0.login.user = Some(user.into());
        self
    }

    /// The password at every node. Default: no login.
    pub fn password(mut self, password: impl Into<String>) -> Cluster {
        self.0.login.password = Some(password.into());
        self
    }

    /// Encrypts the connections. Needs the feature `tls`. Default: plain text.
    pub fn tls(mut self) -> Cluster {
        self.0.login.tls = Some(Arc::default());
        self
    }
}

/// Independent masters, of which a majority decides (Redlock): 3 or 5 of them.
///
/// It keeps mutexes and re-entrant mutexes only, and callers have no order. Nothing is sent before
/// [`Builder::build`](crate::Builder::build), which blocks for at most the connect timeout. It
/// returns [`Error::Misused`] for another number of servers, for one that is named twice and for
/// settings that are not valid. It returns [`Error::Unavailable`] if no majority can be reached.
///
/// ```no_run
/// use fairlock::{LockManager, endpoint::Quorum};
///
/// let quorum = Quorum::new(["redis://a.internal", "redis://b.internal", "redis://c.internal"]);
/// let mgr = LockManager::connect(quorum)?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Quorum(Vec<Server>);

impl Quorum {
    /// These servers, as URLs or as [`Server`]s. None may be a replica of another one.
    pub fn new<S: Into<Server>>(servers: impl IntoIterator<Item = S>) -> Quorum {
        Quorum(servers.into_iter().map(Into::into).collect())
    }
}

macro_rules! show_addresses {
    ($($type:ident),+) => {$(
        /// Shows the addresses, never a password.
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let endpoint = Endpoint::from(self.clone());
                if let Location::Typed(checked) = &endpoint.0
                    && let Ok(topology) = &**checked
                {
                    write!(f, concat!(stringify!($type), "({})"), topology)
                } else {
                    f.write_str(concat!(stringify!($type), "(not valid)"))
                }
            }
        }
    )+};
}

show_addresses!(Server, Sentinel, Cluster, Quorum);

pub(crate) fn tcp(host: impl AsRef<str>, port: u16) -> Address {
    let host = host.as_ref();
    // In a URL, an IPv6 address has brackets.
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    Address::Tcp(bare.unwrap_or(host).to_owned(), port)
}

fn tcp_all<H: AsRef<str>>(addresses: impl IntoIterator<Item = (H, u16)>) -> Vec<Address> {
    let all = addresses.into_iter();
    all.map(|(host, port)| tcp(host, port)).collect()
}

#[cfg(test)]
mod tests;
