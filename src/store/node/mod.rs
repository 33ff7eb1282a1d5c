//! Everything about one Redis node, whatever the topology that it belongs to.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Node`]: the address, and what all connections share; [`Counts`]: what it has done so far |
//! | `age` | [`Ages`]: which connections are retired |
//! | `connect` | how a connection is opened, within its time |
//! | `race` | which of a server's addresses is used: the first that is ready for calls |
//! | `resolve` | the addresses of a server |
//! | `handshake` | the first commands on a connection: AUTH, SELECT, a greeting, TIME, and ASKING to a cluster |
//! | `login` | the login of the node, and what open connections know of it |
//! | `log_in` | how connections log in, first and anew |
//! | `greeting` | how a connection learns what its server is: HELLO, or less where a proxy refuses it |
//! | `hello` | [`Role`]: what a connection is for, which is a part of its name; and what a server says of itself |
//! | `expected` | [`Expected`]: what the server must be, and whether it says that it is |
//! | `pipeline` | how a call is dated, written and read, and other forms of it (R11, R20) |
//! | `lanes` | [`Lanes`]: short calls, each on the lane of its name, and the retry when one was closed |
//! | `lanes::left` | calls that their callers leave before the reply comes |
//! | `lanes::command` | commands that are no scripts: a page of SCAN, and AUTH with newer credentials |
//! | `pool` | the connections of the lanes, on r2d2 |
//! | `lane` | one connection that many callers share |
//! | `slot` | where a caller sleeps while another works for both: on a lane, or in `acks` |
//! | `unread` | a call whose caller does not wait for the reply |
//! | `posting` | calls that are put on the lanes of several nodes, for a caller that waits for all |
//! | `link` | `NodeLink`: the renewal thread's own connection |
//! | `detour` | the way of the renewal thread's calls while it can have no connection of its own |
//! | `batch` | calls that are sent over one connection together, and read later |
//! | `acks` | renewals that replicas must acknowledge, on connections of their own |
//! | `rights` | whether the user may run all commands of the scripts |
//! | `scripts` | [`Scripts`](scripts::Scripts): what a connection knows of the scripts on its server |
//! | `uptime` | for how long the server has run, and which one it is |
//! | `identity` | [`Identities`]: which nodes of a quorum are the same server |
//! | `subscription` | the connection that listens for messages |
//! | `query` | a connection for questions about servers |
//! | `connection` | one connection, and what its errors mean |
//! | `socket` | bytes out, replies in, each within its time, in plain text or through TLS |
//! | `tls` | the handshake of TLS, and what both halves of a socket share then |
//! | `first_reply` | why a server has not answered the first request |
//! | `probe` | whether a server speaks TLS or plain text |
//! | `stream` | bytes each way, each within its time, however many pieces they come in |
//!
//! Files name those below them: `lanes` names `acks`, `pool` and `unread`, and these name `lane`;
//! they and `batch`, which `link` names, name `pipeline`, and all of them name `connection` and `socket`.

mod acks;
mod age;
mod batch;
mod connect;
mod connection;
mod detour;
mod expected;
mod first_reply;
mod greeting;
mod handshake;
mod hello;
mod identity;
mod lane;
mod lanes;
mod link;
mod log_in;
mod login;
mod pipeline;
mod pool;
mod posting;
mod probe;
mod query;
mod race;
mod resolve;
mod rights;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../../tests/sim/scripted_peer.rs"]
mod scripted_peer;
mod scripts;
mod slot;
mod socket;
mod stream;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod unread;
mod uptime;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;
use crate::error::Step;
use crate::script::CallerId;
use crate::stats::Traffic;
use crate::store::clock::{Clock, Time};
use crate::store::{Address, Anchor, CallResult, Link, ServerSettings, StoreFault, Troubles};
use age::{Age, Ages};
use greeting::KnownGreeting;
use login::NodeLogin;
use pool::NodeLane;
use rights::Rights;

