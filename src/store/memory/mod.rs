//! Locks that live in this process: the same scripts, over a keyspace in memory.

pub(crate) mod keyspace;
mod lapse;
mod packing;
pub(crate) mod server;
mod session;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use redis::Value;

use super::clock::{Clock, Time};
use keyspace::{Answer, Bytes};
use server::{Message, Server};

pub(crate) use session::Session;

/// An in-memory stand-in for a Redis.
///
/// A handle: clones share one world. Each manager that is built on it is like a process of its own: two
/// managers exclude each other, wait in one queue, and hear of each other's releases only by messages.
///
/// Its clock is the host's, put forward by [`advance`](Memory::advance); server and managers go by it alike, so
/// leases, renewals, waits and deadlines all follow it. It never stands still and never goes back.
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
pub struct Memory(Arc<World>);

/// What goes wrong once. See [`Memory::inject`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The next request does not arrive. Its caller hears nothing until the command timeout.
    LoseRequest,
    /// The next request is carried out, and its caller hears nothing until the command timeout.
    LoseReply,
    /// The next request is carried out, and the connection ends before the reply. A manager asks again at
    /// once, and the second answer is that of the first.
    Disconnect,
    /// The next request is not carried out, but refused with this error, for instance
    /// `"READONLY You can't write against a read only replica."`.
    Refuse(String),
    /// The next message that a lock was granted reaches nobody.
    LoseMessage,
}

/// What a command answers. See [`Memory::command`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is no such thing.
    Nil,
    /// A number.
    Int(i64),
    /// A text or a status. What is not UTF-8 is replaced.
    Text(String),
    /// The command was refused.
    Error(String),
    /// Several.
    List(Vec<Reply>),
}

struct World {
    clock: Clock,
    /// The server's time in µs when the clock read zero.
    began: u64,
    state: Mutex<State>,
}

struct State {
    server: Server,
    is_down: bool,
    faults: VecDeque<Fault>,
    subscriptions: Vec<Subscription>,
    subscribed: u64,
}

struct Subscription {
    id: u64,
    channel: Bytes,
    sender: Sender<String>,
}

impl Memory {
    /// A world without a lock in it.
    pub fn new() -> Memory {
        let clock = Clock::movable();
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros() as u64;
        let began = unix.saturating_sub(clock.now().as_nanos() / 1000);
        let state = State {
            server: Server::new(),
            is_down: false,
            faults: VecDeque::new(),
            subscriptions: Vec::new(),
            subscribed: 0,
        };
        Memory(Arc::new(World {
            clock,
            began,
            state: Mutex::new(state),
        }))
    }

    /// Puts the clock forward, for the server and for all managers, and wakes whoever sleeps by it.
    ///
    /// It is as if all hosts and the server had been suspended for so long: leases that end meanwhile are
    /// lost, renewals that were due are late, waits whose deadline has passed end. To let more than a TTL pass
    /// while locks are held, go in steps of a third of it, or the holders lose them. Goes a hundred years
    /// forward in all, and no further. `Instant`s know nothing of it: to
    /// [`try_lock_until`](crate::LockManager::try_lock_until), one that lies a second ahead does so at the call.
    ///
    /// Returns when every manager's renewal thread has done what was due by then: renewals are answered, losses
    /// are told. That takes microseconds, and one second of the host's at most, should a thread wait for a reply
    /// that was lost. For your own threads, which it wakes too, it does not wait, nor can it know that one is
    /// about to ask for a lock: that one stands in a queue is shown by
    /// [`inspect`](crate::LockManager::inspect), asked from another manager.
    pub fn advance(&self, by: Duration) {
        self.0.clock.advance(by);
    }

    /// Closes all connections and refuses new ones, as a Redis that has crashed. What it holds is kept.
    ///
    /// A `try_lock` is refused at once, a `lock` after the outage limit. An `unlock` waits for one command timeout
    /// whether it comes back, as does dropping the last handle of a manager with something to release.
    pub fn go_down(&self) {
        let mut state = self.0.state.lock();
        state.is_down = true;
        state.server.state().listeners.clear();
        // Whoever listens finds the other end gone.
        let gone = std::mem::take(&mut state.subscriptions);
        drop(state);
        drop(gone);
    }

    /// Accepts connections again. New calls succeed at once; what is done in the background comes back after a
    /// pause of at most 500 ms, or of an [`advance`](Memory::advance) by as much.
    pub fn come_back(&self) {
        self.0.state.lock().is_down = false;
    }

    /// Forgets all keys: every lock and every queue. Holders are told at their next renewal
    /// ([`LossReason::Taken`](crate::LossReason::Taken)), and those who wait stand in a new queue within a check period.
    pub fn flush_all(&self) {
        self.0.state.lock().server.state().keyspace = Default::default();
    }

    /// Ends a lease, or all of a semaphore or a reader/writer lock, as if its holder had crashed or been stopped for its
    /// ttl, and somebody had noticed: the first who waits has the lock then, or it is free. Answers whether there was a lease to end. Ends those of all
    /// prefixes.
    ///
    /// The holder does not know: its guard says `is_held` until it is told, at its next renewal (at most a third
    /// of the ttl later; [`advance`](Memory::advance) there) or by its own `renew` or `unlock`. Till then two guards
    /// can be held, as after a [`force_release`](crate::LockManager::force_release). Unless its lease was a fixed
    /// one, its manager counts as dead for this name: what waits there is passed over, and comes back to the end
    /// of the queue within a check period.
    pub fn lapse(&self, name: &str) -> bool {
        lapse::lapse(&self.0, name)
    }

