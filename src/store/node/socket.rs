//! A socket to a node: bytes out, replies in, each within its time whatever signals come.
//!
//! A read or a write with a timeout is ended by any signal that a program handles, even with SA_RESTART, and a profiler
//! sends one each millisecond. A reply that is given up for that may be of a request that was carried out, and where
//! signals come faster than replies there would never be one. So what was interrupted goes on here.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, Parser, RedisResult, Value};

/// After so long without traffic a connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(crate) struct Socket {
    stream: Stream,
    parser: Parser,
    read_timeout: Duration,
    write_timeout: Duration,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Bounded by `timeout`, but for the resolution of a host's name, and for a unix socket's full backlog.
    pub(crate) fn connect(addr: &ConnectionAddr, timeout: Duration) -> io::Result<Socket> {
        let stream = match addr {
            ConnectionAddr::Tcp(host, port) => Stream::Tcp(connect_tcp(host, *port, timeout)?),
            ConnectionAddr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Socket::new(stream, timeout)
    }

    fn new(stream: Stream, timeout: Duration) -> io::Result<Socket> {
        let mut socket = Socket {
            stream,
            parser: Parser::new(),
            read_timeout: timeout,
            write_timeout: timeout,
        };
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;
        Ok(socket)
    }

    /// One to somebody in this process.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn pair(timeout: Duration) -> io::Result<(Socket, UnixStream)> {
        let (own, other) = UnixStream::pair()?;
        Ok((Socket::new(Stream::Unix(own), timeout)?, other))
    }

    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.read_timeout = timeout;
        self.stream.limit_reads(timeout)
    }

    pub(crate) fn set_write_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.write_timeout = timeout;
        self.stream.limit_writes(timeout)
    }

    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut patience = IoDeadline::new(self.write_timeout);
        loop {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if written == bytes.len() => break,
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.stream.limit_writes(patience.left()?)?;
                }
                Err(e) => self.stream.limit_writes(patience.after(e)?)?,
            }
        }
        if patience.was_tried {
            self.stream.limit_writes(self.write_timeout)?;
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self) -> RedisResult<Value> {
        let mut reader = Reader {
            stream: &mut self.stream,
            patience: IoDeadline::new(self.read_timeout),
        };
        let value = self.parser.parse_value(&mut reader);
        if reader.patience.was_tried {
            self.stream.limit_reads(self.read_timeout)?;
        }
        value
    }
}

/// Each address of the name in turn, within one timeout.
fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let addresses = (host, port).to_socket_addrs()?;
    let until = Instant::now() + timeout;
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // A peer that vanished is noticed by the connections that mostly wait.
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                // OpenBSD lets no socket choose it.
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

/// What is left of the time for one reply, or for one request, when it was interrupted.
struct IoDeadline {
    until: Instant,
    was_tried: bool,
}

impl IoDeadline {
    fn new(timeout: Duration) -> IoDeadline {
        IoDeadline {
            until: Instant::now() + timeout,
            was_tried: false,
        }
    }

    /// The time for going on, if a signal is all that happened.
    fn after(&mut self, error: io::Error) -> io::Result<Duration> {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        self.left()
    }

    fn left(&mut self) -> io::Result<Duration> {
        self.was_tried = true;
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }
}

struct Reader<'a> {
    stream: &'a mut Stream,
    patience: IoDeadline,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(read) => return Ok(read),
                Err(e) => {
                    let left = self.patience.after(e)?;
                    self.stream.limit_reads(left)?;
                }
            }
        }
    }
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
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

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;

    /// A pipeline of many calls does not fit into the buffers of a socket, and a peer can take it bit by bit.
    #[test]
    fn a_write_that_is_taken_bit_by_bit_has_one_timeout() {
        const TIMEOUT: Duration = Duration::from_millis(300);
        const SLACK: Duration = Duration::from_millis(1500);
        let (mut socket, mut peer) = Socket::pair(TIMEOUT).expect("a pair of sockets");
        let started = Instant::now();
        let trickle = std::thread::spawn(move || {
            let mut bit = [0; 4096];
            // It ends, so that whoever would write on and on is told from who gives up.
            while started.elapsed() < 2 * (TIMEOUT + SLACK)
                && peer.read(&mut bit).is_ok_and(|read| read > 0)
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
}