pub(super) use acks::{AckedLink, confirm_grants};
pub(super) use batch::{LinkCall, LinkReply};
pub(super) use expected::Expected;
pub(super) use hello::Role;
pub(super) use identity::Identities;
pub(super) use lanes::{Begun, Lanes};
pub(super) use pipeline::{Hop, Pending};
pub(super) use posting::{Readiness, Watched};
pub(super) use query::QueryConnection;
pub(super) use race::connecting;

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use scripted_peer::ScriptedPeer;

/// A node, and what all connections to it share.
pub(crate) struct Node {
    server: ServerSettings,
    login: Arc<NodeLogin>,
    /// Its address as errors and the log show it.
    name: Arc<str>,
    expected: Expected,
    greeting: KnownGreeting,
    /// A greeting has been answered.
    was_greeted: AtomicBool,
    /// It is a proxy that knows no TIME. A script asks for the time.
    refuses_time: AtomicBool,
    /// It is a proxy that knows no EVALSHA. Each script brings its source.
    refuses_digests: AtomicBool,
    /// It is a proxy in front of a whole cluster.
    hides_cluster: AtomicBool,
    /// Its refusal of ASKING, which is needed while a slot moves to it.
    asking_refused: Mutex<Option<StoreFault>>,
    /// A handshake has succeeded, so the server was a master at that time if it must be one.
    was_master: AtomicBool,
    caller_id: Arc<CallerId>,
    pub(super) clock: Clock,
    pub(super) config: Config,
    /// Which of its connections are retired.
    ages: Ages,
    rights: Rights,
    anchor: Mutex<Option<Anchor>>,
    /// When the server has run for as long as its users want it to. `None`: they do not ask.
    uptime: Option<uptime::Uptime>,
    /// Which of several servers it is. `None`: its users do not ask.
    identity: Option<identity::Identity>,
    counts: Arc<Counts>,
    troubles: Arc<Troubles>,
    /// The lanes of callers.
    lanes: OnceLock<Weak<[NodeLane]>>,
}

impl Node {
    pub(super) fn new(
        server: ServerSettings,
        caller_id: &Arc<CallerId>,
        clock: &Clock,
        config: &Config,
    ) -> Node {
        let login = NodeLogin::new(
            &server.login,
            &server.address,
            clock,
            config.connect_timeout,
            config.command_timeout,
        );
        Node {
            name: server.address.to_string().into(),
            login: Arc::new(login),
            server,
            expected: Expected::Standalone,
            greeting: KnownGreeting::new(),
            was_greeted: AtomicBool::new(false),
            refuses_time: AtomicBool::new(false),
            refuses_digests: AtomicBool::new(false),
            hides_cluster: AtomicBool::new(false),
            asking_refused: Mutex::new(None),
            was_master: AtomicBool::new(false),
            caller_id: Arc::clone(caller_id),
            clock: clock.clone(),
            config: config.clone(),
            ages: Ages::default(),
            rights: Rights::default(),
            anchor: Mutex::new(None),
            uptime: None,
            identity: None,
            counts: Arc::default(),
            troubles: Arc::new(Troubles::new(clock.clone())),
            lanes: OnceLock::new(),
        }
    }

    /// The same node, which must be this sort of server. Without this it must be
    /// [`Expected::Standalone`].
    pub(super) fn expecting(self, expected: Expected) -> Node {
        Node { expected, ..self }
    }

    /// The same node, whose work counts here. It may take the place of another one, on which calls
    /// may still be under way.
    pub(super) fn counting_in(self, counts: Arc<Counts>) -> Node {
        Node { counts, ..self }
    }

    /// The same node, which notes its troubles here. So do all nodes of its store.
    pub(super) fn noting_troubles_in(self, troubles: &Arc<Troubles>) -> Node {
        Node {
            troubles: Arc::clone(troubles),
            ..self
        }
    }

    /// See [`Store::troubles`](crate::store::Store::troubles).
    pub(super) fn troubles(&self) -> &Arc<Troubles> {
        &self.troubles
    }

