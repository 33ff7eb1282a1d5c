//! Where the servers are and how to log in, as checked settings: one type for each topology.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::provider::Provider;
use super::tls::TlsSettings;
use crate::credentials::Credentials;
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
    /// As errors name it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Topology::Single(_) => "server",
            Topology::Sentinel(_) => "sentinel",
            Topology::Cluster(_) => "cluster",
            Topology::Quorum(_) => "quorum",
        }
    }

    /// Refuses what no server of the topology could be reached with, and says why.
    pub(crate) fn check(self) -> Result<Topology, String> {
        match &self {
            Topology::Single(server) => server.check()?,
            Topology::Sentinel(settings) => {
                if settings.service.is_empty() || settings.service.contains(char::is_control) {
                    return Err("the service is a name without control characters".to_owned());
                }
                check_all(&settings.sentinels, "sentinel")?;
                settings.sentinel_login.check()?;
                settings.login.check()?;
            }
            Topology::Cluster(settings) => {
                check_all(&settings.seeds, "node")?;
                settings.login.check()?;
                if settings.login.database != 0 {
                    return Err("a cluster has database 0 alone".to_owned());
                }
            }
            Topology::Quorum(servers) => check_quorum(servers)?,
        }
        Ok(self)
    }

    /// The same with these settings for each login that uses TLS, checked.
    pub(crate) fn with_tls(
        mut self,
        settings: TlsSettings,
        timeout: Duration,
    ) -> ApiResult<Topology> {
        let is_set = settings.ca.is_some() || settings.identity.is_some();
        let settings = Arc::new(settings);
        let mut is_used = false;
        for tls in self
            .logins()
            .into_iter()
            .filter_map(|login| login.tls.as_mut())
        {
            if is_set {
                *tls = Arc::clone(&settings);
            }
            // All have the same.
            if !is_used {
                tls.check(timeout)?;
            }
            is_used = true;
        }
        if is_set && !is_used {
            let what = if settings.ca.is_some() {
                "tls_ca"
            } else {
                "tls_identity"
            };
            let message = "for a URL with TLS, such as rediss://; this one is without";
            return Err(Error::setting(what, message));
        }
        Ok(self)
    }

    /// The same, with logins that these providers are asked for: one for servers that keep locks, and
    /// one for sentinels.
    pub(crate) fn with_credentials(
        mut self,
        of_servers: Option<Provider>,
        of_sentinels: Option<Provider>,
    ) -> ApiResult<Topology> {
        if of_sentinels.is_some() && !matches!(self, Topology::Sentinel(_)) {
            return Err(Error::setting(
                "sentinel_credentials",
                "for a Sentinel or a redis-sentinel:// URL; this endpoint has no sentinels",
            ));
        }
        if let Topology::Sentinel(settings) = &mut self {
            settings
                .sentinel_login
                .ask("sentinel_credentials", of_sentinels)?;
            settings.login.ask("credentials", of_servers)?;
            return Ok(self);
        }
        for login in self.logins() {
            login.ask("credentials", of_servers.clone())?;
        }
        Ok(self)
    }

    pub(crate) fn logins(&mut self) -> Vec<&mut Login> {
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

impl Topology {
    /// Its URL without the login, or the URLs of a quorum.
    pub(crate) fn url(&self) -> String {
        match self {
            Topology::Single(server) => server.url(),
            Topology::Sentinel(SentinelSettings {
                sentinels,
                service,
                login,
                ..
            }) => {
                let service = format!("{}/{}", in_url(sentinels), encoded(service));
                login.url("-sentinel", &service)
            }
            Topology::Cluster(settings) => settings.login.url("-cluster", &in_url(&settings.seeds)),
            Topology::Quorum(servers) => {
                let urls: Vec<String> = servers.iter().map(ServerSettings::url).collect();
                urls.join(" ")
            }
        }
    }
}

fn encoded(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Shows the addresses, and nothing of the login.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Single(server) => server.address.fmt(f),
            Topology::Sentinel(settings) => {
                let sentinels = listed(&settings.sentinels);
                write!(f, "{} by sentinels {sentinels}", settings.service)
            }
            Topology::Cluster(settings) => write!(f, "cluster {}", listed(&settings.seeds)),
            Topology::Quorum(servers) => {
                let addresses = servers.iter().map(|server| &server.address);
                write!(f, "quorum {}", listed(addresses))
            }
        }
    }
}

fn in_url(addresses: &[Address]) -> String {
    let texts: Vec<String> = addresses.iter().map(Address::in_url).collect();
    texts.join(",")
}

fn listed<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> String {
    let texts: Vec<String> = addresses.into_iter().map(Address::to_string).collect();
    texts.join(",")
}

fn check_all(addresses: &[Address], what: &str) -> Result<(), String> {
    if addresses.is_empty() {
        return Err(format!("at least one {what} is needed"));
    }
    addresses.iter().try_for_each(Address::check)
}

fn check_quorum(servers: &[ServerSettings]) -> Result<(), String> {
    servers.iter().try_for_each(ServerSettings::check)?;
    if !matches!(servers.len(), 3 | 5) {
        let count = servers.len();
        return Err(format!("3 or 5 servers, each of its own; not {count}"));
    }
    for (number, server) in servers.iter().enumerate() {
        // One server would have two votes.
        if servers[..number]
            .iter()
            .any(|other| other.address == server.address)
        {
            let twice = &server.address;
            return Err(format!("3 or 5 servers, each of its own; {twice} is twice"));
        }
    }
    Ok(())
}

