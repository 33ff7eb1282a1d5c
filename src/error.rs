//! Everything that can go wrong, as one type.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::kind::Kind;
use crate::loss::Loss;
use crate::time_text;

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
///
/// It is never an error that somebody else holds a lock: then the `try_` verbs return `Ok(None)`.
///
/// # What to print
/// `{error}` is one line for people: what happened, the words of the cause and of its causes, and
/// what to do if the crate knows that. It never has a password. `{error:?}` shows the fields, for
/// logs of programs and for `dbg!`.
///
/// [`source`](StdError::source) is `None`, since the line has all causes: a program that prints the
/// chain of sources, as `anyhow` does, prints nothing twice. The cause itself, such as an
/// [`io::Error`], is the field `cause` of [`Unavailable`](Error::Unavailable).
///
/// Rust prints the `Debug` of an error that `main` returns, and so does `unwrap`: the fields. The
/// words of the cause are among them. For the line alone, let `main` print it:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     match run() {
///         Ok(()) => ExitCode::SUCCESS,
///         Err(error) => {
///             eprintln!("{error}");
///             ExitCode::FAILURE
///         }
///     }
/// }
///
/// fn run() -> fairlock::Result<()> {
///     let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
///     mgr.lock("invoices:42")?.unlock()
/// }
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// You do not hold the lock any more. Work since the loss may have overlapped with another
    /// holder, unless the resource checks fences.
    #[non_exhaustive]
    #[error("the lock {:?} was lost: {}", loss.lock, loss.reason)]
    Lost {
        /// Which lock, under which fence, and why.
        loss: Loss,
    },

    /// Redis did not answer in time, or could not be reached. If the request took effect, it is
    /// rolled back in the background. With [`Step::Thread`] the cause is this host, and not Redis.
    #[non_exhaustive]
    #[error("{}", unavailable(lock, server, *step, *waited, &***cause))]
    Unavailable {
        /// The lock that the call was for. `None` if the call was not for a lock.
        lock: Option<Arc<str>>,
        /// The server that it is about: host and port, or the path of its socket. Several that are
        /// asked together, such as sentinels, are separated by commas. `None` if it is about no
        /// server, as in memory.
        server: Option<Arc<str>>,
        /// The step at which the call failed.
        step: Step,
        /// How long the call tried. For a caller that waited in the queue: how long Redis had been
        /// silent.
        waited: Duration,
        /// The cause, as reported by the system. Shared by all copies of this error.
        // Not named `source`: `thiserror` would make it the `source()`, and a program that prints the
        // chain would print it twice.
        cause: Arc<Box<dyn StdError + Send + Sync>>,
    },

    /// Redis refused the request, and said why. Or no TLS connection can be had, for a reason that
    /// somebody has to remedy: a certificate, a key, or the URL.
    ///
    /// Some refusals may pass by themselves: `LOADING`, `BUSY`, `MISCONF`, `NOREPLICAS`,
    /// `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `UNBLOCKED` and a full `maxclients`. A call
    /// retries them within its bound, and returns this error only at its end. It returns all other
    /// refusals at once.
    ///
    /// With the code `TLS` nothing was sent. [`LockManager::connect`](crate::LockManager::connect)
    /// returns it within the connect timeout. It may also come later, for instance when the server's
    /// certificate has expired. Then it counts as an outage: a call retries within its bound, and
    /// returns this error at its end. The manager keeps on connecting.
    #[non_exhaustive]
    #[error("{}", refused(lock, server, code, message))]
    Refused {
        /// The lock that the call was for. `None` if the call was not for a lock.
        lock: Option<Arc<str>>,
        /// The server that it is about: host and port, or the path of its socket. Several that are
        /// asked together, such as sentinels, are separated by commas. `None` if it is about no
        /// server, as in memory.
        server: Option<Arc<str>>,
        /// The first word of the server's error, such as `NOPERM`, `OOM` or `WRONGPASS`. Or `TLS`.
        code: String,
        /// The rest of the error, in the server's words. If a right is missing: the rule to add. For
        /// `TLS`: the reason, with the server's address, and the remedy.
        message: String,
    },

    /// A name, an argument or an option is not allowed, and nothing was written. Or the server cannot
    /// be used.
    #[non_exhaustive]
    #[error("{}", misused(misuse, message))]
    Misused {
        /// The lock that the call was for. `None` if the call was not for a lock, was for several, or
        /// its name is not allowed.
        lock: Option<Arc<str>>,
        /// The mistake.
        misuse: Misuse,
        /// The allowed value, and the value that came instead.
        message: String,
    },

    /// The manager was shut down. Or this is a forked child of the process that built the manager.
    #[error("the lock manager is closed")]
    Closed,
}

