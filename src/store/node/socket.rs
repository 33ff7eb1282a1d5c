//! A socket to a node: bytes out, replies in, each within its time, in plain text or through TLS.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Parser, RedisResult, Value};

use super::resolve::Peer;
use super::stream::{IoDeadline, ReadMode, Reads, SHORTEST_TIMEOUT, Stream, connect, must_change};
use super::tls::{TlsReader, TlsWriter, start_tls};
use crate::error::Step;
use crate::store::{Address, StoreFault, TlsSettings};

/// Both halves of a socket. They can be used by two threads at once, see [`Socket::split`].
pub(super) struct Socket {
    writer: SocketWriter,
    reader: SocketReader,
    /// The peer, if it has an address of its own.
    peer: Option<SocketAddr>,
}

/// The half that requests go out through.
pub(super) struct SocketWriter {
    stream: Arc<Stream>,
    timeout: Duration,
    tls: Option<TlsWriter>,
}

/// The half that replies come in through.
pub(super) struct SocketReader {
    stream: Arc<Stream>,
    parser: Parser,
    timeout: Duration,
    tls: Option<TlsReader>,
}

/// The input of the parser.
struct Input<'a> {
    reads: Reads<'a>,
    tls: Option<&'a mut TlsReader>,
}

impl Socket {
    /// Blocks for `timeout` at most.
    pub(super) fn connect(peer: &Peer, timeout: Duration) -> io::Result<Socket> {
        let mut socket = Socket::new(connect(peer, timeout)?, timeout)?;
        socket.peer = match peer {
            Peer::Tcp(address) => Some(*address),
            Peer::Unix(_) => None,
        };
        Ok(socket)
    }

    /// Encrypts all that follows. Bounded by `timeout`.
    pub(super) fn start_tls(
        &mut self,
        settings: &TlsSettings,
        address: &Address,
        timeout: Duration,
    ) -> Result<(), StoreFault> {
        let stream = &self.writer.stream;
        let (writer, reader) = start_tls(stream, self.peer, settings, address, timeout)?;
        self.writer.tls = Some(writer);
        self.reader.tls = Some(reader);
        // The handshake used timeouts of its own.
        let restored = self.set_read_timeout(self.reader.timeout);
        restored
            .and_then(|()| self.set_write_timeout(self.writer.timeout))
            .map_err(|e| StoreFault::unavailable(Step::Connect, e))
    }

    pub(super) fn new(stream: Stream, timeout: Duration) -> io::Result<Socket> {
        stream.limit_reads(timeout)?;
        stream.limit_writes(timeout)?;
        let stream = Arc::new(stream);
        Ok(Socket {
            writer: SocketWriter {
                stream: Arc::clone(&stream),
                timeout,
                tls: None,
            },
            reader: SocketReader {
                stream,
                parser: Parser::new(),
                timeout,
                tls: None,
            },
            peer: None,
        })
    }

    /// The stream, for the thread that closes it while others use it.
    pub(super) fn stream(&self) -> Weak<Stream> {
        Arc::downgrade(&self.reader.stream)
    }

    /// The address of the peer. `None` for a unix socket.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    pub(super) fn split(self) -> (SocketWriter, SocketReader) {
        (self.writer, self.reader)
    }

    /// Gives each reply this time, however many reads it takes.
    pub(super) fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.reader.set_timeout(timeout)
    }

    /// Gives each request this time, however many writes it takes.
    pub(super) fn set_write_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.writer.set_timeout(timeout)
    }

    /// Like [`Socket::set_read_timeout`], but makes a system call only if the timeout that is set
    /// is clearly another.
    pub(super) fn limit_reads(&mut self, timeout: Duration) -> io::Result<()> {
        self.reader.limit(timeout)
    }

    /// Like [`Socket::limit_reads`], for writes.
    pub(super) fn limit_writes(&mut self, timeout: Duration) -> io::Result<()> {
        if must_change(self.writer.timeout, timeout) {
            self.set_write_timeout(timeout.max(SHORTEST_TIMEOUT))?;
        }
        Ok(())
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.send(bytes)
    }

    /// The next reply. After a timeout in the middle of a reply, the next call goes on with it.
    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        self.reader.receive(ReadMode::Wait)
    }

    /// Waits until something comes. Returns whether nothing has come in this time.
    pub(super) fn is_silent(&self, time: Duration) -> bool {
        self.reader.stream.is_silent(time)
    }

    /// The next reply if it has arrived, or else a timeout.
    pub(super) fn receive_arrived(&mut self) -> RedisResult<Value> {
        self.reader.receive(ReadMode::Arrived)
    }
}

