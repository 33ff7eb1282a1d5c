//! A TCP proxy in the test's own process that injects network faults.
//!
//! Each connection has a reader and a writer for either direction, joined by a queue. So a delay
//! adds latency and never reduces throughput. Paused and held bytes keep their place in that queue,
//! and so does the end of the stream. A held request therefore still reaches the server after its
//! client has gone, like a late packet in a network.

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
    wire::{ArmedFault, CloseMode, Connection, Content, FaultAction, HoldState, Shared},
};

/// A proxy in front of one server. All methods may be called from any thread.
pub(crate) struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// A fault that waits for its request. It happens once; dropping this leaves it armed.
#[must_use = "a fault that was never seen to happen proves nothing: call wait() or has_triggered()"]
pub(crate) struct ProxyFault {
    outcome: Receiver<Vec<u8>>,
    triggered: Arc<AtomicBool>,
}

/// A request that is held back, or will be once it comes. Dropping this leaves it held.
#[must_use = "a held request is sent by release()"]
pub(crate) struct HeldRequest {
    shared: Arc<Shared>,
    hold: Arc<HoldState>,
    answer: Receiver<Vec<u8>>,
}

impl Proxy {
    /// A proxy on a free port, in front of the server at `addr`.
    pub(crate) fn to(addr: SocketAddr) -> Self {
        Self::with_content(addr, Content::Commands)
    }

    /// A proxy that passes bytes on as they come, for content that it cannot read. It knows no
    /// requests and no replies, so no fault can wait for one.
    pub(crate) fn raw(addr: SocketAddr) -> Self {
        Self::with_content(addr, Content::Bytes)
    }

    fn with_content(addr: SocketAddr, content: Content) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let shared = Arc::new(Shared {
            server: addr,
            content,
            switches: Mutex::default(),
            changed: Condvar::new(),
            requests_bytes: AtomicU64::new(0),
            replies_bytes: AtomicU64::new(0),
            commands: AtomicU64::new(0),
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

    /// The address that a client connects to.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// The address it listens on.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on requests are accepted and not passed on, until resumed.
    pub(crate) fn pause_requests(&self) {
        self.shared.switch(|s| s.pause_requests = true);
    }

    /// Passes on the requests that have gathered, including those of clients that have gone.
    pub(crate) fn resume_requests(&self) {
        self.shared.switch(|s| s.pause_requests = false);
    }

    /// From now on requests are carried out and their replies are not passed on, until resumed.
    pub(crate) fn pause_replies(&self) {
        self.shared.switch(|s| s.pause_replies = true);
    }

    /// Passes on the replies that have gathered.
    pub(crate) fn resume_replies(&self) {
        self.shared.switch(|s| s.pause_replies = false);
    }

    /// Delays everything that arrives from now on by `delay`, in either direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.switch(|s| s.delay = delay);
    }

    /// From now on replies come byte by byte, with `pause` before each. Zero ends that.
    pub(crate) fn trickle(&self, pause: Duration) {
        self.shared.switch(|s| s.trickle = pause);
    }

    /// From now on each reply with the bytes `from` has `to` in their place.
    pub(crate) fn replace_in_replies(&self, from: &str, to: &str) {
        let replaced = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        self.shared.switch(|s| s.replaced = Some(replaced));
    }

    /// From the next request that matches on, all replies on that connection come byte by byte,
    /// with `pause` before each.
    pub(crate) fn trickle_when(
        &self,
        pause: Duration,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::Trickle(pause))
    }

