//! The findings about servers, in words.

use std::fmt;

use serde::Serialize;

use super::answer::Answer;
use crate::output::name_in_json;

/// The findings about the servers.
///
/// The findings are in a fixed order: those about all servers together come first, then those about
/// each sentinel, and then those about each server, in the order of [`Check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// At least one finding for each check that applies to the servers.
    pub(super) findings: Vec<Finding>,
}

/// The outcome of one check, of one server or of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The check.
    pub(super) check: Check,
    /// Whether anything must be done.
    pub(super) level: Level,
    /// The server's host and port, or its unix socket. `None` if the finding is about all servers.
    pub(super) server: Option<String>,
    /// The outcome, in one line.
    pub(super) message: String,
    /// The command or the setting that improves it. `None` if nothing needs to be improved.
    pub(super) remedy: Option<String>,
}

/// How good a finding is. The worst level is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be. Or it could not be asked, and nothing says that it is wrong.
    Ok,
    /// Locks work now. They may be lost or refused when something else fails.
    Warning,
    /// Locks do not work, or a server may lose one that is held.
    Error,
}

/// The subject of a finding. docs/COMMAND_LINE.md describes each check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Check {
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
    pub(super) fn level(&self) -> Level {
        let levels = self.findings.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }
}

/// `ok`, `warning` or `error`
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name_in_json(self))
    }
}

/// The name in plain words, such as `round trip`
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name_in_json(self).replace('_', " "))
    }
}

/// The findings of one check, as they come up.
pub(super) struct Findings<'a> {
    check: Check,
    server: Option<&'a str>,
    list: Vec<Finding>,
}

impl<'a> Findings<'a> {
    /// The findings of `find`. If there is none: what it returns, or that the check's question had
    /// no answer, so that nothing says that anything is wrong.
    pub(super) fn of(
        check: Check,
        server: Option<&'a str>,
        find: impl FnOnce(&mut Findings<'a>) -> Answer<String>,
    ) -> Vec<Finding> {
        let mut findings = Findings {
            check,
            server,
            list: Vec::new(),
        };
        let message = find(&mut findings).unwrap_or_else(|unknown| unknown.to_string());
        if findings.list.is_empty() {
            findings.push(Level::Ok, message, None);
        }
        findings.list
    }

    pub(super) fn warn(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.push(Level::Warning, message.into(), Some(remedy.into()));
    }

    pub(super) fn fail(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
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
}

/// What CONFIG SET sets is gone after a restart of the server.
fn kept_over_a_restart(remedy: String) -> String {
    if remedy.contains("CONFIG SET ") {
        format!("{remedy}. CONFIG REWRITE keeps that over a restart")
    } else {
        remedy
    }
}
