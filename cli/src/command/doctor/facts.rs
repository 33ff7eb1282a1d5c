//! Facts about servers, as data.

use std::collections::HashMap;
use std::time::Duration;

pub(super) use fairlock::servers::Deployment;

use super::answer::{Answer, Info, Unknown};
use super::fault::Fault;

/// The facts about the servers of a deployment, in the order in which the findings are shown.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) deployment: Deployment,
    pub(super) sentinels: Vec<SentinelFacts>,
    /// Masters, each with its replicas behind it.
    pub(super) nodes: Vec<NodeFacts>,
}

impl Facts {
    /// Whether any server said anything.
    pub(super) fn has_answers(&self) -> bool {
        let of_sentinels = self
            .sentinels
            .iter()
            .any(|sentinel| sentinel.answers.is_ok());
        of_sentinels || self.nodes.iter().any(|node| node.answers.is_ok())
    }
}

impl NodeFacts {
    /// Whether it says that it is a replica.
    pub(super) fn is_replica(&self) -> bool {
        let info = self.answers.as_ref().ok();
        let info = info.and_then(|answers| answers.info.as_ref().ok());
        info.and_then(|info| info.get("role")) == Some("slave")
    }
}

impl NodeAnswers {
    pub(super) fn info(&self) -> Answer<&Info> {
        self.info.as_ref().map_err(Clone::clone)
    }
}

/// The facts about one server.
#[derive(Debug)]
pub(super) struct NodeFacts {
    pub(super) address: String,
    pub(super) role: NodeRole,
    /// The name of the user, for rules that add a right.
    pub(super) user: String,
    /// An error: it could not be reached, or did not answer.
    pub(super) answers: Result<NodeAnswers, Fault>,
}

/// The use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeRole {
    /// It must be one: it keeps locks.
    Master,
    /// It may take the place of its master.
    Replica,
}

/// The answers of a server that can be reached.
#[derive(Debug)]
pub(super) struct NodeAnswers {
    pub(super) connected_in: Duration,
    /// Whether HELLO said something when the connection was opened.
    pub(super) says_what_it_is: bool,
    /// Why it has not answered all questions.
    pub(super) stopped: Option<String>,
    /// At least one.
    pub(super) round_trips: Vec<Duration>,
    pub(super) clock: ClockReading,
    pub(super) info: Answer<Info>,
    pub(super) settings: Settings,
    /// `None`: it is a replica, which refuses all that takes something.
    pub(super) work: Option<WorkAnswers>,
    /// `None`: it belongs to no cluster.
    pub(super) cluster: Option<ClusterAnswers>,
}

/// Whether a server does the work of locks.
#[derive(Debug)]
pub(super) struct WorkAnswers {
    /// The rights that the user lacks.
    pub(super) lacking: Answer<Vec<String>>,
    /// The commands of locks that the server does not have, in upper case.
    pub(super) absent: Vec<String>,
    pub(super) scripts: Answer<()>,
    /// How long a message took. `None`: nobody needs messages.
    pub(super) message: Option<Answer<Duration>>,
}

/// A node's view of its cluster.
#[derive(Debug)]
pub(super) struct ClusterAnswers {
    pub(super) info: Answer<Info>,
    /// `CLUSTER NODES`
    pub(super) nodes: Answer<String>,
}

/// A server's clock, compared with this host's.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    /// How far it is ahead, in µs.
    pub(super) ahead_us: i64,
    /// How far that can be from the truth.
    pub(super) error: Duration,
}

/// The facts about one sentinel.
#[derive(Debug)]
pub(super) struct SentinelFacts {
    pub(super) address: String,
    pub(super) user: String,
    /// An error: it could not be reached, or did not answer.
    pub(super) answers: Result<SentinelAnswers, Fault>,
}

#[derive(Debug)]
pub(super) struct SentinelAnswers {
    /// The master that it names. `None`: it does not watch the service.
    pub(super) master: Answer<Option<String>>,
    /// `SENTINEL MASTER`
    pub(super) fields: Answer<HashMap<String, String>>,
    /// `SENTINEL CKQUORUM`: whether a failover could be agreed on now, or why not.
    pub(super) can_agree: Answer<Result<(), String>>,
}

/// The settings that are asked for, each by a `CONFIG GET` of its own: 6.2 takes no more, and all
/// of them together would bring passwords.
pub(super) const SETTINGS: [&str; 11] = [
    "maxmemory",
    "maxmemory-policy",
    "appendfsync",
    "save",
    "stop-writes-on-bgsave-error",
    "timeout",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "client-output-buffer-limit",
    "lua-time-limit",
    "cluster-require-full-coverage",
];

/// The settings of a server.
#[derive(Debug, Default)]
pub(super) struct Settings(pub(super) HashMap<&'static str, Answer<String>>);

impl Settings {
    pub(super) fn get(&self, name: &str) -> Answer<&str> {
        match self.0.get(name) {
            Some(Ok(value)) => Ok(value),
            Some(Err(unknown)) => Err(unknown.clone()),
            None => Err(Unknown::Absent(name.to_owned())),
        }
    }

    pub(super) fn number(&self, name: &str) -> Answer<u64> {
        let value = self.get(name)?;
        let number = value.parse();
        number.map_err(|_| Unknown::Failed(format!("{name} is {value:?}")))
    }
}
