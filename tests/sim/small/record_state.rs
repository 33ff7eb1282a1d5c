//! The state of one name's keys in small numbers, and the requests and replies about it.

use std::fmt;

use crate::loss::PreviousHolder;
use crate::script::Mode;

/// All times are in ticks.
pub(super) const TTL: u8 = 3;
/// P and T. It is also how often a lease is renewed: a third of the ttl of 3.
pub(super) const PERIOD: u8 = 1;
/// H
pub(super) const HORIZON: u8 = 2;
/// P + T, the most that a script adds to served time.
pub(super) const STEP: u8 = 2 * PERIOD;
pub(super) const CLIENTS: u8 = 3;

/// An attempt's token. A client's tokens are numbered from 1 by their age, among those that
/// anything still refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SmallToken {
    pub(super) client: u8,
    pub(super) number: u8,
}

/// Prints `@client`, so that a trace can put the client's name in its place.
impl fmt::Debug for SmallToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}{}", self.client, self.number)
    }
}

/// A record, its queue and its holders.
///
/// This leaves out everything that changes no decision of a script here: labels, the time of the
/// grant, how the last holder ended, the number of stamps before a sweep, and times to live of an
/// hour. The shortest and the longest lease are left out too, since all leases have one length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RecordState {
    /// By their tokens. A mutex has one at most.
    pub(super) holders: Vec<HolderState>,
    /// Ticks until the first lease of a holder of permits may lapse; `None` if there is no such
    /// holder. No lease lapses before that, so no script looks for lapsed ones before.
    pub(super) next_lapse: Option<u8>,
    /// The last fence; 0 if there is no record.
    pub(super) fence: u32,
    /// The fence of the last lease that ended. Only a mutex has this.
    pub(super) ended_fence: u32,
    /// The request that last released the lock by force, until the next world.
    pub(super) forced_by: Option<SmallToken>,
    /// Ticks since a script last brought served time up to date. At most one more than the step,
    /// since a longer time makes no difference.
    pub(super) since_served: u8,
    /// The list in Redis.
    pub(super) queue: Vec<SmallToken>,
    /// How many more entries the record counts than the list has. Below 0 where places were lost
    /// and their entries are left.
    pub(super) miscounted: i8,
    /// The tokens that have a waiter's record. The number is the ticket less the last ticket
    /// served.
    pub(super) waiters: Vec<(SmallToken, u8)>,
    /// How many tickets were given out and not served.
    pub(super) tickets: u8,
    pub(super) stamps: Vec<SmallStamp>,
    pub(super) told: Told,
}

/// Whom the scripts have told, in this tick, that somebody waits. After that they tell it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Told {
    #[default]
    Nobody,
    /// The owner by the last fence.
    Last,
    /// The owner by an earlier fence.
    Earlier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HolderState {
    pub(super) token: SmallToken,
    pub(super) permits: u32,
    pub(super) fence: u32,
    /// How many fences behind its first the grant has reserved. Permits reserve none.
    pub(super) spare: u32,
    /// Ticks until the lease ends, or, after its lapse, until the entry is deleted; 0 if that time
    /// has come.
    pub(super) left: u8,
    pub(super) status: HolderStatus,
    /// Its process wants to hear that somebody waits.
    pub(super) hears: bool,
    /// It has a ticket, because it waited in the queue. Only a mutex decides by this.
    pub(super) waited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HolderStatus {
    Holds,
    /// It holds, and had its one step of grace.
    Spared,
    /// It has no permits any more. Its entry stays so that its owner can learn of the lapse.
    Lapsed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SmallStamp {
    pub(super) client: u8,
    /// Ticks of served time until the stamp is too old; −1 if it is too old already.
    pub(super) ahead: i8,
    pub(super) since: u32,
}

/// A request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum SmallRequest {
    Acquire(SmallToken),
    /// With the fence that the client knows, or 0.
    Release(SmallToken, u32, ReleaseMode),
    /// A release by force. The token is the request's own, and the fence is of any turn of a grant.
    Force(SmallToken, u32),
    Renew(SmallToken),
    Sync(SmallToken),
    Lookup(SmallToken),
}

/// Why a token is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ReleaseMode {
    /// The last guard had the fence that is this far behind the first of the grant.
    Used(u8),
    Unused,
    /// The same of a guard that has lost the lock.
    Lost(u8),
    KeepIfOwner,
    Downgrade,
}

/// Whether a request reaches the server before its `not_after` (R5: dated requests).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Arrival {
    InTime,
    Late,
}

/// A grant, as a message or a reply reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SmallGrant {
    pub(super) to: SmallToken,
    pub(super) fence: u32,
    pub(super) left: u8,
    /// Others wait behind it. Only a process that hears is told so.
    pub(super) waits: bool,
}

