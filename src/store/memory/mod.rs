//! Locks that live in this process: the same scripts, over a keyspace in memory.

pub(crate) mod keyspace;
mod lapse;
mod movable_clock;
mod packing;
pub(crate) mod server;
mod session;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::{Mutex, MutexGuard};
use redis::Value;

use super::clock::{Clock, Time};
use keyspace::{Bytes, CommandResult};
use movable_clock::MovableClock;
use server::{PublishedMessage, Server};

pub(crate) use session::Session;

/// An in-memory replacement for a Redis server.
///
/// A handle: clones share one server. Each manager that is built on it behaves like a process of its
/// own: two managers exclude each other, wait in one queue, and learn of each other's releases only
/// by messages.
///
/// Its clock runs on with the host's, and [`advance`](Memory::advance) puts it forward. Server and
/// managers go by this clock alike, so leases, renewals, waits and deadlines all follow it. The clock
/// never stops and never goes back.
///
/// ```
/// use fairlock::{LockManager, memory::Memory};
///
/// let memory = Memory::new();
/// let (ours, theirs) = (LockManager::connect(&memory)?, LockManager::connect(&memory)?);
/// let guard = ours.lock("invoices:42")?;
/// assert!(theirs.try_lock("invoices:42")?.is_none());
///
/// memory.lapse("invoices:42");
/// assert!(theirs.try_lock("invoices:42")?.is_some());
/// assert!(guard.renew().is_err(), "it was lost");
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Memory(Arc<MemoryServer>);

/// Something that goes wrong once. See [`Memory::inject`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The next request does not arrive. Its caller gets no reply and waits until the command timeout.
    LoseRequest,
    /// The next request is carried out, but its caller gets no reply and waits until the command
    /// timeout.
    LoseReply,
    /// The next request is carried out, and the connection ends before the reply. The manager sends it
    /// again at once, and the second reply equals the first.
    Disconnect,
    /// The next request is not carried out. The server refuses it with this error, for instance
    /// `"READONLY You can't write against a read only replica."`.
    Refuse(String),
    /// The next message that a lock was granted is lost.
    LoseMessage,
}

/// The reply to a command. See [`Memory::command`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The key, field or element does not exist.
    Nil,
    /// A number.
    Int(i64),
    /// A text or a status. Bytes that are not UTF-8 are replaced.
    Text(String),
    /// The command was refused.
    Error(String),
    /// Several replies.
    List(Vec<Reply>),
}

/// What all handles and sessions share.
struct MemoryServer {
    clock: Clock,
    /// The same clock, as what can be put forward.
    movable: Arc<MovableClock>,
    /// The server's time in µs when the clock read zero.
    began: u64,
    state: Mutex<MemoryState>,
}

struct MemoryState {
    server: Server,
    is_down: bool,
    /// Faults that have not struck yet, in their order.
    faults: VecDeque<Fault>,
    subscribers: Vec<Subscriber>,
    /// How many subscribers there have been: the id of the last one.
    last_subscriber: u64,
}

struct Subscriber {
    id: u64,
    channel: Bytes,
    sender: Sender<String>,
}

impl Memory {
    /// A server that holds no lock.
    pub fn new() -> Memory {
        let movable = Arc::new(MovableClock::new());
        let clock = Clock::from_source(Arc::clone(&movable) as _);
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros() as u64;
        let began = unix.saturating_sub(clock.now().as_nanos() / 1000);
        let state = MemoryState {
            server: Server::new(),
            is_down: false,
            faults: VecDeque::new(),
            subscribers: Vec::new(),
            last_subscriber: 0,
        };
        Memory(Arc::new(MemoryServer {
            clock,
            movable,
            began,
            state: Mutex::new(state),
        }))
    }

    /// Puts the clock forward, for the server and for all managers, and wakes every thread that sleeps
    /// by it.
    ///
    /// The effect is that of suspending all hosts and the server for that long: leases that end in
    /// that time are lost, renewals that were due are late, and waits whose deadline has passed end.
    /// To let more than a TTL pass while locks are held, go in steps of a third of the TTL; otherwise
    /// the holders lose them. The clock goes a hundred years forward in all, and no further. An
    /// `Instant` does not follow it: for [`try_lock_until`](crate::LockManager::try_lock_until), an
    /// instant one second ahead is one second ahead at the call.
    ///
    /// Returns when every manager's renewal thread has done what was due by then: its renewals have
    /// replies, and its losses are reported. That takes microseconds. If a thread waits for a reply
    /// that was lost, it takes at most one second of the host's time. `advance` wakes your own threads
    /// too but does not wait for them, and it cannot know that one of them is about to ask for a
    /// lock. To see that such a thread waits in a queue, call [`inspect`](crate::LockManager::inspect)
    /// on another manager.
    pub fn advance(&self, by: Duration) {
        self.0.movable.advance(by);
    }

