//! A network that misbehaves on demand: a TCP proxy in the test's own process.
//!
//! Each connection has a reader and a writer for either direction, joined by a queue, so a delay
//! is latency and never costs throughput. What is paused or held back keeps its place in that
//! queue, and so does the end of the stream: a request held back still reaches the server after
//! its client has gone, as a packet late in a network would.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, bounded};

use super::{
    until,
    wire::{ArmedFault, CloseMode, Connection, FaultAction, HoldState, Shared},
};

/// A proxy in front of one server. All methods may be called from any thread.
pub(crate) struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// A fault that waits for its request. It strikes once; dropping this leaves it armed.
#[must_use = "a fault that was never seen to strike proves nothing: call wait() or has_struck()"]
pub(crate) struct ProxyFault {
    outcome: Receiver<Vec<u8>>,
    struck: Arc<AtomicBool>,
}

/// A request to be held back, or held back already. Dropping this leaves it so.
#[must_use = "what is held back is sent by release()"]
pub(crate) struct HeldRequest {
    shared: Arc<Shared>,
    hold: Arc<HoldState>,
    answer: Receiver<Vec<u8>>,
}

impl Proxy {
    /// A proxy on a free port, in front of the server at `addr`.
    pub(crate) fn to(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let shared = Arc::new(Shared {
            server: addr,
            switches: Mutex::default(),
            changed: Condvar::new(),
            requests_bytes: AtomicU64::new(0),
            replies_bytes: AtomicU64::new(0),
        });
        Self {
            addr: listener
                .local_addr()
                .expect("a bound socket has an address"),
            accepting: Some(thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.accept(&listener)
            })),
            shared,
        }
    }

    /// What a client connects to.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// The address it listens on.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on requests are accepted and go nowhere, until resumed.
    pub(crate) fn pause_requests(&self) {
        self.shared.switch(|s| s.pause_requests = true);
    }

    /// Sends the requests that have gathered, those of clients now gone among them.
    pub(crate) fn resume_requests(&self) {
        self.shared.switch(|s| s.pause_requests = false);
    }

    /// From now on requests are carried out and their replies go nowhere, until resumed.
    pub(crate) fn pause_replies(&self) {
        self.shared.switch(|s| s.pause_replies = true);
    }

    /// Sends the replies that have gathered.
    pub(crate) fn resume_replies(&self) {
        self.shared.switch(|s| s.pause_replies = false);
    }

    /// Holds back whatever arrives from now on by `delay`, in either direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.switch(|s| s.delay = delay);
    }

    /// The next request that matches is carried out, its reply is lost, and then the connection
    /// is closed.
    pub(crate) fn swallow_reply_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.arm(matches, FaultAction::LoseReply(CloseMode::Close))
    }

    /// As [`swallow_reply_when`](Self::swallow_reply_when), ending in a reset.
    pub(crate) fn swallow_and_reset_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.arm(matches, FaultAction::LoseReply(CloseMode::Reset))
    }

    /// The next request that matches is carried out, and neither its reply nor any later one on
    /// that connection arrives; the connection stays open.
    pub(crate) fn swallow_silently_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.arm(matches, FaultAction::LoseReply(CloseMode::KeepOpen))
    }

    /// The next request that matches never reaches the server: its connection is reset.
    pub(crate) fn reset_request_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.arm(matches, FaultAction::Reset)
    }

    /// The reply to the next request that matches ends after `k` bytes, with its connection.
    pub(crate) fn cut_reply_when(
        &self,
        k: usize,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.arm(matches, FaultAction::CutReply(k))
    }

    /// The reply to the next request of all ends after `k` bytes, with its connection.
    pub(crate) fn cut_reply_at(&self, k: usize) -> ProxyFault {
        self.cut_reply_when(k, |_| true)
    }

    /// The next request that matches is held back, with all that follows it on its connection,
    /// until released.
    pub(crate) fn hold_request_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> HeldRequest {
        let hold = Arc::new(HoldState {
            caught: AtomicBool::new(false),
            released: AtomicBool::new(false),
        });
        let fault = self.arm(matches, FaultAction::Hold(Arc::clone(&hold)));
        HeldRequest {
            shared: Arc::clone(&self.shared),
            hold,
            answer: fault.outcome,
        }
    }

    /// Takes away the faults that have not struck yet.
    pub(crate) fn disarm(&self) {
        self.shared.switch(|s| s.armed.clear());
    }

    /// Resets every connection (RST, not FIN), with all that is under way on it. They are closed
    /// when this returns.
    pub(crate) fn reset_all(&self) {
        self.cut_all(CloseMode::Reset);
    }

    /// Closes every connection, with all that is under way on it.
    pub(crate) fn close_all(&self) {
        self.cut_all(CloseMode::Close);
    }

    /// New connections are closed as soon as they are made. The old ones go on.
    pub(crate) fn refuse(&self) {
        self.shared.switch(|s| s.refuse = true);
    }

    /// New connections are served again.
    pub(crate) fn accept(&self) {
        self.shared.switch(|s| s.refuse = false);
    }

    /// How many connections clients have open here.
    pub(crate) fn connections(&self) -> usize {
        let open = |c: &&Arc<Connection>| c.client_open.load(Ordering::SeqCst);
        self.shared.alive().iter().filter(open).count()
    }

    /// Bytes of requests that were passed on.
    pub(crate) fn requests_bytes(&self) -> u64 {
        self.shared.requests_bytes.load(Ordering::SeqCst)
    }

    /// Bytes of replies that were passed on.
    pub(crate) fn replies_bytes(&self) -> u64 {
        self.shared.replies_bytes.load(Ordering::SeqCst)
    }

    fn arm(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
        action: FaultAction,
    ) -> ProxyFault {
        let (outcome, receiver) = bounded(1);
        let struck = Arc::new(AtomicBool::new(false));
        let fault = ProxyFault {
            outcome: receiver,
            struck: Arc::clone(&struck),
        };
        let matches = Box::new(matches);
        let armed = ArmedFault {
            matches,
            action,
            struck,
            outcome,
        };
        self.shared.switch(|s| s.armed.push(armed));
        fault
    }

    fn cut_all(&self, then: CloseMode) {
        let mut doomed = Vec::new();
        for connection in self.shared.alive() {
            self.shared.cut(&connection, then);
            doomed.push(Arc::downgrade(&connection));
        }
        // The sockets close when the last of a connection's threads lets go of them.
        until(Duration::from_secs(5), "the cut connections close", || {
            doomed.iter().all(|c| c.strong_count() == 0)
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.switch(|s| s.closing = true);
        // The acceptor looks at `closing` when somebody knocks.
        let _ = TcpStream::connect(self.addr);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for connection in self.shared.alive() {
            self.shared.cut(&connection, CloseMode::Close);
        }
    }
}

impl ProxyFault {
    /// Whether the request has come.
    pub(crate) fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    /// Waits until the fault is complete and returns the reply that was lost, or what was sent of
    /// one that was cut: so the server has carried the request out. For a reset request: the
    /// request.
    #[track_caller]
    pub(crate) fn wait(&self, within: Duration) -> Vec<u8> {
        self.outcome.recv_timeout(within).unwrap_or_else(|_| {
            let struck = if self.has_struck() {
                "came, and had no reply"
            } else {
                "did not come"
            };
            panic!("the request of the trap {struck} within {within:?}")
        })
    }
}

impl HeldRequest {
    /// Whether the request has come and is held back.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.caught.load(Ordering::SeqCst) && !self.hold.released.load(Ordering::SeqCst)
    }

    /// Waits until the request has come.
    #[track_caller]
    pub(crate) fn wait(&self, within: Duration) {
        until(within, "the request to hold back comes", || self.is_held());
    }

    /// Sends the request on and returns the server's answer, which goes to the client too if that
    /// is still there. An answer proves that the server has carried the request out.
    #[track_caller]
    pub(crate) fn release(self) -> Vec<u8> {
        assert!(self.is_held(), "there is no request held back to release");
        self.shared
            .switch(|_| self.hold.released.store(true, Ordering::SeqCst));
        self.answer
            .recv_timeout(Duration::from_secs(10))
            .expect("the server answers what was released")
    }
}

/// Matches requests in which these bytes occur, for instance the name of a lock or the mode of a
/// release: scripts are called by hash, so their arguments tell them apart.
pub(crate) fn contains(needle: impl AsRef<[u8]>) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let needle = needle.as_ref().to_vec();
    move |request| request.windows(needle.len()).any(|w| w == needle)
}

/// Matches requests in which all of these occur.
pub(crate) fn all_of(needles: &[&str]) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let all: Vec<_> = needles.iter().map(contains).collect();
    move |request| all.iter().all(|one| one(request))
}
