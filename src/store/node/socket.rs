//! A socket to a node: bytes out, replies in, each within its time whatever signals come.
//!
//! Any signal that a program handles ends a read or a write that has a timeout, even with
//! SA_RESTART, and a profiler sends a signal each millisecond. If the call failed for that, the
//! server might have carried out its request; and where signals come faster than replies, no reply
//! would ever arrive. So a read or a write that was interrupted goes on here.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, Parser, RedisResult, Value};

/// The system probes a connection after this long without traffic.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(super) struct Socket {
    stream: Stream,
    parser: Parser,
    read_timeout: Duration,
    write_timeout: Duration,
}

pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Bounded by `timeout`, except that resolving a host's name may take longer, and that a unix
    /// socket with a full backlog blocks.
    pub(super) fn connect(addr: &ConnectionAddr, timeout: Duration) -> io::Result<Socket> {
        let stream = match addr {
            ConnectionAddr::Tcp(host, port) => Stream::Tcp(connect_tcp(host, *port, timeout)?),
            ConnectionAddr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Socket::new(stream, timeout)
    }

    pub(super) fn new(stream: Stream, timeout: Duration) -> io::Result<Socket> {
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

    pub(super) fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.read_timeout = timeout;
        self.stream.limit_reads(timeout)
    }

    pub(super) fn set_write_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.write_timeout = timeout;
        self.stream.limit_writes(timeout)
    }

    pub(super) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut deadline = IoDeadline::new(self.write_timeout);
        loop {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if written == bytes.len() => break,
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.stream.limit_writes(deadline.left()?)?;
                }
                Err(e) => self.stream.limit_writes(deadline.after(e)?)?,
            }
        }
        if deadline.was_asked {
            self.stream.limit_writes(self.write_timeout)?;
        }
        Ok(())
    }

    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        let mut reader = Reader {
            stream: &mut self.stream,
            deadline: IoDeadline::new(self.read_timeout),
        };
        let value = self.parser.parse_value(&mut reader);
        if reader.deadline.was_asked {
            self.stream.limit_reads(self.read_timeout)?;
        }
        value
    }
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

/// The time left for one reply, or for one request, after an interruption.
struct IoDeadline {
    ends_at: Instant,
    /// Whether the rest was asked for. Then the stream has a shorter timeout than the socket.
    was_asked: bool,
}

impl IoDeadline {
    fn new(timeout: Duration) -> IoDeadline {
        IoDeadline {
            ends_at: Instant::now() + timeout,
            was_asked: false,
        }
    }

    /// The time that is left to go on, if the error is only that a signal came.
    fn after(&mut self, error: io::Error) -> io::Result<Duration> {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        self.left()
    }

    fn left(&mut self) -> io::Result<Duration> {
        self.was_asked = true;
        let left = self.ends_at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }
}

struct Reader<'a> {
    stream: &'a mut Stream,
    deadline: IoDeadline,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(read) => return Ok(read),
                Err(e) => {
                    let left = self.deadline.after(e)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipeline of many calls does not fit into the buffers of a socket, and a peer can take it
    /// in small pieces.
    #[test]
    fn write_that_is_taken_in_pieces_has_one_timeout() {
        const TIMEOUT: Duration = Duration::from_millis(300);
        const SLACK: Duration = Duration::from_millis(1500);
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
}