/// A mistake in a call or in the settings.
#[non_exhaustive]
#[derive(Debug, Clone)]
pub enum Misuse {
    /// The name of a lock is not allowed. If a user of your program chose it, the user's request is at
    /// fault (HTTP 400).
    Name,
    /// The name is in use as another kind of lock: somebody holds it or waits for it, or
    /// [`hold_at_least`](crate::LockOptions::hold_at_least) keeps it taken. As soon as nobody does,
    /// the next call can use it as any kind.
    #[non_exhaustive]
    Kind {
        /// The kind that the name is in use as.
        is: Kind,
        /// The kind that the call asked for.
        asked: Kind,
    },
    /// Another argument, an option or a setting is not allowed. Also a text that is no
    /// [`DetachedLock`](crate::DetachedLock): if a client sent it, the client's request is at fault.
    #[non_exhaustive]
    Setting {
        /// Its name: of a method of [`LockOptions`](crate::LockOptions) or
        /// [`Builder`](crate::Builder), such as `ttl`; of the argument or the call, such as
        /// `permits` or `detach`; or of a part of the endpoint, such as `url`.
        name: &'static str,
    },
    /// The server cannot be used: it is too old, a replica, or of another topology than the URL says.
    Server,
}

/// The step at which a call to Redis failed.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// The [provider](crate::Builder::credentials) gave no credentials in time. The
    /// [cause](Error::Unavailable) is its error, or says that it panicked or hangs.
    Credentials,
    /// A file of certificates, or of a key, was not read in time. The [cause](Error::Unavailable)
    /// names it. That says nothing about Redis.
    Certificates,
    /// No connection could be opened in time.
    Connect,
    /// The request could not be sent.
    Send,
    /// The request was sent, but no reply came in time.
    Reply,
    /// A quorum: fewer than a majority of the nodes decided. The [cause](Error::Unavailable) says
    /// which did not, and why.
    Majority,
    /// Too few replicas acknowledged the lock in time. Only with
    /// [`Builder::replica_acks`](crate::Builder::replica_acks). The [cause](Error::Unavailable) says how
    /// many did.
    ///
    /// From a call that takes the lock: you do not have it, and it is released in the background.
    /// From [`renew`](crate::Lease::renew): you still hold it, until the time of its last
    /// acknowledged renewal is over.
    Replicas,
    /// The system started no thread, which the call needs: a limit of threads or of memory is
    /// reached. That says nothing about Redis.
    Thread,
}

impl Step {
    /// What a call that failed at this step did not get.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Step::Credentials => "credentials",
            Step::Certificates => "certificates",
            Step::Connect => "connection",
            Step::Send => "way to send",
            Step::Reply => "reply",
            Step::Majority => "majority",
            Step::Replicas => "acknowledgement",
            Step::Thread => "thread",
        }
    }
}

impl Error {
    /// The name of the lock that it is about. `None` if it is about no single lock: the call was for
    /// none or for several, the name is not allowed, or the manager is closed.
    pub fn lock(&self) -> Option<&str> {
        match self {
            Error::Lost { loss } => Some(&loss.lock),
            Error::Unavailable { lock, .. }
            | Error::Refused { lock, .. }
            | Error::Misused { lock, .. } => lock.as_deref(),
            Error::Closed => None,
        }
    }

    /// Whether the same call may succeed later, though nobody changes the program or its settings.
    /// So a service may answer "try again later" (HTTP 503).
    ///
    /// True for [`Unavailable`](Error::Unavailable), and for a [refusal](Error::Refused) that may pass
    /// by itself, or with full memory (`OOM`). False for all others. The call itself has retried within
    /// its bound already.
    ///
    /// After a [`Lost`](Error::Lost) lock, the work under it may have to be undone or checked before
    /// it is done again. So that is not temporary, though the lock can be taken again.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Unavailable { .. } => true,
            Error::Refused { code, message, .. } => {
                code == "OOM" || passes_by_itself(code, message)
            }
            Error::Lost { .. } | Error::Misused { .. } | Error::Closed => false,
        }
    }

    /// An argument, an option or a setting that is not allowed.
    pub(crate) fn setting(name: &'static str, message: impl fmt::Display) -> Error {
        Error::misused(Misuse::Setting { name }, message.to_string())
    }

    pub(crate) fn misused(misuse: Misuse, message: String) -> Error {
        Error::Misused {
            lock: None,
            misuse,
            message,
        }
    }

    /// The same error. If it is a mistake in a call for this lock, it names the lock.
    pub(crate) fn about(mut self, name: &Arc<str>) -> Error {
        if let Error::Misused { lock, .. } = &mut self {
            lock.get_or_insert_with(|| Arc::clone(name));
        }
        self
    }

    /// The same error. If it is about a server that it does not name, it names this one.
    pub(crate) fn at(mut self, address: impl FnOnce() -> Option<Arc<str>>) -> Error {
        match &mut self {
            Error::Unavailable { server, .. } | Error::Refused { server, .. }
                if server.is_none() =>
            {
                *server = address();
            }
            _ => {}
        }
        self
    }

    /// The same error, for a call that took this long in all.
    pub(crate) fn after(mut self, total: Duration) -> Error {
        if let Error::Unavailable { waited, .. } = &mut self {
            *waited = total;
        }
        self
    }
}

