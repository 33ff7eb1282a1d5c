//! Whether the servers are fit for locks: the findings of [`LockManager::diagnose`], and how they
//! follow from what the servers said. No file here asks a server.
//!
//! | file | holds |
//! |---|---|
//! | `facts` | what a store found out, as data |
//! | `answer` | an answer of a server, or why there is none |
//! | `info` | the fields of `INFO` and its like |
//! | `failure` | an error as a finding, with its remedy |
//! | `limits` | the numbers of the manager that the checks compare with |
//! | `checks` | all checks, in the order in which they are shown |
//! | `server`, `memory`, `persistence`, `replicas`, `use_of_server` | checks of one server |
//! | `clocks`, `cluster`, `sentinels`, `majority` | checks of several servers |
//!
//! [`LockManager::diagnose`]: crate::LockManager::diagnose

pub(crate) mod answer;
mod checks;
mod clocks;
mod cluster;
pub(crate) mod facts;
mod failure;
pub(crate) mod info;
mod limits;
mod majority;
mod memory;
mod persistence;
mod replicas;
mod sentinels;
mod server;
#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod tests;
mod use_of_server;

use std::fmt;

use crate::error::Error;
use answer::Unknown;

pub(crate) use checks::diagnose;
pub(crate) use limits::Limits;

/// The findings of [`LockManager::diagnose`](crate::LockManager::diagnose).
///
/// The findings are in a fixed order: those about all servers together come first, then those about
/// each sentinel, and then those about each server, in the order of [`Check`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Diagnosis {
    /// At least one finding for each check that applies to the servers.
    pub findings: Vec<Finding>,
}

/// The outcome of one check, of one server or of all of them.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// Whether anything must be done.
    pub level: Level,
    /// The server's host and port, or its unix socket. `None` if the finding is about all servers.
    pub server: Option<String>,
    /// The outcome, in one line.
    pub message: String,
    /// The command or the setting that improves it. `None` if nothing needs to be improved.
    pub remedy: Option<String>,
}

/// How good a finding is. The worst level is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Level {
    /// As it should be. Or it could not be asked, and nothing says that it is wrong.
    Ok,
    /// Locks work now. They may be lost or refused when something else fails.
    Warning,
    /// Locks do not work, or a server may lose one that is held.
    Error,
}

/// The subject of a finding. The page [`diagnosis`](crate::guide::diagnosis) describes each check.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Check {
    /// Whether the server can be reached and accepts the login.
    Connection,
    /// A quorum: whether a majority of the servers has a vote.
    Majority,
    /// Whether the sentinels answer, and agree.
    Sentinels,
    /// Whether the clocks of the servers agree with each other.
    Clocks,
    /// How long a reply takes, compared with the command timeout and the TTL.
    RoundTrip,
    /// Which server this is.
    Version,
    /// Whether the server is a master.
    Role,
    /// Whether replicas are there, and keep up.
    Replicas,
    /// The cluster's state, as this server sees it.
    Cluster,
    /// Whether the server may evict a lock.
    Eviction,
    /// Whether the server has memory left.
    Memory,
    /// The data that a restart of the server loses.
    Persistence,
    /// Whether the server closes idle connections, and has room for more.
    Clients,
    /// The difference between the server's clock and this host's.
    Clock,
    /// Whether the user has all rights.
    Rights,
    /// Whether the server runs scripts.
    Scripts,
    /// Whether a published message arrives.
    Messages,
}

impl Diagnosis {
    /// The level of the worst finding.
    pub fn level(&self) -> Level {
        let levels = self.findings.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }
}

/// The diagnosis of servers for which no manager could be built: one finding, with the error and
/// its remedy.
///
/// ```no_run
/// use fairlock::{Diagnosis, LockManager};
///
/// let diagnosis = match LockManager::connect("redis://127.0.0.1/") {
///     Ok(mgr) => mgr.diagnose(),
///     Err(error) => Diagnosis::from(&error),
/// };
/// print!("{diagnosis}");
/// ```
impl From<&Error> for Diagnosis {
    fn from(error: &Error) -> Diagnosis {
        Diagnosis {
            findings: vec![failure::finding(error, Check::Connection, None)],
        }
    }
}

/// A line for each finding.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// `warning 127.0.0.1:6379 eviction: <message>; remedy: <remedy>`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.level)?;
        if let Some(server) = &self.server {
            write!(f, "{server} ")?;
        }
        write!(f, "{}: {}", self.check, self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

/// `ok`, `warning` or `error`
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        })
    }
}

/// The name in plain words, such as `round trip`
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Check::Connection => "connection",
            Check::Majority => "majority",
            Check::Sentinels => "sentinels",
            Check::Clocks => "clocks",
            Check::RoundTrip => "round trip",
            Check::Version => "version",
            Check::Role => "role",
            Check::Replicas => "replicas",
            Check::Cluster => "cluster",
            Check::Eviction => "eviction",
            Check::Memory => "memory",
            Check::Persistence => "persistence",
            Check::Clients => "clients",
            Check::Clock => "clock",
            Check::Rights => "rights",
            Check::Scripts => "scripts",
            Check::Messages => "messages",
        })
    }
}

/// The findings of one check, as they come up.
struct Findings<'a> {
    check: Check,
    server: Option<&'a str>,
    list: Vec<Finding>,
}

impl<'a> Findings<'a> {
    fn of(check: Check, server: Option<&'a str>) -> Findings<'a> {
        Findings {
            check,
            server,
            list: Vec::new(),
        }
    }

    fn warn(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.push(Level::Warning, message.into(), Some(remedy.into()));
    }

    fn fail(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.push(Level::Error, message.into(), Some(remedy.into()));
    }

    fn push(&mut self, level: Level, message: String, remedy: Option<String>) {
        self.list.push(Finding {
            check: self.check,
            level,
            server: self.server.map(str::to_owned),
            message,
            remedy: remedy.map(kept_over_a_restart),
        });
    }

    /// All findings; this message if there was nothing to complain of.
    fn or_ok(mut self, message: impl Into<String>) -> Vec<Finding> {
        if self.list.is_empty() {
            self.push(Level::Ok, message.into(), None);
        }
        self.list
    }

    /// All findings. If there is none, the check's question had no answer, and nothing says that
    /// anything is wrong.
    fn or_unknown(self, why: &Unknown) -> Vec<Finding> {
        self.or_ok(why.to_string())
    }
}

/// What CONFIG SET sets is gone after a restart of the server.
fn kept_over_a_restart(remedy: String) -> String {
    if remedy.contains("CONFIG SET ") {
        format!("{remedy}. CONFIG REWRITE keeps that over a restart")
    } else {
        remedy
    }
}
