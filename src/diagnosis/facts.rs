//! Facts that a store found out about its servers, as data.

use std::collections::HashMap;
use std::time::Duration;

use super::answer::{Answer, Unknown};
use super::info::Info;
use crate::error::Error;

/// The facts that a store found out. The order is the one in which the findings are shown.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) deployment: Deployment,
    pub(crate) sentinels: Vec<SentinelFacts>,
    /// Masters, each with its replicas behind it.
    pub(crate) nodes: Vec<NodeFacts>,
}

impl Facts {
    /// The facts about a store in this process: it has no server that says anything. An error: it is
    /// down.
    #[cfg(feature = "memory")]
    pub(crate) fn in_memory(state: Result<(), Error>) -> Facts {
        let down = |error| NodeFacts {
            address: "memory".to_owned(),
            role: NodeRole::Master,
            user: String::new(),
            answers: Err(error),
        };
        Facts {
            deployment: Deployment::Memory,
            sentinels: Vec::new(),
            nodes: state.err().map(down).into_iter().collect(),
        }
    }
}

impl Facts {
    /// Whether any server said anything.
    pub(crate) fn has_answers(&self) -> bool {
        let of_sentinels = self
            .sentinels
            .iter()
            .any(|sentinel| sentinel.answers.is_ok());
        of_sentinels || self.nodes.iter().any(|node| node.answers.is_ok())
    }
}

impl NodeFacts {
    /// Whether it says that it is a replica.
    pub(crate) fn is_replica(&self) -> bool {
        let info = self.answers.as_ref().ok();
        let info = info.and_then(|answers| answers.info.as_ref().ok());
        info.and_then(|info| info.get("role")) == Some("slave")
    }
}

/// How the servers belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    #[cfg(feature = "memory")]
    Memory,
    Single,
    Sentinel,
    Cluster,
    Quorum,
}

/// The facts about one server.
#[derive(Debug)]
pub(crate) struct NodeFacts {
    pub(crate) address: String,
    pub(crate) role: NodeRole,
    /// The name of the user, for rules that add a right.
    pub(crate) user: String,
    /// An error: it could not be reached, or did not answer.
    pub(crate) answers: Result<NodeAnswers, Error>,
}

/// The use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// It must be one: it keeps locks.
    Master,
    /// It may take the place of its master.
    Replica,
}

/// The answers of a server that can be reached.
#[derive(Debug)]
pub(crate) struct NodeAnswers {
    pub(crate) connected_in: Duration,
    /// Whether HELLO or INFO said something when the connection was opened.
    pub(crate) says_what_it_is: bool,
    /// Why it has not answered all questions.
    pub(crate) stopped: Option<String>,
    /// At least one.
    pub(crate) round_trips: Vec<Duration>,
    pub(crate) clock: ClockReading,
    pub(crate) info: Answer<Info>,
    pub(crate) settings: Settings,
    /// `None`: it is a replica, which refuses all that takes something.
    pub(crate) work: Option<WorkAnswers>,
    /// `None`: it belongs to no cluster.
    pub(crate) cluster: Option<ClusterAnswers>,
}

/// Whether a server does the work of locks.
#[derive(Debug)]
pub(crate) struct WorkAnswers {
    /// The rights that the user lacks.
    pub(crate) lacking: Answer<Vec<String>>,
    pub(crate) scripts: Answer<()>,
    /// How long a message took. `None`: nobody needs messages.
    pub(crate) message: Option<Answer<Duration>>,
}

/// A node's view of its cluster.
#[derive(Debug)]
pub(crate) struct ClusterAnswers {
    pub(crate) info: Answer<Info>,
    /// `CLUSTER NODES`
    pub(crate) nodes: Answer<String>,
}

/// A server's clock, compared with this host's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    /// How far it is ahead, in µs.
    pub(crate) ahead_us: i64,
    /// How far that can be from the truth.
    pub(crate) error: Duration,
}

/// The facts about one sentinel.
#[derive(Debug)]
pub(crate) struct SentinelFacts {
    pub(crate) address: String,
    pub(crate) user: String,
    /// An error: it could not be reached, or did not answer.
    pub(crate) answers: Result<SentinelAnswers, Error>,
}

#[derive(Debug)]
pub(crate) struct SentinelAnswers {
    /// The master that it names. `None`: it does not watch the service.
    pub(crate) master: Answer<Option<String>>,
    /// `SENTINEL MASTER`
    pub(crate) fields: Answer<HashMap<String, String>>,
    /// `SENTINEL CKQUORUM`: whether a failover could be agreed on now, or why not.
    pub(crate) can_agree: Answer<Result<(), String>>,
}

/// The settings that are asked for, each by a `CONFIG GET` of its own: 6.2 takes no more, and all of
/// them together would bring passwords.
pub(crate) const SETTINGS: [&str; 11] = [
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
pub(crate) struct Settings(pub(crate) HashMap<&'static str, Answer<String>>);

impl Settings {
    pub(crate) fn get(&self, name: &str) -> Answer<&str> {
        match self.0.get(name) {
            Some(Ok(value)) => Ok(value),
            Some(Err(unknown)) => Err(unknown.clone()),
            None => Err(Unknown::Absent(name.to_owned())),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Answer<u64> {
        let value = self.get(name)?;
        let number = value.parse();
        number.map_err(|_| Unknown::Failed(format!("{name} is {value:?}")))
    }
}
