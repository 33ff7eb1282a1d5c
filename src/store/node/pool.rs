//! The pool of connections to one node, for short calls.
//!
//! r2d2 keeps the connections; this adds three things. A call whose connection turns out to be
//! closed is sent again on another. A call that finds no connection free may travel with another
//! caller's (`batch`). And a caller that waits in vain learns why no connection could be opened.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::Node;
use super::batch::{BatchQueue, Follower, FollowerOutcome, Leadership, MAX_FOLLOWERS, Role};
use super::connection::Connection;
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{CallResult, Checkout, Deadlines, RESENDS_WHEN_CLOSED, StoreFault};

/// The connections to one node that short calls share.
pub(crate) struct NodePool {
    pub(super) node: Arc<Node>,
    connections: r2d2::Pool<ConnectionFactory>,
    batch_queue: BatchQueue,
    last_refusal: Arc<Mutex<Option<ConnectRefusal>>>,
}

/// Opens the pool's connections.
struct ConnectionFactory {
    node: Arc<Node>,
    /// The connection that the pool begins with.
    first: Mutex<Option<Connection>>,
    last_refusal: Arc<Mutex<Option<ConnectRefusal>>>,
}

/// Why the last connection could not be opened. r2d2 passes that on only as a string, and only to
/// one of the callers that wait.
struct ConnectRefusal {
    at: Time,
    fault: StoreFault,
}

type Pooled = r2d2::PooledConnection<ConnectionFactory>;

impl NodePool {
    /// Opens the first connection and fails if it cannot be opened within the connect timeout.
    pub(in crate::store) fn open(node: &Arc<Node>, size: u32) -> Result<NodePool, StoreFault> {
        let first = node.connect_in_time()?;
        let last_refusal = Arc::new(Mutex::new(None));
        let factory = ConnectionFactory {
            node: Arc::clone(node),
            first: Mutex::new(Some(first)),
            last_refusal: Arc::clone(&last_refusal),
        };
        // One worker is enough, since it opens connections to one node alone. It ends with the
        // pool, instead of living on until the pool's next look for idle connections is due.
        let worker = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("fairlock-pool")
            .build();
        let connections = r2d2::Pool::builder()
            .max_size(size)
            .min_idle(Some(0))
            .max_lifetime(None)
            .connection_timeout(node.connect_timeout)
            .thread_pool(Arc::new(worker))
            .error_handler(Box::new(LogAtDebug))
            .build_unchecked(factory);
        Ok(NodePool {
            node: Arc::clone(node),
            connections,
            batch_queue: BatchQueue::new(),
            last_refusal,
        })
    }

