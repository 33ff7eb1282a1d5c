//! One Redis node, with a pool of connections for short calls.

use std::error::Error as StdError;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Value};

use super::clock::{Clock, Time};
use super::node::{BatchQueue, Connection, Node, NodeLink, fault, refusal, timed_out};
use super::{
    Anchor, Answer, CallResult, ChannelEvent, Checkout, Deadlines, Link, Store, StoreFault,
};
use crate::config::Config;
use crate::error::{Error, Result as ApiResult, Step};
use crate::key::Key;
use crate::script::{Call, CallerId};

/// A single Redis node.
pub(crate) struct Single {
    pub(crate) node: Arc<Node>,
    pool: r2d2::Pool<ConnectionFactory>,
    pub(crate) line: BatchQueue,
    refusal: Arc<Mutex<Option<ConnectRefusal>>>,
    back_off: Duration,
}

/// Opens the pool's connections.
pub(crate) struct ConnectionFactory {
    node: Arc<Node>,
    first: Mutex<Option<Connection>>,
    refusal: Arc<Mutex<Option<ConnectRefusal>>>,
}

/// Why the last connection could not be opened. The pool would pass it on only as a string, and only to one
/// of those who wait.
struct ConnectRefusal {
    at: Time,
    fault: StoreFault,
}

const NOT_ENCODED: &str =
    "it does not parse; special characters of a user or password are percent-encoded, # as %23";

/// A URL as what to connect to. The error never repeats the URL, which may hold a password.
pub(crate) fn parse_url(url: &str) -> ApiResult<ConnectionInfo> {
    let wrong = |why: &str| {
        Error::config(
            "url",
            format!(
                "redis://[user:password@]host[:port][/database] or redis+unix:///path[?db=n&user=u&pass=p]; \
                 not this one: {why}"
            ),
        )
    };
    let info = url
        .into_connection_info()
        .map_err(|e| match url.split_once("://") {
            None => wrong("it does not begin with redis://"),
            Some(("rediss" | "valkeys", _)) => wrong("this version has no TLS"),
            Some(("memory", _)) => wrong("an in-memory store is passed as a &Memory"),
            Some((_, rest)) if rest.contains(['#', '@']) => wrong(NOT_ENCODED),
            // Without the kind, which says no more.
            Some(_) => wrong(
                &e.to_string()
                    .to_lowercase()
                    .split(" - ")
                    .next()
                    .unwrap_or_default()
                    .replace("url", "URL"),
            ),
        })?;
    // What stands behind it would be passed over, and the password may have begun before it.
    if url.contains('#') {
        return Err(wrong(NOT_ENCODED));
    }
    // The crate passes over those that it does not know, and a database that is not chosen excludes nobody.
    let known: &[&str] = match info.addr() {
        ConnectionAddr::Unix(_) => &["db", "user", "pass"],
        _ => &[],
    };
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let names = query
        .split('&')
        .filter_map(|pair| pair.split('=').next())
        .filter(|name| !name.is_empty());
    match names.into_iter().find(|name| !known.contains(name)) {
        // A password that is not encoded may have ended in it.
        Some(_) if url.contains('@') || info.redis_settings().password().is_some() => {
            Err(wrong(NOT_ENCODED))
        }
        Some(name) => Err(wrong(&format!("it has a parameter {name:?}"))),
        None => Ok(info),
    }
}