    /// The server carries out the next request that matches. Its reply is lost, and then the
    /// connection is closed.
    pub(crate) fn swallow_reply_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::LoseReply(CloseMode::Close))
    }

    /// Like [`swallow_reply_when`](Self::swallow_reply_when), but the connection ends with a reset.
    pub(crate) fn swallow_and_reset_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::LoseReply(CloseMode::Reset))
    }

    /// The server carries out the next request that matches. Neither its reply nor any later one on
    /// that connection arrives; the connection stays open.
    pub(crate) fn swallow_silently_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::LoseReply(CloseMode::KeepOpen))
    }

    /// The next request that matches never reaches the server: its connection is reset.
    pub(crate) fn reset_request_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::Reset)
    }

    /// The reply to the next request that matches ends after `k` bytes, and so does its connection.
    pub(crate) fn cut_reply_when(
        &self,
        k: usize,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> ProxyFault {
        self.add_fault(matches, FaultAction::CutReply(k))
    }

    /// The reply to the next request, whatever it is, ends after `k` bytes, and so does its
    /// connection.
    pub(crate) fn cut_reply_at(&self, k: usize) -> ProxyFault {
        self.cut_reply_when(k, |_| true)
    }

    /// The next bytes from the server, on whichever connection, end after `k` bytes, and so does
    /// their connection. For a raw proxy.
    pub(crate) fn cut_next_bytes(&self, k: usize) {
        self.shared.switch(|s| s.cut_next = Some(k));
    }

    /// Whether [`cut_next_bytes`](Self::cut_next_bytes) has not happened yet.
    pub(crate) fn is_cut_due(&self) -> bool {
        self.shared.switches.lock().unwrap().cut_next.is_some()
    }

    /// Holds back the next request that matches, with all that follows it on its connection, until
    /// it is released.
    pub(crate) fn hold_request_when(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> HeldRequest {
        let hold = Arc::new(HoldState {
            caught: AtomicBool::new(false),
            released: AtomicBool::new(false),
        });
        let fault = self.add_fault(matches, FaultAction::Hold(Arc::clone(&hold)));
        HeldRequest {
            shared: Arc::clone(&self.shared),
            hold,
            answer: fault.outcome,
        }
    }

    /// The faults that are armed now happen to each request that matches, until they are removed.
    pub(crate) fn make_faults_last(&self) {
        self.shared
            .switch(|s| s.armed.iter_mut().for_each(|armed| armed.lasts = true));
    }

    /// Removes the faults that have not happened yet, and those that last.
    pub(crate) fn disarm(&self) {
        self.shared.switch(|s| s.armed.clear());
    }

    /// Resets every connection (RST, not FIN), with all data in flight. The connections are closed
    /// when this returns.
    pub(crate) fn reset_all(&self) {
        self.cut_all(CloseMode::Reset);
    }

    /// Closes every connection, with all data in flight.
    pub(crate) fn close_all(&self) {
        self.cut_all(CloseMode::Close);
    }

    /// New connections are closed as soon as they are made. Existing ones are not affected.
    pub(crate) fn refuse(&self) {
        self.shared.switch(|s| s.refuse = true);
    }

    /// Nothing answers on new connections. Existing ones are not affected.
    pub(crate) fn swallow_new(&self) {
        self.shared.switch(|s| s.swallow = true);
    }

    /// New connections are accepted again.
    pub(crate) fn accept(&self) {
        self.shared.switch(|s| s.refuse = false);
    }

    /// The number of connections that clients have open here.
    pub(crate) fn connections(&self) -> usize {
        let open = |c: &&Arc<Connection>| c.client_open.load(Ordering::SeqCst);
        self.shared.alive().iter().filter(open).count()
    }

    /// From now on nothing arrives on the subscriptions that are open, and no side closes them.
    pub(crate) fn silence_subscriptions(&self) {
        for connection in self.shared.alive() {
            if connection.is_subscription.load(Ordering::SeqCst) {
                *connection.trickle.lock().unwrap() = Duration::from_secs(3600);
            }
        }
    }

    /// The connections that are open now are dead in silence: nothing passes on them any more, and
    /// no side learns of it. New connections work.
    pub(crate) fn forget_connections(&self) {
        self.lose_on_open_connections(|connection| {
            connection.loses_requests.store(true, Ordering::SeqCst);
            connection.loses_replies.store(true, Ordering::SeqCst);
        });
    }

    /// The same, but the server still gets what clients send, and carries it out.
    pub(crate) fn forget_replies(&self) {
        self.lose_on_open_connections(|connection| {
            connection.loses_replies.store(true, Ordering::SeqCst);
        });
    }

    fn lose_on_open_connections(&self, lose: impl Fn(&Connection)) {
        self.shared
            .alive()
            .iter()
            .for_each(|connection| lose(connection));
    }

    /// The number of commands that clients sent, in all connections.
    pub(crate) fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::SeqCst)
    }

    /// Bytes of requests that were passed on.
    pub(crate) fn requests_bytes(&self) -> u64 {
        self.shared.requests_bytes.load(Ordering::SeqCst)
    }

    /// Bytes of replies that were passed on.
    pub(crate) fn replies_bytes(&self) -> u64 {
        self.shared.replies_bytes.load(Ordering::SeqCst)
    }

    fn add_fault(
        &self,
        matches: impl Fn(&[u8]) -> bool + Send + 'static,
        action: FaultAction,
    ) -> ProxyFault {
        let (outcome, receiver) = bounded(1);
        let triggered = Arc::new(AtomicBool::new(false));
        let fault = ProxyFault {
            outcome: receiver,
            triggered: Arc::clone(&triggered),
        };
        let armed = ArmedFault {
            matches: Arc::new(Mutex::new(matches)),
            lasts: false,
            action,
            triggered,
            outcome,
        };
        self.shared.switch(|s| s.armed.push(armed));
        fault
    }

    fn cut_all(&self, mode: CloseMode) {
        let mut doomed = Vec::new();
        for connection in self.shared.alive() {
            self.shared.cut(&connection, mode);
            doomed.push(Arc::downgrade(&connection));
        }
        // The sockets close when the last of a connection's threads drops them.
        until(Duration::from_secs(5), "the cut connections close", || {
            doomed.iter().all(|c| c.strong_count() == 0)
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.switch(|s| s.closing = true);
        // The accepting thread looks at `closing` when a connection arrives.
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
    /// True once the request has come.
    pub(crate) fn has_triggered(&self) -> bool {
        self.triggered.load(Ordering::SeqCst)
    }

    /// Waits until the fault is complete, so the server has carried the request out. Returns the
    /// reply that was lost, or the part that was sent of a reply that was cut. For a reset request
    /// it returns the request.
    #[track_caller]
    pub(crate) fn wait(&self, within: Duration) -> Vec<u8> {
        self.outcome.recv_timeout(within).unwrap_or_else(|_| {
            let request = if self.has_triggered() {
                "came, and had no reply"
            } else {
                "did not come"
            };
            panic!("the request of the fault {request} within {within:?}")
        })
    }
}

impl HeldRequest {
    /// True while the request is held back.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.caught.load(Ordering::SeqCst) && !self.hold.released.load(Ordering::SeqCst)
    }

    /// Waits until the request has come.
    #[track_caller]
    pub(crate) fn wait(&self, within: Duration) {
        until(within, "the request to hold back comes", || self.is_held());
    }

    /// Sends the request on and returns the server's answer. The client gets the answer too, if it
    /// still exists. An answer proves that the server has carried the request out.
    #[track_caller]
    pub(crate) fn release(self) -> Vec<u8> {
        assert!(self.is_held(), "no request is held back");
        self.shared
            .switch(|_| self.hold.released.store(true, Ordering::SeqCst));
        self.answer
            .recv_timeout(Duration::from_secs(10))
            .expect("the server answers the released request")
    }
}

/// Matches requests in which these bytes occur, for instance the name of a lock or the mode of a
/// release. Scripts are called by hash, so their arguments tell them apart.
pub(crate) fn contains(needle: impl AsRef<[u8]>) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let needle = needle.as_ref().to_vec();
    move |request| request.windows(needle.len()).any(|w| w == needle)
}

/// Matches requests in which all of these occur.
pub(crate) fn all_of(needles: &[&str]) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let all: Vec<_> = needles.iter().map(contains).collect();
    move |request| all.iter().all(|one| one(request))
}
