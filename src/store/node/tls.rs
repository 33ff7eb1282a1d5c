//! TLS over a socket whose halves two threads use at once.
//!
//! ```text
//!   writer ──plain text──> ┌─────────┐ ──records──> socket
//!                          │ session │
//!   reader <─plain text─── └─────────┘ <──records── socket
//! ```
//!
//! The two directions of a TLS connection have one state, the session. Its mutex is held while bytes
//! are encrypted or decrypted, and never while they are sent or received.
//!
//! Only the writer takes records out of the session, so they reach the socket in the order in which
//! they were made. If the reader has something to say (an answer to a new key, a warning), that
//! goes out in front of the next request. TLS demands no more, and a reader that wrote would put
//! its record between two halves of another.
//!
//! A connection ends without a closing alert of TLS. Replies say themselves where they end, so
//! nobody can cut one short unnoticed.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConnection, InvalidMessage};

use super::probe::speaks_plain;
use super::stream::{IoDeadline, ReadMode, Reads, SHORTEST_TIMEOUT, Stream};
use crate::error::Step;
use crate::store::fault::CLOSED;
use crate::store::tls_words::{alert_words, name_in, unusable_server, words_of};
use crate::store::{Address, StoreFault, TlsSettings};

/// The reader takes at most this much out of the socket at once: a record of the greatest length.
const GREATEST_RECORD: usize = 5 + 256 + (16 << 10);

/// The state that the halves of a socket share.
type Session = Arc<Mutex<ClientConnection>>;

/// The half that requests go out through.
pub(super) struct TlsWriter {
    session: Session,
    /// Room for records.
    records: Vec<u8>,
}

/// The half that replies come in through.
pub(super) struct TlsReader {
    session: Session,
    input: ReceivedRecords,
    /// The end of the session. Bytes that were decrypted before it are read first.
    failed: Option<io::Error>,
}

/// Records that were received and are not decrypted yet.
struct ReceivedRecords {
    buffer: Box<[u8]>,
    /// The part of the buffer that holds them.
    records: Range<usize>,
}

/// A handshake that is under way.
struct Handshake<'a> {
    connection: ClientConnection,
    stream: &'a Stream,
    peer: Option<SocketAddr>,
    address: &'a Address,
    ends_at: Instant,
    input: ReceivedRecords,
}

/// Shakes hands, all within `timeout`. Nothing but the server's name is sent before the server is
/// known to be the right one.
pub(super) fn start_tls(
    stream: &Arc<Stream>,
    peer: Option<SocketAddr>,
    settings: &TlsSettings,
    address: &Address,
    timeout: Duration,
) -> Result<(TlsWriter, TlsReader), StoreFault> {
    let ends_at = Instant::now() + timeout;
    let mut handshake = Handshake {
        connection: begin(settings, address, timeout / 2)?,
        stream,
        peer,
        address,
        ends_at,
        input: ReceivedRecords {
            buffer: vec![0; GREATEST_RECORD].into(),
            records: 0..0,
        },
    };
    handshake.run(timeout / 2)?;
    let session = Arc::new(Mutex::new(handshake.connection));
    let writer = TlsWriter {
        session: Arc::clone(&session),
        records: Vec::new(),
    };
    let reader = TlsReader {
        session,
        input: handshake.input,
        failed: None,
    };
    Ok((writer, reader))
}

fn begin(
    settings: &TlsSettings,
    address: &Address,
    timeout: Duration,
) -> Result<ClientConnection, StoreFault> {
    let unfit = |message: String| StoreFault::Unfit {
        what: "tls",
        message,
    };
    let Address::Tcp(host, _) = address else {
        return Err(unfit(format!("a host and a port; {address} has none")));
    };
    let host = without_zone(host);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        unfit(format!(
            "a name or an address that can be in a certificate; not {host:?}"
        ))
    })?;
    let config = settings
        .client_config(timeout)
        .map_err(|e| unfit(e.to_string()))?;
    ClientConnection::new(config, name).map_err(|e| unfit(words_of(&e)))
}