    /// Has something go wrong: once, at the next request of whichever manager, those of its threads
    /// included, or at the next message. What is injected several times happens as often, in that order.
    ///
    /// An `inspect` is a request as well: where a test has to poll until a fault has struck, let it look at
    /// [`stats`](crate::LockManager::stats). What has not struck yet is shown by `Debug`. A refusal that may pass by
    /// itself ([`Error::Server`](crate::Error::Server)) is tried again, so one alone is seldom noticed.
    pub fn inject(&self, fault: Fault) {
        self.0.state.lock().faults.push_back(fault);
    }

    /// Runs one Redis command, for tests that look at what is kept, or damage it. Works also while
    /// [down](Memory::go_down), and no fault strikes it.
    ///
    /// Knows the commands that fairlock's scripts use, and EVAL and EVALSHA: TIME, HGET, HMGET, HGETALL,
    /// HKEYS, HEXISTS, HLEN, HSET, HDEL, LLEN, LINDEX, LRANGE, LPOP, RPOP, RPUSH, DEL, PEXPIREAT, PTTL, PUBLISH.
    /// What is kept is in the crate's docs/PROTOCOL.md.
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

impl World {
    fn server_time(&self, at: Time) -> u64 {
        self.began + at.as_nanos() / 1000
    }

    fn run(&self, command: &[Bytes]) -> Answer {
        let mut state = self.state.lock();
        let answer = state
            .server
            .run(self.server_time(self.clock.now()), command);
        let messages = state.server.published();
        self.deliver(state, messages);
        answer
    }

    /// A request of a manager's, with all that can befall it.
    fn request(&self, command: &[Bytes]) -> Result<Answer, Mishap> {
        let mut state = self.state.lock();
        if state.is_down {
            return Err(Mishap::Down);
        }
        let next = state
            .faults
            .iter()
            .position(|fault| *fault != Fault::LoseMessage);
        let fault = next.and_then(|at| state.faults.remove(at));
        match fault {
            Some(Fault::LoseRequest) => return Err(Mishap::Silence),
            Some(Fault::Refuse(error)) => return Ok(Err(error)),
            _ => {}
        }
        let now = self.server_time(self.clock.now());
        let answer = state.server.run(now, command);
        let messages = state.server.published();
        state.server.state().sweep(now);
        self.deliver(state, messages);
        match fault {
            Some(Fault::LoseReply) => Err(Mishap::Silence),
            Some(Fault::Disconnect) => Err(Mishap::Closed),
            _ => Ok(answer),
        }
    }

    /// Unlocks first: a message wakes somebody.
    fn deliver(&self, mut state: parking_lot::MutexGuard<'_, State>, messages: Vec<Message>) {
        let mut letters = Vec::new();
        for message in messages {
            if !message.text.is_empty()
                && let Some(at) = state
                    .faults
                    .iter()
                    .position(|fault| *fault == Fault::LoseMessage)
            {
                state.faults.remove(at);
                continue;
            }
            for subscription in state
                .subscriptions
                .iter()
                .filter(|s| s.channel == message.channel)
            {
                letters.push((
                    subscription.sender.clone(),
                    String::from_utf8_lossy(&message.text).into_owned(),
                ));
            }
        }
        drop(state);
        for (sender, text) in letters {
            // Whoever does not listen any more misses it.
            let _ = sender.send(text);
        }
    }

    /// `None` while it is down.
    fn subscribe(&self, channel: &str) -> Option<(u64, Receiver<String>)> {
        let (sender, receiver) = unbounded();
        let mut state = self.state.lock();
        if state.is_down {
            return None;
        }
        state.subscribed += 1;
        let id = state.subscribed;
        let channel = channel.as_bytes().to_vec();
        *state
            .server
            .state()
            .listeners
            .entry(channel.clone())
            .or_default() += 1;
        state.subscriptions.push(Subscription {
            id,
            channel,
            sender,
        });
        Some((id, receiver))
    }

    fn is_subscribed(&self, id: u64) -> bool {
        self.state.lock().subscriptions.iter().any(|s| s.id == id)
    }

    fn unsubscribe(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(at) = state.subscriptions.iter().position(|s| s.id == id) else {
            return;
        };
        let gone = state.subscriptions.swap_remove(at);
        let mut server = state.server.state();
        if let Some(listeners) = server.listeners.get_mut(&gone.channel) {
            *listeners -= 1;
            if *listeners == 0 {
                server.listeners.remove(&gone.channel);
            }
        }
    }

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

/// Why a request has no answer.
enum Mishap {
    Down,
    /// The connection ended after the request was carried out.
    Closed,
    /// Nothing came.
    Silence,
}

/// Not a `From`, which would make the type of another crate a part of this one's public API.
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

pub(crate) fn words_of(command: &redis::Cmd) -> Vec<Bytes> {
    let word = |arg| match arg {
        redis::Arg::Simple(word) => Some(<[u8]>::to_vec(word)),
        _ => None,
    };
    command.args_iter().filter_map(word).collect()
}
