//! Where the servers are and how to log in, as checked settings: one type for each topology.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::tls::TlsSettings;
use crate::error::{Error, Result as ApiResult};

/// The servers that hold a manager's locks.
#[derive(Clone)]
pub(crate) enum Topology {
    /// One server.
    Single(ServerSettings),
    /// The master of a service that sentinels watch.
    Sentinel(SentinelSettings),
    /// The masters of a cluster.
    Cluster(ClusterSettings),
    /// Independent masters, of which a majority decides.
    Quorum(Vec<ServerSettings>),
}

impl Topology {
    /// The same with these settings for each login that uses TLS, checked.
    pub(crate) fn with_tls(mut self, settings: TlsSettings) -> ApiResult<Topology> {
        let is_set = settings.ca.is_some() || settings.identity.is_some();
        let settings = Arc::new(settings);
        let mut is_used = false;
        for tls in self
            .logins()
            .into_iter()
            .filter_map(|login| login.tls.as_mut())
        {
            settings.check()?;
            *tls = Arc::clone(&settings);
            is_used = true;
        }
        if is_set && !is_used {
            let message = "for a URL with TLS, such as rediss://; this one is without";
            return Err(Error::config("tls", message));
        }
        Ok(self)
    }

    fn logins(&mut self) -> Vec<&mut Login> {
        match self {
            Topology::Single(server) => vec![&mut server.login],
            Topology::Sentinel(settings) => {
                vec![&mut settings.sentinel_login, &mut settings.login]
            }
            Topology::Cluster(settings) => vec![&mut settings.login],
            Topology::Quorum(servers) => {
                servers.iter_mut().map(|server| &mut server.login).collect()
            }
        }
    }
}

/// How to reach one server and log in.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) address: Address,
    pub(crate) login: Login,
}

/// What is the same for all servers of one topology.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    /// `None`: plain text.
    pub(crate) tls: Option<Arc<TlsSettings>>,
}

/// The sentinels, the service that they watch, and how to log in to its servers.
#[derive(Clone)]
pub(crate) struct SentinelSettings {
    pub(crate) sentinels: Vec<Address>,
    pub(crate) service: String,
    /// For the sentinels. Their database is 0.
    pub(crate) sentinel_login: Login,
    pub(crate) login: Login,
}

/// Some nodes of the cluster, and how to log in to any of its nodes. The database is 0.
#[derive(Clone)]
pub(crate) struct ClusterSettings {
    pub(crate) seeds: Vec<Address>,
    pub(crate) login: Login,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // An IPv6 address has colons of its own.
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
