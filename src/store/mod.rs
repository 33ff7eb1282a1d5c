//! Where locks live. The engine knows stores by this contract alone, and no topology.

pub(crate) mod clock;
#[cfg(feature = "memory")]
pub(crate) mod memory;
mod node;
mod single;

use std::error::Error as StdError;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Step};
use crate::key::Key;
use crate::script::{Call, Malformed, RIGHTS, Reply};
use clock::{Clock, Time};

#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use node::Told;
pub(crate) use single::{Single, parse_url};

/// A place where locks live.
pub(crate) trait Store: Send + Sync {
    fn clock(&self) -> Clock;

    /// Runs short calls on a pooled connection, one result for each, in order. Blocks until
    /// `patience.checkout` for a connection and until `patience.reply` for replies, at most one command
    /// timeout each.
    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult>;

    /// The renewal thread's own way to the store. `ring` is called when it becomes ready.
    fn link(&self, ring: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link>;

    /// Subscribes to a channel and tells of what is heard there, until told to break off or until the
    /// subscription fails. Sends a PING each `ping_every`.
    fn listen(
        &self,
        channel: &str,
        ping_every: Duration,
        heard: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault>;

    /// Publishes an empty message if a connection is free, so that whoever listens there looks up.
    fn poke(&self, channel: &str);

    /// One page of the keys that match: the next cursor (0: that was the last page) and the keys.
    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault>;

    /// The newest pairing of server time and local time for the node that serves a key.
    fn anchor(&self, key: &Key) -> Option<Anchor>;

    /// Connections that were opened, since the start.
    fn connects(&self) -> u64;

    /// Requests that were sent, since the start.
    fn requests(&self) -> u64;
}

/// A connection, or several, of one thread. It never waits for a connection to be opened.
pub(crate) trait Link: Send {
    /// Blocks for at most one command timeout. While there is no connection every call fails at once,
    /// with [`StoreFault::NotReady`] as long as it is not known why.
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult>;
}

/// How long a pooled call may wait, and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) checkout: Checkout,
    /// Nothing is awaited or sent again past this.
    pub(crate) reply: Time,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Checkout {
    /// A free connection or none ([`StoreFault::NotReady`]).
    IfFree,
    Until(Time),
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) answer: Result<Answer, StoreFault>,
    /// R7 (late copies): the server refuses every copy of the call from this server time on, in µs.
    /// 0 if the call was never sent.
    pub(crate) not_after: u64,
}

impl CallResult {
    /// A call that was never sent.
    pub(crate) fn not_sent(fault: StoreFault) -> CallResult {
        CallResult {
            answer: Err(fault),
            not_after: 0,
        }
    }
}

/// A reply and what is known of its time.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Just before the request was sent, for the last time.
    pub(crate) sent: Time,
    /// The request may have reached the server more than once.
    pub(crate) resent: bool,
}

pub(crate) enum ChannelEvent<'a> {
    Subscribed,
    Message(&'a str),
    /// Nothing came, but the server answers.
    Quiet,
}

/// The server's clock read `server` at some moment between `sent` and `received`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchor {
    /// µs
    pub(crate) server: u64,
    pub(crate) sent: Time,
    pub(crate) received: Time,
}

impl Anchor {
    /// R5: the lower estimate of the server's time at a local moment, for clocks that run apart by at
    /// most 500 ppm.
    pub(crate) fn server_time_at_least(&self, at: Time) -> u64 {
        let age = (at - self.received).as_micros() as u64;
        self.server + age - age / 2000
    }

    /// R12: the earliest local time at which the server's clock can have read `server`.
    pub(crate) fn local_time_at_least(&self, server: u64) -> Time {
        if server >= self.server {
            self.sent + Duration::from_micros(server - self.server)
        } else {
            self.sent - Duration::from_micros(self.server - server)
        }
    }
}

/// Why a call has no reply.
#[derive(Debug)]
pub(crate) enum StoreFault {
    /// Nothing was sent, because no connection is at hand.
    NotReady,
    /// No connection, or no reply in time. If it was sent, it may have been done.
    Unavailable {
        step: Step,
        source: Box<dyn StdError + Send + Sync>,
    },
    /// An earlier try had no reply, and this came of the next one: what was asked may have been done (P7).
    InDoubt(Box<StoreFault>),
    /// The server refused.
    Server { code: String, message: String },
    /// The server cannot be used at all.
    Unfit { what: String, message: String },
}

