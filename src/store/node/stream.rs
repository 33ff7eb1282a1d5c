//! A stream of bytes to a node, each way within its time whatever signals come.
//!
//! Any signal that a program handles ends a read or a write that has a timeout, even with
//! SA_RESTART. A profiler sends a signal each millisecond. If the call failed for that, the server
//! might have carried out its request. If signals came faster than replies, no reply would ever
//! arrive. So a read or a write that was interrupted goes on here.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::resolve::Peer;

/// The shortest timeout that is set: a socket takes zero for "none". A timeout that is wrong by
/// this or less is not corrected.
pub(super) const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
/// The system probes a connection after this long without traffic.
const KEEPALIVE: Duration = Duration::from_secs(15);

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

    /// Writes all of the bytes before the deadline.
    pub(super) fn write_all(&self, mut bytes: &[u8], deadline: &mut IoDeadline) -> io::Result<()> {
        loop {
            match self.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(written) => bytes = &bytes[written..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if let Some(left) = deadline.shorten()? {
                self.limit_writes(left)?;
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// Waits until something comes, be it the end. Returns whether nothing has come in this time.
    pub(super) fn is_silent(&self, time: Duration) -> bool {
        let ends_at = Instant::now() + time;
        loop {
            let left = ends_at.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut watched = [PollFd::new(self, PollFlags::IN)];
            match poll(&mut watched, left.as_ref()) {
                Ok(ready) => return ready == 0,
                Err(Errno::INTR) => {}
                // The next read says what it is.
                Err(_) => return false,
            }
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

    pub(super) fn limit_reads(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    pub(super) fn limit_writes(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }
}

/// Whether a stream with this timeout needs another one. The rest of a timeout is a little less
/// each time, or a little more. To follow it would cost a system call for each request.
pub(super) fn must_change(set: Duration, wanted: Duration) -> bool {
    let tolerance = SHORTEST_TIMEOUT.min(wanted / 16);
    wanted + SHORTEST_TIMEOUT < set || set + tolerance < wanted
}

/// Connects to this address within `timeout`.
pub(super) fn connect(peer: &Peer, timeout: Duration) -> io::Result<Stream> {
    let timeout = timeout.max(SHORTEST_TIMEOUT);
    match peer {
        Peer::Tcp(address) => connect_tcp(address, timeout).map(Stream::Tcp),
        Peer::Unix(path) => connect_unix(path, timeout).map(Stream::Unix),
    }
}

fn connect_tcp(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, timeout)?;
    stream.set_nodelay(true)?;
    // The connections that mostly wait must notice that their peer vanished.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    // On OpenBSD a socket cannot choose the interval.
    #[cfg(not(target_os = "openbsd"))]
    let keepalive = keepalive.with_interval(KEEPALIVE / 3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// A unix socket whose queue is full blocks: on Linux for the socket's write timeout at most, on
/// other systems not at all.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let ends_at = Instant::now() + timeout;
    loop {
        let left = ends_at.saturating_duration_since(Instant::now());
        socket.set_write_timeout(Some(left.max(SHORTEST_TIMEOUT)))?;
        match socket.connect(&address) {
            Ok(()) => return Ok(UnixStream::from(OwnedFd::from(socket))),
            Err(e) if e.kind() == io::ErrorKind::Interrupted && !left.is_zero() => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the queue of the socket is full: its server does not accept connections",
                ));
            }
            Err(e) => return Err(e),
        }
    }
}

/// The deadline of one reply, over all its reads, or of one request, over all its writes.
///
/// The stream has the whole timeout, so a reply that comes in one read costs no more system calls.
/// Every read after the first gets what is left. Otherwise a peer that sends a byte now and then
/// would keep the caller forever (P8).
pub(super) struct IoDeadline {
    ends_at: Instant,
    timeout: Duration,
    /// The timeout that the stream has now.
    set: Duration,
}

impl IoDeadline {
    pub(super) fn new(timeout: Duration) -> IoDeadline {
        IoDeadline {
            ends_at: Instant::now() + timeout,
            timeout,
            set: timeout,
        }
    }

    /// The timeout that the stream needs now, if it differs from the one that it has. An error
    /// after the deadline.
    pub(super) fn shorten(&mut self) -> io::Result<Option<Duration>> {
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

    pub(super) fn is_shortened(&self) -> bool {
        self.set != self.timeout
    }
}

/// Reads from a stream, all before one deadline.
pub(super) struct Reads<'a> {
    pub(super) stream: &'a Stream,
    pub(super) deadline: IoDeadline,
    is_first: bool,
    mode: ReadMode,
}

impl<'a> Reads<'a> {
    /// The stream has `timeout` as its read timeout.
    pub(super) fn new(stream: &'a Stream, timeout: Duration, mode: ReadMode) -> Reads<'a> {
        Reads {
            stream,
            deadline: IoDeadline::new(timeout),
            is_first: true,
            mode,
        }
    }
}

impl Read for Reads<'_> {
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