/// Whether the server refuses because of a state that it leaves by itself, or that its operator
/// ends.
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
            | "MOVED"
            | "ASK"
            | "UNBLOCKED"
    ) || message.starts_with("max number of clients")
}

fn misused(misuse: &Misuse, message: &str) -> String {
    let name = match misuse {
        Misuse::Name => "name",
        Misuse::Setting { name } => name,
        Misuse::Server => "server",
        Misuse::Kind { .. } => return message.to_owned(),
    };
    format!("{name}: {message}")
}

/// The code of a refusal without a TLS connection.
pub(crate) const TLS: &str = "TLS";

fn refused(
    lock: &Option<Arc<str>>,
    server: &Option<Arc<str>>,
    code: &str,
    message: &str,
) -> String {
    let lock = for_lock(lock);
    if code == TLS {
        // The message has the server's address.
        return format!("no TLS connection to redis{lock}: {message}");
    }
    let message = message.trim_end_matches(['.', ' ']);
    format!("redis{} refused{lock}: {code} {message}", at_server(server))
}

fn unavailable(
    lock: &Option<Arc<str>>,
    server: &Option<Arc<str>>,
    step: Step,
    waited: Duration,
    cause: &(dyn StdError + 'static),
) -> String {
    let lock = for_lock(lock);
    let os_error = cause
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error);
    let what = if os_error.is_some_and(lacks_descriptors) {
        let to = server
            .as_ref()
            .map_or_else(String::new, |server| format!(" to redis at {server}"));
        format!(
            "this host has no file descriptor left for a connection{to}{lock}: a limit of open files \
             is reached"
        )
    } else if step == Step::Thread {
        format!("the system starts no thread{lock}: a limit of threads or memory is reached")
    } else if step == Step::Certificates {
        format!("the certificates{lock} were not read in time")
    } else if step == Step::Replicas {
        format!(
            "too few replicas of redis{} acknowledged in time{lock}",
            at_server(server)
        )
    } else {
        format!("redis{} is unavailable{lock}", at_server(server))
    };
    // A refusal comes at once, and so does the answer of a manager that knows of an outage.
    let gave_up = (waited >= Duration::from_millis(1))
        .then(|| format!("gave up after {}", time_text::measured(waited)));
    let is_named = matches!(step, Step::Thread | Step::Certificates | Step::Replicas);
    let no_step = (!is_named && !os_error.is_some_and(lacks_descriptors))
        .then(|| format!("no {}", step.word()));
    let details: Vec<String> = no_step.into_iter().chain(gave_up).collect();
    let details = match details.is_empty() {
        true => String::new(),
        false => format!(" ({})", details.join("; ")),
    };
    format!("{what}{details}: {}", with_causes(cause))
}

/// The words of an error and of its causes. A foreign error may repeat its cause by itself.
pub(crate) fn with_causes(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

/// Whether an error of the system with this number says that the process, or the whole host, has too
/// many open files.
pub(crate) fn lacks_descriptors(os_error: i32) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .map(Errno::raw_os_error)
        .contains(&os_error)
}

fn at_server(server: &Option<Arc<str>>) -> String {
    match server {
        Some(address) => format!(" at {address}"),
        None => String::new(),
    }
}

fn for_lock(lock: &Option<Arc<str>>) -> String {
    match lock {
        Some(name) => format!(" for the lock {name:?}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::LossReason;

    fn server(code: &str, message: &str) -> Error {
        Error::Refused {
            lock: Some("n".into()),
            server: None,
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    fn lost() -> Error {
        let loss = Loss {
            lock: "n".into(),
            fence: 7,
            reason: LossReason::Expired,
        };
        Error::Lost { loss }
    }

    #[test]
    fn error_names_its_lock() {
        let setting = Error::setting("ttl", "too short");
        for (error, lock) in [
            (lost(), Some("n")),
            (server("OOM", ""), Some("n")),
            (setting, None),
            (Error::Closed, None),
        ] {
            assert_eq!(error.lock(), lock, "{error}");
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_temporary() {
        for (error, is_temporary) in [
            (server("LOADING", "Redis is loading"), true),
            (server("OOM", "command not allowed"), true),
            (server("ERR", "max number of clients reached"), true),
            (server("NOPERM", "no permissions"), false),
            (server("WRONGPASS", "invalid"), false),
            (lost(), false),
            (Error::Closed, false),
            (Error::setting("ttl", "too short"), false),
        ] {
            assert_eq!(error.is_temporary(), is_temporary, "{error}");
        }
    }
}