    /// The same node, which asks each new connection whether it leads to the same server as another of
    /// these nodes does. It is the one with this number.
    pub(super) fn known_among(self, all: &Arc<Identities>, number: usize) -> Node {
        Node {
            identity: Some(identity::Identity::new(all, number)),
            ..self
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.server.address
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The outcome of a request to this node. Every fault leaves the node through here, or as a
    /// result through [`Node::results`], and says whose it is from then on.
    fn outcome<T>(&self, outcome: Result<T, StoreFault>) -> Result<T, StoreFault> {
        outcome.map_err(|fault| fault.at(&self.name))
    }

    /// The same for the results of calls.
    fn results(&self, results: Vec<CallResult>) -> Vec<CallResult> {
        results
            .into_iter()
            .map(|result| result.at(&self.name))
            .collect()
    }

    /// R18 (replica acks): whether grants and extensions count only if replicas have acknowledged them.
    pub(super) fn has_replica_acks(&self) -> bool {
        self.config.replica_acks.is_some()
    }

    /// The renewal thread's way to the node. See [`AckedLink::new`].
    pub(super) fn link(self: &Arc<Self>, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(AckedLink::new(self, on_ready))
    }

    /// The newest pairing of the node's clock and the local clock.
    pub(super) fn anchor(&self) -> Option<Anchor> {
        *self.anchor.lock()
    }

    /// The counts so far.
    pub(super) fn traffic(&self) -> Traffic {
        self.counts.traffic()
    }

    /// Counts this many calls that are sent again.
    pub(super) fn note_retries(&self, count: usize) {
        self.counts
            .retries
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// A call has waited until its lane was open, or until none could be opened.
    fn note_connection_wait(&self, since: Time) {
        let waited = (self.clock.now() - since).as_nanos() as u64;
        let counts = &self.counts;
        counts
            .connection_wait_ns
            .fetch_add(waited, Ordering::Relaxed);
        counts.connection_waits.fetch_add(1, Ordering::Release);
    }

    /// Retires all connections that are open now.
    pub(in crate::store) fn retire_now(&self) {
        self.retire(self.ages.now());
    }

    /// Retires all connections of this age.
    fn retire(&self, age: Age) {
        self.troubles.note();
        self.rights.forget();
        self.ages.retire(age);
    }

    /// Retires the lanes' connections of this age.
    fn retire_from_pool(&self, age: Age) {
        self.troubles.note();
        self.rights.forget();
        self.ages.retire_from_pool(age);
    }

    /// The time left until `reply_by`; an error if there is none.
    fn time_left(&self, reply_by: Time) -> Result<Duration, StoreFault> {
        let left = reply_by - self.clock.now();
        if left.is_zero() {
            Err(StoreFault::timed_out(Step::Reply))
        } else {
            Ok(left)
        }
    }

    /// The anchor of a reply that a caller of several nodes waited for. One that took long pairs
    /// the clocks badly: it would date requests too early. It is still better than an old one.
    fn note_posted_anchor(&self, anchor: Anchor) {
        let is_good = anchor.received - anchor.sent < self.config.command_timeout / 4;
        let is_old =
            |known: Anchor| known.received + self.config.command_timeout * 8 < anchor.received;
        if is_good || self.anchor().is_none_or(is_old) {
            self.note_anchor(anchor);
        }
    }

    /// Keeps the newest anchor that any connection has.
    fn note_anchor(&self, anchor: Anchor) {
        let mut newest = self.anchor.lock();
        if newest.is_none_or(|old| old.received < anchor.received) {
            *newest = Some(anchor);
        }
    }
}

/// The counts of nodes so far: of one, or of all that take each other's place.
#[derive(Default)]
pub(in crate::store) struct Counts {
    connects: AtomicU64,
    requests: Arc<AtomicU64>,
    retries: AtomicU64,
    connection_waits: AtomicU64,
    connection_wait_ns: AtomicU64,
}

impl Counts {
    fn traffic(&self) -> Traffic {
        Traffic {
            connects: self.connects.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            // Before their time: no wait is read without its time.
            connection_waits: self.connection_waits.load(Ordering::Acquire),
            // The form of the feature `serde` has whole microseconds.
            connection_wait_time: Duration::from_micros(
                self.connection_wait_ns.load(Ordering::Relaxed) / 1000,
            ),
        }
    }
}
