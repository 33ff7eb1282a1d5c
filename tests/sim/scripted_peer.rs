//! A connection to a server whose replies are made up, for the fuzzer.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::Node;
use super::batch::{Batch, LinkCall, run_in_rounds};
use super::connection::Connection;
use super::lanes::command::parse_page;
use super::socket::Socket;
use super::stream::Stream;
use crate::config::{Config, Settings};
use crate::script::{Call, CallerId};
use crate::store::clock::Clock;
use crate::store::{Anchor, CallResult, StoreFault, Topology, parse_url};

/// Far longer than it takes to read bytes that are already there.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A socket has room for this much although nobody reads it.
const MOST: usize = 64 * 1024;

/// A peer that sends the bytes that it is given, whatever it is asked.
pub(crate) struct ScriptedPeer {
    node: Node,
    connection: Connection,
    /// Reads nothing, and has closed its side.
    _server: UnixStream,
}

impl ScriptedPeer {
    /// It sends these bytes and no more.
    pub(crate) fn new(url: &str, bytes: &[u8]) -> ScriptedPeer {
        let Ok(Topology::Single(server_settings)) = parse_url(url) else {
            panic!("{url} is no URL of one server");
        };
        let caller_id = Arc::new(CallerId::new("fairlock", TIMEOUT, TIMEOUT));
        let clock = Clock::default();
        let (own, mut server) = UnixStream::pair().expect("a pair of sockets");
        let socket = Socket::new(Stream::Unix(own), TIMEOUT).expect("timeouts can be set");
        server
            .write_all(&bytes[..bytes.len().min(MOST)])
            .expect("it fits");
        server.shutdown(Shutdown::Write).expect("it is open");
        let mut connection = Connection::over(socket, clock.now());
        connection.first_login = Arc::new(server_settings.login.clone());
        let (mut config, _) = Config::new(Settings::default()).expect("the defaults fit");
        config.connect_timeout = TIMEOUT;
        config.command_timeout = TIMEOUT;
        let node = Node::new(server_settings, &caller_id, &clock, &config);
        // Otherwise the first reply would be about the rights.
        node.rights.note_all(true);
        ScriptedPeer {
            node,
            connection,
            _server: server,
        }
    }

    pub(crate) fn shake_hands(&mut self) -> Result<(), StoreFault> {
        let reply_by = self.node.clock.now() + TIMEOUT;
        self.node.shake_hands(
            &mut self.connection,
            super::Role::Lane,
            self.node.greeting.get(),
            reply_by,
        )
    }

    pub(crate) fn exchange(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let reply_by = self.node.clock.now() + TIMEOUT;
        let mut calls = LinkCall::numbered(calls);
        LinkCall::join_renewals(&mut calls);
        run_in_rounds(calls, |calls| {
            let to = &mut self.connection;
            let (mut batch, mut replies) = Batch::send(&self.node, to, calls, (None, reply_by));
            while batch.is_open() {
                replies.extend(batch.receive(&self.node, to, reply_by));
            }
            replies
        })
    }

    pub(crate) fn scan(&mut self) -> Result<(u64, Vec<String>), StoreFault> {
        parse_page(self.connection.request(&redis::cmd("SCAN"), TIMEOUT)?)
    }

    /// The pairings of clocks that it believes in.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = Anchor> {
        self.node
            .anchor()
            .into_iter()
            .chain([self.connection.anchor])
    }
}
