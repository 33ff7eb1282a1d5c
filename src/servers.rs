//! The servers that hold the locks, and connections to them for commands of the program's own.

use std::fmt;
use std::time::Duration;

use crate::endpoint::{Endpoint, Location, tcp};
use crate::error::{Error, Result};
pub use crate::store::server_connection::ServerConnection;
use crate::store::server_connection::{Cmd, Value};
use crate::store::{Address, Login, ServerSettings, Topology};
pub use redis;

/// The servers that an endpoint names, with the certificates and the credentials of the
/// [`Builder`](crate::Builder::servers) that it comes from.
///
/// So a program can send commands of its own to the servers of its locks: a page that shows their
/// health, a job that reads `INFO`. It gives the URL, the login and TLS once.
///
/// ```no_run
/// use std::time::Duration;
///
/// use fairlock::{LockManager, servers::redis};
///
/// let builder = LockManager::builder("redis://redis.internal/");
/// let second = Duration::from_secs(1);
/// for server in builder.servers()?.named() {
///     let (mut connection, replies) = server.open(&[redis::cmd("INFO")], second)?;
///     println!("{server}: {replies:?}");
///     println!("keys: {:?}", connection.run(&[redis::cmd("DBSIZE")], second)?);
/// }
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Servers(pub(crate) Topology);

/// How the servers of an endpoint belong together.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deployment {
    /// One server.
    Single,
    /// The master of a service that sentinels watch.
    Sentinel,
    /// The masters of a cluster.
    Cluster,
    /// Independent masters, of which a majority decides.
    Quorum,
}

impl Servers {
    /// How they belong together.
    pub fn deployment(&self) -> Deployment {
        match &self.0 {
            Topology::Single(_) => Deployment::Single,
            Topology::Sentinel(_) => Deployment::Sentinel,
            Topology::Cluster(_) => Deployment::Cluster,
            Topology::Quorum(_) => Deployment::Quorum,
        }
    }

    /// The servers that the endpoint names: one server, the sentinels of a service, some nodes of a
    /// cluster, or all servers of a quorum.
    pub fn named(&self) -> Vec<Server> {
        let all = |addresses: &[Address], login: &Login| {
            let addresses = addresses.iter().cloned();
            addresses.map(|at| server(at, login)).collect()
        };
        match &self.0 {
            Topology::Single(server) => vec![Server(server.clone())],
            Topology::Sentinel(settings) => all(&settings.sentinels, &settings.sentinel_login),
            Topology::Cluster(settings) => all(&settings.seeds, &settings.login),
            Topology::Quorum(servers) => servers.iter().cloned().map(Server).collect(),
        }
    }

    /// The name of the service that the sentinels watch. `None` without sentinels.
    pub fn service(&self) -> Option<&str> {
        match &self.0 {
            Topology::Sentinel(settings) => Some(&settings.service),
            _ => None,
        }
    }

    /// A server that one of the named ones knows: a master that a sentinel names, another node of
    /// the cluster, or a replica. Its login is that of the servers that hold locks, and not that of
    /// sentinels. For a quorum it is that of the first server.
    pub fn at(&self, host: impl AsRef<str>, port: u16) -> Server {
        // Each names one server at least, and a quorum three.
        let (named, login) = match &self.0 {
            Topology::Single(server) => (&server.address, &server.login),
            Topology::Sentinel(settings) => (&settings.sentinels[0], &settings.login),
            Topology::Cluster(settings) => (&settings.seeds[0], &settings.login),
            Topology::Quorum(servers) => (&servers[0].address, &servers[0].login),
        };
        let address = match tcp(host, port) {
            // Without a host it is refused.
            Address::Tcp(host, port) if !host.is_empty() => Address::named_by(named, &host, port),
            other => other,
        };
        server(address, login)
    }
}

fn server(address: Address, login: &Login) -> Server {
    Server(ServerSettings {
        address,
        login: login.clone(),
    })
}

/// A server, and how to log in there.
#[derive(Clone)]
pub struct Server(ServerSettings);

/// The address, as errors show it: host and port, or the path of a unix socket.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.address.fmt(f)
    }
}

/// Shows the address, never a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

/// This server alone.
impl From<Server> for Endpoint {
    fn from(server: Server) -> Endpoint {
        Endpoint(Location::Typed(Box::new(Ok(Topology::Single(server.0)))))
    }
}

impl Server {
    /// The same server, with this database.
    pub fn database(mut self, database: u32) -> Server {
        self.0.login.database = database.into();
        self
    }

    /// The host: a name, or an address without brackets. `None` for a unix socket.
    pub fn host(&self) -> Option<&str> {
        match &self.0.address {
            Address::Tcp(host, _) => Some(host),
            Address::Unix(_) => None,
        }
    }

    /// The user that connections log in as, for rules of an ACL. If a
    /// [provider](crate::Builder::credentials) names it: the user of its last answer.
    pub fn login_name(&self) -> String {
        let named = self.0.login.shown_user();
        named.unwrap_or_else(|| "default".to_owned())
    }

