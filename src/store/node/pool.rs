//! The pool of connections to one node, on r2d2: it opens and replaces them. A lane keeps one while it
//! is open.

use std::error::Error as StdError;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::Node;
use super::age::Age;
use super::connection::Connection;
use super::hello::Role;
use super::lane::{Connected, Lane, OpenGuard};
use super::login::ConnectionLogin;
use super::scripts::Scripts;
use super::socket::{SocketReader, SocketWriter};
use super::stream::Stream;
use crate::error::Step;
use crate::key::Key;
use crate::logging::Logger;
use crate::store::clock::Time;
use crate::store::{Anchor, StoreFault};

pub(super) type NodeLane = Lane<LaneConnection>;
pub(super) type NodeGuard<'a> = OpenGuard<'a, LaneConnection>;

/// The connections to one node, one for each lane.
pub(super) struct ConnectionPool {
    node: Arc<Node>,
    role: Role,
    /// `None`: the thread that asks for a connection opens it itself.
    connections: Option<r2d2::Pool<ConnectionFactory>>,
    last_refusal: Arc<Mutex<Option<ConnectRefusal>>>,
}

/// A lane's connection without the halves of the socket.
pub(super) struct LaneConnection {
    node: Arc<Node>,
    pub(super) anchor: Anchor,
    pub(super) age: Age,
    pub(super) scripts: Scripts,
    stream: Arc<Stream>,
    /// How it logs in anew. `None`: its login never changes.
    pub(super) login: Option<ConnectionLogin>,
    /// Its place in the pool, if there is one.
    _pooled: Option<r2d2::PooledConnection<ConnectionFactory>>,
}

/// Opens the pool's connections.
struct ConnectionFactory {
    node: Arc<Node>,
    /// The connection that the pool begins with.
    first: Mutex<Option<Connection>>,
    last_refusal: Arc<Mutex<Option<ConnectRefusal>>>,
}

/// A connection in the pool. The lane that uses it takes it out.
struct PooledConnection(Option<Connection>);

/// Why the last connection could not be opened. r2d2 passes that on only as a string, and only to
/// one of the callers that wait.
struct ConnectRefusal {
    at: Time,
    fault: StoreFault,
}

/// A number of a name that is not 0.
pub(super) fn number_of_name(key: &Key) -> u64 {
    hash_of_name(key) | 1
}

pub(super) fn hash_of_name(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.queue().hash(&mut hasher);
    hasher.finish()
}

fn is_thread_to_be_had() -> bool {
    let thread = thread::Builder::new().name("fairlock-pool".to_owned());
    thread
        .spawn(|| {})
        .is_ok_and(|thread| thread.join().is_ok())
}

impl Node {
    /// The lane with its connection, if that may be used. Never waits.
    pub(super) fn open_now<'a>(&self, lane: &'a NodeLane) -> Option<NodeGuard<'a>> {
        let mut guard = lane.if_open()?;
        if !self.ages.is_retired_from_pool(guard.connected().age) {
            return Some(guard);
        }
        // Others of its age were closed, and this one probably with them. If it was not, it may be the last
        // that there is.
        drop(guard);
        lane.read_all();
        guard = lane.if_open()?;
        let age = &mut guard.connected().age;
        *age = self.ages.still_open(*age);
        if self.ages.is_retired(guard.connected().age) {
            guard.retire();
            return None;
        }
        Some(guard)
    }
}