impl Handshake<'_> {
    /// If the server says nothing for this long, it is asked whether it speaks plain text. A plain
    /// server waits for the end of what it takes for a command, and never answers.
    fn run(&mut self, silence: Duration) -> Result<(), StoreFault> {
        let mut silence = Some(silence);
        loop {
            self.write()?;
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            match self.receive(silence) {
                Ok(()) => silence = None,
                Err(e) if silence.take().is_some() && is_timeout(&e) => self.ask_in_plain_text()?,
                Err(e) => return Err(no_connection(e)),
            }
            if let Err(failed) = self.input.decrypt(&mut self.connection) {
                // The alert says to the server's administrator why.
                let _ = self.write();
                return Err(self.failure(&failed));
            }
        }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.ends_at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left.max(SHORTEST_TIMEOUT))
    }

    /// Writes the records that are ready.
    fn write(&mut self) -> Result<(), StoreFault> {
        let mut records = Vec::new();
        take_records(&mut self.connection, &mut records).map_err(no_connection)?;
        if records.is_empty() {
            return Ok(());
        }
        let write = || {
            let left = self.left()?;
            self.stream.limit_writes(left)?;
            let mut deadline = IoDeadline::new(left);
            self.stream.write_all(&records, &mut deadline)
        };
        write().map_err(no_connection)
    }

    /// Receives once, within `at_most` if that is less than the time that is left.
    fn receive(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let left = self.left()?;
        let left = at_most.map_or(left, |at_most| left.min(at_most.max(SHORTEST_TIMEOUT)));
        self.stream.limit_reads(left)?;
        let mut reads = Reads::new(self.stream, left, ReadMode::Wait);
        match self.input.receive(&mut reads)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED)),
            _ => Ok(()),
        }
    }

    fn ask_in_plain_text(&self) -> Result<(), StoreFault> {
        let left = self.left().map_err(no_connection)?;
        match self.peer {
            // A part of the time is left for a server that speaks TLS and is slow.
            Some(peer) if speaks_plain(peer, left / 2) => Err(self.not_tls()),
            _ => Ok(()),
        }
    }

    fn not_tls(&self) -> StoreFault {
        let address = self.address;
        StoreFault::tls(format!(
            "{address} does not speak TLS; its port for TLS is another, or use redis://"
        ))
    }

    /// The fault that a failed handshake means.
    fn failure(&self, error: &rustls::Error) -> StoreFault {
        let address = self.address;
        match error {
            rustls::Error::InvalidCertificate(error) => bad_certificate(error, address),
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => self.not_tls(),
            rustls::Error::AlertReceived(alert) if self.is_about_client(*alert) => {
                StoreFault::tls(format!(
                    "{address} does not accept the client's certificate, or demands one ({}); {}",
                    alert_words(*alert),
                    remedy_of_client(*alert)
                ))
            }
            other => {
                let (why, remedy) = (words_of(other), remedy_of_protocol(other));
                StoreFault::tls(format!("{address}: {why}; {remedy}"))
            }
        }
    }

    /// Whether the server refuses the client's certificate by this alert. A server of TLS 1.2 has
    /// no alert of its own for a certificate that is missing.
    fn is_about_client(&self, alert: AlertDescription) -> bool {
        match alert {
            AlertDescription::HandshakeFailure => self.connection.peer_certificates().is_some(),
            AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => true,
            _ => false,
        }
    }
}

/// What to do about a client's certificate that the server refused with this alert.
fn remedy_of_client(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateExpired => {
            "renew the certificate of tls_identity (--tls-cert), or set the server's clock"
        }
        AlertDescription::UnknownCA => {
            "the server's tls-ca-cert-file must have the authority of tls_identity (--tls-cert)"
        }
        _ => "tls_identity (--tls-cert and --tls-key) gives one",
    }
}

/// What to do about a handshake that failed for no reason of its own.
fn remedy_of_protocol(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::PeerIncompatible(_)
        | rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure
            | AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity,
        ) => {
            "TLS 1.2 or 1.3 with a modern cipher is needed: tls-protocols, tls-ciphers and \
             tls-ciphersuites of the server"
        }
        _ => "the log of the server, or of a proxy before it, may say more",
    }
}

/// The host as a certificate has it. A zone means something on this host alone.
fn without_zone(host: &str) -> &str {
    host.split('%').next().unwrap_or_default()
}