impl SocketWriter {
    /// The stream, for the thread that closes it while others use it.
    pub(super) fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.stream)
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.stream.limit_writes(timeout)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut deadline = IoDeadline::new(self.timeout);
        match &mut self.tls {
            None => self.stream.write_all(bytes, &mut deadline)?,
            Some(tls) => tls.write_all(bytes, &self.stream, &mut deadline)?,
        }
        if deadline.is_shortened() {
            self.stream.limit_writes(self.timeout)?;
        }
        Ok(())
    }
}

impl SocketReader {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.stream.limit_reads(timeout)
    }

    /// See [`Socket::limit_reads`].
    pub(super) fn limit(&mut self, timeout: Duration) -> io::Result<()> {
        if must_change(self.timeout, timeout) {
            self.set_timeout(timeout.max(SHORTEST_TIMEOUT))?;
        }
        Ok(())
    }

    /// The next reply. After a timeout in the middle of a reply, the next call goes on with it.
    pub(super) fn receive(&mut self, mode: ReadMode) -> RedisResult<Value> {
        let mut input = Input {
            reads: Reads::new(&self.stream, self.timeout, mode),
            tls: self.tls.as_mut(),
        };
        let value = self.parser.parse_value(&mut input);
        if input.reads.deadline.is_shortened() {
            self.stream.limit_reads(self.timeout)?;
        }
        value
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.reads.read(buffer),
            Some(tls) => tls.read(buffer, &mut self.reads),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(300);
    const SLACK: Duration = Duration::from_millis(1500);

    /// A pipeline of many calls does not fit into the buffers of a socket, and a peer can take it
    /// in small pieces.
    #[test]
    fn write_that_is_taken_in_pieces_has_one_timeout() {
        let (own, mut peer) = UnixStream::pair().expect("a pair of sockets");
        let mut socket = Socket::new(Stream::Unix(own), TIMEOUT).expect("timeouts can be set");
        let started = Instant::now();
        let trickle = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // It ends. So a socket that would write on and on differs from one that times out.
            while started.elapsed() < 2 * (TIMEOUT + SLACK)
                && peer.read(&mut piece).is_ok_and(|read| read > 0)
            {
                // Time itself is under test: the peer is slow.
                std::thread::sleep(TIMEOUT / 6);
            }
        });
        assert!(socket.send(&vec![b'x'; 16 << 20]).is_err());
        let took = started.elapsed();
        assert!(took >= TIMEOUT && took <= TIMEOUT + SLACK, "{took:?}");
        drop(socket);
        trickle.join().expect("no panic");
    }

    #[test]
    fn reply_that_comes_in_pieces_has_one_timeout() {
        let (own, mut peer) = UnixStream::pair().expect("a pair of sockets");
        let mut socket = Socket::new(Stream::Unix(own), TIMEOUT).expect("timeouts can be set");
        let started = Instant::now();
        let trickle = std::thread::spawn(move || {
            for byte in b"$100\r\n".iter().chain(&[b'x'; 100]).chain(b"\r\n") {
                if peer.write_all(&[*byte]).is_err() {
                    break;
                }
                // Time itself is under test: the peer is slow.
                std::thread::sleep(TIMEOUT / 6);
            }
            peer
        });
        let error = socket.receive().expect_err("it takes too long");
        let took = started.elapsed();
        assert!(error.is_timeout(), "{error}");
        assert!(took >= TIMEOUT && took <= TIMEOUT + SLACK, "{took:?}");
        // The subscription goes on after a timeout: the next call has the rest of the reply, and
        // the whole timeout.
        let mut peer = trickle.join().expect("no panic");
        let reply = socket.receive().expect("the rest has come");
        assert_eq!(reply, Value::BulkString(vec![b'x'; 100]));
        let started = Instant::now();
        assert!(socket.receive().is_err_and(|e| e.is_timeout()));
        assert!(started.elapsed() >= TIMEOUT);
        peer.write_all(b"+OK\r\n").expect("it is open");
        assert_eq!(socket.receive().expect("it has come"), Value::Okay);
    }
}