impl ConnectionPool {
    /// A pool that begins with this connection. It opens others when they are needed.
    pub(super) fn new(node: &Arc<Node>, size: u32, first: Option<Connection>) -> ConnectionPool {
        if !is_thread_to_be_had() {
            // The worker of a pool would panic.
            return ConnectionPool::direct(node, Role::Lane);
        }
        let last_refusal = Arc::new(Mutex::new(None));
        let factory = ConnectionFactory {
            node: Arc::clone(node),
            first: Mutex::new(first),
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
            .connection_timeout(node.config.connect_timeout)
            .thread_pool(Arc::new(worker))
            .error_handler(Box::new(LogAtDebug))
            .build_unchecked(factory);
        ConnectionPool {
            node: Arc::clone(node),
            role: Role::Lane,
            connections: Some(connections),
            last_refusal,
        }
    }

    /// No pool and no thread: for lanes that other threads open in the background.
    pub(super) fn direct(node: &Arc<Node>, role: Role) -> ConnectionPool {
        ConnectionPool {
            node: Arc::clone(node),
            role,
            connections: None,
            last_refusal: Arc::default(),
        }
    }

    /// Takes a new connection from the pool.
    pub(super) fn connect(
        &self,
        until: Time,
    ) -> Result<(LaneConnection, SocketWriter, SocketReader), StoreFault> {
        self.node.ages.check_not_ended()?;
        let (connection, pooled) = match &self.connections {
            None => (self.node.connect_until(self.role, until)?, None),
            Some(pool) => {
                let started = self.node.clock.now();
                let timeout = (until - started).max(Duration::from_millis(1));
                let mut pooled = pool
                    .get_timeout(timeout)
                    .map_err(|error| self.no_connection(started, error))?;
                let connection = pooled.0.take().ok_or(StoreFault::NotReady)?;
                (connection, Some(pooled))
            }
        };
        let Connection {
            socket,
            anchor,
            age,
            login,
            ..
        } = connection;
        let (writer, reader) = socket.split();
        let connected = LaneConnection {
            node: Arc::clone(&self.node),
            anchor,
            age,
            scripts: Scripts::default(),
            stream: writer.stream(),
            login,
            _pooled: pooled,
        };
        Ok((connected, writer, reader))
    }

    /// Why no connection came for a caller that has waited since `started`.
    pub(super) fn no_connection(
        &self,
        started: Time,
        error: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> StoreFault {
        match &*self.last_refusal.lock() {
            Some(refusal) if refusal.at >= started - self.node.config.command_timeout => {
                refusal.fault.clone()
            }
            _ => StoreFault::unavailable(Step::Connect, error),
        }
    }
}

impl LaneConnection {
    pub(super) fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.stream)
    }
}

impl Connected for LaneConnection {
    type Writer = SocketWriter;
    type Reader = SocketReader;

    /// The other connections of its age are probably closed as well.
    fn note_closed(&self) {
        self.node.retire_from_pool(self.age);
    }

    fn round_trip(&self) -> Duration {
        self.anchor.received - self.anchor.sent
    }
}

/// Each end of a lane's connection comes here, before its callers learn of it.
impl Drop for LaneConnection {
    fn drop(&mut self) {
        self.node.troubles.note();
        self.stream.close();
    }
}

impl r2d2::ManageConnection for ConnectionFactory {
    type Connection = PooledConnection;
    type Error = StoreFault;

    fn connect(&self) -> Result<PooledConnection, StoreFault> {
        if self.node.ages.check_not_ended().is_err() {
            // The pool tries again after an error, and its callers wait for that.
            return Ok(PooledConnection(None));
        }
        let first = self.first.lock().take();
        if let Some(first) = first {
            return Ok(PooledConnection(Some(first)));
        }
        let opened = self.node.connect(Role::Lane).inspect_err(|fault| {
            *self.last_refusal.lock() = Some(ConnectRefusal {
                at: self.node.clock.now(),
                fault: fault.clone(),
            });
        });
        opened.map(|connection| PooledConnection(Some(connection)))
    }

    /// Does not ask the server. A connection that broke while idle is found by its use, and a
    /// script may be sent twice. Comparing ages retires all connections of one age at once.
    fn is_valid(&self, pooled: &mut PooledConnection) -> Result<(), StoreFault> {
        if self.has_broken(pooled) && self.node.ages.check_not_ended().is_ok() {
            return Err(StoreFault::unavailable(
                Step::Connect,
                "the connection was retired",
            ));
        }
        Ok(())
    }

    /// A connection that a lane has taken out is over when the lane gives its place back.
    fn has_broken(&self, PooledConnection(connection): &mut PooledConnection) -> bool {
        connection
            .as_ref()
            .is_none_or(|connection| self.node.ages.is_retired_from_pool(connection.age))
    }
}

#[derive(Debug)]
struct LogAtDebug;

impl r2d2::HandleError<StoreFault> for LogAtDebug {
    fn handle_error(&self, error: StoreFault) {
        log::debug!(logger: Logger, "pool: {error}");
    }
}
