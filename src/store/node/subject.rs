//! A server to examine for a diagnosis, and the time for that.

use std::sync::Arc;
use std::time::Duration;

use super::Node;
use crate::config::Config;
use crate::key::Key;
use crate::script::LockSpec;
use crate::store::clock::{Clock, Time};

/// A server that keeps locks, and what to try on it.
#[derive(Clone)]
pub(in crate::store) struct Subject {
    pub(in crate::store) node: Arc<Node>,
    /// A name that it keeps. Nobody locks it.
    pub(in crate::store) key: Key,
    pub(in crate::store) spec: LockSpec,
    /// The node that a message is awaited at. `None`: nobody needs messages.
    pub(in crate::store) listener: Option<Arc<Node>>,
}

/// The time for an examination. Its two steps take two connect timeouts and six command timeouts at
/// most.
#[derive(Clone)]
pub(in crate::store) struct ExamTime {
    pub(in crate::store) clock: Clock,
    pub(in crate::store) connect: Duration,
    /// T
    pub(in crate::store) reply: Duration,
}

impl ExamTime {
    pub(in crate::store) fn new(clock: &Clock, config: &Config) -> ExamTime {
        ExamTime {
            clock: clock.clone(),
            connect: config.connect_timeout,
            reply: config.command_timeout,
        }
    }

    /// The end of the first step: sentinels and masters.
    pub(in crate::store) fn first_step(&self) -> Time {
        self.clock.now() + self.connect + self.reply * 4
    }

    /// The end of the second step: the replicas, which the masters name.
    pub(super) fn second_step(&self) -> Time {
        self.clock.now() + self.connect + self.reply * 2
    }
}
