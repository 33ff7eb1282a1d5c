//! Where the servers are, and how to log in to each: read from the URLs, which the library has
//! accepted.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use super::facts::Deployment;
use crate::connection::Reach;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The settings of TLS, if the connections are encrypted.
#[cfg(feature = "tls")]
pub(super) type Tls = Option<std::sync::Arc<rustls::ClientConfig>>;

/// Without the feature, the library refuses each URL with TLS.
#[cfg(not(feature = "tls"))]
pub(super) type Tls = Option<std::sync::Arc<std::convert::Infallible>>;

/// The servers that the URLs name.
pub(super) struct Place {
    pub(super) deployment: Deployment,
    /// The sentinels of a service, some nodes of a cluster, or the servers themselves.
    pub(super) named: Vec<Server>,
    /// The name of the service that the sentinels watch.
    pub(super) service: String,
    /// For the servers that the named ones know.
    pub(super) login: Login,
    pub(super) tls: Tls,
}

/// A server, and how to log in to it.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) login: Login,
    pub(super) tls: Tls,
}

/// It has no `Debug`, which would show the password.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Place {
    pub(super) fn read(reach: &Reach, tls: &Tls) -> Option<Place> {
        let mut places = reach.urls.iter().map(|url| read_url(url, reach, tls));
        let first = places.next()??;
        let mut all = vec![first];
        all.extend(places.collect::<Option<Vec<_>>>()?);
        let is_quorum = all.len() > 1;
        let named = all.iter().flat_map(|place| place.named.clone()).collect();
        let first = all.swap_remove(0);
        Some(Place {
            deployment: if is_quorum {
                Deployment::Quorum
            } else {
                first.deployment
            },
            named,
            ..first
        })
    }

    /// A server that one of the named ones knows.
    pub(super) fn server(&self, address: Address) -> Server {
        Server {
            address,
            login: self.login.clone(),
            tls: self.tls.clone(),
        }
    }
}

impl Login {
    /// The name of the user, for rules that add a right.
    pub(super) fn shown_user(&self) -> String {
        self.user.clone().unwrap_or_else(|| "default".to_owned())
    }
}

/// Whether the URL says TLS.
pub(super) fn is_encrypted(url: &str) -> bool {
    let scheme = url.to_ascii_lowercase();
    scheme.starts_with("rediss") || scheme.starts_with("valkeys")
}

fn read_url(url: &str, reach: &Reach, tls: &Tls) -> Option<Place> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameters = Parameters::read(query);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (userinfo, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let mut login = Login {
        user: decoded(user).or_else(|| parameters.get("user")),
        password: decoded(password).or_else(|| parameters.get("pass")),
        database: 0,
    };
    if let Some((user, password)) = &reach.password {
        login.user.clone_from(user);
        login.password = Some(password.clone());
    }
    let mut place = Place {
        deployment: Deployment::Single,
        named: Vec::new(),
        service: String::new(),
        login,
        tls: tls.clone().filter(|_| is_encrypted(url)),
    };
    if scheme.ends_with("unix") {
        place.login.database = database(&parameters.get("db").unwrap_or_default());
        let socket = Address::Unix(PathBuf::from(decoded(&format!("/{path}"))?));
        place.named.push(place.server(socket));
        return Some(place);
    }
    let path = path.trim_matches('/');
    if scheme.ends_with("-sentinel") {
        return place.watched(hosts, path, &parameters);
    }
    place.login.database = database(path);
    if scheme.ends_with("-cluster") {
        place.deployment = Deployment::Cluster;
    }
    let addresses = addresses(hosts, &parameters, REDIS_PORT)?;
    place.named = addresses.into_iter().map(|at| place.server(at)).collect();
    Some(place)
}

impl Place {
    /// The path of a sentinel's URL is `/service/database`, where each part may be missing. One
    /// number is a database.
    fn watched(mut self, hosts: &str, path: &str, parameters: &Parameters) -> Option<Place> {
        let (service, number) = match path.split_once('/') {
            Some(both) => both,
            None if path.bytes().all(|b| b.is_ascii_digit()) => ("", path),
            None => (path, ""),
        };
        self.deployment = Deployment::Sentinel;
        self.service = decoded(service).or_else(|| parameters.get("sentinelServiceName"))?;
        self.login.database = database(number);
        let login = Login {
            user: parameters.get("sentinelUsername"),
            password: parameters.get("sentinelPassword"),
            database: 0,
        };
        let sentinel = |address| Server {
            address,
            login: login.clone(),
            tls: self.tls.clone(),
        };
        let addresses = addresses(hosts, parameters, SENTINEL_PORT)?;
        self.named = addresses.into_iter().map(sentinel).collect();
        Some(self)
    }
}

