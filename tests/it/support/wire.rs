//! How the proxy transfers bytes, and where its faults happen.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    mem,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use redis::io::tcp::socket2::SockRef;

use super::scripted_server::{is, next_command, next_reply};

pub(super) struct Shared {
    pub(super) server: SocketAddr,
    pub(super) content: Content,
    pub(super) switches: Mutex<Switches>,
    /// Notified of every change to `switches`, of the release of a held request and of the end of a
    /// connection.
    pub(super) changed: Condvar,
    pub(super) requests_bytes: AtomicU64,
    pub(super) replies_bytes: AtomicU64,
    /// Commands that clients sent.
    pub(super) commands: AtomicU64,
}

/// The content of the connections.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Content {
    /// Commands and replies in Redis's protocol.
    Commands,
    /// Something else.
    Bytes,
}

#[derive(Default)]
pub(super) struct Switches {
    pub(super) pause_requests: bool,
    pub(super) pause_replies: bool,
    pub(super) refuse: bool,
    pub(super) swallow: bool,
    /// The connections that were accepted, and that nothing answers.
    pub(super) swallowed: Vec<TcpStream>,
    pub(super) closing: bool,
    pub(super) delay: Duration,
    /// The pause before each byte of a reply; zero: replies are passed on whole.
    pub(super) trickle: Duration,
    /// The next bytes from a server end after this many of them, and their connection ends. For raw
    /// proxies.
    pub(super) cut_next: Option<usize>,
    /// In each reply, these bytes are replaced by those.
    pub(super) replaced: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) armed: Vec<ArmedFault>,
    pub(super) connections: Vec<Weak<Connection>>,
}

/// Decides whether a request is the one that the test means.
pub(super) type Matches = Arc<Mutex<dyn Fn(&[u8]) -> bool + Send>>;

#[derive(Clone)]
pub(super) struct ArmedFault {
    pub(super) matches: Matches,
    /// It happens to each request that matches, not only to the next.
    pub(super) lasts: bool,
    pub(super) action: FaultAction,
    pub(super) triggered: Arc<AtomicBool>,
    pub(super) outcome: Sender<Vec<u8>>,
}

#[derive(Clone)]
pub(super) enum FaultAction {
    /// The server carries out the request, and the reply is lost.
    LoseReply(CloseMode),
    /// The reply ends after this many bytes.
    CutReply(usize),
    /// The request is not forwarded: its connection is reset.
    Reset,
    Hold(Arc<HoldState>),
    /// From this request on, the connection's replies come byte by byte, with this pause before
    /// each.
    Trickle(Duration),
}

#[derive(Clone, Copy)]
pub(super) enum CloseMode {
    Close,
    Reset,
    KeepOpen,
}

pub(super) struct Connection {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    pub(super) client_open: AtomicBool,
    pub(super) dead: AtomicBool,
    /// The pause before each byte of this connection's replies.
    pub(super) trickle: Mutex<Duration>,
    pub(super) is_subscription: AtomicBool,
    /// Requests, and replies, that come from now on are lost.
    pub(super) loses_requests: AtomicBool,
    pub(super) loses_replies: AtomicBool,
    pub(super) awaiting_reply: Mutex<VecDeque<ReplyFault>>,
}

/// A fault that applies to one reply. Many requests may be in flight on a connection, and their
/// replies come in order: the n-th reply belongs to the n-th command.
pub(super) struct ReplyFault {
    /// Counted from 0. `None` on a subscription, whose messages nobody requests: the next reply.
    number: Option<u64>,
    armed: ArmedFault,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Requests,
    Replies,
}

/// The fate of a connection's replies after one of them.
enum ReplyEnd {
    Passes,
    /// It is the last, and then the connection ends.
    Cut,
    /// Neither it nor any later one is passed on.
    Silence,
}

/// An element of a connection's queue. A sender dropped without `End` means that the connection was
/// cut.
enum Item {
    Chunk {
        due: Instant,
        bytes: Vec<u8>,
        hold: Option<Arc<HoldState>>,
        then_close: bool,
    },
    End {
        due: Instant,
    },
}

pub(super) struct HoldState {
    pub(super) caught: AtomicBool,
    pub(super) released: AtomicBool,
}

