//! One connection to a node, and what its errors mean.

use std::io;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};

use super::socket::Socket;
use crate::error::Step;
use crate::store::clock::Time;
use crate::store::{Anchor, StoreFault};

/// One connection, with the pairing of clocks that its requests are dated by (R5).
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) anchor: Anchor,
    pub(crate) generation: u64,
    pub(crate) pool_generation: u64,
    /// Something other than a server's reply came: what the next reply belongs to is not known.
    pub(crate) broken: bool,
    /// A failure of a connection that has just been opened is not the sign of one closed while idle.
    pub(crate) opened: Time,
    pub(crate) read_timeout: Duration,
}

impl Connection {
    pub(crate) fn send(&mut self, commands: &[Cmd]) -> Result<(), RedisError> {
        let mut bytes = Vec::with_capacity(512 * commands.len());
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        let sent = self.socket.send(&bytes);
        self.broken |= sent.is_err();
        sent.map_err(RedisError::from)
    }

    /// One command of Redis's own.
    pub(crate) fn request(
        &mut self,
        command: Cmd,
        deadlines: Duration,
    ) -> Result<Value, StoreFault> {
        self.limit(deadlines)?;
        self.send(&[command]).map_err(|e| fault(e, Step::Send))?;
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> Result<Value, StoreFault> {
        match self.socket.receive() {
            Ok(value) => refusal(value),
            Err(e) => {
                self.broken = true;
                Err(fault(e, Step::Reply))
            }
        }
    }

    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) -> Result<(), StoreFault> {
        self.read_timeout = timeout;
        self.socket
            .set_read_timeout(timeout)
            .map_err(|e| fault(e.into(), Step::Connect))
    }

    /// A system call only when the time really is shorter, or was.
    pub(crate) fn limit(&mut self, deadlines: Duration) -> Result<(), StoreFault> {
        if deadlines + Duration::from_millis(1) < self.read_timeout || deadlines > self.read_timeout
        {
            self.set_read_timeout(deadlines.max(Duration::from_millis(1)))?;
        }
        Ok(())
    }
}

/// Why a handshake failed. A server that turns clients away says why and closes, perhaps before it is asked
/// anything: its words may lie behind the error.
pub(crate) fn turned_away(connection: &mut Connection, error: RedisError) -> StoreFault {
    if !is_closed_kind(io_kind(&error)) {
        return fault(error, Step::Connect);
    }
    match connection.receive() {
        Err(refused @ StoreFault::Server { .. }) => refused,
        _ => fault(error, Step::Connect),
    }
}

/// A server's refusal as a fault, any other reply as it is.
pub(crate) fn refusal(value: Value) -> Result<Value, StoreFault> {
    match value {
        Value::ServerError(e) => Err(StoreFault::Server {
            code: e.code().to_owned(),
            message: e.details().unwrap_or_default().to_owned(),
        }),
        value => Ok(value),
    }
}

pub(crate) fn is_closed(fault: &StoreFault) -> bool {
    io_kind_of(fault).is_some_and(is_closed_kind)
}

fn is_closed_kind(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
    )
}

/// A signal handler ran while a connection was being opened.
pub(crate) fn was_interrupted(fault: &StoreFault) -> bool {
    matches!(fault, StoreFault::Unavailable { source, .. }
        if source.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::Interrupted))
}

fn io_kind_of(fault: &StoreFault) -> Option<io::ErrorKind> {
    let StoreFault::Unavailable {
        step: Step::Send | Step::Reply,
        source,
    } = fault
    else {
        return None;
    };
    source.downcast_ref::<io::Error>().map(io::Error::kind)
}

pub(crate) fn fault(error: RedisError, step: Step) -> StoreFault {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => StoreFault::Server {
            code: error.code().unwrap_or("ERR").to_owned(),
            message: error.detail().unwrap_or_default().to_owned(),
        },
        _ => {
            let source = match io_kind(&error) {
                // The system's words for it are of a resource that is temporarily unavailable.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return timed_out(step),
                // The parser's words have several lines.
                io::ErrorKind::InvalidData if step == Step::Connect => io::Error::new(
                    io::ErrorKind::InvalidData,
                    "what answers there is not a redis",
                ),
                // As words, or whoever prints the causes one by one would have them twice.
                kind => io::Error::new(kind, error.to_string()),
            };
            StoreFault::unavailable(step, source)
        }
    }
}

fn io_kind(error: &RedisError) -> io::ErrorKind {
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

pub(crate) fn timed_out(step: Step) -> StoreFault {
    StoreFault::unavailable(step, io::Error::from(io::ErrorKind::TimedOut))
}