    /// Closes all connections and refuses new ones, like a Redis server that has crashed. The server
    /// keeps its data.
    ///
    /// A `try_lock` fails at once, a `lock` after the outage limit. An `unlock` waits for one command
    /// timeout in case the server comes back. So does dropping the last handle of a manager that has
    /// something to release.
    pub fn go_down(&self) {
        let mut state = self.0.state.lock();
        state.is_down = true;
        state.server.state().listeners.clear();
        // A thread that listens finds that its sender is gone. That wakes it, so unlock first.
        let gone = std::mem::take(&mut state.subscribers);
        drop(state);
        drop(gone);
    }

    /// Accepts connections again. New calls succeed at once. Work in the background goes on after a
    /// pause of at most 500 ms, or after an [`advance`](Memory::advance) by as much.
    pub fn come_back(&self) {
        self.0.state.lock().is_down = false;
    }

    /// Deletes all keys, and with them every lock and every queue. Holders learn of it at their next
    /// renewal ([`LossReason::Taken`](crate::LossReason::Taken)). Waiters are queued again within a
    /// check period.
    pub fn flush_all(&self) {
        self.0.state.lock().server.state().keyspace = Default::default();
    }

    /// Ends a lease as if its holder had crashed, or had been stopped for its TTL, and another client
    /// had noticed. For a semaphore or a reader/writer lock, ends all leases of the name. Then the
    /// first waiter has the lock, or the lock is free. Ends the leases of the name in all prefixes.
    /// Returns whether there was a lease to end.
    ///
    /// The holder does not know yet. Its guard's `is_held` stays true until the holder learns of the
    /// loss: at its next renewal (at most a third of the TTL later; [`advance`](Memory::advance) gets
    /// there) or by its own `renew` or `unlock`. Until then two guards can be held, like after a
    /// [`force_release`](crate::LockManager::force_release). Unless the lease was a fixed one, its
    /// manager counts as dead for this name: its waiters are passed over, and come back to the end of
    /// the queue within a check period.
    pub fn lapse(&self, name: &str) -> bool {
        lapse::lapse(&self.0, name)
    }

    /// Makes something go wrong once: at the next request of any manager, requests of its threads
    /// included, or at the next message. Several faults strike one by one, in the order in which they
    /// were injected.
    ///
    /// An `inspect` is a request as well. If a test must poll until a fault has struck, let it look at
    /// [`stats`](crate::LockManager::stats). `Debug` shows the faults that have not struck yet. A
    /// refusal that may pass by itself ([`Error::Server`](crate::Error::Server)) is retried, so a
    /// single one is seldom visible.
    pub fn inject(&self, fault: Fault) {
        self.0.state.lock().faults.push_back(fault);
    }

    /// Runs one Redis command, for tests that look at the stored data, or damage it. Works also while
    /// the server is [down](Memory::go_down), and no injected fault strikes it.
    ///
    /// Knows the commands that fairlock's scripts use, and EVAL and EVALSHA: TIME, HGET, HMGET, HGETALL,
    /// HKEYS, HEXISTS, HLEN, HSET, HDEL, LLEN, LINDEX, LRANGE, LPOP, RPOP, RPUSH, DEL, PEXPIREAT, PTTL, PUBLISH.
    /// The crate's docs/PROTOCOL.md describes the stored data.
    ///
    /// ```
    /// use fairlock::memory::{Memory, Reply};
    ///
    /// let memory = Memory::new();
    /// assert_eq!(memory.command(&["RPUSH", "list", "a", "b"]), Reply::Int(2));
    /// assert_eq!(memory.command(&["LPOP", "list"]), Reply::Text("a".into()));
    /// ```
    pub fn command(&self, words: &[&str]) -> Reply {
        match self.0.run(&bytes_of(words)) {
            Ok(value) => reply(value),
            Err(error) => Reply::Error(error),
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        let keys = state.server.state().keyspace.len();
        f.debug_struct("Memory")
            .field("keys", &keys)
            .field("is_down", &state.is_down)
            .field("faults", &state.faults)
            .finish_non_exhaustive()
    }
}

/// Why a request has no reply.
enum NoReply {
    /// The server is down: nothing was sent.
    Refused,
    /// The connection ended after the request was carried out.
    Closed,
    /// The request or its reply was lost.
    Lost,
}

impl MemoryServer {
    fn server_time(&self, at: Time) -> u64 {
        self.began + at.as_nanos() / 1000
    }

