//! How a connection to the node is opened: within its time, whatever hangs.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, bounded};
use redis::{Cmd, Value};

use super::connection::Connection;
use super::greeting::Greeting;
use super::race::{self, connecting};
use super::resolve::Peer;
use super::{Node, Role};
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::Time;

impl Node {
    /// Opens a connection. Blocks for the connect timeout at most.
    pub(super) fn connect(self: &Arc<Self>, role: Role) -> Result<Connection, StoreFault> {
        self.connect_until(role, self.clock.now() + self.config.connect_timeout)
    }

    /// The same, until `until`. A signal, or a stop of this process, is no reason to fail.
    pub(super) fn connect_until(
        self: &Arc<Self>,
        role: Role,
        until: Time,
    ) -> Result<Connection, StoreFault> {
        let started = self.clock.now();
        let mut outcome = self.connect_once(role, until);
        // A process that slept through the timeout gets one more attempt.
        let now = self.clock.now();
        if outcome.is_err() && now > until + self.config.connect_timeout {
            outcome = self.connect_once(role, now + (until - started));
        }
        // Another login may last longer.
        if outcome.as_ref().is_err_and(|f| self.is_end_of_login(f)) {
            outcome = self.connect_once(role, until);
        }
        while is_interrupted(&outcome) && self.clock.now() < until {
            outcome = self.connect_once(role, until);
        }
        self.outcome(outcome)
    }

    fn connect_once(self: &Arc<Self>, role: Role, until: Time) -> Result<Connection, StoreFault> {
        self.ages.check_not_ended()?;
        let timeout = until - self.clock.now();
        if timeout.is_zero() {
            return Err(StoreFault::timed_out(Step::Connect));
        }
        let node = Arc::clone(self);
        race::connect(&self.server.address, timeout, move |peer, left| {
            node.open(peer, role, node.clock.now() + left)
        })
    }

    /// Opens a connection to one of the server's addresses, which is ready for calls then.
    fn open(&self, peer: &Peer, role: Role, until: Time) -> Result<Connection, StoreFault> {
        let greeting = self.greeting.get();
        self.open_with(greeting, peer, role, until)
            .or_else(|(fault, is_cut)| {
                let was_greeted = self.was_greeted.load(Ordering::Relaxed);
                let may_be_a_proxy = is_cut && !greeting.is_silent() && !was_greeted;
                let opened = may_be_a_proxy.then(|| self.open_to_proxy(peer, role, until));
                opened.flatten().ok_or(fault)
            })
    }

    /// Opens a connection to a proxy that closes one upon a command that it does not know. Such a
    /// proxy answers without a greeting, and closes again upon a second one. A server that restarts
    /// does neither. `None`: it is no such proxy.
    fn open_to_proxy(&self, peer: &Peer, role: Role, until: Time) -> Option<Connection> {
        let silent = self.open_with(Greeting::Silent, peer, role, until).ok()?;
        match self.open_with(self.greeting.get(), peer, role, until) {
            Ok(greeted) => Some(greeted),
            Err(_) => {
                self.greeting.fall_back_to(Greeting::Silent);
                Some(silent)
            }
        }
    }

    /// Opens a connection that begins with this greeting. An error says whether the server closed it
    /// in the handshake.
    fn open_with(
        &self,
        greeting: Greeting,
        peer: &Peer,
        role: Role,
        until: Time,
    ) -> Result<Connection, (StoreFault, bool)> {
        let is_cut = Cell::new(false);
        let shake_hands = |connection: &mut Connection| {
            let greeted = self.shake_hands(connection, role, greeting, until);
            // The commands of the handshake count when it is over, together with the connection. So
            // the two counts fit together at any moment.
            let own_count =
                std::mem::replace(&mut connection.requests, Arc::clone(&self.counts.requests));
            let sent = own_count.load(Ordering::Relaxed);
            self.counts.requests.fetch_add(sent, Ordering::Relaxed);
            greeted.inspect_err(|fault| {
                is_cut.set(connection.broken && (fault.is_cut() || fault.refuses_command()));
            })
        };
        let open = || self.open_socket(peer, until);
        let opened = self.login.log_in(until, open, shake_hands);
        let mut connection = opened.map_err(|fault| (fault, is_cut.get()))?;
        self.finish_opening(&mut connection, until)
            .map_err(|fault| (fault, false))?;
        Ok(connection)
    }

    fn open_socket(&self, peer: &Peer, until: Time) -> Result<Connection, StoreFault> {
        // Read first: if another thread retires this age while the connection is opened, it is old.
        let age = self.ages.now();
        self.ages.check_not_ended()?;
        let started = self.clock.now();
        let mut connection = Connection::open(&self.server, peer, until - started, started)?;
        connection.age = age;
        self.ages.keep_socket(connection.socket.stream())?;
        Ok(connection)
    }

    fn finish_opening(&self, connection: &mut Connection, until: Time) -> Result<(), StoreFault> {
        self.check_server(connection, until)?;
        self.counts.connects.fetch_add(1, Ordering::Relaxed);
        connection.set_read_timeout(self.config.command_timeout)?;
        connection.set_write_timeout(self.config.command_timeout)
    }

    /// Opens a connection on another thread, for a caller that never waits. The thread ends with the
    /// connect timeout. It calls `on_ready` when the receiver has the outcome.
    pub(super) fn connect_in_background(
        self: &Arc<Self>,
        role: Role,
        on_ready: impl Fn() + Send + 'static,
    ) -> Result<Receiver<Result<Connection, StoreFault>>, StoreFault> {
        let node = Arc::clone(self);
        let (sender, receiver) = bounded(1);
        let started = connecting(move || {
            let _ = sender.send(node.connect(role));
            on_ready();
        });
        started.map(|()| receiver)
    }

    /// Runs one command on a connection of its own, on another thread, and gives the reply to
    /// `on_reply`. That takes a connect timeout and a command timeout at most.
    pub(in crate::store) fn ask_in_background(
        self: &Arc<Self>,
        role: Role,
        command: Cmd,
        on_reply: impl FnOnce(Result<Value, StoreFault>) + Send + 'static,
    ) -> Result<(), StoreFault> {
        let node = Arc::clone(self);
        connecting(move || {
            let connected = node.connect(role);
            let timeout = node.config.command_timeout;
            let reply = connected.and_then(|mut opened| opened.request(&command, timeout));
            on_reply(node.outcome(reply));
        })
    }
}

fn is_interrupted(outcome: &Result<Connection, StoreFault>) -> bool {
    outcome.as_ref().is_err_and(StoreFault::is_interrupted)
}
