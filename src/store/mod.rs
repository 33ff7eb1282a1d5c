//! Where locks live. The engine knows a store by this contract alone and knows no topology.
//!
//! | file | holds |
//! |---|---|
//! | `fault` | [`StoreFault`]: why a call has no reply, and what the caller may conclude from that |
//! | `refusal` | what a server's error says, whatever server sent it |
//! | `again` | [`Attempts`](again::Attempts): whether a call is sent again, and what stays in doubt |
//! | `clock` | [`Clock`] and [`Time`](clock::Time): the local clock by which leases are believed; [`Anchor`]: a reading of a server's |
//! | `troubles` | [`Troubles`]: when a connection last ended, or a server changed |
//! | `attendants` | the threads that a clock in memory waits for before it jumps |
//! | `topology` | where the servers are and how to log in |
//! | `provider` | [`Provider`]: the program's source of credentials |
//! | `foreign` | calls of code that may hang or panic |
//! | `tls` | which certificates count, and the client's own |
//! | `url` | the grammar of URLs |
//! | `node` | everything about one Redis node, for every topology |
//! | `server_connection` | [`ServerConnection`](server_connection::ServerConnection): commands of the program's own |
//! | `sentinel` | [`SentinelStore`]: the store that is the master of a service |
//! | `single` | [`Single`]: the store that is one node |
//! | `cluster` | [`ClusterStore`]: the store that is the masters of a cluster |
//! | `quorum` | [`QuorumStore`]: the store that is a majority of independent nodes |
//! | `memory` | the store that lives in this process |

mod again;
#[cfg(feature = "memory")]
pub(crate) mod attendants;
pub(crate) mod clock;
mod cluster;
mod fault;
mod foreign;
#[cfg(feature = "memory")]
pub(crate) mod memory;
mod node;
mod provider;
pub(crate) mod quorum;
mod refusal;
mod sentinel;
#[cfg(feature = "unstable-servers")]
pub(crate) mod server_connection;
mod single;
mod tls;
#[cfg(feature = "tls")]
mod tls_words;
mod topology;
mod troubles;
mod url;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Step;
use crate::key::Key;
use crate::script::{Call, Family, Outcome, ScriptReply, Token};
use crate::stats::Traffic;
use clock::{Clock, Time};

pub(crate) use clock::Anchor;
pub(crate) use cluster::ClusterStore;
pub(crate) use fault::StoreFault;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use node::ScriptedPeer;
pub(crate) use provider::Provider;
pub(crate) use quorum::QuorumStore;
pub(crate) use sentinel::SentinelStore;
pub(crate) use single::Single;
#[cfg(feature = "tls")]
pub(crate) use tls::Pem;
pub(crate) use tls::TlsSettings;
use topology::port_in;
pub(crate) use topology::{
    Address, ClusterSettings, Login, SentinelSettings, ServerSettings, Topology,
};
pub(crate) use troubles::Troubles;
pub(crate) use url::{parse_url, read_url};

/// The services of a store to callers. The engine reads them once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Service {
    /// Waiters queue in the store. Where there is no queue, they ask again: R21 (asking again).
    pub(crate) has_queue: bool,
    /// The families of locks that it keeps.
    pub(crate) families: &'static [Family],
}

impl Service {
    /// Locks of every family, with a queue for each.
    pub(crate) const QUEUES: Service = Service {
        has_queue: true,
        families: &[Family::Mutex, Family::Permit],
    };

    /// Mutexes, without a queue.
    pub(crate) const MUTEXES: Service = Service {
        has_queue: false,
        families: &[Family::Mutex],
    };
}

/// A place where locks live.
pub(crate) trait Store: Send + Sync {
    fn clock(&self) -> Clock;

    /// Its services, which never change.
    fn service(&self) -> Service {
        Service::QUEUES
    }

    /// When it last had trouble with its servers. The engine asks once, and the store goes on noting
    /// its troubles there. Where nobody listens for messages, nobody needs to know.
    fn troubles(&self) -> Arc<Troubles> {
        Arc::new(Troubles::new(self.clock()))
    }

    /// Runs short calls, those for one name in order, and returns one result for each.
    ///
    /// Blocks until `deadlines.connection` for an open connection, and until `deadlines.reply_by`
    /// for the replies, at most one command timeout each.
    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult>;

