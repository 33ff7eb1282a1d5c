//! What to do about servers that do not run. Many read it in their first minute with the crate.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use crate::error::{Error, Step};
use crate::store::{Login, Topology};

/// The servers that a manager needs, as far as their remedy differs.
#[derive(Clone, Copy)]
pub(super) enum Needs {
    /// Without TLS and a password: a container of Redis is one.
    PlainServer,
    OtherServer,
    Sentinels,
    Quorum,
}

impl Needs {
    pub(super) fn of(topology: &Topology) -> Needs {
        match topology {
            Topology::Single(server) if is_plain(&server.login) => Needs::PlainServer,
            Topology::Single(_) | Topology::Cluster(_) => Needs::OtherServer,
            Topology::Sentinel(_) => Needs::Sentinels,
            Topology::Quorum(_) => Needs::Quorum,
        }
    }

    /// The same error. If nothing listens at the address in it, its cause says what to do.
    pub(super) fn with_remedy(self, mut error: Error) -> Error {
        if let Error::Unavailable {
            server: Some(server),
            step: Step::Connect | Step::Majority,
            cause: source,
            ..
        } = &mut error
            && let Some(cause) = source.downcast_ref::<io::Error>()
            && is_absent(server, cause.kind())
        {
            let remedy = self.remedy(server);
            let cause = io::Error::new(cause.kind(), format!("{cause}; {remedy}"));
            *source = Arc::new(Box::new(cause));
        }
        error
    }

    fn remedy(self, server: &str) -> String {
        match (self, server.rsplit_once(':')) {
            (Needs::PlainServer, Some((host, port))) if is_this_host(host) => format!(
                "no Redis runs there: start one, for instance with `docker run -p {port}:6379 \
                 redis`, or correct the address"
            ),
            (Needs::PlainServer | Needs::OtherServer, _) => {
                "no Redis runs there: start it, or correct the address".to_owned()
            }
            (Needs::Sentinels, _) => {
                "no sentinel runs there: start one, or correct the address".to_owned()
            }
            (Needs::Quorum, _) => {
                "no Redis runs there: start a majority, or correct the addresses".to_owned()
            }
        }
    }
}

fn is_plain(login: &Login) -> bool {
    let Login {
        user,
        password,
        database: _,
        tls,
        provider,
    } = login;
    user.is_none() && password.is_none() && tls.is_none() && provider.is_none()
}

fn is_absent(server: &str, kind: io::ErrorKind) -> bool {
    match kind {
        io::ErrorKind::ConnectionRefused => true,
        // The same kind stands for a host without an address.
        io::ErrorKind::NotFound => server.starts_with('/'),
        _ => false,
    }
}

fn is_this_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::store::{StoreFault, parse_url};

    /// What the cause of an error says behind the reason, if it says more.
    fn said(url: &str, server: &str, step: Step, kind: io::ErrorKind) -> Option<String> {
        let needs = Needs::of(&parse_url(url).expect("a URL"));
        let cause = io::Error::from(kind);
        let reason = cause.to_string();
        let fault = StoreFault::unavailable(step, cause).at(&server.into());
        let error = needs.with_remedy(fault.into_error(None, Duration::ZERO));
        let Error::Unavailable { cause, .. } = error else {
            panic!("{error:?}");
        };
        let text = cause.to_string();
        let more = text.strip_prefix(&reason).expect("the reason");
        more.strip_prefix("; ").map(str::to_owned)
    }

    #[test]
    fn remedy_fits_the_servers() {
        let own = "no Redis runs there: start one, for instance with `docker run -p 7:6379 redis`, \
                   or correct the address";
        let other = "no Redis runs there: start it, or correct the address";
        let sentinel = "no sentinel runs there: start one, or correct the address";
        let quorum = "no Redis runs there: start a majority, or correct the addresses";
        for (url, server, expected) in [
            ("redis://127.0.0.1:7", "127.0.0.1:7", own),
            ("redis://127.0.0.1:7/3", "127.0.0.1:7", own),
            ("redis://[::1]:7", "[::1]:7", own),
            ("redis://localhost:7", "localhost:7", own),
            ("redis://10.0.0.1:7", "10.0.0.1:7", other),
            ("redis://redis.example.com:7", "redis.example.com:7", other),
            ("redis+unix:///run/redis.sock", "/run/redis.sock", other),
            ("redis://:secret@127.0.0.1:7", "127.0.0.1:7", other),
            ("redis-cluster://127.0.0.1:7", "127.0.0.1:7", other),
            ("redis-sentinel://127.0.0.1:7/a", "127.0.0.1:7", sentinel),
            (
                "redis://127.0.0.1:7 redis://127.0.0.1:8 redis://127.0.0.1:9",
                "127.0.0.1:7, 127.0.0.1:8",
                quorum,
            ),
        ] {
            let step = if expected == quorum {
                Step::Majority
            } else {
                Step::Connect
            };
            let said = said(url, server, step, io::ErrorKind::ConnectionRefused);
            assert_eq!(said.as_deref(), Some(expected), "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn remedy_names_no_plain_server_for_tls() {
        let refused = io::ErrorKind::ConnectionRefused;
        let said = said(
            "rediss://127.0.0.1:7",
            "127.0.0.1:7",
            Step::Connect,
            refused,
        );
        let expected = "no Redis runs there: start it, or correct the address";
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn only_absent_servers_have_a_remedy() {
        let (socket, host) = ("/run/redis.sock", "redis.example.com:7");
        let not_found = io::ErrorKind::NotFound;
        for (server, step, kind, has_one) in [
            (socket, Step::Connect, not_found, true),
            (host, Step::Connect, not_found, false),
            (host, Step::Connect, io::ErrorKind::TimedOut, false),
            (host, Step::Send, io::ErrorKind::ConnectionRefused, false),
        ] {
            let said = said("redis://127.0.0.1:7", server, step, kind);
            assert_eq!(said.is_some(), has_one, "{server}: {step:?}, {kind}");
        }
    }
}