impl Shared {
    pub(super) fn switch(&self, change: impl FnOnce(&mut Switches)) {
        change(&mut self.switches.lock().unwrap());
        self.changed.notify_all();
    }

    pub(super) fn alive(&self) -> Vec<Arc<Connection>> {
        let mut switches = self.switches.lock().unwrap();
        switches.connections.retain(|c| c.strong_count() > 0);
        switches
            .connections
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(super) fn cut(&self, connection: &Connection, mode: CloseMode) {
        // Marked before the sockets are touched. Otherwise a writer that sees the end of stream
        // caused here would close a connection that is to be reset.
        let mut dead = false;
        self.switch(|_| dead = connection.dead.swap(true, Ordering::SeqCst));
        if dead {
            return;
        }
        if let CloseMode::Reset = mode {
            let _ = SockRef::from(&connection.client).set_linger(Some(Duration::ZERO));
            // Shutting down only the reading half sends nothing. So the close that follows is the
            // first thing the client sees, and without linger it is a reset.
            let _ = connection.client.shutdown(Shutdown::Read);
        } else {
            let _ = connection.client.shutdown(Shutdown::Both);
        }
        let _ = connection.server.shutdown(Shutdown::Both);
    }

    pub(super) fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().map_while(Result::ok) {
            let (closing, refuse) = {
                let mut switches = self.switches.lock().unwrap();
                if switches.swallow && !switches.closing {
                    switches.swallowed.push(client);
                    continue;
                }
                (switches.closing, switches.refuse)
            };
            if closing {
                return;
            }
            if refuse {
                continue;
            }
            // With the server down the connection can only be closed, as `refuse` does.
            if let Ok(server) = TcpStream::connect(self.server) {
                self.join(client, server);
            }
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            // A writer whose peer does not read checks this often whether it was cut.
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
        }
        let connection = Arc::new(Connection {
            client,
            server,
            client_open: AtomicBool::new(true),
            dead: AtomicBool::new(false),
            trickle: Mutex::default(),
            is_subscription: AtomicBool::new(false),
            loses_requests: AtomicBool::new(false),
            loses_replies: AtomicBool::new(false),
            awaiting_reply: Mutex::default(),
        });
        let weak = Arc::downgrade(&connection);
        self.switch(|s| s.connections.push(weak));
        for direction in [Direction::Requests, Direction::Replies] {
            let (sender, receiver) = unbounded();
            let shared = Arc::clone(self);
            let its = Arc::clone(&connection);
            thread::spawn(move || match direction {
                Direction::Requests => shared.read_requests(&its, &sender),
                Direction::Replies => shared.read_replies(&its, &sender),
            });
            let shared = Arc::clone(self);
            let its = Arc::clone(&connection);
            thread::spawn(move || shared.write(&its, direction, &receiver));
        }
    }