    fn run(&self, command: &[Bytes]) -> CommandResult {
        let mut state = self.state.lock();
        let now = self.server_time(self.clock.now());
        let result = state.server.run(now, command);
        let messages = state.server.published();
        deliver(state, messages);
        result
    }

    /// Runs a manager's request. Injected faults strike it.
    fn request(&self, command: &[Bytes]) -> Result<CommandResult, NoReply> {
        let mut state = self.state.lock();
        if state.is_down {
            return Err(NoReply::Refused);
        }
        let next = state
            .faults
            .iter()
            .position(|fault| *fault != Fault::LoseMessage);
        let fault = next.and_then(|at| state.faults.remove(at));
        match fault {
            Some(Fault::LoseRequest) => return Err(NoReply::Lost),
            Some(Fault::Refuse(error)) => return Ok(Err(error)),
            _ => {}
        }
        let now = self.server_time(self.clock.now());
        let result = state.server.run(now, command);
        let messages = state.server.published();
        state.server.state().sweep(now);
        deliver(state, messages);
        match fault {
            Some(Fault::LoseReply) => Err(NoReply::Lost),
            Some(Fault::Disconnect) => Err(NoReply::Closed),
            _ => Ok(result),
        }
    }

    /// A new subscriber's id and messages; `None` while the server is down.
    fn subscribe(&self, channel: &str) -> Option<(u64, Receiver<String>)> {
        let (sender, receiver) = unbounded();
        let mut state = self.state.lock();
        if state.is_down {
            return None;
        }
        state.last_subscriber += 1;
        let id = state.last_subscriber;
        let channel = channel.as_bytes().to_vec();
        *state
            .server
            .state()
            .listeners
            .entry(channel.clone())
            .or_default() += 1;
        state.subscribers.push(Subscriber {
            id,
            channel,
            sender,
        });
        Some((id, receiver))
    }

    fn is_subscribed(&self, id: u64) -> bool {
        self.state.lock().subscribers.iter().any(|s| s.id == id)
    }

    fn unsubscribe(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(at) = state.subscribers.iter().position(|s| s.id == id) else {
            return;
        };
        let gone = state.subscribers.swap_remove(at);
        let mut server = state.server.state();
        if let Some(listeners) = server.listeners.get_mut(&gone.channel) {
            *listeners -= 1;
            if *listeners == 0 {
                server.listeners.remove(&gone.channel);
            }
        }
    }

    /// The keys of hashes that match; `None` while the server is down.
    fn scan(&self, matches: impl Fn(&str) -> bool) -> Option<Vec<String>> {
        let state = self.state.lock();
        if state.is_down {
            return None;
        }
        let now = self.server_time(self.clock.now());
        let server = state.server.state();
        let keys = server.keyspace.hashes((now / 1000) as i64);
        Some(
            keys.filter_map(|key| String::from_utf8(key.clone()).ok())
                .filter(|key| matches(key))
                .collect(),
        )
    }
}

/// Hands messages to the subscribers. Unlocks first, since a message wakes a thread.
fn deliver(mut state: MutexGuard<'_, MemoryState>, messages: Vec<PublishedMessage>) {
    let mut outgoing = Vec::new();
    for message in messages {
        // An empty message is a poke. A grant always has text.
        if !message.text.is_empty()
            && let Some(at) = state
                .faults
                .iter()
                .position(|fault| *fault == Fault::LoseMessage)
        {
            state.faults.remove(at);
            continue;
        }
        for subscriber in state
            .subscribers
            .iter()
            .filter(|s| s.channel == message.channel)
        {
            outgoing.push((
                subscriber.sender.clone(),
                String::from_utf8_lossy(&message.text).into_owned(),
            ));
        }
    }
    drop(state);
    for (sender, text) in outgoing {
        // A thread that has stopped listening misses it.
        let _ = sender.send(text);
    }
}

/// Not a `From`, which would make another crate's type a part of this crate's public API.
fn reply(value: Value) -> Reply {
    match value {
        Value::Int(n) => Reply::Int(n),
        Value::BulkString(bytes) => Reply::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Reply::Text(text),
        Value::Array(values) => Reply::List(values.into_iter().map(reply).collect()),
        _ => Reply::Nil,
    }
}

fn bytes_of(words: &[&str]) -> Vec<Bytes> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The words of a command, its name included.
pub(crate) fn words_of(command: &redis::Cmd) -> Vec<Bytes> {
    let word = |arg| match arg {
        redis::Arg::Simple(word) => Some(<[u8]>::to_vec(word)),
        _ => None,
    };
    command.args_iter().filter_map(word).collect()
}
