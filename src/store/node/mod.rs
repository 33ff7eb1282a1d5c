//! One Redis node: how to connect to it, and one connection.

mod batch;
#[cfg(all(test, fairlock_loom))]
mod batch_models;
mod connection;
mod link;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[path = "../../../tests/sim/scripted_peer.rs"]
mod scripted_peer;
mod socket;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, Value};

use crate::store::clock::{Clock, Time};
use connection::{turned_away, was_interrupted};
use socket::Socket;

pub(crate) use batch::BatchQueue;
pub(crate) use connection::Connection;
pub(crate) use connection::{fault, is_closed, refusal, timed_out};
pub(crate) use link::NodeLink;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use scripted_peer::Told;

use crate::error::Step;
use crate::script::{Call, CallerId, Form, Outcome, Reply, SCRIPTS};
use crate::store::{Anchor, Answer, CallResult, StoreFault};

/// The oldest server whose commands the scripts use (LPOP with a count).
const OLDEST_SERVER: (u32, u32) = (6, 2);

/// A node and what is shared by all connections to it.
pub(crate) struct Node {
    addr: ConnectionAddr,
    credentials: RedisConnectionInfo,
    caller_id: Arc<CallerId>,
    pub(crate) clock: Clock,
    connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// A connection of an older generation is not used any more: one bump retires them all, the pool's, the
    /// renewal thread's and the subscription (R17).
    generation: AtomicU64,
    /// The same for the pool alone, whose connections are closed together when they were idle together.
    pool_generation: AtomicU64,
    anchor: Mutex<Option<Anchor>>,
    pub(crate) connects: AtomicU64,
    pub(crate) requests: AtomicU64,
}

