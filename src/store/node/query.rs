//! A connection for questions about servers: to a sentinel, or to a replica that may name its
//! master. It logs in, and names itself together with its first question. It has no further handshake: a
//! sentinel knows no SELECT and no TIME.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::connection::{Connection, fault, refusal};
use super::expected::master_of;
use super::first_reply::no_first_reply;
use super::handshake::{FOR_DATABASE, select};
use super::hello::Role;
use super::login::{NodeLogin, auth};
use super::race;
use super::resolve::Peer;
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
    /// `None`: it is used once.
    login: Option<Arc<NodeLogin>>,
}

impl QueryConnection {
    /// Connects and logs in. Blocks for `timeout` at most.
    pub(in crate::store) fn open(
        server: &ServerSettings,
        caller_id: &CallerId,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<QueryConnection, StoreFault> {
        let (mut opened, _) = QueryConnection::open_with(server, &[], clock, timeout)?;
        opened.name = Some(Role::Resolver.hello(caller_id));
        Ok(opened)
    }

    /// The same for commands of any sort, in the database of the login, without a name. These
    /// commands go with the login. Returns their replies, with a server's refusal as it is.
    pub(in crate::store) fn open_with(
        server: &ServerSettings,
        first: &[Cmd],
        clock: &Clock,
        timeout: Duration,
    ) -> Result<(QueryConnection, Vec<Value>), StoreFault> {
        let address: Arc<str> = server.address.to_string().into();
        let (server, clock, at) = (server.clone(), clock.clone(), Arc::clone(&address));
        let first = first.to_vec();
        let opened = race::connect(&server.address.clone(), timeout, move |peer, left| {
            QueryConnection::open_to(peer, &server, &first, &at, &clock, left)
        });
        opened.map_err(|fault| fault.at(&address))
    }

    fn open_to(
        peer: &Peer,
        server: &ServerSettings,
        first: &[Cmd],
        address: &Arc<str>,
        clock: &Clock,
        timeout: Duration,
    ) -> Result<(QueryConnection, Vec<Value>), StoreFault> {
        let until = clock.now() + timeout;
        let left = || until - clock.now();
        let login = NodeLogin::new(&server.login, &server.address, clock, timeout, timeout);
        let login = Arc::new(login);
        let unanswered = RefCell::new(Some(server.clone()));
        let answers = RefCell::new(Vec::new());
        let log_in = |connection: &mut Connection| {
            let credentials = Arc::clone(&connection.first_login);
            let (auth, select) = (auth(&credentials), select(&credentials));
            let commands = auth.iter().chain(&select).chain(first);
            let commands: Vec<Cmd> = commands.cloned().collect();
            if commands.is_empty() {
                return Ok(());
            }
            let replies = exchange(connection, &commands, left(), &mut unanswered.borrow_mut())?;
            let mut replies = replies.into_iter();
            if let Some(reply) = auth.and_then(|_| replies.next()) {
                refusal(reply).map_err(|fault| fault.of_login(&credentials))?;
            }
            if let Some(reply) = select.and_then(|_| replies.next()) {
                refusal(reply).map_err(|fault| fault.of_command("SELECT", FOR_DATABASE))?;
            }
            *answers.borrow_mut() = replies.collect();
            Ok(())
        };
        let open = || Connection::open(server, peer, left(), clock.now());
        let opened = QueryConnection {
            connection: login.log_in(until, open, log_in)?,
            server: Arc::clone(address),
            unanswered: unanswered.into_inner(),
            name: None,
            login: Some(login),
        };
        Ok((opened, answers.into_inner()))
    }

    /// Whether its credentials end soon. Then another connection is to take its place.
    pub(in crate::store) fn ends_soon(&self, clock: &Clock) -> bool {
        let due = self.login.as_ref().map(|login| login.due());
        due.is_some_and(|due| due <= clock.now())
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. An error ends
    /// the connection. Blocks for `timeout` at most.
    pub(in crate::store) fn ask(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, StoreFault>>, StoreFault> {
        let replies = self.run(commands, timeout)?.into_iter();
        let named = |reply: Value| refusal(reply).map_err(|fault| fault.at(&self.server));
        Ok(replies.map(named).collect())
    }

    /// The same, with a server's refusal as it is.
    pub(in crate::store) fn run(
        &mut self,
        commands: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Value>, StoreFault> {
        let name = self.name.take();
        let of_name = usize::from(name.is_some());
        let all: Vec<Cmd> = name.into_iter().chain(commands.iter().cloned()).collect();
        let replies = exchange(&mut self.connection, &all, timeout, &mut self.unanswered);
        // Whether the server knows names or not, no answer depends on it.
        let answers = replies.map(|mut replies| replies.split_off(of_name));
        answers.map_err(|fault| fault.at(&self.server))
    }

    /// The next reply, which no command asked for. Blocks for `timeout` at most.
    #[cfg(feature = "unstable-servers")]
    pub(in crate::store) fn receive(&mut self, timeout: Duration) -> Result<Value, StoreFault> {
        let limited = self.connection.limit_reads(timeout);
        let received = limited.and_then(|()| {
            let received = self.connection.receive();
            received.map_err(|error| fault(error, Step::Reply))
        });
        received.map_err(|fault| fault.at(&self.server))
    }

    /// The master of the server, at `asked`, if the server is a replica and says so.
    pub(in crate::store) fn master(
        &mut self,
        asked: &Address,
        timeout: Duration,
    ) -> Option<Address> {
        master_of(&mut self.connection, asked, timeout)
    }
}

/// Sends the commands in one write, and reads the replies, all within `timeout`. `unanswered` is the
/// server until its first reply.
fn exchange(
    connection: &mut Connection,
    commands: &[Cmd],
    timeout: Duration,
    unanswered: &mut Option<ServerSettings>,
) -> Result<Vec<Value>, StoreFault> {
    let until = Instant::now() + timeout;
    let left = || until.saturating_duration_since(Instant::now());
    let why = |connection: &Connection, server: &Option<ServerSettings>, error, step| match server {
        Some(server) => no_first_reply(connection, server, error, left()),
        None => fault(error, step),
    };
    connection.limit_writes(timeout)?;
    if let Err(error) = connection.send(commands) {
        return Err(why(connection, unanswered, error.into(), Step::Send));
    }
    let mut replies = Vec::with_capacity(commands.len());
    for _ in commands {
        if left().is_zero() {
            return Err(StoreFault::timed_out(Step::Reply));
        }
        connection.limit_reads(left())?;
        match connection.receive() {
            Ok(reply) => replies.push(reply),
            Err(error) => {
                return Err(turned_away(replies)
                    .unwrap_or_else(|| why(connection, unanswered, error, Step::Reply)));
            }
        }
        *unanswered = None;
    }
    Ok(replies)
}

/// A server that turns clients away says so in its first reply, and closes. That says more than the
/// end of the connection.
fn turned_away(replies: Vec<Value>) -> Option<StoreFault> {
    let mut refusals = replies.into_iter().map(refusal).filter_map(Result::err);
    refusals.find(|fault| !fault.refuses_command())
}
