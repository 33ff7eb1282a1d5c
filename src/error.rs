//! What can go wrong, as one type.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::kind::Kind;
use crate::loss::Loss;

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
///
/// That somebody else holds a lock is never an error: the `try_` verbs answer `Ok(None)`.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lock is not ours any more. Whatever was done since may have overlapped with another holder,
    /// unless the resource checks fences.
    #[non_exhaustive]
    #[error("the lock {:?} was lost: {}", loss.name, loss.reason)]
    Lost {
        /// Which lock, under which fence, and why.
        loss: Loss,
    },

    /// Redis did not answer in time, or could not be reached. What was asked for may have happened; if
    /// so, it is undone in the background.
    #[non_exhaustive]
    #[error(
        "redis is unavailable{} (no {step}; gave up after {waited:.1?})",
        for_lock(lock)
    )]
    Unavailable {
        /// The lock that was asked for, if it was one.
        lock: Option<Arc<str>>,
        /// How far the call came.
        step: Step,
        /// For how long it was tried; for one who stood in the queue, for how long Redis had been silent.
        waited: Duration,
        /// What the system said.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// Redis refused, in its own words.
    ///
    /// `LOADING`, `BUSY`, `MISCONF`, `NOREPLICAS`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN` and a full
    /// `maxclients` may pass by themselves: they are tried again within the bound of the call, and come only when it
    /// is over. All others come at once.
    #[non_exhaustive]
    #[error("redis refused{}: {code} {}", for_lock(lock), message.trim_end_matches(['.', ' ']))]
    Server {
        /// The lock that was asked for, if it was one.
        lock: Option<Arc<str>>,
        /// The code that Redis's errors begin with, such as `NOPERM`, `OOM` or `WRONGPASS`.
        code: String,
        /// The rest of the error, in the server's words.
        message: String,
    },

    /// The name is in use as another kind of lock, or as a semaphore of another number of permits. What was a mutex cannot
    /// be another kind, nor the other way round, until an hour after its last use.
    #[non_exhaustive]
    #[error(
        "the lock {lock:?} is a {is} and cannot be used as a {asked} {}",
        until(is, asked)
    )]
    WrongKind {
        /// The lock that was asked for.
        lock: Arc<str>,
        /// What it is.
        is: Kind,
        /// What it was asked for as.
        asked: Kind,
    },

    /// An argument or an option is not allowed, and nothing was written; or the server is too old to be used.
    #[non_exhaustive]
    #[error("{what}: {message}")]
    Config {
        /// Which argument or option.
        what: String,
        /// What is allowed.
        message: String,
    },

    /// The manager was shut down, or this is a forked child of the process that it belongs to.
    #[error("the lock manager is closed")]
    Closed,
}

/// How far a call came that Redis did not answer.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// No connection of the pool became free.
    Pool,
    /// No connection could be opened.
    Connect,
    /// The request could not be sent.
    Send,
    /// The request was sent; no reply came.
    Reply,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Pool => "free connection",
            Step::Connect => "connection",
            Step::Send => "way to send",
            Step::Reply => "reply",
        })
    }
}

impl Error {
    pub(crate) fn config(what: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Config {
            what: what.into(),
            message: message.into(),
        }
    }

    /// The same, of a call that was under way for so long.
    pub(crate) fn after(mut self, so_long: Duration) -> Error {
        if let Error::Unavailable { waited, .. } = &mut self {
            *waited = so_long;
        }
        self
    }

    /// The same once more; of the source its words.
    pub(crate) fn repeat(&self) -> Error {
        match self {
            Error::Lost { loss } => Error::Lost { loss: loss.clone() },
            Error::Unavailable {
                lock,
                step,
                waited,
                source,
            } => Error::Unavailable {
                lock: lock.clone(),
                step: *step,
                waited: *waited,
                source: source.to_string().into(),
            },
            Error::Server {
                lock,
                code,
                message,
            } => Error::Server {
                lock: lock.clone(),
                code: code.clone(),
                message: message.clone(),
            },
            Error::WrongKind { lock, is, asked } => Error::WrongKind {
                lock: Arc::clone(lock),
                is: is.clone(),
                asked: asked.clone(),
            },
            Error::Config { what, message } => Error::config(what, message),
            Error::Closed => Error::Closed,
        }
    }
}

/// For how long a name stays what it is.
fn until(is: &Kind, asked: &Kind) -> &'static str {
    let of_permits = |kind: &Kind| matches!(kind, Kind::Semaphore { .. } | Kind::RwLock);
    if of_permits(is) && of_permits(asked) {
        "while it is in use"
    } else {
        "until an hour after its last use"
    }
}

fn for_lock(lock: &Option<Arc<str>>) -> String {
    match lock {
        Some(name) => format!(" for the lock {name:?}"),
        None => String::new(),
    }
}