impl Node {
    pub(crate) fn new(
        info: ConnectionInfo,
        caller_id: Arc<CallerId>,
        clock: Clock,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Node {
        Node {
            addr: info.addr().clone(),
            credentials: info.redis_settings().clone(),
            caller_id,
            clock,
            connect_timeout,
            command_timeout,
            generation: AtomicU64::new(0),
            pool_generation: AtomicU64::new(0),
            anchor: Mutex::new(None),
            connects: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether a connection is of an age that is not used any more.
    pub(crate) fn is_retired(&self, connection: &Connection) -> bool {
        connection.generation != self.generation()
    }

    pub(crate) fn is_retired_from_pool(&self, connection: &Connection) -> bool {
        self.is_retired(connection)
            || connection.pool_generation != self.pool_generation.load(Ordering::Acquire)
    }

    /// All that are as old as this.
    pub(crate) fn retire_from_pool(&self, pool_generation: u64) {
        bump(&self.pool_generation, pool_generation);
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn anchor(&self) -> Option<Anchor> {
        *self.anchor.lock()
    }

    /// Opens a connection. Bounded by the connect timeout, but for the resolution of a host's name. A signal, or a
    /// stop of this process, is no reason to give up.
    pub(crate) fn connect(&self) -> Result<Connection, StoreFault> {
        let started = self.clock.now();
        let interrupted = |outcome: &Result<_, _>| outcome.as_ref().is_err_and(was_interrupted);
        let mut outcome = self.open();
        let slept = self.clock.now() > started + self.connect_timeout * 2;
        if interrupted(&outcome) || (slept && outcome.is_err()) {
            outcome = self.open();
        }
        while interrupted(&outcome) && self.clock.now() < started + self.connect_timeout {
            outcome = self.open();
        }
        outcome
    }

    fn open(&self) -> Result<Connection, StoreFault> {
        let started = self.clock.now();
        let generation = self.generation();
        let pool_generation = self.pool_generation.load(Ordering::Acquire);
        let connecting = |e: std::io::Error| fault(e.into(), Step::Connect);
        let mut socket = Socket::connect(&self.addr, self.connect_timeout).map_err(connecting)?;
        socket
            .set_write_timeout(self.command_timeout)
            .map_err(connecting)?;
        let mut connection = Connection {
            socket,
            anchor: Anchor {
                server: 0,
                sent: started,
                received: started,
            },
            generation,
            pool_generation,
            broken: false,
            opened: started,
            read_timeout: self.connect_timeout,
        };
        self.shake_hands(&mut connection, started + self.connect_timeout)?;
        connection.set_read_timeout(self.command_timeout)?;
        self.connects.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    /// On a thread that nobody joins, since a name may take for ever to resolve. `ring` tells that the
    /// receiver has the outcome.
    pub(crate) fn connect_in_background(
        self: &Arc<Self>,
        ring: impl Fn() + Send + 'static,
    ) -> Result<Receiver<Result<Connection, StoreFault>>, StoreFault> {
        let node = Arc::clone(self);
        let (sender, receiver) = bounded(1);
        thread::Builder::new()
            .name("fairlock-connect".to_owned())
            .spawn(move || {
                let _ = sender.send(node.connect());
                ring();
            })
            .map_err(|e| StoreFault::unavailable(Step::Connect, e))?;
        Ok(receiver)
    }

    pub(crate) fn shake_hands(
        &self,
        connection: &mut Connection,
        give_up: Time,
    ) -> Result<(), StoreFault> {
        let mut commands = Vec::new();
        if let Some(password) = self.credentials.password() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = self.credentials.username() {
                auth.arg(user);
            }
            auth.arg(password);
            commands.push(auth);
        }
        if self.credentials.db() != 0 {
            let mut select = redis::cmd("SELECT");
            select.arg(self.credentials.db());
            commands.push(select);
        }
        let mut hello = redis::cmd("HELLO");
        hello.arg(2);
        commands.push(hello);
        commands.push(redis::cmd("TIME"));

        let sent = self.clock.now();
        connection
            .send(&commands)
            .map_err(|e| turned_away(connection, e))?;
        // A refusal of AUTH explains every refusal after it, so the first one is the one to tell.
        let mut replies = Vec::with_capacity(commands.len());
        for _ in &commands {
            connection.limit(self.time_left(give_up)?)?;
            match connection.socket.receive() {
                Ok(reply) => replies.push(reply),
                Err(e) => {
                    let said = replies.into_iter().find_map(|reply| refusal(reply).err());
                    return Err(said.map_or_else(
                        || fault(e, Step::Connect),
                        |f| f.without(self.credentials.password()),
                    ));
                }
            }
        }
        let received = self.clock.now();
        let time = replies.pop();
        let hello = replies.pop();
        for reply in replies {
            refusal(reply).map_err(|f| f.without(self.credentials.password()))?;
        }
        check_version(hello.unwrap_or_default())?;
        connection.anchor = Anchor {
            server: server_time(refusal(time.unwrap_or_default())?)?,
            sent,
            received,
        };
        self.note(connection.anchor);
        Ok(())
    }

    /// Runs a batch as one pipeline, one result for each call, in order, all before `give_up`.
    pub(crate) fn exchange(
        &self,
        connection: &mut Connection,
        calls: &[Call],
        give_up: Time,
    ) -> Vec<CallResult> {
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        let mut puts: Vec<Pending> = calls
            .iter()
            .map(|call| self.date(connection, call, give_up))
            .collect();
        self.pipeline(
            connection,
            &mut puts,
            give_up,
            Order::Kept,
            &mut |i, answer| answers[i] = Some(answer),
        );
        answers
            .into_iter()
            .zip(puts)
            .map(|(answer, put)| CallResult {
                answer: answer.unwrap_or_else(|| Err(timed_out(Step::Reply))),
                not_after: put.not_after,
            })
            .collect()
    }

    /// A call that is to be put on this connection now, by somebody who gives it up at `give_up`.
    pub(crate) fn date<'a>(
        &self,
        connection: &Connection,
        call: &'a Call,
        give_up: Time,
    ) -> Pending<'a> {
        let give_up = give_up.min(self.clock.now() + self.command_timeout);
        let not_after = connection.anchor.server_time_at_least(give_up);
        Pending::new(call, not_after)
    }

    /// Runs a batch as one pipeline and tells each answer as it comes, by its call's number. Calls that the server
    /// could not run in the form they were put are put again in another (R11, R20), all before `give_up`.
    pub(crate) fn pipeline(
        &self,
        connection: &mut Connection,
        puts: &mut [Pending],
        give_up: Time,
        order: Order,
        answered: &mut dyn FnMut(usize, Result<Answer, StoreFault>),
    ) {
        while puts.iter().any(|put| !put.is_answered) {
            if let Err(fault) = self.put(connection, puts, give_up, order, answered) {
                connection.broken = true;
                for (i, _) in puts.iter().enumerate().filter(|(_, put)| !put.is_answered) {
                    answered(i, Err(fault.repeat()));
                }
                break;
            }
        }
        self.note(connection.anchor);
    }

    /// One round trip of those that have no answer yet. Those that have none after it are to be put again. An error is
    /// the connection's end.
    fn put(
        &self,
        connection: &mut Connection,
        puts: &mut [Pending],
        give_up: Time,
        order: Order,
        answered: &mut dyn FnMut(usize, Result<Answer, StoreFault>),
    ) -> Result<(), StoreFault> {
        let sent = self.clock.now();
        let give_up = give_up.min(sent + self.command_timeout);
        self.time_left(give_up)?;
        let mut open: Vec<(usize, &mut Pending)> = puts
            .iter_mut()
            .enumerate()
            .filter(|(_, put)| !put.is_answered)
            .collect();
        let by_source = order == Order::Kept
            && open.iter().filter(|(_, put)| put.call.is_acquire()).count() > 1;
        let mut sources = [false; SCRIPTS];
        let commands: Vec<Cmd> = open
            .iter()
            .map(|(_, put)| {
                // One source brings the script back for all that follow it in the pipeline. Several acquires in an
                // order always begin so: put again one by one, they could be enqueued in another (R4).
                let wanted = put.form.by_source || (by_source && put.call.is_acquire());
                let script = put.call.script_id().filter(|_| wanted);
                let by_source = script.is_some_and(|id| !std::mem::replace(&mut sources[id], true));
                put.call.command(
                    &self.caller_id,
                    Form {
                        by_source,
                        ..put.form
                    },
                    put.not_after,
                )
            })
            .collect();
        self.requests
            .fetch_add(commands.len() as u64, Ordering::Relaxed);
        connection
            .send(&commands)
            .map_err(|e| fault(e, Step::Send))?;
        for (i, put) in &mut open {
            // Each reply may take only what the others have left.
            connection.limit(self.time_left(give_up)?)?;
            let value = connection
                .socket
                .receive()
                .map_err(|e| fault(e, Step::Reply))?;
            let received = self.clock.now();
            let answer = match refusal(value) {
                Ok(value) => {
                    let reply = match Reply::parse(put.call, &value) {
                        Ok(reply) => reply,
                        Err(malformed) => {
                            put.is_answered = true;
                            answered(*i, Err(malformed.into()));
                            // Whose the next ones are is not certain, and theirs may be good: they are sent again.
                            let after = io::Error::new(
                                io::ErrorKind::ConnectionAborted,
                                "behind a malformed reply",
                            );
                            return Err(StoreFault::unavailable(Step::Reply, after));
                        }
                    };
                    if let Some(server) = reply.now {
                        connection.anchor = Anchor {
                            server,
                            sent,
                            received,
                        };
                    }
                    if reply.outcome == Outcome::Queued {
                        let message = "the slot is in migration".to_owned();
                        Err(StoreFault::Server {
                            code: "TRYAGAIN".to_owned(),
                            message,
                        })
                    } else {
                        Ok(Answer {
                            reply,
                            sent,
                            resent: false,
                        })
                    }
                }
                Err(StoreFault::Server { code, .. }) if code == "NOSCRIPT" => {
                    put.form.by_source = true;
                    continue;
                }
                Err(StoreFault::Server { code, .. })
                    if code == "TRYAGAIN"
                        && put.call.has_single_key_form()
                        && !put.form.single_key =>
                {
                    put.form.single_key = true;
                    continue;
                }
                Err(refused) => {
                    if matches!(&refused, StoreFault::Server { code, .. } if code == "READONLY") {
                        bump(&self.generation, connection.generation);
                    }
                    Err(refused)
                }
            };
            put.is_answered = true;
            answered(*i, answer);
        }
        Ok(())
    }

    fn time_left(&self, until: Time) -> Result<Duration, StoreFault> {
        let left = until - self.clock.now();
        if left.is_zero() {
            Err(timed_out(Step::Reply))
        } else {
            Ok(left)
        }
    }

    fn note(&self, anchor: Anchor) {
        let mut newest = self.anchor.lock();
        if newest.is_none_or(|a| a.received < anchor.received) {
            *newest = Some(anchor);
        }
    }
}

/// Only once for all that see the same generation.
fn bump(counter: &AtomicU64, seen: u64) {
    let _ = counter.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire);
}

/// A call on its way to an answer.
pub(crate) struct Pending<'a> {
    call: &'a Call,
    /// R5, and the same however often it is put: whoever gives the call up meanwhile knows it (R7).
    pub(crate) not_after: u64,
    form: Form,
    is_answered: bool,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(call: &'a Call, not_after: u64) -> Pending<'a> {
        Pending {
            call,
            not_after,
            form: Form::default(),
            is_answered: false,
        }
    }
}

/// Whether the calls of a batch are to be carried out in the order in which they stand.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    Kept,
    Any,
}

