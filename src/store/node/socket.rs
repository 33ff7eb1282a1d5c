//! A socket to a node: bytes out, replies in, each within its time whatever signals come.
//!
//! Any signal that a program handles ends a read or a write that has a timeout, even with
//! SA_RESTART, and a profiler sends a signal each millisecond. If the call failed for that, the
//! server might have carried out its request; and where signals come faster than replies, no reply
//! would ever arrive. So a read or a write that was interrupted goes on here.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Parser, RedisResult, Value};
use rustix::net::RecvFlags;

use crate::store::Address;

/// The shortest timeout that is set: a socket takes zero for "none". A timeout that is wrong by
/// this or less is not corrected.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
/// The system probes a connection after this long without traffic.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Both halves of a socket. They can be used by two threads at once, see [`Socket::split`].
pub(super) struct Socket {
    writer: SocketWriter,
    reader: SocketReader,
}

/// The half that requests go out through.
pub(super) struct SocketWriter {
    stream: Arc<Stream>,
    timeout: Duration,
}

/// The half that replies come in through.
pub(super) struct SocketReader {
    stream: Arc<Stream>,
    parser: Parser,
    timeout: Duration,
}

/// How long a reader waits for a reply that is not there.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ReadMode {
    /// For its timeout.
    Wait,
    /// Not at all: it takes what has arrived.
    Arrived,
    /// Not at all, and it asks the system nothing: it takes what came along with replies before.
    Buffered,
}

pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Bounded by `timeout`, except that resolving a host's name may take longer, and that a unix
    /// socket with a full backlog blocks.
    pub(super) fn connect(address: &Address, timeout: Duration) -> io::Result<Socket> {
        let stream = match address {
            Address::Tcp(host, port) => Stream::Tcp(connect_tcp(host, *port, timeout)?),
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        };
        Socket::new(stream, timeout)
    }

    pub(super) fn new(stream: Stream, timeout: Duration) -> io::Result<Socket> {
        stream.limit_reads(timeout)?;
        stream.limit_writes(timeout)?;
        let stream = Arc::new(stream);
        Ok(Socket {
            writer: SocketWriter {
                stream: Arc::clone(&stream),
                timeout,
            },
            reader: SocketReader {
                stream,
                parser: Parser::new(),
                timeout,
            },
        })
    }

    /// The stream, for the thread that closes it while others use it.
    pub(super) fn stream(&self) -> Weak<Stream> {
        Arc::downgrade(&self.reader.stream)
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

    pub(super) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut deadline = IoDeadline::new(self.timeout);
        loop {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if written == bytes.len() => break,
                Ok(written) => bytes = &bytes[written..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if let Some(left) = deadline.shorten()? {
                self.stream.limit_writes(left)?;
            }
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
            stream: &self.stream,
            deadline: IoDeadline::new(self.timeout),
            is_first: true,
            mode,
        };
        let value = self.parser.parse_value(&mut input);
        if input.deadline.is_shortened() {
            self.stream.limit_reads(self.timeout)?;
        }
        value
    }
}

/// Whether a stream with this timeout needs another one. What is left of a timeout is a little less
/// each time, or a little more. To follow it would cost a system call for each request.
fn must_change(set: Duration, wanted: Duration) -> bool {
    let tolerance = SHORTEST_TIMEOUT.min(wanted / 16);
    wanted + SHORTEST_TIMEOUT < set || set + tolerance < wanted
}

/// Tries each address of the name in turn, all within one timeout.
fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let addresses = (host, port).to_socket_addrs()?;
    let deadline = Instant::now() + timeout;
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // The connections that mostly wait must notice that their peer vanished.
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                // On OpenBSD a socket cannot choose the interval.
                #[cfg(not(target_os = "openbsd"))]
                let keepalive = keepalive.with_interval(KEEPALIVE / 3);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                return Ok(stream);
            }
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// The deadline of one reply, over all its reads, or of one request, over all its writes.
///
/// The stream has the whole timeout, so a reply that comes in one read costs no more system calls.
/// Every read after the first gets what is left. Otherwise a peer that sends a byte now and then
/// would keep the caller for ever (P8).
struct IoDeadline {
    ends_at: Instant,
    timeout: Duration,
    /// The timeout that the stream has now.
    set: Duration,
}

impl IoDeadline {
    fn new(timeout: Duration) -> IoDeadline {
        IoDeadline {
            ends_at: Instant::now() + timeout,
            timeout,
            set: timeout,
        }
    }

    /// The timeout that the stream needs now, if it differs from the one that it has. An error
    /// after the deadline.
    fn shorten(&mut self) -> io::Result<Option<Duration>> {
        let left = self.ends_at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !must_change(self.set, left) {
            return Ok(None);
        }
        self.set = left;
        Ok(Some(left))
    }

    fn is_shortened(&self) -> bool {
        self.set != self.timeout
    }
}

/// The input of the parser.
struct Input<'a> {
    stream: &'a Stream,
    deadline: IoDeadline,
    is_first: bool,
    mode: ReadMode,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self.mode {
                ReadMode::Buffered => return Err(io::ErrorKind::WouldBlock.into()),
                ReadMode::Arrived => self.stream.read_arrived(buffer),
                ReadMode::Wait => {
                    if !std::mem::take(&mut self.is_first)
                        && let Some(left) = self.deadline.shorten()?
                    {
                        self.stream.limit_reads(left)?;
                    }
                    self.stream.read(buffer)
                }
            };
            match result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }

    /// Reads what has arrived. [`io::ErrorKind::WouldBlock`] if that is nothing.
    fn read_arrived(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        let (_, received) = match self {
            Stream::Tcp(stream) => rustix::net::recv(stream, buffer, flags),
            Stream::Unix(stream) => rustix::net::recv(stream, buffer, flags),
        }?;
        Ok(received)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// Ends the connection, also for a thread that reads from it or writes to it just now.
    pub(super) fn close(&self) {
        // It fails if the peer has closed the connection already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn limit_reads(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn limit_writes(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
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
