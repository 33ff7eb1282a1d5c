//! A connection to a server whose words are made up, for the fuzzer.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Node;
use super::connection::Connection;
use super::socket::Socket;
use crate::script::{Call, CallerId};
use crate::store::clock::Clock;
use crate::store::single::{page, parse_url};
use crate::store::{Anchor, CallResult, StoreFault};

/// Far longer than bytes take that are there already.
const PATIENCE: Duration = Duration::from_secs(5);
/// What fits into a socket that nobody reads.
const MOST: usize = 64 * 1024;

pub(crate) struct Told {
    node: Node,
    connection: Connection,
    /// Reads nothing, and has closed its side.
    _server: UnixStream,
}

impl Told {
    /// It says these bytes and no more, whatever it is asked.
    pub(crate) fn new(url: &str, bytes: &[u8]) -> Told {
        let info = parse_url(url).expect("a good URL");
        let caller_id = Arc::new(CallerId::new("fairlock", PATIENCE, PATIENCE));
        let clock = Clock::default();
        let (socket, mut server) = Socket::pair(PATIENCE).expect("a pair of sockets");
        server
            .write_all(&bytes[..bytes.len().min(MOST)])
            .expect("it fits");
        server.shutdown(Shutdown::Write).expect("it is open");
        let now = clock.now();
        let connection = Connection {
            socket,
            anchor: Anchor {
                server: 0,
                sent: now,
                received: now,
            },
            generation: 0,
            pool_generation: 0,
            broken: false,
            opened: now,
            read_timeout: PATIENCE,
        };
        Told {
            node: Node::new(info, caller_id, clock, PATIENCE, PATIENCE),
            connection,
            _server: server,
        }
    }

    pub(crate) fn shake_hands(&mut self) -> Result<(), StoreFault> {
        let give_up = self.node.clock.now() + PATIENCE;
        self.node.shake_hands(&mut self.connection, give_up)
    }

    pub(crate) fn exchange(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let give_up = self.node.clock.now() + PATIENCE;
        self.node.exchange(&mut self.connection, calls, give_up)
    }

    pub(crate) fn scan(&mut self) -> Result<(u64, Vec<String>), StoreFault> {
        let answer: Value = self.connection.request(redis::cmd("SCAN"), PATIENCE)?;
        page(answer)
    }

    /// The pairings of clocks that it believes in.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = Anchor> {
        self.node
            .anchor()
            .into_iter()
            .chain([self.connection.anchor])
    }
}
