//! TLS: certificates that count and those that do not, and locks through it.

pub(crate) mod certificates;
mod faults;
mod locks;
mod renewed;
mod settings;
mod signals;
mod topologies;

use std::net::SocketAddr;
use std::time::Duration;

use fairlock::{Builder, Error, LockManager, LockOptions};

use crate::support::{Server, until_some};
use certificates::{Authority, Certificate, start};

pub(crate) use locks::{DROPS_AND_EXITS, SMALL_STACK};
pub(crate) use signals::SIGNALLED;

const TTL: Duration = Duration::from_secs(4);
/// The command timeout, and the connect timeout.
const T: Duration = Duration::from_millis(500);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(30);

/// The words by which a refusal says why there is no TLS connection. It has one of them.
type Reason = &'static [&'static str];

const UNKNOWN_ISSUER: Reason = &["no known authority has issued"];
const HAS_EXPIRED: Reason = &["has expired; renew it, or set this host's clock"];
const NOT_VALID_YET: Reason = &["is not valid yet; set this host's clock"];
const WRONG_HOST: Reason = &["is for another host"];
const NO_NAME: Reason = &["has no subject alternative name"];
const BAD_CERTIFICATE: Reason = &["cannot be used: "];
const CLIENT_CERTIFICATE: Reason = &[
    "does not accept the client's certificate, or demands one",
    "closed the connection before its first reply",
];
const PLAIN_SERVER: Reason = &["does not speak TLS"];
const TLS_SERVER: Reason = &["expects TLS"];
const BAD_HANDSHAKE: Reason = &["TLS 1.2 or 1.3 with a modern cipher is needed"];

/// Whether there is no TLS connection, for this reason.
fn is_tls(error: &Error, reason: Reason) -> bool {
    matches!(error, Error::Refused { code, message, .. }
        if code == "TLS" && reason.iter().any(|words| message.contains(words)))
}

/// A server with a port for TLS. Its plain port is for the test's own queries.
struct TlsServer {
    authority: Authority,
    server: Server,
    addr: SocketAddr,
}

impl TlsServer {
    /// It demands no certificate of its clients.
    fn start() -> TlsServer {
        TlsServer::start_with(&["--tls-auth-clients", "no"])
    }

    fn start_with(extra: &[&str]) -> TlsServer {
        let authority = Authority::new();
        let certificate = authority.server();
        TlsServer::with_certificate(authority, &certificate, extra)
    }

    fn with_certificate(
        authority: Authority,
        certificate: &Certificate,
        extra: &[&str],
    ) -> TlsServer {
        let (server, addr) = start(&authority, certificate, extra);
        TlsServer {
            authority,
            server,
            addr,
        }
    }

    fn url(&self) -> String {
        url_of(self.addr)
    }

    /// The server's own certificate is trusted.
    fn builder(&self) -> Builder {
        builder(&self.url()).tls_ca(self.authority.pem())
    }

    fn manager(&self) -> LockManager {
        build(self.builder())
    }
}

/// A manager with the default timeouts, which a busy machine keeps.
fn patient(server: &TlsServer) -> Builder {
    LockManager::builder(server.url())
        .tls_ca(server.authority.pem())
        .options(LockOptions::new().ttl(Duration::from_secs(30)))
}

fn url_of(addr: SocketAddr) -> String {
    format!("rediss://{addr}/")
}

fn builder(url: &str) -> Builder {
    LockManager::builder(url)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(Duration::from_millis(250))
        .horizon(Duration::from_millis(2000))
}

/// Builds the manager, and tries again if the machine was too slow for the connect timeout.
#[track_caller]
fn build(builder: Builder) -> LockManager {
    until_some(SOON, "the server is there", || {
        match builder.clone().build() {
            Ok(manager) => Some(manager),
            Err(Error::Unavailable { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
}
