//! The state of a process: its caller, its connections, and its outstanding releases.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::NODES;
use super::node::DriftingClock;
use crate::key::Key;
use crate::script::{Call, CallerId, Token};
use crate::store::Anchor;
use crate::store::clock::Time;
use crate::store::quorum::outstanding::{Doubts, OpenReleases, UndecidedReleases};
use crate::store::quorum::proposal::Proposal;
use crate::store::quorum::voters::Fences;

pub(super) struct SimProcess {
    /// Counts the processes that had this slot.
    pub(super) life: u32,
    pub(super) clock: DriftingClock,
    pub(super) caller_id: CallerId,
    /// A true time.
    pub(super) paused_until: u64,
    pub(super) fences: Fences,
    pub(super) doubts: Doubts,
    pub(super) open_releases: OpenReleases,
    pub(super) undecided: UndecidedReleases,
    /// Releases of guards that no majority has decided. The engine sends them again.
    pub(super) again: Vec<ReleaseAgain>,
    pub(super) connections: [Connection; NODES],
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) caller: CallerState,
    /// A wake-up is scheduled for this true time.
    pub(super) wakes_at: u64,
}

/// A FIFO in both directions.
#[derive(Default)]
pub(super) struct Connection {
    /// Counts the connections to this node.
    pub(super) number: u32,
    pub(super) state: ConnectionState,
    pub(super) anchor: Option<Anchor>,
    /// Before this, the node is refused as a voter.
    pub(super) votes_from: u64,
    /// The requests that were sent and have no reply yet.
    pub(super) pending: VecDeque<PendingCall>,
    /// True times of the last arrivals, which later ones cannot overtake.
    pub(super) last_request: u64,
    pub(super) last_reply: u64,
}

#[derive(Default, PartialEq)]
pub(super) enum ConnectionState {
    #[default]
    Closed,
    Opening,
    Open,
}

/// A request without a reply.
pub(super) struct PendingCall {
    pub(super) proposal: Option<(u64, u32)>,
    pub(super) call: Call,
}

/// A release that is put to all nodes again.
pub(super) struct ReleaseAgain {
    pub(super) call: Call,
    pub(super) at: Time,
    pub(super) last_at: Time,
    pub(super) held_since: Option<u64>,
}

/// A call that is put to all nodes.
pub(super) struct Asked {
    pub(super) proposal: Proposal,
    pub(super) until: Time,
    /// When it began, by true time.
    pub(super) since: u64,
    pub(super) purpose: Purpose,
    /// The fences under which nodes granted it.
    pub(super) granted: Vec<u64>,
    /// For the release of a lock that was held until then: since when, by true time.
    pub(super) held_since: Option<u64>,
    /// When the engine sends such a release for the last time.
    pub(super) last_at: Time,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Purpose {
    Acquire,
    Renew,
    Release,
}

/// The activity of the caller.
pub(super) enum CallerState {
    Idle { until: Time },
    Asking(WantedLock),
    Pausing { wanted: WantedLock, until: Time },
    Holding(Box<Guard>),
}

/// The lock that a caller wants.
#[derive(Clone)]
pub(super) struct WantedLock {
    pub(super) key: Key,
    pub(super) params: Arc<str>,
    pub(super) is_fixed: bool,
    pub(super) hold: Duration,
    pub(super) pause: Duration,
}

/// A lock that a caller believes to hold until the deadline.
pub(super) struct Guard {
    pub(super) wanted: WantedLock,
    pub(super) token: Token,
    pub(super) fence: u64,
    pub(super) deadline: Time,
    pub(super) release_at: Time,
    pub(super) renew_at: Time,
    /// When its acquire began, by true time.
    pub(super) since: u64,
}

impl SimProcess {
    pub(super) fn new(life: u32, clock: DriftingClock, caller_id: CallerId) -> SimProcess {
        SimProcess {
            life,
            clock,
            caller_id,
            paused_until: 0,
            fences: Fences::default(),
            doubts: Doubts::default(),
            open_releases: OpenReleases::default(),
            undecided: UndecidedReleases::default(),
            again: Vec::new(),
            connections: Default::default(),
            asked: BTreeMap::new(),
            caller: CallerState::Idle {
                until: Time::from_nanos(0),
            },
            wakes_at: u64::MAX,
        }
    }

    /// Its own time at a true time.
    pub(super) fn time(&self, now: u64) -> Time {
        Time::from_nanos(self.clock.at(now) * 1000)
    }

    /// The guard in which its caller believes.
    pub(super) fn believes(&self, now: u64) -> Option<&Guard> {
        match &self.caller {
            CallerState::Holding(guard) if self.time(now) < guard.deadline => Some(guard),
            _ => None,
        }
    }

    /// When it has something to do next.
    pub(super) fn next_due(&self) -> Time {
        let caller = match &self.caller {
            CallerState::Idle { until } | CallerState::Pausing { until, .. } => *until,
            CallerState::Asking(_) => Time::NEVER,
            CallerState::Holding(guard) => guard.release_at.min(guard.renew_at).min(guard.deadline),
        };
        let asked = self.asked.values().map(|asked| asked.until);
        let asked = asked.min().unwrap_or(Time::NEVER);
        let again = self.again.iter().map(|again| again.at);
        let again = again.min().unwrap_or(Time::NEVER);
        caller
            .min(asked)
            .min(again)
            .min(self.open_releases.next_due())
    }
}
