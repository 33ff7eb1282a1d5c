//! What to do about a server that does not run. Many read it in their first minute with the crate.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use crate::error::{Error, Step};

/// The same error. If nothing listens at the server's address, its cause says what to do.
pub(super) fn with_remedy(mut error: Error) -> Error {
    if let Error::Unavailable {
        server: Some(server),
        step: Step::Connect,
        source,
        ..
    } = &mut error
        && let Some(cause) = source.downcast_ref::<io::Error>()
        && let Some(remedy) = remedy(server, cause.kind())
    {
        let cause = io::Error::new(cause.kind(), format!("{cause}; {remedy}"));
        *source = Arc::new(Box::new(cause));
    }
    error
}

fn remedy(server: &str, kind: io::ErrorKind) -> Option<String> {
    let is_socket = server.starts_with('/');
    let is_absent = match kind {
        io::ErrorKind::ConnectionRefused => true,
        // The same kind stands for a host without an address.
        io::ErrorKind::NotFound => is_socket,
        _ => false,
    };
    let start = match server.rsplit_once(':') {
        Some((host, port)) if is_this_host(host) => {
            format!("start one, for instance with `docker run -p {port}:6379 redis`,")
        }
        _ => "start it,".to_owned(),
    };
    is_absent.then(|| format!("no Redis runs there: {start} or correct the URL"))
}

fn is_this_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_fits_the_server() {
        let refused = io::ErrorKind::ConnectionRefused;
        let own = "no Redis runs there: start one, for instance with `docker run -p 7:6379 redis`, \
                   or correct the URL";
        let other = "no Redis runs there: start it, or correct the URL";
        for (server, kind, expected) in [
            ("127.0.0.1:7", refused, Some(own)),
            ("[::1]:7", refused, Some(own)),
            ("localhost:7", refused, Some(own)),
            ("10.0.0.1:7", refused, Some(other)),
            ("redis.example.com:7", refused, Some(other)),
            ("/run/redis.sock", refused, Some(other)),
            ("/run/redis.sock", io::ErrorKind::NotFound, Some(other)),
            ("redis.example.com:7", io::ErrorKind::NotFound, None),
            ("127.0.0.1:7", io::ErrorKind::TimedOut, None),
        ] {
            assert_eq!(
                remedy(server, kind).as_deref(),
                expected,
                "{server}: {kind}"
            );
        }
    }
}
