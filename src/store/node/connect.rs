//! How a connection to the node is opened, on the caller's thread or on one that nobody joins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use redis::{Cmd, Value};

use super::connection::Connection;
use super::{Node, Role};
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::Time;

impl Node {
    /// Opens a connection. Bounded by the connect timeout, except that resolving a host's name may
    /// take longer. A signal, or a stop of this process, is no reason to fail.
    pub(super) fn connect(&self, role: Role) -> Result<Connection, StoreFault> {
        let started = self.clock.now();
        let mut outcome = self.connect_once(role);
        // A process that slept through the timeout gets one more attempt.
        let slept = self.clock.now() > started + self.connect_timeout * 2;
        if is_interrupted(&outcome) || (slept && outcome.is_err()) {
            outcome = self.connect_once(role);
        }
        while is_interrupted(&outcome) && self.clock.now() < started + self.connect_timeout {
            outcome = self.connect_once(role);
        }
        self.outcome(outcome)
    }

    fn connect_once(&self, role: Role) -> Result<Connection, StoreFault> {
        // Read first: if another thread retires this age while the connection is opened, it is old.
        let generation = self.generation();
        let pool_generation = self.pool_generation();
        self.check_not_ended()?;
        let started = self.clock.now();
        let mut connection = Connection::open(&self.server, self.connect_timeout, started)?;
        connection.generation = generation;
        connection.pool_generation = pool_generation;
        self.keep_socket(&connection)?;
        let outcome = self.shake_hands(&mut connection, role, started + self.connect_timeout);
        // The commands of the handshake count when it is over, together with the connection. So the
        // two counts fit together at any moment.
        let own_count =
            std::mem::replace(&mut connection.requests, Arc::clone(&self.counts.requests));
        let sent = own_count.load(Ordering::Relaxed);
        self.counts.requests.fetch_add(sent, Ordering::Relaxed);
        outcome?;
        self.check_uptime(&mut connection)?;
        self.counts.connects.fetch_add(1, Ordering::Relaxed);
        connection.set_read_timeout(self.command_timeout)?;
        connection.set_write_timeout(self.command_timeout)?;
        Ok(connection)
    }

    /// Opens a connection on a thread that nobody joins, since resolving a name may take forever.
    /// The thread calls `on_ready` when the receiver has the outcome.
    pub(super) fn connect_in_background(
        self: &Arc<Self>,
        role: Role,
        on_ready: impl Fn() + Send + 'static,
    ) -> Result<Receiver<Result<Connection, StoreFault>>, StoreFault> {
        let node = Arc::clone(self);
        let (sender, receiver) = bounded(1);
        thread::Builder::new()
            .name("fairlock-connect".to_owned())
            .spawn(move || {
                let _ = sender.send(node.connect(role));
                on_ready();
            })
            .map_err(|e| StoreFault::unavailable(Step::Connect, e))?;
        Ok(receiver)
    }

    /// Opens a connection within the connect timeout, even if resolving the host's name hangs.
    pub(super) fn connect_in_time(self: &Arc<Self>, role: Role) -> Result<Connection, StoreFault> {
        self.connect_until(role, self.clock.now() + self.connect_timeout)
    }

    /// The same, until `until`.
    pub(super) fn connect_until(
        self: &Arc<Self>,
        role: Role,
        until: Time,
    ) -> Result<Connection, StoreFault> {
        let opened = self.connect_in_background(role, || {})?;
        let opened = self.clock.receive(&opened, until);
        self.outcome(opened.unwrap_or_else(|| Err(StoreFault::timed_out(Step::Connect))))
    }

    /// Runs one command on a connection of its own, on a thread that nobody joins, and gives the
    /// reply to `on_reply`.
    pub(in crate::store) fn ask_in_background(
        self: &Arc<Self>,
        role: Role,
        command: Cmd,
        on_reply: impl FnOnce(Result<Value, StoreFault>) + Send + 'static,
    ) -> Result<(), StoreFault> {
        let node = Arc::clone(self);
        let ask = move || {
            let connected = node.connect(role);
            let timeout = node.command_timeout;
            let reply = connected.and_then(|mut opened| opened.request(&command, timeout));
            on_reply(node.outcome(reply));
        };
        thread::Builder::new()
            .name("fairlock-connect".to_owned())
            .spawn(ask)
            .map_err(|e| StoreFault::unavailable(Step::Connect, e))?;
        Ok(())
    }
}

fn is_interrupted(outcome: &Result<Connection, StoreFault>) -> bool {
    outcome.as_ref().is_err_and(StoreFault::is_interrupted)
}
