//! The grammar of `redis://` URLs.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::{Address, Login, ServerSettings, TlsSettings, Topology};
use crate::error::{Error, Result as ApiResult};

const NOT_ENCODED: &str =
    "it does not parse; special characters of a user or password are percent-encoded, # as %23";

/// Reads a URL. The error never repeats the URL, which may hold a password.
pub(crate) fn parse_url(url: &str) -> ApiResult<Topology> {
    let (url, tls) = plain_form(url);
    let mut server = settings(&parse(&url)?);
    server.login.tls = tls;
    Ok(Topology::Single(server))
}

/// The URL without TLS, and the settings of TLS if it had it.
fn plain_form(url: &str) -> (Cow<'_, str>, Option<Arc<TlsSettings>>) {
    for (scheme, plain) in [("rediss://", "redis://"), ("valkeys://", "valkey://")] {
        if let Some(rest) = url.strip_prefix(scheme) {
            return (format!("{plain}{rest}").into(), Some(Arc::default()));
        }
    }
    (url.into(), None)
}

fn settings(info: &ConnectionInfo) -> ServerSettings {
    let redis = info.redis_settings();
    ServerSettings {
        address: match info.addr() {
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Address::Tcp(host.clone(), *port)
            }
            _ => unreachable!("a URL names a host or a path"),
        },
        login: Login {
            user: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
            database: redis.db(),
            tls: None,
        },
    }
}

fn parse(url: &str) -> ApiResult<ConnectionInfo> {
    let info = url
        .into_connection_info()
        .map_err(|error| refuse(&explain(url, &error)))?;
    // The redis crate ignores everything behind a #, and the password may have begun before it.
    if url.contains('#') {
        return Err(refuse(NOT_ENCODED));
    }
    match unknown_parameter(url, info.addr()) {
        // The "parameter" may be the end of a password that is not encoded.
        Some(_) if url.contains('@') || info.redis_settings().password().is_some() => {
            Err(refuse(NOT_ENCODED))
        }
        Some(name) => Err(refuse(&format!("it has a parameter {name:?}"))),
        None => Ok(info),
    }
}

fn refuse(why: &str) -> Error {
    Error::config(
        "url",
        format!(
            "redis://[user:password@]host[:port][/database] or \
             redis+unix:///path[?db=n&user=u&pass=p]; not this one: {why}"
        ),
    )
}

/// Why the redis crate cannot read a URL, without any part of the URL.
fn explain(url: &str, error: &redis::RedisError) -> String {
    match url.split_once("://") {
        None => "it does not begin with redis://".to_owned(),
        Some(("memory", _)) => "an in-memory store is passed as a &Memory".to_owned(),
        Some((_, rest)) if rest.contains(['#', '@']) => NOT_ENCODED.to_owned(),
        // The error ends in its kind, which adds nothing.
        Some(_) => error
            .to_string()
            .to_lowercase()
            .split(" - ")
            .next()
            .unwrap_or_default()
            .replace("url", "URL"),
    }
}

/// The first query parameter that has no meaning for this kind of address. The redis crate ignores
/// such parameters, and a lock in a database that the user did not mean excludes nobody.
fn unknown_parameter<'a>(url: &'a str, addr: &ConnectionAddr) -> Option<&'a str> {
    let known: &[&str] = match addr {
        ConnectionAddr::Unix(_) => &["db", "user", "pass"],
        _ => &[],
    };
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter_map(|pair| pair.split('=').next())
        .filter(|name| !name.is_empty())
        .find(|name| !known.contains(name))
}
