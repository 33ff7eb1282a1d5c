//! A connection for questions about servers: to a sentinel, or to a replica that may name its
//! master. It logs in and has no further handshake: a sentinel knows no SELECT and no TIME.

use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::connection::{Connection, fault, refusal};
use super::handshake::auth;
use super::hello::master_of;
use crate::error::Step;
use crate::store::clock::Clock;
use crate::store::{Address, ServerSettings, StoreFault};

pub(in crate::store) struct QueryConnection(Connection);

impl QueryConnection {
    /// Connects and logs in. Bounded by `timeout`, except that resolving a host's name may take
    /// longer.
    pub(in crate::store) fn open(
        server: &ServerSettings,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<QueryConnection, StoreFault> {
        let started = Instant::now();
        let mut connection = Connection::open(server, timeout, clock.now())?;
        if let Some(auth) = auth(&server.login) {
            connection
                .request(&auth, timeout.saturating_sub(started.elapsed()))
                .map_err(|fault| fault.without(server.login.password.as_deref()))?;
        }
        Ok(QueryConnection(connection))
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. An error ends
    /// the connection. Blocks for `timeout` at most.
    pub(in crate::store) fn ask(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, StoreFault>>, StoreFault> {
        let QueryConnection(connection) = self;
        let until = Instant::now() + timeout;
        connection.limit_writes(timeout)?;
        connection
            .send(commands)
            .map_err(|e| fault(e, Step::Send))?;
        let reply = |_| {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreFault::timed_out(Step::Reply));
            }
            connection.limit_reads(left)?;
            let reply = connection.receive().map_err(|e| fault(e, Step::Reply))?;
            Ok(refusal(reply))
        };
        commands.iter().map(reply).collect()
    }

    /// The master of this server, if the server is a replica and says so.
    pub(in crate::store) fn master(&mut self, timeout: Duration) -> Option<Address> {
        master_of(&mut self.0, timeout)
    }
}