impl StoreFault {
    pub(crate) fn unavailable(
        step: Step,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> StoreFault {
        StoreFault::Unavailable {
            step,
            source: source.into(),
        }
    }

    /// A batch fails as a whole, so one cause is told to several callers.
    pub(crate) fn repeat(&self) -> StoreFault {
        match self {
            StoreFault::NotReady => StoreFault::NotReady,
            StoreFault::InDoubt(fault) => StoreFault::InDoubt(Box::new(fault.repeat())),
            StoreFault::Unavailable { step, source } => {
                let kind = source
                    .downcast_ref::<io::Error>()
                    .map_or(io::ErrorKind::Other, io::Error::kind);
                StoreFault::unavailable(*step, io::Error::new(kind, source.to_string()))
            }
            StoreFault::Server { code, message } => StoreFault::Server {
                code: code.clone(),
                message: message.clone(),
            },
            StoreFault::Unfit { what, message } => StoreFault::Unfit {
                what: what.clone(),
                message: message.clone(),
            },
        }
    }

    /// A server that does not know AUTH repeats its arguments, long ones in part.
    fn without(self, password: Option<&str>) -> StoreFault {
        match (self, password) {
            (StoreFault::Server { code, message }, Some(password)) if !password.is_empty() => {
                let message = message.split(", with args").next().unwrap_or_default();
                let message = message.replace(password, "***");
                StoreFault::Server { code, message }
            }
            (other, _) => other,
        }
    }

    /// It may pass by itself: worth another try within the bound.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            StoreFault::NotReady | StoreFault::Unavailable { .. } => true,
            StoreFault::InDoubt(fault) => fault.is_transient(),
            StoreFault::Unfit { .. } => false,
            StoreFault::Server { code, message } => passes_by_itself(code, message),
        }
    }

    /// The peer had closed the connection: another one may do better at once.
    pub(crate) fn is_closed(&self) -> bool {
        node::is_closed(self)
    }

    /// The request may have been carried out although no reply came.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            StoreFault::Unavailable { step, .. } => matches!(step, Step::Send | Step::Reply),
            StoreFault::InDoubt(_) => true,
            // What a script raises after its first write leaves the writes; OOM and WRONGTYPE come before (R20).
            StoreFault::Server { code, message } => {
                code == PROTOCOL
                    || (message.contains("user_script") && code != "OOM" && code != "WRONGTYPE")
            }
            StoreFault::NotReady | StoreFault::Unfit { .. } => false,
        }
    }

    pub(crate) fn into_error(self, key: Option<&Key>, waited: Duration) -> Error {
        let lock = key.map(|key| key.name.clone());
        match self {
            StoreFault::NotReady => Error::Unavailable {
                lock,
                step: Step::Connect,
                waited,
                source: "no connection is open".into(),
            },
            StoreFault::Unavailable { step, source } => Error::Unavailable {
                lock,
                step,
                waited,
                source,
            },
            StoreFault::InDoubt(fault) => match *fault {
                StoreFault::Unavailable { source, .. } => Error::Unavailable {
                    lock,
                    step: Step::Reply,
                    waited,
                    source,
                },
                other => other.into_error(key, waited),
            },
            StoreFault::Server { code, message } => {
                let message = for_people(&message);
                Error::Server {
                    lock,
                    code,
                    message,
                }
            }
            StoreFault::Unfit { what, message } => Error::Config { what, message },
        }
    }
}

/// Redis 7 adds which line of which script it was, which tells nothing to those who did not write the script; and which
/// right is missing within a script it does not say.
fn for_people(message: &str) -> String {
    let said = match message.rfind(" script: ") {
        Some(at) if message[at..].contains("@user_script") => &message[..at],
        _ => message,
    };
    let missing = said.starts_with("The user executing the script can't run");
    if missing {
        format!("{said}; to lock and wait, the user needs {RIGHTS}")
    } else {
        said.to_owned()
    }
}

/// Whether a server's refusal is one of a state that it leaves by itself or by its operator.
pub(crate) fn passes_by_itself(code: &str, message: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "MISCONF"
            | "NOREPLICAS"
            | "READONLY"
            | "MASTERDOWN"
            | "CLUSTERDOWN"
            | "TRYAGAIN"
    ) || message.starts_with("max number of clients")
}

impl From<StoreFault> for Error {
    fn from(fault: StoreFault) -> Error {
        fault.into_error(None, Duration::ZERO)
    }
}

/// The code of a reply that is none: what it answers may have been done.
const PROTOCOL: &str = "PROTOCOL";

impl From<Malformed> for StoreFault {
    fn from(malformed: Malformed) -> StoreFault {
        StoreFault::Server {
            code: PROTOCOL.to_owned(),
            message: malformed.to_string(),
        }
    }
}

impl std::fmt::Display for StoreFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreFault::NotReady => f.write_str("no connection is open"),
            StoreFault::InDoubt(fault) => fault.fmt(f),
            StoreFault::Unavailable { step, source } => write!(f, "no {step}: {source}"),
            StoreFault::Server { code, message } => write!(f, "{code} {}", for_people(message)),
            StoreFault::Unfit { what, message } => write!(f, "{what}: {message}"),
        }
    }
}

impl StdError for StoreFault {}