    /// Sends short calls on connections that are open, all of them before it waits for a reply, and
    /// then asks `leave` for each whether the caller needs its reply. If `leave` returns a handler,
    /// the result is `None` here, and the handler gets the result later: on whichever thread reads
    /// the reply, with no mutex held.
    ///
    /// A store that cannot be sure that the call was written, or that its script will run, waits
    /// all the same, and returns the result. It does not ask `leave` then, or drops the handler.
    /// Blocks until `reply_by` at most. A call without an open connection fails with
    /// [`StoreFault::NotReady`].
    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        let _ = leave;
        let results = self.run(calls, Deadlines::at_once(reply_by));
        results.into_iter().map(Some).collect()
    }

    /// When somebody must call [`Store::read_unread`]: one command timeout after the oldest call was
    /// sent whose reply nobody waits for and nobody has read.
    fn unread_due(&self) -> Time {
        Time::NEVER
    }

    /// Reads the replies that have arrived and that nobody waits for. Those that are overdue fail.
    /// Never waits for a reply. Handlers run on this thread.
    fn read_unread(&self) {}

    /// Reads the replies that nobody waits for until there are none. Blocks until `until` at most.
    fn read_all_unread(&self, until: Time) {
        let _ = until;
    }

    /// When somebody must call [`Store::renew_logins`]: before the first of the credentials end that
    /// its connections have logged in with.
    fn logins_due(&self) -> Time {
        Time::NEVER
    }

    /// If it is due: has threads ask for new credentials, and log in anew over the connections that
    /// are open. The links do so by themselves. Never waits.
    fn renew_logins(&self) {}

    /// The renewal thread's own way to the store. The link calls `on_ready` when it can be used
    /// again after it could not.
    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link>;

    /// R18 (replica acks): whether a renewal by the link must confirm a grant first. That concerns
    /// each grant but one that is the result of its own call by [`Store::run`].
    fn confirms_grants(&self) -> bool {
        false
    }

    /// Subscribes to a channel and calls `on_event` for everything that happens there. Returns when
    /// `on_event` breaks off, or with an error when the subscription fails.
    ///
    /// After each `check_every` without traffic it asks `is_awaited`, and sends a PING if so. The
    /// subscription fails if that has no reply within another `check_every`. Messages that come all the
    /// time leave no such pause. Then it asks `is_proof_needed` once per `check_every`, and sends a PING
    /// if so. Nobody subscribes to a store without a queue.
    fn listen(&self, channel: Channel<'_>, on_event: &mut OnEvent<'_>) -> Result<(), StoreFault> {
        let _ = (channel, on_event);
        Err(StoreFault::NotReady)
    }

    /// Publishes an empty message, so that the listener on the channel wakes and looks around.
    /// Blocks until `by` at most.
    fn poke(&self, channel: &str, by: Time) {
        let _ = (channel, by);
    }

    /// Publishes it over the connection that the next call for this name uses, if that is open. Waits for
    /// no reply, and for the socket as that call would. The message may be lost.
    fn post_poke(&self, channel: &str, key: &Key) {
        let _ = (channel, key);
    }

    /// One page of the keys that match: the cursor of the next page (0 after the last page) and
    /// the keys.
    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault>;

    /// The cursor of the pages behind those that failed with the page at this cursor. 0: there are
    /// none, since all pages come from one server.
    fn scan_on(&self, failed: u64) -> u64 {
        let _ = failed;
        0
    }

    /// The newest pairing of server time and local time for the node that serves a key.
    fn anchor(&self, key: &Key) -> Option<Anchor>;

    /// The address of the server that serves a key, if there is one such server. Errors name it.
    fn server_of(&self, key: &Key) -> Option<Arc<str>> {
        let _ = key;
        None
    }

    /// Counts what the store has done since the start. It may take mutexes, but never for long.
    fn traffic(&self) -> Traffic;
}

/// One connection, or several, of one thread. A link never waits for a connection to be opened.
pub(crate) trait Link: Send {
    /// Blocks for at most one command timeout, or two if a round trip takes more than half of one.
    /// While there is no connection, every call fails at once: with [`StoreFault::NotReady`] until the
    /// reason is known, and with the reason then.
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult>;

    /// Sends newer credentials over connections that idle, if they are known. Never waits.
    fn log_in_anew(&mut self) {}

    /// When to call [`Link::check`], while this process holds or awaits anything.
    fn check_due(&self) -> Time {
        Time::NEVER
    }

    /// Has somebody look whether the servers have other roles by now, or whether those that were away
    /// are back. Reads the replies that no caller has read. Never waits.
    fn check(&mut self) {}

    /// Whether the link goes to another server than when this was last asked, or to one that is back and
    /// may have forgotten leases. Then all leases are renewed at once.
    fn has_moved(&mut self) -> bool {
        false
    }

    /// The tokens of leases that the store has in fewer places than it could, and may have in more by
    /// now. They are renewed at once. Each is returned once.
    fn due_again(&mut self) -> Vec<Token> {
        Vec::new()
    }

    /// Like [`Link::run`], but does not wait for a node that is slower than others. A call that it
    /// still owes a reply has no result here, and [`Link::late_results`] has it later. `first` is the
    /// number of the first call; the next calls have the next numbers.
    fn begin(&mut self, calls: &[Call], first: u64) -> Vec<Option<CallResult>> {
        let _ = first;
        self.run(calls).into_iter().map(Some).collect()
    }

