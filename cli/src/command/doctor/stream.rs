//! The bytes of a connection, all within its time, in plain text or through TLS.

use std::io::{self, Read, Write};
use std::time::Instant;

use fairlock::Step;

use super::fault::Fault;
use super::place::Server;
use super::socket::{Peer, Timed};
#[cfg(feature = "tls")]
use super::tls::{self, TlsStream};

pub(super) enum Stream {
    Plain(Timed),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects, and encrypts what follows if the server's URL says so. Blocks until `until` at
    /// most.
    pub(super) fn connect(peer: &Peer, server: &Server, until: Instant) -> Result<Stream, Fault> {
        let connected = Timed::connect(peer, until);
        let stream = connected.map_err(|error| Fault::of_io(Step::Connect, &error))?;
        #[cfg(feature = "tls")]
        if let Some(config) = &server.tls {
            let begun = tls::begin(stream, config, &server.address)?;
            return Ok(Stream::Tls(Box::new(begun)));
        }
        #[cfg(not(feature = "tls"))]
        let _ = server;
        Ok(Stream::Plain(stream))
    }

    /// All that follows ends by then.
    pub(super) fn set_end(&mut self, until: Instant) {
        match self {
            Stream::Plain(stream) => stream.set_end(until),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sock.set_end(until),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.flush(),
        }
    }
}