/// The message to a process that others wait behind its grant with this fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SmallWanted {
    pub(super) client: u8,
    pub(super) fence: u32,
}

/// The result of a reply's own request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum SmallReply {
    Granted(SmallGrant),
    Waiting {
        since: u32,
    },
    Late,
    Released,
    Already,
    /// To a release by force: nobody holds the lock with this fence.
    Refused,
    /// To a release: the token did not hold the lock, and its fence does not tell why.
    NotOwner,
    Renewed {
        left: u8,
        waits: bool,
    },
    Gone,
    Synced {
        owner: Option<SmallGrant>,
        /// The owner waited, and belongs to the caller.
        ours: bool,
        since: u32,
        known: bool,
        left: u8,
    },
    Absent,
    /// To a lookup: whether the token waits, and whether it has the mutex. Grants of permits are in
    /// the rest of the answer.
    Present {
        waits: bool,
        owns: bool,
        since: u32,
    },
}

/// A whole answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SmallAnswer {
    pub(super) reply: SmallReply,
    /// Grants to other waiters of the caller.
    pub(super) grants: Vec<SmallGrant>,
}

/// Everything that one run of a script did.
#[derive(Debug)]
pub(super) struct Execution {
    /// The record afterwards.
    pub(super) record: RecordState,
    pub(super) answer: SmallAnswer,
    /// The grants that were published as messages.
    pub(super) published: Vec<SmallGrant>,
    /// Whom it told that others wait.
    pub(super) wanted: Vec<SmallWanted>,
    /// How the last holder ended. A [`RecordState`] leaves that out, so before each step it is
    /// unknown, and this is what the step made of it.
    pub(super) last_ended: PreviousHolder,
    /// How the last holder ended, as each report of a grant says.
    pub(super) reported: Vec<(SmallToken, PreviousHolder)>,
}

impl SmallRequest {
    pub(super) fn token(self) -> SmallToken {
        match self {
            SmallRequest::Acquire(token)
            | SmallRequest::Release(token, ..)
            | SmallRequest::Force(token, _)
            | SmallRequest::Renew(token)
            | SmallRequest::Sync(token)
            | SmallRequest::Lookup(token) => token,
        }
    }

    /// The token whose lapse this request does not notice (R9: own lapse). A sync has none: it
    /// speaks for its whole process.
    pub(super) fn own(self) -> Option<SmallToken> {
        (!matches!(self, SmallRequest::Sync(_))).then(|| self.token())
    }
}

impl ReleaseMode {
    pub(super) fn mode(self) -> Mode {
        match self {
            ReleaseMode::Used(_) => Mode::Used,
            ReleaseMode::Unused => Mode::Unused,
            ReleaseMode::Lost(_) => Mode::Lost,
            ReleaseMode::KeepIfOwner => Mode::KeepIfOwner,
            ReleaseMode::Downgrade => Mode::Reduce { to: 1 },
        }
    }

    /// How far behind the first fence of its grant the last fence is that the release names, if the
    /// grant may have so many behind its first.
    pub(super) fn behind(self, spare: u32) -> Option<u64> {
        match self {
            ReleaseMode::Used(behind) if behind > 0 => Some(behind.into()),
            // The guard may still take the next one.
            ReleaseMode::Lost(behind) if spare > 0 => Some(spare.min(u32::from(behind) + 1).into()),
            _ => None,
        }
    }
}

impl RecordState {
    /// The holders, with those whose lapse nobody has noticed.
    pub(super) fn holding(&self) -> impl Iterator<Item = &HolderState> {
        self.holders
            .iter()
            .filter(|holder| holder.status != HolderStatus::Lapsed)
    }

    pub(super) fn holder(&self, token: SmallToken) -> Option<&HolderState> {
        self.holding().find(|holder| holder.token == token)
    }

    pub(super) fn is_waiting(&self, token: SmallToken) -> bool {
        self.waiters.iter().any(|(waiter, _)| *waiter == token)
    }

    /// The entries that the record counts.
    pub(super) fn entries(&self) -> u32 {
        (self.queue.len() as i32 + i32::from(self.miscounted)) as u32
    }

    /// The list is lost. The record still counts its entries.
    pub(super) fn lose_queue(&mut self) {
        self.miscounted += self.queue.len() as i8;
        self.queue.clear();
    }

    pub(super) fn tick(&mut self) {
        for left in self
            .holders
            .iter_mut()
            .map(|holder| &mut holder.left)
            .chain(&mut self.next_lapse)
        {
            *left = left.saturating_sub(1);
        }
        self.told = Told::Nobody;
        if self.entries() > 0 || !self.stamps.is_empty() {
            self.since_served = (self.since_served + 1).min(STEP + 1);
        }
    }
}
