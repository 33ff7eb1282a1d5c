//! One connection to a node, and what its errors mean.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, Value};

use super::age::Age;
use super::hello::Hello;
use super::login::ConnectionLogin;
use super::resolve::Peer;
use super::scripts::Scripts;
use super::socket::Socket;
use crate::error::{Step, lacks_descriptors};
use crate::store::clock::Time;
use crate::store::fault::CLOSED;
use crate::store::{Anchor, Login, ServerSettings, StoreFault};

/// One connection, with the pairing of clocks that dates its requests: R5 (dated requests).
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) anchor: Anchor,
    pub(super) age: Age,
    /// An error came where a reply was due, so nobody knows which request the next reply answers.
    pub(super) broken: bool,
    /// When it was opened. If a connection fails right after that, the server did not close it for
    /// being idle.
    pub(super) opened: Time,
    /// Only connections that await replicas note them.
    pub(super) scripts: Scripts,
    /// The server refuses keys of several slots in one command. So renewals do not go together.
    pub(super) refuses_several_slots: bool,
    /// The server's description of itself.
    pub(super) hello: Hello,
    /// The count of the node's requests.
    pub(super) requests: Arc<AtomicU64>,
    /// The login that it begins with.
    pub(super) first_login: Arc<Login>,
    /// How it logs in anew. `None`: its login never changes.
    pub(super) login: Option<ConnectionLogin>,
}

impl Connection {
    /// Connects a socket to one of the server's addresses, and starts TLS if the settings say so;
    /// Redis's handshake is still to come. `timeout` bounds both together, and each request and each
    /// reply after them.
    pub(super) fn open(
        server: &ServerSettings,
        peer: &Peer,
        timeout: Duration,
        now: Time,
    ) -> Result<Connection, StoreFault> {
        let started = Instant::now();
        let mut socket = Socket::connect(peer, timeout).map_err(connect_fault)?;
        if let Some(tls) = &server.login.tls {
            let left = timeout.saturating_sub(started.elapsed());
            socket.start_tls(tls, &server.address, left)?;
        }
        Ok(Connection::over(socket, now))
    }

    /// A connection of the first age, with a count of its own.
    pub(super) fn over(socket: Socket, now: Time) -> Connection {
        Connection {
            socket,
            anchor: Anchor {
                server: 0,
                sent: now,
                received: now,
            },
            age: Age::default(),
            broken: false,
            opened: now,
            scripts: Scripts::default(),
            refuses_several_slots: false,
            hello: Hello::default(),
            requests: Arc::default(),
            first_login: Arc::default(),
            login: None,
        }
    }

    /// Sends the commands in one write, and counts them. Only the requests of lanes do not go
    /// through here: lanes count their own. If newer credentials are known, they go in front.
    pub(super) fn send(&mut self, commands: &[Cmd]) -> io::Result<()> {
        let anew = self.login.as_mut().and_then(ConnectionLogin::begin_anew);
        let count = commands.len() as u64 + u64::from(anew.is_some());
        self.requests.fetch_add(count, Ordering::Relaxed);
        let mut bytes = Vec::with_capacity(512 * commands.len());
        for command in anew.iter().chain(commands) {
            command.write_packed_command(&mut bytes);
        }
        let sent = self.socket.send(&bytes);
        self.broken |= sent.is_err();
        sent
    }

    /// The next reply, as it is: a server's error is a value here.
    pub(super) fn receive(&mut self) -> Result<Value, RedisError> {
        loop {
            let received = self.socket.receive();
            self.broken |= received.is_err();
            if let Some(received) = self.of_requests(received?) {
                return Ok(received);
            }
        }
    }

    /// A reply that has come, unless it is to newer credentials, which no request asked for.
    pub(super) fn of_requests(&mut self, reply: Value) -> Option<Value> {
        match &mut self.login {
            Some(login) if login.is_awaiting() => {
                login.take_reply(refusal(reply));
                None
            }
            _ => Some(reply),
        }
    }

    /// Sends newer credentials if they are known, for a connection that idles. The next reply is
    /// behind theirs.
    pub(super) fn log_in_anew(&mut self) {
        if self
            .login
            .as_ref()
            .is_some_and(ConnectionLogin::is_outdated)
        {
            // An error shows at the next use.
            let _ = self.send(&[]);
        }
    }

