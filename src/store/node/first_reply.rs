//! Why a server has not answered the first request on a connection.

use std::io;
use std::time::Duration;

use redis::RedisError;

use super::connection::{Connection, fault, io_kind};
use super::probe::speaks_tls;
use crate::error::Step;
use crate::store::fault::is_closed_kind;
use crate::store::{ServerSettings, StoreFault};

/// Some mistakes in the settings of TLS look like a closed connection, or like a reply without
/// sense. Blocks for `left` at most.
pub(super) fn no_first_reply(
    connection: &Connection,
    server: &ServerSettings,
    error: RedisError,
    left: Duration,
) -> StoreFault {
    let kind = io_kind(&error);
    let is_closed = is_closed_kind(kind);
    let address = &server.address;
    if let Some(tls) = &server.login.tls {
        if !is_closed {
            return fault(error, Step::Connect);
        }
        // With TLS 1.3 the client is done before the server has looked at its certificate.
        let remedy = match tls.identity {
            None => {
                "it may demand a client's certificate (tls-auth-clients): tls_identity (--tls-cert \
                 and --tls-key)"
            }
            Some(_) => {
                "it may not accept the client's certificate: renew it, or have an authority in the \
                 server's tls-ca-cert-file issue it"
            }
        };
        return StoreFault::tls(format!(
            "{address} closed the connection before its first reply ({error}); {remedy}"
        ));
    }
    let has_no_sense = is_closed || kind == io::ErrorKind::InvalidData;
    match connection.socket.peer() {
        Some(peer) if has_no_sense && !left.is_zero() && speaks_tls(peer, left) => {
            StoreFault::tls(format!("{address} expects TLS; use rediss://"))
        }
        _ => fault(error, Step::Connect),
    }
}
