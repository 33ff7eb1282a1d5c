//! The grammar of URLs, one form for each topology. It is that of the crate fred. In addition it
//! has lists of hosts with commas, and the service of a sentinel in the path.
//!
//! A refusal names the part that it does not understand, and never repeats it: an unencoded
//! password may end in any part.

use std::sync::Arc;

use url::{ParseError, Url};

use super::topology::check_zone;
use super::{Address, ClusterSettings, Login, SentinelSettings, ServerSettings, Topology};
use crate::error::{Error, Result as ApiResult};

const NOT_ENCODED: &str =
    "it does not parse; special characters of a user or password are percent-encoded, # as %23";
const SEVERAL_URLS: &str = "it holds several URLs; between the URLs of a quorum are spaces";
const IN_BRACKETS: &str = "an IPv6 address is in brackets, such as [::1]:6379";
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Why a URL is refused.
type Refused<T> = Result<T, String>;

/// The sort of servers that a URL names. Its scheme says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UrlForm {
    Server,
    UnixSocket,
    Sentinel,
    Cluster,
}

/// The parts of a URL, still encoded.
struct Parts<'a> {
    form: UrlForm,
    tls: bool,
    /// `user:password`, if there is an `@`.
    userinfo: Option<&'a str>,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

/// Reads a URL, or several of a quorum with white space between them. The error never repeats a URL,
/// which may hold a password. It says which of them it is about.
pub(crate) fn parse_url(text: &str) -> ApiResult<Topology> {
    let topology = read_url(text, Topology::check)?;
    if matches!(topology, Topology::Quorum(_)) {
        let quorum = topology.check();
        return quorum
            .map_err(|why| Error::setting("url", format!("several URLs are a quorum of {why}")));
    }
    Ok(topology)
}

/// The same for a URL to which calls add more. `check` looks at each URL alone.
pub(crate) fn read_url(
    text: &str,
    check: fn(Topology) -> Result<Topology, String>,
) -> ApiResult<Topology> {
    let urls: Vec<&str> = text.split_whitespace().collect();
    // White space in a single URL is a mistake in that URL.
    if urls.len() < 2 || !urls.iter().all(|url| url.contains("://")) {
        let url = text.trim();
        return parse(url)
            .and_then(check)
            .map_err(|why| Error::setting("url", refusal(url, &why)));
    }
    let count = urls.len();
    let member = |(index, url): (usize, &&str)| {
        let parsed = parse(url).and_then(check);
        let server = parsed.map_err(|why| refusal(url, &why)).and_then(|topology| match topology {
            Topology::Single(server) => Ok(server),
            other => Err(format!(
                "the servers of a quorum are named one by one, by redis:// or redis+unix://; this is \
                 {other}"
            )),
        });
        server.map_err(|why| Error::setting("url", format!("URL {} of {count}: {why}", index + 1)))
    };
    let servers = urls
        .iter()
        .enumerate()
        .map(member)
        .collect::<ApiResult<_>>()?;
    Ok(Topology::Quorum(servers))
}

fn refusal(url: &str, why: &str) -> String {
    // Without the feature, no form of such a URL would help.
    if let Some((scheme, _)) = url.split_once("://")
        && let Some((_, true)) = read_scheme(scheme)
        && !cfg!(feature = "tls")
    {
        return format!("{scheme}:// needs the feature `tls` of fairlock");
    }
    format!("{}; not this one: {why}", accepted(url))
}

/// The forms that are accepted, as far as the scheme leaves a choice.
fn accepted(url: &str) -> &'static str {
    match url.split_once("://").and_then(|(s, _)| read_scheme(s)) {
        Some((UrlForm::Sentinel, _)) => {
            "redis-sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]\
             [?node=host:port&sentinelUsername=u&sentinelPassword=p]"
        }
        Some((UrlForm::Cluster, _)) => {
            "redis-cluster://[user:password@]host[:port][,host[:port]...][?node=host:port]"
        }
        Some((UrlForm::Server | UrlForm::UnixSocket, _)) => {
            "redis://[user:password@]host[:port][/database] or \
             redis+unix:///path[?db=n&user=u&pass=p]"
        }
        None => {
            "redis://[user:password@]host[:port][/database], \
             redis+unix:///path[?db=n&user=u&pass=p], redis-sentinel://host[,host...]/service or \
             redis-cluster://host[,host...]"
        }
    }
}

fn parse(url: &str) -> Refused<Topology> {
    let parts = Parts::of(url)?;
    let login = Login {
        tls: parts.tls.then(Arc::default),
        ..parts.login()?
    };
    match parts.form {
        UrlForm::Server => parts.server(login),
        UrlForm::UnixSocket => unix_socket(url, &parts),
        UrlForm::Sentinel => parts.sentinel(login),
        UrlForm::Cluster => parts.cluster(login),
    }
}