    /// The results that have come since, with the numbers of their calls. Never waits. Each result
    /// comes within a few command timeouts.
    fn late_results(&mut self) -> Vec<(u64, CallResult)> {
        Vec::new()
    }
}

/// How long a short call may wait for an open connection and for its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) connection: ConnectionWait,
    /// After this moment the store neither waits for a reply nor sends the call again. It is one
    /// moment for all calls that are run together.
    pub(crate) reply_by: Time,
}

/// How long a call may wait until a connection is open.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConnectionWait {
    /// Not at all: if no connection is open, the call fails with [`StoreFault::NotReady`].
    Never,
    Until(Time),
}

impl Deadlines {
    /// For calls that go over open connections alone.
    pub(crate) fn at_once(reply_by: Time) -> Deadlines {
        Deadlines {
            connection: ConnectionWait::Never,
            reply_by,
        }
    }

    /// For a call that is sent again. The first attempt's time for the reply is for all attempts: a
    /// retry must not lengthen the call (P8).
    fn of_retry(self) -> Deadlines {
        let connection = match self.connection {
            ConnectionWait::Never => ConnectionWait::Never,
            ConnectionWait::Until(_) => ConnectionWait::Until(self.reply_by),
        };
        Deadlines { connection, ..self }
    }
}

/// Receives the result of a call whose caller has left.
pub(crate) type OnResult = Box<dyn FnOnce(CallResult) + Send>;

/// Whether the caller leaves the call with this index: the handler of its result then.
pub(crate) type Leave<'a> = dyn Fn(usize) -> Option<OnResult> + 'a;

/// What to subscribe to, and how to check the subscription. See [`Store::listen`].
#[derive(Clone, Copy)]
pub(crate) struct Channel<'a> {
    pub(crate) name: &'a str,
    pub(crate) check_every: Duration,
    pub(crate) is_awaited: &'a dyn Fn() -> bool,
    /// Whether somebody must know that the subscription is alive, also while messages come.
    pub(crate) is_proof_needed: &'a dyn Fn() -> bool,
}

/// Receives the reports of a subscription, until it breaks off.
pub(crate) type OnEvent<'a> = dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()> + 'a;

/// The outcome of one call.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) answer: Result<Answer, StoreFault>,
    /// R7 (late copies): from this server time on, in µs, the server refuses every copy of the
    /// call. 0 if the call was never about to be sent.
    pub(crate) not_after: u64,
}

/// A reply, and when its request was sent.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reply: ScriptReply,
    /// A moment just before the request was sent for the last time.
    pub(crate) sent: Time,
    /// Whether the request may have reached the server more than once.
    pub(crate) resent: bool,
}

impl Answer {
    /// R5 (dated requests): the answer, unless its request came too late and did nothing.
    pub(crate) fn in_time(self) -> Result<Answer, StoreFault> {
        match self.reply.outcome {
            Outcome::Late => Err(StoreFault::unavailable(
                Step::Reply,
                "no time is left to send the request again",
            )),
            _ => Ok(self),
        }
    }

    /// R7 (late copies): whether no copy of an acquire that was sent with this `not_after` (0: all
    /// were answered) can take anything any more. Not every reply says what time it is on the server.
    pub(crate) fn excludes_late_copies(&self, not_after: u64) -> bool {
        not_after == 0 || self.reply.now.is_some_and(|server| server > not_after)
    }
}

/// A report of a subscription.
pub(crate) enum ChannelEvent<'a> {
    /// It is confirmed. Messages that came before it was sent may have been missed.
    Subscribed {
        sent: Time,
    },
    Message(&'a str),
    /// A request that was sent at this time has its reply, so no message was missed until then.
    Proven {
        sent: Time,
    },
    /// No message came.
    Quiet,
}

impl CallResult {
    /// The result of a call that was never sent.
    pub(crate) fn not_sent(fault: StoreFault) -> CallResult {
        CallResult {
            answer: Err(fault),
            not_after: 0,
        }
    }

    /// The results of calls of which none was sent, for one reason.
    fn none_sent(calls: &[Call], fault: &StoreFault) -> Vec<CallResult> {
        calls
            .iter()
            .map(|_| CallResult::not_sent(fault.clone()))
            .collect()
    }

    /// The same result. If it is a fault, it names the server at this address.
    fn at(mut self, address: &Arc<str>) -> CallResult {
        self.name_server(address);
        self
    }

    fn name_server(&mut self, address: &Arc<str>) {
        if let Err(fault) = &mut self.answer {
            *fault = std::mem::replace(fault, StoreFault::NotReady).at(address);
        }
    }

    /// Whether it was not sent because no connection was open.
    fn is_not_ready(&self) -> bool {
        matches!(self.answer, Err(StoreFault::NotReady))
    }

    /// Whether the peer had closed the connection before it replied.
    fn is_closed(&self) -> bool {
        self.answer.as_ref().is_err_and(StoreFault::is_closed)
    }
}
