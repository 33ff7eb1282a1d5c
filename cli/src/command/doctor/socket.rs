//! A socket to one of the addresses of a server, whose reads and writes end at some moment.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fairlock::Step;

use super::fault::Fault;
use super::place::Address;

/// One of the addresses of a server.
#[derive(Debug, Clone)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket whose reads and writes end at some moment, however many pieces the bytes come in.
pub(super) struct Timed {
    socket: Socket,
    until: Instant,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The addresses of a server. Blocks for as long as the system's resolver does.
pub(super) fn peers_of(address: &Address) -> Result<Vec<Peer>, Fault> {
    let (host, port) = match address {
        Address::Unix(path) => return Ok(vec![Peer::Unix(path.clone())]),
        Address::Tcp(host, port) => (host, *port),
    };
    let found = (host.as_str(), port).to_socket_addrs();
    let found = found.map_err(|error| Fault::of_io(Step::Connect, &error))?;
    Ok(found.map(Peer::Tcp).collect())
}

/// Whether the peer answers a record of TLS with one.
///
/// The record is a ClientHello that offers nothing, so a server of TLS refuses it with an alert.
/// Its header has a line feed in it, in the length: a plain server reads a command up to there, and
/// refuses that.
pub(super) fn speaks_tls(peer: &Peer, until: Instant) -> bool {
    const LENGTH: usize = 0x010a;
    let mut record = vec![0x16, 3, 1, 0x01, 0x0a, 1, 0, 0x01, 0x06, 3, 3];
    record.resize(5 + LENGTH, 0);
    let mut answer = [0; 2];
    let asked = Timed::connect(peer, until).and_then(|mut stream| {
        stream.write_all(&record)?;
        stream.read_exact(&mut answer)
    });
    // An alert, or a part of the handshake.
    asked.is_ok() && matches!(answer, [0x15 | 0x16, 3])
}

impl Timed {
    pub(super) fn connect(peer: &Peer, until: Instant) -> io::Result<Timed> {
        let socket = match peer {
            Peer::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, left(until)?)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
            Peer::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        };
        Ok(Timed { socket, until })
    }

    /// All that follows ends by then.
    pub(super) fn set_end(&mut self, until: Instant) {
        self.until = until;
    }
}

/// The time that is left. No time is left: an error.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = Some(left(self.until)?);
            let read = match &mut self.socket {
                Socket::Tcp(stream) => {
                    stream.set_read_timeout(left)?;
                    stream.read(buffer)
                }
                Socket::Unix(stream) => {
                    stream.set_read_timeout(left)?;
                    stream.read(buffer)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(left(self.until)?);
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
