//! A connection for commands of the program's own.

use std::fmt;
use std::time::{Duration, Instant};

pub(crate) use redis::{Cmd, Value};

use super::clock::Clock;
use super::node::QueryConnection;
use super::{Address, ServerSettings, StoreFault};
use crate::error::Result;

/// A connection to one server, for commands of the program's own: see
/// [`Server::open`](crate::servers::Server::open).
///
/// The library uses other connections for its locks. A connection that returned an error is in an
/// unknown state: open another one.
pub struct ServerConnection {
    connection: QueryConnection,
    address: Address,
}

impl ServerConnection {
    /// Connects and logs in, and runs the first commands. Blocks for `timeout` at most.
    pub(crate) fn open(
        server: &ServerSettings,
        first: &[Cmd],
        timeout: Duration,
    ) -> Result<(ServerConnection, Vec<Value>)> {
        let opened =
            timed(|| QueryConnection::open_with(server, first, &Clock::default(), timeout));
        let address = server.address.clone();
        opened.map(|(connection, replies)| {
            let connection = ServerConnection {
                connection,
                address,
            };
            (connection, replies)
        })
    }

    /// Sends the commands in one write, and returns a reply for each. If the server refuses a
    /// command, its reply is a [`Value::ServerError`]. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable): the commands were not sent, or a reply did not come in time. The
    /// server may have run them.
    pub fn run(&mut self, commands: &[Cmd], timeout: Duration) -> Result<Vec<Value>> {
        timed(|| self.connection.run(commands, timeout))
    }

    /// The next message that the server sends by itself, such as that of a channel after
    /// `SUBSCRIBE`. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable): no message came in time, or the connection is closed.
    pub fn receive(&mut self, timeout: Duration) -> Result<Value> {
        timed(|| self.connection.receive(timeout))
    }
}

/// Shows the address, never a password.
impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerConnection({})", self.address)
    }
}

/// The result, whose error says how long the call took.
fn timed<T>(call: impl FnOnce() -> std::result::Result<T, StoreFault>) -> Result<T> {
    let started = Instant::now();
    call().map_err(|fault| fault.into_error(None, started.elapsed()))
}