/// HELLO names the server's version, from Redis 6 on; an older one does not know the command. A user whose
/// rights do not cover it is believed to know the server.
fn check_version(hello: Value) -> Result<(), StoreFault> {
    let unfit = |version: &str| StoreFault::Unfit {
        what: "server".to_owned(),
        message: format!(
            "redis {}.{} or newer; this one is {version}",
            OLDEST_SERVER.0, OLDEST_SERVER.1
        ),
    };
    match refusal(hello) {
        Ok(Value::Array(fields)) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|f| redis::from_redis_value_ref(f).unwrap_or_default())
                .collect();
            let version = fields
                .chunks(2)
                .find(|pair| pair[0] == "version")
                .and_then(|pair| pair.get(1));
            let Some(version) = version else {
                return Ok(());
            };
            let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
            let version_numbers = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            if version_numbers < OLDEST_SERVER {
                Err(unfit(version))
            } else {
                Ok(())
            }
        }
        Ok(_) => Ok(()),
        Err(StoreFault::Server { code, .. }) if code == "NOPERM" => Ok(()),
        Err(StoreFault::Server { message, .. }) if message.contains("unknown command") => {
            Err(unfit("older than 6"))
        }
        Err(other) => Err(other),
    }
}

fn server_time(value: Value) -> Result<u64, StoreFault> {
    let time = redis::from_redis_value(value)
        .ok()
        .and_then(|(seconds, micros): (u64, u64)| {
            // Sums with it have room for ages.
            seconds
                .checked_mul(1_000_000)?
                .checked_add(micros)
                .filter(|time| i64::try_from(*time).is_ok())
        });
    let malformed = || StoreFault::Server {
        code: "PROTOCOL".to_owned(),
        message: "TIME did not answer a time".to_owned(),
    };
    time.ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers that are none, or whose clock is set to the end of time.
    #[test]
    fn a_time_that_no_sum_has_room_for_is_none() {
        let time = |seconds: &str, micros: &str| {
            server_time(Value::Array(
                [seconds, micros]
                    .map(|n| Value::BulkString(n.into()))
                    .into(),
            ))
        };
        assert_eq!(
            time("1700000000", "7").expect("a time"),
            1_700_000_000_000_007
        );
        for (seconds, micros) in [
            ("18446744073709551615", "0"),
            ("18446744073709", "551615"),
            ("0", "-1"),
            ("", ""),
        ] {
            let refused = time(seconds, micros);
            assert!(
                matches!(&refused, Err(StoreFault::Server { code, .. }) if code == "PROTOCOL"),
                "{refused:?}"
            );
        }
    }
}