    /// Opens a connection for commands of the program's own, and sends the first of them together
    /// with the login. Returns their replies, as [`run`](ServerConnection::run) does. Takes no lock.
    ///
    /// The connection is encrypted, logged in and in the server's database. If the host has several
    /// addresses, the first one counts over which the server has answered. Without a command and
    /// without a login, that is the first one that accepts. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// - [`Error::Misused`]: the settings are not valid.
    /// - [`Error::Unavailable`]: the server cannot be reached, or does not answer in time.
    /// - [`Error::Refused`]: the server refuses the login or the database. Or the server's certificate,
    ///   the client's, or the URL is not right.
    pub fn open(&self, first: &[Cmd], timeout: Duration) -> Result<(ServerConnection, Vec<Value>)> {
        let settings = &self.0;
        let checked = settings.check();
        checked.map_err(|why| Error::setting("server", why))?;
        ServerConnection::open(settings, first, timeout)
    }
}

/// Shows the addresses, never a password.
impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Servers({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, CredentialsRequest};
    use crate::store::{Provider, parse_url};

    fn servers(urls: &str) -> Servers {
        Servers(parse_url(urls).unwrap_or_else(|error| panic!("{urls}: {error}")))
    }

    fn login(server: &Server) -> Login {
        server.0.login.clone()
    }

    #[test]
    fn servers_are_named_by_each_form_of_url() {
        use Deployment::{Cluster, Quorum, Sentinel, Single};
        for (urls, deployment, named, host) in [
            ("redis://h", Single, "h:6379", Some("h")),
            ("valkey://u:p@h:1/2", Single, "h:1", Some("h")),
            ("redis://[::1]:7/", Single, "[::1]:7", Some("::1")),
            ("redis+unix:///a%20b?db=1", Single, "/a b", None),
            (
                "redis-cluster://h:1,i?node=j:3",
                Cluster,
                "h:1 i:6379 j:3",
                Some("h"),
            ),
            (
                "redis-sentinel://h,i:2/m",
                Sentinel,
                "h:26379 i:2",
                Some("h"),
            ),
            (
                "redis://h redis://i:2 unix:///s",
                Quorum,
                "h:6379 i:2 /s",
                Some("h"),
            ),
        ] {
            let servers = servers(urls);
            assert_eq!(servers.deployment(), deployment, "{urls}");
            let all: Vec<String> = servers.named().iter().map(Server::to_string).collect();
            assert_eq!(all.join(" "), named, "{urls}");
            assert_eq!(servers.named()[0].host(), host, "{urls}");
            let is_watched = deployment == Sentinel;
            assert_eq!(servers.service(), is_watched.then_some("m"), "{urls}");
            assert_eq!(servers.at("[::2]", 9).to_string(), "[::2]:9", "{urls}");
        }
    }

    #[test]
    fn servers_that_are_found_have_the_login_of_the_servers() {
        for (urls, user, password, database) in [
            ("redis://u:p%2F@h/3", "u", "p/", 3),
            ("redis-cluster://u:p@h", "u", "p", 0),
            (
                "redis-sentinel://u:p@h/m/5?sentinelUsername=s&sentinelPassword=q",
                "u",
                "p",
                5,
            ),
            ("redis://:p@h redis://i redis://j", "default", "p", 0),
        ] {
            let found = servers(urls).at("h", 1);
            assert_eq!(found.login_name(), user, "{urls}");
            let Login {
                password: with,
                database: number,
                ..
            } = login(&found);
            assert_eq!(
                (with.as_deref(), number),
                (Some(password), database),
                "{urls}"
            );
        }
        let sentinel = "redis-sentinel://u:p@h/m/5?sentinelUsername=s&sentinelPassword=q";
        let sentinel = &servers(sentinel).named()[0];
        assert_eq!(sentinel.login_name(), "s");
        assert_eq!(login(sentinel).password.as_deref(), Some("q"));
        assert_eq!(login(sentinel).database, 0);
    }

    #[test]
    fn provider_is_asked_for_servers_and_not_for_sentinels() {
        let answer = |_: &CredentialsRequest| Ok(Credentials::new("u", "p"));
        let provider = Provider::new(answer);
        let topology = servers("redis-sentinel://h/m").0;
        let servers = Servers(
            topology
                .with_credentials(Some(provider), None)
                .expect("it fits"),
        );
        assert!(login(&servers.at("h", 1)).provider.is_some());
        assert!(login(&servers.named()[0]).provider.is_none());
    }

    #[test]
    fn debug_output_shows_addresses_and_no_password() {
        let servers = servers("redis-sentinel://u:hunter2@h/m?sentinelPassword=hunter3");
        let shown = format!("{servers:?} {:?}", servers.named());
        assert!(
            shown.contains("h:26379") && !shown.contains("hunter"),
            "{shown}"
        );
    }
}