/// The fault of a server's certificate.
fn bad_certificate(error: &CertificateError, address: &Address) -> StoreFault {
    let of = format!("the certificate of {address}");
    let host = match address {
        Address::Tcp(host, _) => without_zone(host),
        Address::Unix(_) => "",
    };
    let san = match host.parse::<IpAddr>() {
        Ok(ip) => format!("IP:{ip}"),
        Err(_) => format!("DNS:{host}"),
    };
    let message = match error {
        // An authority that was made anew under the same name has another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "no known authority has issued {of}; tls_ca (--tls-ca), or SSL_CERT_FILE without it, \
             takes the authority's own certificate"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("{of} has expired; renew it, or set this host's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("{of} is not valid yet; set this host's clock, or wait until it is valid")
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            format!(
                "{of} has no subject alternative name, and the common name (CN) does not count; \
                 issue one with subjectAltName={san}"
            )
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = match error {
                CertificateError::NotValidForNameContext { presented, .. } => {
                    let names: Vec<&str> = presented.iter().map(|name| name_in(name)).collect();
                    format!(": {}", names.join(", "))
                }
                _ => String::new(),
            };
            let remedy = format!(
                "use a host that it names in the URL, or issue one with subjectAltName={san}"
            );
            format!("{of} is for another host{names}; {remedy}")
        }
        other => format!("{of} cannot be used: {}", unusable_server(other, &san)),
    };
    StoreFault::tls(message)
}

impl TlsWriter {
    /// Encrypts the bytes and writes them before the deadline.
    pub(super) fn write_all(
        &mut self,
        bytes: &[u8],
        stream: &Stream,
        deadline: &mut IoDeadline,
    ) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.records.clear();
            let mut session = self.session.lock();
            // It takes as much as its buffer holds.
            let taken = session.writer().write(rest)?;
            take_records(&mut session, &mut self.records)?;
            drop(session);
            rest = &rest[taken..];
            stream.write_all(&self.records, deadline)?;
            if !rest.is_empty()
                && let Some(left) = deadline.shorten()?
            {
                stream.limit_writes(left)?;
            }
        }
        Ok(())
    }
}

impl TlsReader {
    /// The next plain text: what is decrypted already, or what the next records bring.
    pub(super) fn read(&mut self, buffer: &mut [u8], reads: &mut Reads<'_>) -> io::Result<usize> {
        loop {
            if let Some(read) = self.read_decrypted(buffer)? {
                return Ok(read);
            }
            if self.input.receive(reads)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Plain text that needs no system call. `None` if there is none.
    fn read_decrypted(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut session = self.session.lock();
        loop {
            match session.reader().read(buffer) {
                Ok(read) => return Ok(Some(read)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            if self.input.records.is_empty() {
                return Ok(None);
            }
            // One record at a time would be enough, but all of them cost one call.
            self.failed = self.input.decrypt(&mut session).err().map(ended);
        }
    }
}

impl ReceivedRecords {
    /// Receives more records, once all that came before are decrypted.
    fn receive(&mut self, reads: &mut Reads<'_>) -> io::Result<usize> {
        self.records = 0..0;
        let received = reads.read(&mut self.buffer)?;
        self.records = 0..received;
        Ok(received)
    }

    /// Decrypts some of the records.
    fn decrypt(&mut self, connection: &mut ClientConnection) -> Result<(), rustls::Error> {
        let mut rest = &self.buffer[self.records.clone()];
        while !rest.is_empty() {
            let taken = connection
                .read_tls(&mut rest)
                .map_err(|e| rustls::Error::General(e.to_string()))?;
            self.records.start += taken;
            let state = connection.process_new_packets()?;
            if state.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Takes all records that are ready out of the session.
fn take_records(session: &mut ClientConnection, records: &mut Vec<u8>) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(records)?;
    }
    Ok(())
}

/// An error that ended an open connection. An alert says that the server has closed it.
fn ended(error: rustls::Error) -> io::Error {
    let kind = match &error {
        rustls::Error::AlertReceived(_) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, format!("TLS: {}", words_of(&error)))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn no_connection(error: io::Error) -> StoreFault {
    if is_timeout(&error) {
        return StoreFault::timed_out(Step::Connect);
    }
    StoreFault::unavailable(Step::Connect, error)
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
