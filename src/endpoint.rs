//! Where the locks of a manager live: a URL, or the same by calls.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
#[cfg(feature = "memory")]
use crate::store::memory::Memory;
use crate::store::{
    Address, ClusterSettings, Login, SentinelSettings, ServerSettings, Topology, parse_url,
    read_url,
};

/// Where the locks live. A URL, in one of these forms:
///
/// - one server: `redis://[user:password@]host[:port][/database]`, port 6379 if you leave it out,
///   or `redis+unix:///path/to/socket[?db=n&user=u&pass=p]`, for which `unix://` is the same
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
/// Or the same by calls, so that a password needs no encoding. They also add to a URL. With the
/// feature `memory` also a `&Memory`. Nothing is sent before [`Builder::build`](crate::Builder::build).
/// It reports what is wrong with an endpoint.
///
/// ```
/// use fairlock::endpoint::Endpoint;
///
/// let quorum = Endpoint::from("redis://:secret@a redis://:secret@b redis://:secret@c");
/// assert_eq!(quorum.to_string(), "redis://a:6379 redis://b:6379 redis://c:6379");
///
/// let sentinels = [("sentinel-1", 26379), ("sentinel-2", 26379), ("sentinel-3", 26379)];
/// let service = Endpoint::sentinel("mymaster", sentinels).password("p@ss:word");
/// assert!(service.to_string().ends_with("/mymaster"));
/// ```
#[derive(Clone)]
pub struct Endpoint(pub(crate) Location);

#[derive(Clone)]
pub(crate) enum Location {
    /// As the user wrote it. Not checked yet, and it may contain a password.
    Url(String),
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

/// The URL without the login, or the URLs of a quorum.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "memory")]
        if let Location::Memory(_) = &self.0 {
            return f.write_str("in memory");
        }
        match self.topology() {
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

/// Shows the addresses, never a password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "memory")]
        if let Location::Memory(_) = &self.0 {
            return f.write_str("Endpoint(in memory)");
        }
        match self.topology() {
            Ok(topology) => write!(f, "Endpoint({topology})"),
            Err(_) => f.write_str("Endpoint(not valid)"),
        }
    }
}

impl Endpoint {
    /// One server, at this host and port. The host is a name, an IPv4 address or an IPv6 address.
    pub fn server(host: impl AsRef<str>, port: u16) -> Endpoint {
        Endpoint::at(tcp(host, port))
    }