    /// Runs one command that is not a script, within `timeout`.
    pub(super) fn request(
        &mut self,
        command: &Cmd,
        timeout: Duration,
    ) -> Result<Value, StoreFault> {
        let started = Instant::now();
        self.limit_writes(timeout)?;
        self.send(std::slice::from_ref(command))
            .map_err(|e| fault(e, Step::Send))?;
        self.limit_reads(timeout.saturating_sub(started.elapsed()))?;
        refusal(self.receive().map_err(|e| fault(e, Step::Reply))?)
    }

    /// How long the last reply took.
    pub(super) fn round_trip(&self) -> Duration {
        self.anchor.received - self.anchor.sent
    }

    /// Waits until something comes. Returns whether nothing has come in this time.
    pub(super) fn is_silent(&self, time: Duration) -> bool {
        self.socket.is_silent(time)
    }

    pub(super) fn set_read_timeout(&mut self, timeout: Duration) -> Result<(), StoreFault> {
        let set = self.socket.set_read_timeout(timeout);
        set.map_err(|e| fault(e, Step::Connect))
    }

    pub(super) fn set_write_timeout(&mut self, timeout: Duration) -> Result<(), StoreFault> {
        let set = self.socket.set_write_timeout(timeout);
        set.map_err(|e| fault(e, Step::Connect))
    }

    /// Lets the next reply take no longer than `timeout`.
    pub(super) fn limit_reads(&mut self, timeout: Duration) -> Result<(), StoreFault> {
        let set = self.socket.limit_reads(timeout);
        set.map_err(|e| fault(e, Step::Connect))
    }

    /// Lets the next request take no longer than `timeout`.
    pub(super) fn limit_writes(&mut self, timeout: Duration) -> Result<(), StoreFault> {
        let set = self.socket.limit_writes(timeout);
        set.map_err(|e| fault(e, Step::Connect))
    }
}

/// A server's error as a fault, any other reply as it is.
pub(super) fn refusal(value: Value) -> Result<Value, StoreFault> {
    match value {
        Value::ServerError(e) => Err(StoreFault::refused(
            e.code(),
            e.details().unwrap_or_default(),
        )),
        value => Ok(value),
    }
}

/// The fault that an error of a socket means that was to be opened. The crate `redis` hides the
/// number by which a lack of file descriptors is told from a refusal.
fn connect_fault(error: io::Error) -> StoreFault {
    match error.raw_os_error() {
        // As it is. The redis crate does not pass on what kind of error it was.
        Some(code)
            if lacks_descriptors(code) || error.kind() == io::ErrorKind::PermissionDenied =>
        {
            StoreFault::unavailable(Step::Connect, error)
        }
        _ => fault(error, Step::Connect),
    }
}

/// The fault that an error at this step means.
pub(super) fn fault(error: impl Into<RedisError>, step: Step) -> StoreFault {
    let error = error.into();
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => StoreFault::refused(
            error.code().unwrap_or("ERR"),
            error.detail().unwrap_or_default(),
        ),
        _ => {
            let source = match io_kind(&error) {
                // The system's text speaks of a resource that is temporarily unavailable.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    return StoreFault::timed_out(step);
                }
                // The parser's text has several lines.
                io::ErrorKind::InvalidData if step == Step::Connect => io::Error::new(
                    io::ErrorKind::InvalidData,
                    "expected a Redis server; the reply is not in Redis's protocol",
                ),
                kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, CLOSED),
                // As text alone: a program that prints the causes one by one would print it twice.
                kind => io::Error::new(kind, error.to_string()),
            };
            StoreFault::unavailable(step, source)
        }
    }
}

pub(super) fn io_kind(error: &RedisError) -> io::ErrorKind {
    use std::error::Error as _;
    match error.source().and_then(|e| e.downcast_ref::<io::Error>()) {
        Some(io) => io.kind(),
        None if error.is_timeout() => io::ErrorKind::TimedOut,
        None if error.is_connection_refusal() => io::ErrorKind::ConnectionRefused,
        None if error.is_connection_dropped() => io::ErrorKind::UnexpectedEof,
        None if error.kind() == ErrorKind::Io => io::ErrorKind::Other,
        None => io::ErrorKind::InvalidData,
    }
}