    fn read_requests(&self, connection: &Connection, queue: &Sender<Item>) {
        let mut pending = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut commands = 0;
        'connection: while let Ok(n @ 1..) = (&connection.client).read(&mut buffer) {
            if self.content == Content::Bytes {
                let _ = queue.send(self.chunk(buffer[..n].into(), None));
                continue;
            }
            pending.extend_from_slice(&buffer[..n]);
            // Whole commands only, so that a match never depends on where a read happened to end.
            let (mut at, mut queued) = (0, 0);
            while let Some((words, length)) = next_command(&pending[at..]) {
                let command = at..at + length;
                at += length;
                if words.is_empty() {
                    continue;
                }
                self.commands.fetch_add(1, Ordering::SeqCst);
                let is_subscription = connection.is_subscription.load(Ordering::SeqCst);
                let number = (!is_subscription).then_some(commands);
                commands += 1;
                if is(&words, "SUBSCRIBE") {
                    connection.is_subscription.store(true, Ordering::SeqCst);
                }
                let Some(armed) = self.take_armed(&pending[command.clone()]) else {
                    continue;
                };
                match &armed.action {
                    FaultAction::Reset => {
                        self.cut(connection, CloseMode::Reset);
                        let _ = armed.outcome.try_send(pending[command].to_vec());
                        pending.clear();
                        break 'connection;
                    }
                    FaultAction::Trickle(pause) => {
                        *connection.trickle.lock().unwrap() = *pause;
                        let _ = armed.outcome.try_send(pending[command].to_vec());
                        continue;
                    }
                    FaultAction::Hold(hold) => {
                        // The requests before it pass.
                        let _ = queue.send(self.chunk(pending[queued..command.start].into(), None));
                        let held = pending[command.clone()].into();
                        let _ = queue.send(self.chunk(held, Some(Arc::clone(hold))));
                        queued = command.end;
                    }
                    FaultAction::LoseReply(_) | FaultAction::CutReply(_) => {}
                }
                let mut awaiting = connection.awaiting_reply.lock().unwrap();
                awaiting.push_back(ReplyFault { number, armed });
            }
            if queued < at {
                let _ = queue.send(self.chunk(pending[queued..at].into(), None));
            }
            pending.drain(..at);
        }
        connection.client_open.store(false, Ordering::SeqCst);
        if !pending.is_empty() {
            let _ = queue.send(self.chunk(pending, None));
        }
        let _ = queue.send(Item::End { due: self.due() });
    }

    fn read_replies(&self, connection: &Connection, queue: &Sender<Item>) {
        let mut pending = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut replies = 0;
        let mut is_silent = false;
        while let Ok(n @ 1..) = (&connection.server).read(&mut buffer) {
            if is_silent {
                continue;
            }
            if self.content == Content::Bytes {
                let cut = self.switches.lock().unwrap().cut_next.take();
                let _ = queue.send(Item::Chunk {
                    due: self.due(),
                    bytes: buffer[..cut.unwrap_or(n).min(n)].into(),
                    hold: None,
                    then_close: cut.is_some(),
                });
                is_silent |= cut.is_some();
                continue;
            }
            pending.extend_from_slice(&buffer[..n]);
            let mut passes = Vec::new();
            let mut then_close = false;
            while let Some(length) = next_reply(&pending) {
                let mut reply: Vec<u8> = pending.drain(..length).collect();
                self.replace(&mut reply);
                match self.apply(connection, replies, &mut reply) {
                    ReplyEnd::Passes => {}
                    ReplyEnd::Cut => then_close = true,
                    ReplyEnd::Silence => is_silent = true,
                }
                passes.extend(reply);
                replies += 1;
                if then_close || is_silent {
                    break;
                }
            }
            is_silent |= then_close;
            let _ = queue.send(Item::Chunk {
                due: self.due(),
                bytes: passes,
                hold: None,
                then_close,
            });
        }
        let _ = queue.send(Item::End { due: self.due() });
    }

    fn replace(&self, reply: &mut Vec<u8>) {
        let switches = self.switches.lock().unwrap();
        let Some((from, to)) = &switches.replaced else {
            return;
        };
        let found = reply.windows(from.len()).position(|bytes| bytes == from);
        if let Some(at) = found {
            reply.splice(at..at + from.len(), to.iter().copied());
        }
    }

    /// Applies the fault of one reply, if it has any.
    fn apply(&self, connection: &Connection, number: u64, reply: &mut Vec<u8>) -> ReplyEnd {
        let mut awaiting = connection.awaiting_reply.lock().unwrap();
        let is_due = |fault: &ReplyFault| fault.number.is_none_or(|n| n <= number);
        let Some(ReplyFault { armed, .. }) = awaiting.front_mut().filter(|fault| is_due(fault))
        else {
            return ReplyEnd::Passes;
        };
        let mut end = ReplyEnd::Passes;
        match &mut armed.action {
            FaultAction::LoseReply(mode) => {
                // The cut comes first: a test that has received the outcome may rely on it.
                if !matches!(mode, CloseMode::KeepOpen) {
                    self.cut(connection, *mode);
                }
                let _ = armed.outcome.try_send(mem::take(reply));
                end = ReplyEnd::Silence;
            }
            FaultAction::CutReply(left) => {
                reply.truncate(*left);
                *left -= reply.len();
                if *left > 0 {
                    return ReplyEnd::Passes;
                }
                let _ = armed.outcome.try_send(reply.clone());
                end = ReplyEnd::Cut;
            }
            FaultAction::Hold(_) => {
                let _ = armed.outcome.try_send(reply.clone());
            }
            FaultAction::Reset | FaultAction::Trickle(_) => {
                unreachable!("it is complete with its request")
            }
        }
        awaiting.pop_front();
        end
    }

    fn write(&self, connection: &Connection, direction: Direction, queue: &Receiver<Item>) {
        let (to, counter) = match direction {
            Direction::Requests => (&connection.server, &self.requests_bytes),
            Direction::Replies => (&connection.client, &self.replies_bytes),
        };
        for item in queue {
            let (due, hold) = match &item {
                Item::Chunk { due, hold, .. } => (*due, hold.as_deref()),
                Item::End { due } => (*due, None),
            };
            if !self.may_pass(connection, direction, due, hold) {
                break;
            }
            let is_lost = match direction {
                Direction::Requests => &connection.loses_requests,
                Direction::Replies => &connection.loses_replies,
            };
            match item {
                Item::Chunk { .. } if is_lost.load(Ordering::SeqCst) => {}
                Item::Chunk {
                    bytes, then_close, ..
                } => {
                    // A closed peer is no reason to stop: `End` reports it to the other side.
                    let rest = self.trickle(connection, direction, &bytes);
                    if write_all(to, rest, &connection.dead).is_ok() {
                        counter.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    }
                    if then_close {
                        self.cut(connection, CloseMode::Close);
                    }
                }
                // After the client's end, the server still carries out what was sent before it. The
                // server's end closes both directions.
                Item::End { .. } if direction == Direction::Requests => {
                    let _ = to.shutdown(Shutdown::Write);
                    break;
                }
                Item::End { .. } => {
                    self.cut(connection, CloseMode::Close);
                    break;
                }
            }
        }
    }

    /// Passes on a reply byte by byte, for as long as it is to trickle. Returns the rest.
    fn trickle<'a>(
        &self,
        connection: &Connection,
        direction: Direction,
        bytes: &'a [u8],
    ) -> &'a [u8] {
        for (sent, byte) in bytes.iter().enumerate() {
            let of_all = self.switches.lock().unwrap().trickle;
            let pause = of_all.max(*connection.trickle.lock().unwrap());
            let due = Instant::now() + pause;
            if direction == Direction::Requests || pause.is_zero() {
                return &bytes[sent..];
            }
            if !self.may_pass(connection, direction, due, None)
                || write_all(&connection.client, &[*byte], &connection.dead).is_err()
            {
                break;
            }
        }
        &[]
    }

    /// Waits until the head of a queue may be passed on; `false` if its connection was cut instead.
    fn may_pass(
        &self,
        connection: &Connection,
        direction: Direction,
        due: Instant,
        hold: Option<&HoldState>,
    ) -> bool {
        let mut switches = self.switches.lock().unwrap();
        loop {
            if connection.dead.load(Ordering::SeqCst) {
                return false;
            }
            let paused = match direction {
                Direction::Requests => switches.pause_requests,
                Direction::Replies => switches.pause_replies,
            };
            let held = hold.is_some_and(|h| !h.released.load(Ordering::SeqCst));
            let left = due.saturating_duration_since(Instant::now());
            if paused || held {
                switches = self.changed.wait(switches).unwrap();
            } else if !left.is_zero() {
                switches = self.changed.wait_timeout(switches, left).unwrap().0;
            } else {
                return true;
            }
        }
    }

    /// Takes the first armed fault that matches the request.
    fn take_armed(&self, request: &[u8]) -> Option<ArmedFault> {
        let mut switches = self.switches.lock().unwrap();
        let is_meant = |a: &ArmedFault| (a.matches.lock().unwrap())(request);
        let at = switches.armed.iter().position(is_meant)?;
        let armed = match switches.armed[at].lasts {
            true => switches.armed[at].clone(),
            false => switches.armed.remove(at),
        };
        armed.triggered.store(true, Ordering::SeqCst);
        if let FaultAction::Hold(hold) = &armed.action {
            hold.caught.store(true, Ordering::SeqCst);
        }
        Some(armed)
    }

    fn chunk(&self, bytes: Vec<u8>, hold: Option<Arc<HoldState>>) -> Item {
        Item::Chunk {
            due: self.due(),
            bytes,
            hold,
            then_close: false,
        }
    }

    fn due(&self) -> Instant {
        Instant::now() + self.switches.lock().unwrap().delay
    }
}

fn write_all(mut to: &TcpStream, mut bytes: &[u8], dead: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if dead.load(Ordering::SeqCst) => return Err(e),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
