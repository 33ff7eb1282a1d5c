//! A connection for questions about servers: to a sentinel, or to a replica that may name its
//! master. It logs in and has no further handshake: a sentinel knows no SELECT and no TIME.

use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};

use super::connection::{Connection, fault, refusal};
use super::first_reply::no_first_reply;
use super::handshake::auth;
use super::hello::master_of;
use crate::error::Step;
use crate::store::clock::Clock;
use crate::store::{Address, ServerSettings, StoreFault};

pub(in crate::store) struct QueryConnection {
    connection: Connection,
    /// Until its first reply.
    unanswered: Option<ServerSettings>,
}

impl QueryConnection {
    /// Connects and logs in. Bounded by `timeout`, except that resolving a host's name may take
    /// longer.
    pub(in crate::store) fn open(
        server: &ServerSettings,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<QueryConnection, StoreFault> {
        let started = Instant::now();
        let mut opened = QueryConnection {
            connection: Connection::open(server, timeout, clock.now())?,
            unanswered: Some(server.clone()),
        };
        if let Some(auth) = auth(&server.login) {
            let left = timeout.saturating_sub(started.elapsed());
            let mut replies = opened.ask(&[auth], left)?;
            let reply = replies.pop().unwrap_or(Ok(Value::Nil));
            reply.map_err(|fault| fault.without(server.login.password.as_deref()))?;
        }
        Ok(opened)
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. An error ends
    /// the connection. Blocks for `timeout` at most.
    pub(in crate::store) fn ask(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, StoreFault>>, StoreFault> {
        let until = Instant::now() + timeout;
        self.connection.limit_writes(timeout)?;
        let sent = self.connection.send(commands);
        sent.map_err(|e| self.fault(e, Step::Send, until))?;
        let reply = |_| {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreFault::timed_out(Step::Reply));
            }
            self.connection.limit_reads(left)?;
            let received = self.connection.receive();
            let reply = received.map_err(|e| self.fault(e, Step::Reply, until))?;
            self.unanswered = None;
            Ok(refusal(reply))
        };
        commands.iter().map(reply).collect()
    }

    fn fault(&self, error: impl Into<RedisError>, step: Step, until: Instant) -> StoreFault {
        let left = until.saturating_duration_since(Instant::now());
        match &self.unanswered {
            Some(server) => no_first_reply(&self.connection, server, error.into(), left),
            None => fault(error, step),
        }
    }

    /// The master of this server, if the server is a replica and says so.
    pub(in crate::store) fn master(&mut self, timeout: Duration) -> Option<Address> {
        master_of(&mut self.connection, timeout)
    }
}
