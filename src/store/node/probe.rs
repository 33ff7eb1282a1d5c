//! Whether a server speaks TLS or plain text, when a connection failed in a way that has both
//! causes.
//!
//! Each question is one connection, and one that says nothing about the user. A server answers it
//! at once, whichever of the two it speaks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The content types with which a record of TLS may begin: an alert, or a part of the handshake.
const RECORDS: [u8; 2] = [0x15, 0x16];

/// Whether the peer answers a record of TLS with one.
///
/// The record is a ClientHello that offers nothing, so a server of TLS refuses it with an alert.
/// Its header has a line feed in it, in the length: a plain server reads a command up to there, and
/// refuses that. So neither of them leaves the caller waiting for `timeout`.
pub(super) fn speaks_tls(peer: SocketAddr, timeout: Duration) -> bool {
    const LENGTH: usize = 0x010a;
    let mut record = vec![0x16, 3, 1, (LENGTH >> 8) as u8, (LENGTH & 0xff) as u8];
    record.extend([1, 0, ((LENGTH - 4) >> 8) as u8, ((LENGTH - 4) & 0xff) as u8]);
    record.extend([3, 3]);
    record.resize(5 + LENGTH, 0);
    answer_begins(peer, timeout, &record)
        .is_some_and(|answer| RECORDS.contains(&answer[0]) && answer[1] == 3)
}

/// Whether the peer answers a PING in plain text. A server may refuse it, since it has no password.
#[cfg(feature = "tls")]
pub(super) fn speaks_plain(peer: SocketAddr, timeout: Duration) -> bool {
    answer_begins(peer, timeout, b"PING\r\n").is_some_and(|answer| matches!(answer[0], b'+' | b'-'))
}

/// The first two bytes that the peer sends after it got these.
fn answer_begins(peer: SocketAddr, timeout: Duration, question: &[u8]) -> Option<[u8; 2]> {
    let ends_at = Instant::now() + timeout;
    let left = || {
        let left = ends_at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    };
    let mut stream = TcpStream::connect_timeout(&peer, left()?).ok()?;
    stream.set_write_timeout(Some(left()?)).ok()?;
    stream.write_all(question).ok()?;
    let mut answer = [0; 2];
    let mut received = 0;
    while received < answer.len() {
        stream.set_read_timeout(Some(left()?)).ok()?;
        match stream.read(&mut answer[received..]) {
            Ok(0) => return None,
            Ok(more) => received += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(answer)
}