/// How to reach one server and log in.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) address: Address,
    pub(crate) login: Login,
}

impl ServerSettings {
    /// Its URL without the login.
    pub(super) fn url(&self) -> String {
        let Address::Unix(path) = &self.address else {
            return self.login.url("", &self.address.in_url());
        };
        let path = path.to_string_lossy();
        let parts: Vec<_> = path.split('/').map(encoded).collect();
        let database = match self.login.database {
            0 => String::new(),
            number => format!("?db={number}"),
        };
        format!("redis+unix://{}{database}", parts.join("/"))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.address.check()?;
        self.login.check()?;
        match (&self.address, &self.login.tls) {
            (Address::Unix(_), Some(_)) => Err("a unix socket has no TLS".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The settings that all servers of one topology share.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    /// `None`: plain text.
    pub(crate) tls: Option<Arc<TlsSettings>>,
    /// It is asked for the user and the password, for each new connection.
    pub(crate) provider: Option<Provider>,
}

impl Login {
    /// The URL of these hosts, in a form such as `-cluster`, without the login.
    fn url(&self, form: &str, hosts: &str) -> String {
        let tls = self.tls.as_ref().map_or("", |_| "s");
        let database = match self.database {
            0 => String::new(),
            number => format!("/{number}"),
        };
        format!("redis{tls}{form}://{hosts}{database}")
    }

    /// The same with these credentials.
    pub(super) fn granted(&self, credentials: &Credentials) -> Login {
        Login {
            user: credentials.user.clone(),
            password: Some(credentials.password.clone()),
            ..self.clone()
        }
    }

    /// The user, or the one that the provider named last.
    pub(crate) fn shown_user(&self) -> Option<String> {
        let named = || self.provider.as_ref().and_then(Provider::last_user);
        self.user.clone().or_else(named)
    }

    /// Whether both log in as the same user with the same password.
    pub(super) fn is_same_as(&self, other: &Login) -> bool {
        (&self.user, &self.password) == (&other.user, &other.password)
    }

    /// Asks this provider from now on, if there is one.
    fn ask(&mut self, what: &'static str, provider: Option<Provider>) -> ApiResult<()> {
        if provider.is_some() && self.password.is_some() {
            return Err(Error::setting(
                what,
                "for an endpoint without a user and a password; this one has its own: leave one out",
            ));
        }
        if provider.is_some() {
            self.provider = provider;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.user.is_some() && self.password.is_none() {
            return Err(
                "a user needs a password; a password alone is written :password@".to_owned(),
            );
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err("TLS needs the feature `tls` of fairlock".to_owned());
        }
        Ok(())
    }
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

/// A port that a server named. A conversion to a smaller type would cut 70000 off to 4464, in
/// silence. Nobody can connect to port 0.
pub(super) fn port_in(reply: &redis::Value) -> Option<u16> {
    let number: i64 = redis::from_redis_value_ref(reply).ok()?;
    u16::try_from(number).ok().filter(|port| *port != 0)
}

impl Address {
    /// The address of a server that the one at `asked` names. Without a host, it is on the host that
    /// was asked. Servers name a link-local address without its zone: then it is on the link on which
    /// they were asked.
    pub(crate) fn named_by(asked: &Address, host: &str, port: u16) -> Address {
        let Address::Tcp(asked, _) = asked else {
            return Address::Tcp(host.to_owned(), port);
        };
        let host = match (host, asked.split_once('%')) {
            ("" | "?", _) => asked.clone(),
            (host, Some((_, zone))) if is_link_local(host) => format!("{host}%{zone}"),
            (host, _) => host.to_owned(),
        };
        Address::Tcp(host, port)
    }

    /// As a URL has it: the `%` before a zone is encoded (RFC 6874).
    pub(super) fn in_url(&self) -> String {
        self.to_string().replace('%', "%25")
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Address::Tcp(host, _) if host.is_empty() => Err("the host is missing".to_owned()),
            Address::Tcp(host, _) if host == "0.0.0.0" || host == "::" => Err(format!(
                "{host} is every address of a server, and none to connect to"
            )),
            // The text may be a secret in the wrong place.
            Address::Tcp(host, _) if host.contains(is_no_part_of_a_host) => {
                Err("a host is a name or an address, without a scheme and a port".to_owned())
            }
            Address::Tcp(host, _) if host.contains('%') => check_zone(host),
            Address::Tcp(_, 0) => Err("a port is a number from 1 to 65535".to_owned()),
            Address::Unix(path) if path.as_os_str().is_empty() => {
                Err("the socket's path is missing".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn is_link_local(host: &str) -> bool {
    let address = host.parse();
    address.is_ok_and(|address: Ipv6Addr| address.is_unicast_link_local())
}

/// Refuses a `%` but for the zone of a link-local address, as in `fe80::7%eth0`. The system looks the
/// zone up.
pub(super) fn check_zone(host: &str) -> Result<(), String> {
    let is_of_zone = |c: char| c.is_ascii_alphanumeric() || "-._~:".contains(c);
    match host.split_once('%') {
        Some((address, zone))
            if is_link_local(address) && !zone.is_empty() && zone.chars().all(is_of_zone) =>
        {
            Ok(())
        }
        _ => Err(
            "a % is for the zone of a link-local address alone, such as [fe80::7%25eth0]"
                .to_owned(),
        ),
    }
}

fn is_no_part_of_a_host(letter: char) -> bool {
    letter.is_control() || letter.is_whitespace() || "/?#@,[]".contains(letter)
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