/// The parameters of a URL, decoded.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(query: &str) -> Parameters {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=')?;
            Some((name.to_owned(), decoded(&value.replace('+', " "))?))
        };
        Parameters(query.split('&').filter_map(pair).collect())
    }

    fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }
}

/// The hosts of the list and of the parameters `node`, each once.
fn addresses(hosts: &str, parameters: &Parameters, port: u16) -> Option<Vec<Address>> {
    let nodes = parameters.0.iter().filter(|(name, _)| name == "node");
    let nodes = nodes.map(|(_, value)| &**value);
    let mut addresses = Vec::new();
    for text in hosts.split(',').chain(nodes) {
        let address = address(text, port)?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Some(addresses)
}

/// Reads `host`, `host:port` or `[address]:port`.
fn address(text: &str, default_port: u16) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            let address: std::net::Ipv6Addr = host.parse().ok()?;
            (address.to_string(), port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let port = match port {
        None | Some("") => default_port,
        Some(port) => port.parse().ok()?,
    };
    Some(Address::Tcp(host, port))
}

fn database(text: &str) -> u32 {
    text.parse().unwrap_or(0)
}

/// A part of the URL without its percent-encoding. An empty one counts as absent.
fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
    (!text.is_empty()).then_some(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(urls: &str) -> Place {
        let reach = Reach {
            urls: urls.split(' ').map(str::to_owned).collect(),
            ..Reach::default()
        };
        Place::read(&reach, &None).unwrap_or_else(|| panic!("{urls}"))
    }

    fn named(urls: &str) -> Vec<String> {
        let place = place(urls);
        let named = place.named.iter();
        named.map(|server| server.address.to_string()).collect()
    }

    #[test]
    fn servers_are_read_from_each_form_of_url() {
        for (urls, deployment, servers) in [
            ("redis://h", Deployment::Single, &["h:6379"][..]),
            ("valkey://u:p@h:1/2", Deployment::Single, &["h:1"]),
            ("redis://[::1]:7/", Deployment::Single, &["[::1]:7"]),
            ("redis+unix:///a%20b?db=1", Deployment::Single, &["/a b"]),
            ("unix:///s", Deployment::Single, &["/s"]),
            (
                "redis-cluster://h:1,i?node=j:3",
                Deployment::Cluster,
                &["h:1", "i:6379", "j:3"],
            ),
            (
                "redis-sentinel://h,i:2/service",
                Deployment::Sentinel,
                &["h:26379", "i:2"],
            ),
            (
                "redis://h redis://i:2",
                Deployment::Quorum,
                &["h:6379", "i:2"],
            ),
        ] {
            assert_eq!(place(urls).deployment, deployment, "{urls}");
            assert_eq!(named(urls), servers, "{urls}");
        }
    }

    #[test]
    fn logins_are_read_from_each_form_of_url() {
        for (url, user, password, database) in [
            ("redis://h", None, None, 0),
            ("redis://u:p%2F@h/3", Some("u"), Some("p/"), 3),
            ("redis://:p@h", None, Some("p"), 0),
            (
                "redis+unix:///s?user=u&pass=p%40&db=4",
                Some("u"),
                Some("p@"),
                4,
            ),
            ("redis-sentinel://u:p@h/m/5", Some("u"), Some("p"), 5),
            ("redis-sentinel://h/6?sentinelServiceName=m", None, None, 6),
        ] {
            let Login {
                user: read,
                password: with,
                database: number,
            } = place(url).login;
            let read = (read.as_deref(), with.as_deref(), number);
            assert_eq!(read, (user, password, database), "{url}");
        }
        let url = "redis-sentinel://u:p@h/m?sentinelUsername=s&sentinelPassword=q";
        let place = place(url);
        let sentinel = &place.named[0].login;
        assert_eq!(sentinel.user.as_deref(), Some("s"));
        assert_eq!(sentinel.password.as_deref(), Some("q"));
        assert_eq!(place.service, "m");
    }

    #[test]
    fn login_of_a_file_is_for_the_servers_and_not_for_the_sentinels() {
        let reach = Reach {
            urls: vec!["redis-sentinel://h/m".to_owned()],
            password: Some((Some("u".to_owned()), "p".to_owned())),
        };
        let place = Place::read(&reach, &None).expect("a place");
        assert_eq!(place.login.password.as_deref(), Some("p"));
        assert_eq!(place.named[0].login.password, None);
    }
}