impl Single {
    /// Opens one connection, so that a wrong address or password is told at once and in the server's words.
    pub(crate) fn connect(
        info: ConnectionInfo,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> ApiResult<Single> {
        let clock = Clock::default();
        let started = clock.now();
        Single::open(info, config, caller_id)
            .map_err(|fault| fault.into_error(None, clock.now() - started))
    }

    fn open(
        info: ConnectionInfo,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> Result<Single, StoreFault> {
        let node = Arc::new(Node::new(
            info,
            caller_id,
            Clock::default(),
            config.connect_timeout,
            config.command_timeout,
        ));
        let first = node
            .connect_in_background(|| {})?
            .recv_timeout(config.connect_timeout)
            .unwrap_or_else(|_| Err(timed_out(Step::Connect)))?;
        let refusal = Arc::new(Mutex::new(None));
        let opener = ConnectionFactory {
            node: Arc::clone(&node),
            first: Mutex::new(Some(first)),
            refusal: Arc::clone(&refusal),
        };
        // One worker, since connections are opened for one node alone. It ends with the pool, and not
        // when the pool's next look for idle connections would be due.
        let worker = Arc::new(
            scheduled_thread_pool::ScheduledThreadPool::builder()
                .num_threads(1)
                .on_drop_behavior(
                    scheduled_thread_pool::OnPoolDropBehavior::DiscardPendingScheduled,
                )
                .thread_name_pattern("fairlock-pool")
                .build(),
        );
        let pool = r2d2::Pool::builder()
            .max_size(config.pool_size)
            .min_idle(Some(0))
            .max_lifetime(None)
            .connection_timeout(config.connect_timeout)
            .thread_pool(worker)
            .error_handler(Box::new(LogAtDebug))
            .build_unchecked(opener);
        Ok(Single {
            node,
            pool,
            line: BatchQueue::new(),
            refusal,
            back_off: config.back_off,
        })
    }

    fn check_out(
        &self,
        checkout: Checkout,
    ) -> Result<r2d2::PooledConnection<ConnectionFactory>, StoreFault> {
        self.pool
            .try_get()
            .map_or_else(|| self.wait_for_connection(checkout), Ok)
    }

    pub(crate) fn wait_for_connection(
        &self,
        checkout: Checkout,
    ) -> Result<r2d2::PooledConnection<ConnectionFactory>, StoreFault> {
        let Checkout::Until(until) = checkout else {
            return Err(StoreFault::NotReady);
        };
        let started = self.node.clock.now();
        let deadlines =
            (until - started).clamp(Duration::from_millis(1), self.node.command_timeout);
        self.pool
            .get_timeout(deadlines)
            .map_err(|e| self.no_connection(started, e))
    }

    /// Why none came for somebody who has waited since then.
    pub(crate) fn no_connection(
        &self,
        started: Time,
        e: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> StoreFault {
        match &*self.refusal.lock() {
            Some(refusal) if refusal.at >= started - self.node.command_timeout => {
                refusal.fault.repeat()
            }
            _ => StoreFault::unavailable(Step::Pool, e),
        }
    }

    /// The answers, and whether the connection turned out to be closed, so that another one may do better.
    fn attempt(&self, calls: &[Call], deadlines: Deadlines) -> (Vec<CallResult>, bool) {
        let free = if self.line.is_led() {
            None
        } else {
            self.pool.try_get()
        };
        let answers = match (free, calls) {
            (None, [call]) => vec![self.join(call, deadlines)],
            (free, _) => {
                match free.map_or_else(|| self.wait_for_connection(deadlines.checkout), Ok) {
                    Ok(connection) => self.lent(connection, |connection| {
                        self.exchange(connection, calls, deadlines.reply)
                    }),
                    Err(f) => calls
                        .iter()
                        .map(|_| CallResult::not_sent(f.repeat()))
                        .collect(),
                }
            }
        };
        let closed = is_first_closed(&answers);
        (answers, closed)
    }

    /// Uses a connection and gives it back.
    pub(crate) fn lent<T>(
        &self,
        mut connection: r2d2::PooledConnection<ConnectionFactory>,
        run: impl FnOnce(&mut Connection) -> T,
    ) -> T {
        let result = run(&mut connection);
        drop(connection);
        if self.line.is_led() && self.pool.state().connections < self.pool.max_size() {
            // The pool tells nobody that there is room for another, and opens one only for who asks.
            let _ = self.pool.get_timeout(Duration::ZERO);
        }
        result
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        calls: &[Call],
        give_up: Time,
    ) -> Vec<CallResult> {
        let answers = self.node.exchange(connection, calls, give_up);
        if is_first_closed(&answers) {
            // The others of its age are as likely closed.
            self.node.retire_from_pool(connection.pool_generation);
        }
        answers
    }

    fn with_connection<T>(
        &self,
        run: impl Fn(&mut Connection) -> Result<T, StoreFault>,
    ) -> Result<T, StoreFault> {
        let until = self.node.clock.now() + self.node.command_timeout;
        let attempt = || {
            let connection = self.check_out(Checkout::Until(until))?;
            self.lent(connection, |connection| {
                let result = run(connection);
                if matches!(&result, Err(fault) if fault.is_closed()) {
                    self.node.retire_from_pool(connection.pool_generation);
                }
                result
            })
        };
        match attempt() {
            Err(fault) if fault.is_closed() => attempt(),
            result => result,
        }
    }
}

/// How many connections may turn out to be closed before that is the answer: those that were idle are
/// retired with the first, but one that was being opened may go the same way.
const CLOSED_AT_MOST: u32 = 2;

impl Store for Single {
    fn clock(&self) -> Clock {
        self.node.clock.clone()
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let (mut answers, mut closed) = self.attempt(calls, deadlines);
        for _ in 0..CLOSED_AT_MOST {
            if !closed || self.node.clock.now() >= deadlines.reply {
                break;
            }
            // The time for the reply is the first attempt's: a retry must not lengthen the call (P8).
            let checkout = match deadlines.checkout {
                Checkout::IfFree => Checkout::IfFree,
                Checkout::Until(_) => Checkout::Until(deadlines.reply),
            };
            let (next, more) = self.attempt(
                calls,
                Deadlines {
                    checkout,
                    reply: deadlines.reply,
                },
            );
            if matches!(next.first(), Some(first) if matches!(first.answer, Err(StoreFault::NotReady)))
            {
                break;
            }
            for (result, next) in answers.iter_mut().zip(next) {
                result.not_after = result.not_after.max(next.not_after);
                result.answer = match next.answer {
                    Ok(answer) => Ok(Answer {
                        resent: true,
                        ..answer
                    }),
                    Err(fault) if fault.is_ambiguous() => Err(fault),
                    Err(fault) => Err(StoreFault::InDoubt(Box::new(fault))),
                };
            }
            closed = more;
        }
        answers
    }

    fn link(&self, ring: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(NodeLink::new(&self.node, ring, self.back_off))
    }

    fn listen(
        &self,
        channel: &str,
        ping_every: Duration,
        heard: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        let node = &self.node;
        let mut connection = node
            .connect_in_background(|| {})?
            .recv_timeout(node.connect_timeout())
            .unwrap_or_else(|_| Err(timed_out(Step::Connect)))?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(channel);
        connection.request(subscribe, node.command_timeout)?;
        if heard(ChannelEvent::Subscribed).is_break() {
            return Ok(());
        }
        connection.set_read_timeout(ping_every)?;
        let generation = connection.generation;
        let mut asked = false;
        loop {
            let told = match connection.socket.receive() {
                Ok(value) => match refusal(value)? {
                    Value::Array(words) if is_word(words.first(), "message") => {
                        match words.last() {
                            Some(Value::BulkString(message)) => {
                                heard(ChannelEvent::Message(&String::from_utf8_lossy(message)))
                            }
                            _ => ControlFlow::Continue(()),
                        }
                    }
                    // The answer to a ping: within a subscription it comes as a message does.
                    _ => {
                        asked = false;
                        heard(ChannelEvent::Quiet)
                    }
                },
                // A bump of the generation says that this node is not the one to listen to any more.
                Err(e) if e.is_timeout() && node.generation() != generation => {
                    return Err(StoreFault::unavailable(
                        Step::Reply,
                        "the connection was retired",
                    ));
                }
                Err(e) if e.is_timeout() && !asked => {
                    asked = true;
                    connection
                        .send(&[redis::cmd("PING")])
                        .map_err(|e| fault(e, Step::Send))?;
                    ControlFlow::Continue(())
                }
                Err(e) => return Err(fault(e, Step::Reply)),
            };
            if told.is_break() {
                return Ok(());
            }
        }
    }

    fn poke(&self, channel: &str) {
        if let Some(mut connection) = self.pool.try_get() {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(channel).arg("");
            // The reply is not awaited: a server that hangs would keep the caller.
            let _ = connection.send(&[publish]);
            connection.broken = true;
        }
    }

    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(512)
            .arg("TYPE")
            .arg("hash");
        let answer = self.with_connection(|connection| {
            connection.request(scan.clone(), self.node.command_timeout)
        })?;
        page(answer)
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        self.node.anchor()
    }

    fn connects(&self) -> u64 {
        self.node.connects.load(Ordering::Relaxed)
    }

    fn requests(&self) -> u64 {
        self.node.requests.load(Ordering::Relaxed)
    }
}

fn is_first_closed(results: &[CallResult]) -> bool {
    matches!(results.first(), Some(CallResult { answer: Err(fault), .. }) if fault.is_closed())
}

/// What SCAN answers: the next cursor, and keys.
pub(crate) fn page(answer: Value) -> Result<(u64, Vec<String>), StoreFault> {
    let malformed = |_| StoreFault::Server {
        code: "PROTOCOL".to_owned(),
        message: "SCAN did not answer a page".to_owned(),
    };
    let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(answer).map_err(malformed)?;
    // Our keys are UTF-8; what is not belongs to somebody else.
    Ok((
        next,
        keys.into_iter()
            .filter_map(|key| String::from_utf8(key).ok())
            .collect(),
    ))
}

fn is_word(value: Option<&Value>, word: &str) -> bool {
    matches!(value, Some(Value::BulkString(bytes)) if bytes == word.as_bytes())
}

impl r2d2::ManageConnection for ConnectionFactory {
    type Connection = Connection;
    type Error = StoreFault;

    fn connect(&self) -> Result<Connection, StoreFault> {
        if let Some(first) = self.first.lock().take() {
            return Ok(first);
        }
        self.node.connect().inspect_err(|fault| {
            *self.refusal.lock() = Some(ConnectRefusal {
                at: self.node.clock.now(),
                fault: fault.repeat(),
            });
        })
    }

    /// Asks no server: a connection that broke while idle is found by its use, and the scripts may be sent
    /// twice. What is compared retires all connections of one age at once.
    fn is_valid(&self, connection: &mut Connection) -> Result<(), StoreFault> {
        if self.node.is_retired_from_pool(connection) {
            return Err(StoreFault::unavailable(
                Step::Pool,
                "the connection was retired",
            ));
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken || self.node.is_retired_from_pool(connection)
    }
}

#[derive(Debug)]
struct LogAtDebug;

impl r2d2::HandleError<StoreFault> for LogAtDebug {
    fn handle_error(&self, error: StoreFault) {
        log::debug!("pool: {error}");
    }
}
