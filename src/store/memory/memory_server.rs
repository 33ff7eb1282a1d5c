//! The server that all handles and sessions share: its clock, its faults and its subscribers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::{Mutex, MutexGuard};

use super::Fault;
use super::keyspace::{Bytes, CommandResult};
use super::movable_clock::MovableClock;
use super::server::ScriptServer;
use super::server_state::PublishedMessage;
use crate::store::clock::{Clock, Time};

/// The state that all handles and sessions share.
pub(super) struct MemoryServer {
    pub(super) clock: Clock,
    /// The same clock, as what can be put forward.
    pub(super) movable: Arc<MovableClock>,
    /// The server's time in µs when the clock read zero. A step of the server's clock changes it.
    began: AtomicU64,
    pub(super) state: Mutex<MemoryState>,
}

pub(super) struct MemoryState {
    pub(super) server: ScriptServer,
    pub(super) is_down: bool,
    /// Faults that have not happened yet, in their order.
    pub(super) faults: VecDeque<Fault>,
    pub(super) subscribers: Vec<Subscriber>,
    /// How many subscribers there have been: the id of the last one.
    last_subscriber: u64,
}

pub(super) struct Subscriber {
    id: u64,
    channel: Bytes,
    sender: Sender<String>,
}

/// Why a request has no reply.
pub(super) enum NoReply {
    /// The server is down: nothing was sent.
    Refused,
    /// The connection ended after the request was carried out.
    Closed,
    /// The request or its reply was lost.
    Lost,
}

/// The Unix time in µs at which this clock read zero. The two clocks cannot be read at once, and a
/// thread that is preempted between them would set the server's clock wrong by that pause. So the
/// pair of readings with the shortest pause counts.
fn unix_time_of_zero(clock: &Clock) -> u64 {
    const PAIRS: usize = 16;
    let pairs = (0..PAIRS).map(|_| {
        let before = clock.now();
        let unix = SystemTime::now();
        (clock.now() - before, before, unix)
    });
    let shortest = pairs.min_by_key(|(pause, _, _)| *pause);
    let (_, at, unix) = shortest.expect("there are some pairs");
    let unix = unix.duration_since(UNIX_EPOCH).unwrap_or_default();
    (unix.as_micros() as u64).saturating_sub(at.as_nanos() / 1000)
}

impl MemoryServer {
    pub(super) fn new() -> MemoryServer {
        let movable = Arc::new(MovableClock::new());
        let clock = Clock::from_source(Arc::clone(&movable) as _);
        let began = unix_time_of_zero(&clock);
        let state = MemoryState {
            server: ScriptServer::new(),
            is_down: false,
            faults: VecDeque::new(),
            subscribers: Vec::new(),
            last_subscriber: 0,
        };
        MemoryServer {
            clock,
            movable,
            began: AtomicU64::new(began),
            state: Mutex::new(state),
        }
    }

    /// The server's time in µs at a moment of its clock.
    pub(super) fn server_time(&self, at: Time) -> u64 {
        self.began.load(Ordering::Relaxed) + at.as_nanos() / 1000
    }

    /// Steps the server's clock, and no other.
    pub(super) fn step_clock(&self, step: impl Fn(u64) -> u64) {
        // No script runs meanwhile.
        let _state = self.state.lock();
        let began = self.began.load(Ordering::Relaxed);
        self.began.store(step(began), Ordering::Relaxed);
    }

    /// Runs a command at once. No injected fault applies to it.
    pub(super) fn run(&self, command: &[Bytes]) -> CommandResult {
        let mut state = self.state.lock();
        let now = self.server_time(self.clock.now());
        let result = state.server.run(now, command);
        let messages = state.server.published();
        deliver(state, messages);
        result
    }

    /// Runs a manager's request. Injected faults apply to it. The reply takes the time that it is
    /// returned with.
    pub(super) fn request(&self, command: &[Bytes]) -> Result<(CommandResult, Duration), NoReply> {
        let mut state = self.state.lock();
        if state.is_down {
            return Err(NoReply::Refused);
        }
        let next = state
            .faults
            .iter()
            .position(|fault| !matches!(fault, Fault::LoseMessage));
        let fault = next.and_then(|at| state.faults.remove(at));
        match fault {
            Some(Fault::LoseRequest) => return Err(NoReply::Lost),
            Some(Fault::Refuse(error)) => return Ok((Err(error), Duration::ZERO)),
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
            Some(Fault::DelayReply(delay)) => Ok((result, delay)),
            _ => Ok((result, Duration::ZERO)),
        }
    }

    /// A new subscriber's id and messages; `None` while the server is down.
    pub(super) fn subscribe(&self, channel: &str) -> Option<(u64, Receiver<String>)> {
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

    pub(super) fn is_subscribed(&self, id: u64) -> bool {
        self.state.lock().subscribers.iter().any(|s| s.id == id)
    }

    pub(super) fn unsubscribe(&self, id: u64) {
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
    pub(super) fn scan(&self, matches: impl Fn(&str) -> bool) -> Option<Vec<String>> {
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
pub(super) fn deliver(mut state: MutexGuard<'_, MemoryState>, messages: Vec<PublishedMessage>) {
    let mut outgoing = Vec::new();
    for message in messages {
        // An empty message is a poke. A grant always has text.
        if !message.text.is_empty()
            && let Some(at) = state
                .faults
                .iter()
                .position(|fault| matches!(fault, Fault::LoseMessage))
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