    /// One server on this host, at a unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Endpoint {
        Endpoint::at(Address::Unix(path.into()))
    }

    /// The master of a service that sentinels watch: the service by its name, and the sentinels by
    /// host and port. Some of the sentinels are enough: one that answers names the master.
    pub fn sentinel<H: AsRef<str>>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> Endpoint {
        Endpoint::typed(Ok(Topology::Sentinel(SentinelSettings {
            sentinels: tcp_all(sentinels),
            service: service.into(),
            sentinel_login: Login::default(),
            login: Login::default(),
        })))
    }

    /// The masters of the cluster to which these nodes belong, each by host and port. Some of the nodes
    /// are enough: one that answers names the others.
    pub fn cluster<H: AsRef<str>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Endpoint {
        Endpoint::typed(Ok(Topology::Cluster(ClusterSettings {
            seeds: tcp_all(nodes),
            login: Login::default(),
        })))
    }

    /// Independent masters, of which a majority decides (Redlock): 3 or 5 endpoints of one server each,
    /// for instance URLs. None may be a replica of another one.
    ///
    /// It keeps mutexes and re-entrant mutexes only, and callers have no order.
    pub fn quorum<S: Into<Endpoint>>(servers: impl IntoIterator<Item = S>) -> Endpoint {
        let one = |server: S| match server.into().unchecked()? {
            Topology::Single(settings) => Ok(settings),
            _ => Err(Error::setting(
                "url",
                "the URL of one server, redis:// or redis+unix://; this one names several servers",
            )),
        };
        let servers: Result<Vec<_>> = servers.into_iter().map(one).collect();
        Endpoint::typed(servers.map(Topology::Quorum))
    }

    /// The user to log in as, at every server that holds locks. Needs a [password](Endpoint::password).
    /// Default: the server's default user.
    pub fn user(self, user: impl Into<String>) -> Endpoint {
        let user = user.into();
        self.with_logins("user", |login| login.user = Some(user.clone()))
    }

    /// The password at every server that holds locks. Default: no login.
    pub fn password(self, password: impl Into<String>) -> Endpoint {
        let password = password.into();
        self.with_logins("password", |login| login.password = Some(password.clone()))
    }

    /// The number of the database. Default 0. A cluster has no other.
    pub fn database(self, database: u32) -> Endpoint {
        self.with_logins("database", |login| login.database = database.into())
    }

    /// The user to log in as at the sentinels. Needs a
    /// [password](Endpoint::sentinel_password). Default: the sentinel's default user.
    pub fn sentinel_user(self, user: impl Into<String>) -> Endpoint {
        self.with_sentinels("sentinel_user", |login| login.user = Some(user.into()))
    }

    /// The password at the sentinels. Default: no login there.
    pub fn sentinel_password(self, password: impl Into<String>) -> Endpoint {
        self.with_sentinels("sentinel_password", |login| {
            login.password = Some(password.into())
        })
    }

    /// Encrypts all connections, also those to sentinels. Needs the feature `tls`. Default: plain text.
    pub fn tls(self) -> Endpoint {
        self.with("tls", |topology| {
            for login in topology.logins() {
                login.tls = Some(Arc::default());
            }
            Ok(())
        })
    }

    fn at(address: Address) -> Endpoint {
        let login = Login::default();
        Endpoint::typed(Ok(Topology::Single(ServerSettings { address, login })))
    }

    fn typed(topology: Result<Topology>) -> Endpoint {
        Endpoint(Location::Typed(Box::new(topology)))
    }

    /// The servers, checked.
    pub(crate) fn topology(&self) -> Result<Topology> {
        if let Location::Url(url) = &self.0 {
            return parse_url(url);
        }
        let topology = self.clone().unchecked()?;
        let kind = topology.kind();
        topology.check().map_err(|why| Error::setting(kind, why))
    }

    fn unchecked(self) -> Result<Topology> {
        match self.0 {
            Location::Url(url) => read_url(&url, Ok),
            Location::Typed(topology) => *topology,
            #[cfg(feature = "memory")]
            Location::Memory(_) => Err(Error::setting("endpoint", "servers; a Memory has none")),
        }
    }

    fn with(
        self,
        option: &'static str,
        change: impl FnOnce(&mut Topology) -> Result<(), &str>,
    ) -> Endpoint {
        Endpoint::typed(self.unchecked().and_then(|mut topology| {
            change(&mut topology).map_err(|why| Error::setting(option, why))?;
            Ok(topology)
        }))
    }

    /// Changes each login at a server that holds locks.
    fn with_logins(self, option: &'static str, mut change: impl FnMut(&mut Login)) -> Endpoint {
        self.with(option, |topology| {
            match topology {
                Topology::Single(server) => change(&mut server.login),
                Topology::Sentinel(settings) => change(&mut settings.login),
                Topology::Cluster(settings) => change(&mut settings.login),
                Topology::Quorum(servers) => {
                    servers
                        .iter_mut()
                        .for_each(|server| change(&mut server.login));
                }
            }
            Ok(())
        })
    }

    fn with_sentinels(self, option: &'static str, change: impl FnOnce(&mut Login)) -> Endpoint {
        self.with(option, |topology| match topology {
            Topology::Sentinel(settings) => {
                change(&mut settings.sentinel_login);
                Ok(())
            }
            _ => Err("for sentinels; this endpoint has none"),
        })
    }
}

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