    /// Runs calls on one connection. If the connection turns out to be closed, runs them again on
    /// another, which may do better.
    pub(in crate::store) fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let mut results = self.run_once(calls, deadlines);
        let mut is_closed = results.first().is_some_and(CallResult::is_closed);
        for _ in 0..RESENDS_WHEN_CLOSED {
            if !is_closed || self.node.clock.now() >= deadlines.reply_by {
                break;
            }
            // The first attempt's time for the reply is for all: a retry must not lengthen the call
            // (P8).
            let checkout = match deadlines.checkout {
                Checkout::IfFree => Checkout::IfFree,
                Checkout::Until(_) => Checkout::Until(deadlines.reply_by),
            };
            let next = self.run_once(
                calls,
                Deadlines {
                    checkout,
                    ..deadlines
                },
            );
            if let Some(first) = next.first()
                && matches!(first.answer, Err(StoreFault::NotReady))
            {
                break;
            }
            is_closed = next.first().is_some_and(CallResult::is_closed);
            for (result, next) in results.iter_mut().zip(next) {
                result.take_resent(next);
            }
        }
        results
    }

    /// Runs calls on a connection of their own, or a single call along with others if no connection
    /// is free.
    fn run_once(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        // While a leader waits, the next connection that comes free is the leader's.
        let free = if self.batch_queue.is_led() {
            None
        } else {
            self.connections.try_get()
        };
        let connection = match (free, calls) {
            (Some(connection), _) => Ok(connection),
            (None, [call]) => return vec![self.run_joined(call, deadlines)],
            (None, _) => self.wait_for_connection(deadlines.checkout),
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(fault) => return CallResult::none_sent(calls, &fault),
        };
        let results = self
            .node
            .exchange(&mut connection, calls, deadlines.reply_by);
        if results.first().is_some_and(CallResult::is_closed) {
            // The other connections of its age are probably closed as well.
            self.node.retire_from_pool(connection.pool_generation);
        }
        self.check_in(connection);
        results
    }

    /// Runs one call after no connection was free: as the leader of a batch, or as a follower.
    fn run_joined(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        let Checkout::Until(checkout_by) = deadlines.checkout else {
            return CallResult::not_sent(StoreFault::NotReady);
        };
        let started = self.node.clock.now();
        let follower = match self.batch_queue.join(call, deadlines.reply_by) {
            Role::Leader => return self.lead(call, deadlines),
            Role::Follower(follower) => follower,
        };
        let checkout_by = checkout_by.min(started + self.node.command_timeout);
        let clock = &self.node.clock;
        match self.batch_queue.follow(&follower, clock, checkout_by) {
            FollowerOutcome::Leads => self.lead(call, deadlines),
            FollowerOutcome::NoConnection => {
                CallResult::not_sent(self.no_connection(started, "no connection came free"))
            }
            FollowerOutcome::Result(result) => result,
        }
    }

    /// Waits for a connection in the pool's way, and takes the calls of the followers along.
    fn lead(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        let leadership = Leadership::of(&self.batch_queue);
        let mut connection = match self.wait_for_connection(deadlines.checkout) {
            Ok(connection) => connection,
            Err(fault) => return CallResult::not_sent(fault),
        };
        // The pipeline ends when the leader's time does. A follower must have half a command
        // timeout for its reply, so a leader with less time left, because it sends again, goes
        // alone.
        let has_time = self.node.clock.now() + self.node.command_timeout / 2 <= deadlines.reply_by;
        let most = if has_time { MAX_FOLLOWERS } else { 0 };
        let not_after = |follower: &Follower| {
            let reply_by = follower.reply_by.min(deadlines.reply_by);
            let dated = self.node.date(&connection, &follower.call, reply_by);
            dated.not_after
        };
        let members = leadership.take_followers(most, not_after);
        let result = self
            .node
            .run_batch(&mut connection, call, &members, deadlines.reply_by);
        self.check_in(connection);
        result
    }

    /// Runs one command that is not a script. If the connection turns out to be closed, runs it
    /// again on another. Blocks until `reply_by` at most.
    pub(super) fn request(&self, command: &Cmd, reply_by: Time) -> Result<Value, StoreFault> {
        let checkout_by = (self.node.clock.now() + self.node.command_timeout).min(reply_by);
        let mut result = self.request_once(command, checkout_by, reply_by);
        for _ in 0..RESENDS_WHEN_CLOSED {
            if !result.as_ref().is_err_and(StoreFault::is_closed) {
                break;
            }
            result = self.request_once(command, reply_by, reply_by);
        }
        result
    }

    fn request_once(
        &self,
        command: &Cmd,
        checkout_by: Time,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let mut connection = match self.connections.try_get() {
            Some(connection) => connection,
            None => self.wait_for_connection(Checkout::Until(checkout_by))?,
        };
        let left = self.node.time_left(reply_by)?;
        let result = connection.request(command, left.min(self.node.command_timeout));
        if result.as_ref().is_err_and(StoreFault::is_closed) {
            self.node.retire_from_pool(connection.pool_generation);
        }
        self.check_in(connection);
        result
    }

    /// Publishes an empty message. See [`Store::poke`](crate::store::Store::poke).
    pub(in crate::store) fn poke(&self, channel: &str, by: Time) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg("");
        // The reply shows whether the connection was open. On one that the server had closed, the
        // message would be lost without a word.
        let _ = self.request(&publish, by);
    }

    fn wait_for_connection(&self, checkout: Checkout) -> Result<Pooled, StoreFault> {
        let Checkout::Until(checkout_by) = checkout else {
            return Err(StoreFault::NotReady);
        };
        let started = self.node.clock.now();
        let timeout = checkout_by - started;
        let timeout = timeout.clamp(Duration::from_millis(1), self.node.command_timeout);
        self.connections
            .get_timeout(timeout)
            .map_err(|error| self.no_connection(started, error))
    }

    /// Returns a connection to the pool.
    fn check_in(&self, connection: Pooled) {
        drop(connection);
        if self.batch_queue.is_led()
            && self.connections.state().connections < self.connections.max_size()
        {
            // If the connection was broken, the pool has room for a new one. It opens that only
            // when a caller asks; it does not do so for the leader, which asked before.
            let _ = self.connections.get_timeout(Duration::ZERO);
        }
    }

    /// Why no connection came for a caller that has waited since `started`.
    fn no_connection(
        &self,
        started: Time,
        error: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> StoreFault {
        match &*self.last_refusal.lock() {
            Some(refusal) if refusal.at >= started - self.node.command_timeout => {
                refusal.fault.clone()
            }
            _ => StoreFault::unavailable(Step::Pool, error),
        }
    }
}

impl r2d2::ManageConnection for ConnectionFactory {
    type Connection = Connection;
    type Error = StoreFault;

    fn connect(&self) -> Result<Connection, StoreFault> {
        if let Some(first) = self.first.lock().take() {
            return Ok(first);
        }
        self.node.connect().inspect_err(|fault| {
            *self.last_refusal.lock() = Some(ConnectRefusal {
                at: self.node.clock.now(),
                fault: fault.clone(),
            });
        })
    }

    /// Does not ask the server. A connection that broke while idle is found by its use, and a
    /// script may be sent twice. Comparing generations retires all connections of one age at once.
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