/// The form of a scheme, and whether it is one with TLS.
fn read_scheme(scheme: &str) -> Option<(UrlForm, bool)> {
    let scheme = scheme.to_ascii_lowercase();
    if matches!(&*scheme, "redis+unix" | "valkey+unix" | "unix") {
        return Some((UrlForm::UnixSocket, false));
    }
    let (base, form) = match scheme.split_once('-') {
        None => (&*scheme, UrlForm::Server),
        Some((base, "sentinel")) => (base, UrlForm::Sentinel),
        Some((base, "cluster")) => (base, UrlForm::Cluster),
        Some(_) => return None,
    };
    match base {
        "redis" | "valkey" => Some((form, false)),
        "rediss" | "valkeys" => Some((form, true)),
        _ => None,
    }
}

/// Whether another URL begins in this text, such as behind a comma.
fn names_a_scheme(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+');
    text.match_indices("://").any(|(end, _)| {
        let before = &text[..end];
        let scheme = &before[before.trim_end_matches(is_part).len()..];
        read_scheme(scheme).is_some()
    })
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Refused<Parts<'a>> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or("it does not begin with redis://")?;
        let (form, tls) = match read_scheme(scheme) {
            Some(read) => read,
            None if scheme == "memory" => {
                return Err("an in-memory store is passed as a &Memory".to_owned());
            }
            None => return Err("its scheme is none of these".to_owned()),
        };
        if names_a_scheme(rest) {
            return Err(SEVERAL_URLS.to_owned());
        }
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        // A password that is not encoded may end behind a character that ends the host, too.
        if rest.contains('#') || form != UrlForm::UnixSocket && tail.contains('@') {
            return Err(NOT_ENCODED.to_owned());
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        Ok(Parts {
            form,
            tls,
            userinfo,
            hosts,
            path,
            query,
        })
    }

    fn login(&self) -> Refused<Login> {
        let (user, password) = self
            .userinfo
            .map(|text| text.split_once(':').unwrap_or((text, "")))
            .unwrap_or_default();
        Ok(Login {
            user: decoded(user, "user")?,
            password: decoded(password, "password")?,
            ..Login::default()
        })
    }

    fn server(&self, login: Login) -> Refused<Topology> {
        self.parameters(&[])?;
        if self.hosts.contains(',') {
            let several = "it has several hosts, as redis-sentinel:// and redis-cluster:// have; a \
                           quorum is several URLs with spaces between them";
            return Err(several.to_owned());
        }
        Ok(Topology::Single(ServerSettings {
            address: address(self.hosts, REDIS_PORT, "host")?,
            login: Login {
                database: database(self.path.trim_matches('/'))?,
                ..login
            },
        }))
    }

    fn sentinel(&self, login: Login) -> Refused<Topology> {
        let parameters = self.parameters(&[
            "node",
            "sentinelServiceName",
            "sentinelUsername",
            "sentinelPassword",
        ])?;
        let (service, number) = self.service_and_database()?;
        let service = match (service, single(&parameters, "sentinelServiceName")?) {
            (Some(path), Some(parameter)) if path != parameter => {
                return Err("its path and sentinelServiceName name two services".to_owned());
            }
            (service, parameter) => service.or(parameter).ok_or(
                "it names no service: /service behind the hosts, or sentinelServiceName=service",
            )?,
        };
        Ok(Topology::Sentinel(SentinelSettings {
            sentinels: self.addresses(&parameters, SENTINEL_PORT)?,
            service,
            sentinel_login: Login {
                user: single(&parameters, "sentinelUsername")?,
                password: single(&parameters, "sentinelPassword")?,
                database: 0,
                tls: login.tls.clone(),
                provider: None,
            },
            login: Login {
                database: number,
                ..login
            },
        }))
    }

    fn cluster(&self, login: Login) -> Refused<Topology> {
        let parameters = self.parameters(&["node"])?;
        Ok(Topology::Cluster(ClusterSettings {
            seeds: self.addresses(&parameters, REDIS_PORT)?,
            login: Login {
                database: database(self.path.trim_matches('/'))?,
                ..login
            },
        }))
    }

    /// The path of a sentinel's URL is `/service/database`, where each part may be missing. One
    /// number is a database.
    fn service_and_database(&self) -> Refused<(Option<String>, i64)> {
        let path = self.path.trim_matches('/');
        let (service, number) = match path.split_once('/') {
            Some((service, number)) => (service, number),
            None if path.bytes().all(|b| b.is_ascii_digit()) => ("", path),
            None => (path, ""),
        };
        let number = database(number).map_err(|why| {
            format!("{why}; if the service has a / in its name, that is written %2F")
        })?;
        Ok((decoded(service, "service")?, number))
    }

    /// The hosts of the list and of the parameters `node`, each once.
    fn addresses(&self, parameters: &[(String, String)], port: u16) -> Refused<Vec<Address>> {
        let listed = self.hosts.split(',').map(|text| (text, "host"));
        let nodes = parameters
            .iter()
            .filter(|(name, _)| name == "node")
            .map(|(_, value)| (&**value, "node"));
        let mut addresses = Vec::new();
        for (number, (text, what)) in listed.chain(nodes).enumerate() {
            let what = format!("{what} (number {} of its servers)", number + 1);
            let address = address(text, port, &what)?;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    /// The parameters, decoded. Others than the known ones are refused: a lock in a database that
    /// the user did not mean excludes nobody.
    fn parameters(&self, known: &[&str]) -> Refused<Vec<(String, String)>> {
        let parameters: Vec<(String, String)> = url::form_urlencoded::parse(self.query.as_bytes())
            .into_owned()
            .collect();
        let unknown = parameters
            .iter()
            .map(|(name, _)| &**name)
            .find(|name| !name.is_empty() && !known.contains(name));
        // An unencoded password may be cut by an @ or an &. That of the authority ends at an @ before
        // the query.
        let has_password = self.query.contains('@')
            || self.query.contains('&') && self.query.to_ascii_lowercase().contains("pass");
        match unknown {
            // It may be the end of a password that is not encoded.
            Some(_) if has_password => Err(NOT_ENCODED.to_owned()),
            Some(name) => Err(format!(
                "it has a parameter {name:?}, which is not known here"
            )),
            None => Ok(parameters),
        }
    }
}

/// A unix socket's path and login. The redis crate's grammar: the login is in the query.
fn unix_socket(url: &str, parts: &Parts<'_>) -> Refused<Topology> {
    if parts.userinfo.is_some() {
        return Err("a unix socket's login is in its parameters, ?user=u&pass=p".to_owned());
    }
    let parameters = parts.parameters(&["db", "user", "pass"])?;
    let path = Url::parse(url)
        .ok()
        .and_then(|url| url.to_file_path().ok())
        .ok_or("a socket's path begins with a third slash, as in redis+unix:///run/redis.sock")?;
    Ok(Topology::Single(ServerSettings {
        address: Address::Unix(path),
        login: Login {
            user: single(&parameters, "user")?,
            password: single(&parameters, "pass")?,
            database: database(&single(&parameters, "db")?.unwrap_or_default())?,
            tls: None,
            provider: None,
        },
    }))
}

/// The value of a parameter that may be there once. An empty one counts as absent.
fn single(parameters: &[(String, String)], name: &str) -> Refused<Option<String>> {
    let mut values = parameters.iter().filter(|(known, _)| known == name);
    let value = values.next().map(|(_, value)| value.clone());
    match values.next() {
        Some(_) => Err(format!("it has the parameter {name:?} twice")),
        None => Ok(value.filter(|value| !value.is_empty())),
    }
}

/// Reads `host` or `host:port`.
fn address(text: &str, default_port: u16, what: &str) -> Refused<Address> {
    let refuse = |why: &str| format!("its {what} did not parse: {why}");
    if text.is_empty() {
        return Err(format!("its {what} is missing"));
    }
    if text.contains(['/', '?', '@', '#']) {
        return Err(refuse("a host and a port are expected"));
    }
    if text.contains(char::is_whitespace) {
        return Err(refuse("it has white space"));
    }
    if let Some(bracketed) = text.strip_prefix('[')
        && let Some((host, rest)) = bracketed.split_once(']')
        && let Some((bare, zone)) = host.split_once('%')
    {
        // RFC 6874 has the % itself encoded. People write the bare one, too.
        let zone = zone.strip_prefix("25").unwrap_or(zone);
        check_zone(&format!("{bare}%{zone}")).map_err(|why| refuse(&why))?;
        return match address(&format!("[{bare}]{rest}"), default_port, what)? {
            Address::Tcp(host, port) => Ok(Address::Tcp(format!("{host}%{zone}"), port)),
            other => Ok(other),
        };
    }
    if text.contains(['%', ';']) || !text.is_ascii() {
        return Err(refuse(
            "a name has letters, digits, dots and hyphens of ASCII",
        ));
    }
    let url =
        Url::parse(&format!("redis://{text}")).map_err(|why| refuse(&host_words(text, why)))?;
    let host = match url.host() {
        Some(url::Host::Domain(name)) => name.to_owned(),
        Some(url::Host::Ipv4(address)) => address.to_string(),
        Some(url::Host::Ipv6(address)) => address.to_string(),
        None => return Err(format!("its {what} is missing")),
    };
    Ok(Address::Tcp(host, url.port().unwrap_or(default_port)))
}

/// The fault of a host and a port, and the cure.
fn host_words(text: &str, why: ParseError) -> String {
    match why {
        _ if !text.starts_with('[') && text.matches(':').count() > 1 => IN_BRACKETS.to_owned(),
        ParseError::InvalidPort => "a port is a number from 1 to 65535".to_owned(),
        ParseError::InvalidIpv6Address => "no IPv6 address is in the brackets".to_owned(),
        why => why.to_string(),
    }
}

fn database(text: &str) -> Refused<i64> {
    match text {
        "" => Ok(0),
        text => text
            .parse::<u32>()
            .map(i64::from)
            .map_err(|_| "its database is not a number such as 0 or 15".to_owned()),
    }
}

/// A part of the URL without its percent-encoding. An empty one counts as absent.
fn decoded(text: &str, what: &str) -> Refused<Option<String>> {
    percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map(|text| Some(text.into_owned()).filter(|text| !text.is_empty()))
        .map_err(|_| format!("its {what} is not valid UTF-8"))
}
