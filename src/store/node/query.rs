//! A connection for questions about servers: to a sentinel, or to a replica that may name its
//! master. It logs in, and names itself together with its first question. It has no further handshake: a
//! sentinel knows no SELECT and no TIME.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};

use super::connection::{Connection, fault, refusal};
use super::expected::master_of;
use super::first_reply::no_first_reply;
use super::handshake::auth;
use super::race;
use super::resolve::Peer;
use super::role::Role;
use crate::error::Step;
use crate::script::CallerId;
use crate::store::clock::Clock;
use crate::store::{Address, ServerSettings, StoreFault};

pub(in crate::store) struct QueryConnection {
    connection: Connection,
    /// The server's address, for faults.
    server: Arc<str>,
    /// Until its first reply.
    unanswered: Option<ServerSettings>,
    /// Until its first question: the command that names it.
    name: Option<Cmd>,
}

impl QueryConnection {
    /// Connects and logs in. Blocks for `timeout` at most.
    pub(in crate::store) fn open(
        server: &ServerSettings,
        caller_id: &CallerId,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<QueryConnection, StoreFault> {
        let address: Arc<str> = server.address.to_string().into();
        let (server, clock, at) = (server.clone(), clock.clone(), Arc::clone(&address));
        let opened = race::connect(&server.address.clone(), timeout, move |peer, left| {
            QueryConnection::open_to(peer, &server, &at, &clock, left)
        });
        let mut opened = opened.map_err(|fault| fault.at(&address))?;
        opened.name = Some(Role::Resolver.hello(caller_id));
        Ok(opened)
    }

    fn open_to(
        peer: &Peer,
        server: &ServerSettings,
        address: &Arc<str>,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<QueryConnection, StoreFault> {
        let started = Instant::now();
        let mut opened = QueryConnection {
            connection: Connection::open(server, peer, timeout, clock.now())?,
            server: Arc::clone(address),
            unanswered: Some(server.clone()),
            name: None,
        };
        if let Some(auth) = auth(&server.login) {
            let left = timeout.saturating_sub(started.elapsed());
            let mut replies = opened.ask(&[auth], left)?;
            let reply = replies.pop().unwrap_or(Ok(Value::Nil));
            reply.map_err(|fault| fault.of_login(&server.login))?;
        }
        Ok(opened)
    }

    /// On a connection to the server at this address, which has been opened and has logged in.
    pub(super) fn over(connection: Connection, server: &Arc<str>) -> QueryConnection {
        QueryConnection {
            connection,
            server: Arc::clone(server),
            unanswered: None,
            name: None,
        }
    }

    /// The same, which names itself by another role.
    pub(in crate::store) fn named(self, role: Role, caller_id: &CallerId) -> QueryConnection {
        QueryConnection {
            name: Some(role.hello(caller_id)),
            ..self
        }
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. An error ends
    /// the connection. Blocks for `timeout` at most.
    pub(in crate::store) fn ask(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, StoreFault>>, StoreFault> {
        let replies = self.ask_once(commands, timeout);
        let named = |reply: Result<Value, StoreFault>| reply.map_err(|f| f.at(&self.server));
        match replies {
            Ok(replies) => Ok(replies.into_iter().map(named).collect()),
            Err(fault) => Err(fault.at(&self.server)),
        }
    }

    fn ask_once(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, StoreFault>>, StoreFault> {
        let until = Instant::now() + timeout;
        self.connection.limit_writes(timeout)?;
        let name = self.name.take();
        let of_name = usize::from(name.is_some());
        let all: Vec<Cmd> = name.into_iter().chain(commands.iter().cloned()).collect();
        let sent = self.connection.send(&all);
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
        let replies: Result<Vec<_>, StoreFault> = all.iter().map(reply).collect();
        // Whether the server knows names or not, no answer depends on it.
        Ok(replies?.split_off(of_name))
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
