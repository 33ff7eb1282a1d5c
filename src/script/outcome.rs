//! What a script answers, as data. `reply` reads it.

use std::time::Duration;

use super::reply::Inspection;
use super::{Family, Token};
use crate::loss::PreviousHolder;
use crate::setting::LOCAL_HANDOVERS;

/// The reply of one of our scripts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptReply {
    /// The server's time in µs, if the reply has it.
    pub(crate) now: Option<u64>,
    /// There is more of the same to do: call again at once.
    pub(crate) more: bool,
    /// How many waiters of dead processes the call passed over.
    pub(crate) dead_waiters: u64,
    /// Where the next page of holders begins; 0 if there is none. Only for the verbs that take the
    /// holders of permits page by page.
    pub(crate) next_page: u64,
    pub(crate) outcome: Outcome,
    /// Other waiters of the caller's manager that were granted a lock in the same step.
    pub(crate) grants: Vec<Grant>,
}

impl ScriptReply {
    /// A reply that says this and no more.
    pub(crate) fn of(outcome: Outcome, now: Option<u64>) -> ScriptReply {
        ScriptReply {
            now,
            more: false,
            dead_waiters: 0,
            next_page: 0,
            outcome,
            grants: Vec::new(),
        }
    }
}

/// A token became an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) fence: u64,
    /// Server time in µs.
    pub(crate) granted_at: u64,
    /// The time that was left when the server wrote this.
    pub(crate) left: Duration,
    pub(crate) previous: PreviousHolder,
    /// Whether others waited when the server wrote this. `None`: it did not say, as for permits.
    pub(crate) waiting: Option<bool>,
}

impl Grant {
    /// P2 (rising fences): how many fences a grant may reserve behind its first. If the data is lost, the
    /// next fence is the clock's, so no grant reserves any that is further ahead of the clock than this.
    /// See mutex_spare.lua, which reckons in the same way.
    pub(crate) fn most_spare_fences(&self) -> u64 {
        let most = u64::from(LOCAL_HANDOVERS.most);
        (self.granted_at + most).saturating_sub(self.fence)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Granted(Grant),
    Waiting {
        ticket: u64,
        position: u64,
        left: Duration,
        since: u64,
    },
    Busy {
        left: Duration,
        /// A process that keeps the lock was told that somebody waits.
        told: bool,
    },
    /// The answer of one node of a quorum. A majority of them makes an outcome.
    Vote(Vote),
    /// R22 (tries among the dead): no live process seems to hold the lock or to wait for it. The
    /// processes that may wait were called.
    Silent,
    Late,
    More,
    /// R11 (missing keys): this record needs both keys.
    Queued,
    /// The record is of this kind and version, not of ours.
    Kind(String),
    Released,
    Refused,
    Already,
    Lapsed,
    Forced,
    Lost,
    Unknown,
    Renewed {
        left: Duration,
        fence: u64,
        /// Somebody waits for the lock.
        waiting: bool,
    },
    Gone {
        stored: u64,
        ended: u64,
        how: PreviousHolder,
    },
    Synced {
        owner: Option<Grant>,
        /// The owner waited in the queue, and it is this manager's.
        owner_waited_here: bool,
        left: Duration,
        since: u64,
        newest_known: bool,
        served: u64,
    },
    Absent,
    /// Nobody uses the name, and it can become any kind of lock, or it is deleted.
    Vacated,
    Inspection(Box<Inspection>),
    /// The answer to a lookup: the owner, since when the manager has stamps, and the waiting tokens.
    Present {
        owner: Option<Token>,
        since: u64,
        waiting: Vec<bool>,
    },
}

/// How one node of a quorum answers a proposal, or a renewal that it cannot grant now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The token has the name on this node. `ended` is the fence of the last guard whose end the
    /// node has seen, and the grant says how that guard ended.
    Granted { grant: Grant, ended: u64 },
    /// Another token has it, or it cools. Nothing changed.
    Busy { left: Duration, fence: u64 },
    /// It is free, and the node has granted this fence, which is not below the proposed one. Nothing
    /// changed.
    Outbid { fence: u64 },
}

impl Outcome {
    /// The word by which the scripts answer it, for an error.
    pub(crate) fn word(&self) -> &str {
        match self {
            Outcome::Granted(_) | Outcome::Vote(Vote::Granted { .. }) => "granted",
            Outcome::Waiting { .. } => "waiting",
            Outcome::Busy { .. } | Outcome::Vote(Vote::Busy { .. }) => "busy",
            Outcome::Vote(Vote::Outbid { .. }) => "outbid",
            Outcome::Silent => "silent",
            Outcome::Late => "late",
            Outcome::More => "more",
            Outcome::Queued => "queued",
            Outcome::Kind(kind) => kind,
            Outcome::Released => "released",
            Outcome::Refused => "refused",
            Outcome::Already => "already",
            Outcome::Lapsed => "lapsed",
            Outcome::Forced => "forced",
            Outcome::Lost => "lost",
            Outcome::Unknown => "unknown",
            Outcome::Renewed { .. } => "renewed",
            Outcome::Gone { .. } => "gone",
            Outcome::Synced { .. } => "synced",
            Outcome::Absent => "absent",
            Outcome::Vacated => "vacated",
            Outcome::Inspection(_) => "inspection",
            Outcome::Present { .. } => "present",
        }
    }

    /// The family of the kind that the name is, if that is not the caller's own.
    pub(crate) fn other_family(&self, own: Family) -> Option<Family> {
        let Outcome::Kind(kind) = self else {
            return None;
        };
        Family::of_kind(kind).filter(|family| *family != own)
    }
}
