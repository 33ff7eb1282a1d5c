//! The model's vocabulary: operations, what a caller sees of them, and what the server's clock
//! decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One request for a lock and everything that follows from it: a try or a place in the queue, and
/// then the guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Attempt {
    /// Attempts are numbered in the order in which they are made. A process that has lost places
    /// takes them again in that order (R4: lost places).
    pub(crate) number: u16,
    /// The process that makes the attempt.
    pub(crate) client: u8,
    /// Whether the process renews the lease.
    pub(crate) lease: LeaseTerm,
    /// How many permits it asks for. A mutex has one.
    pub(crate) permits: u32,
    /// How many fences its grant reserves behind the first, for further turns. Only a mutex has
    /// these.
    pub(crate) spare: u32,
}

/// The use of a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ModelKind {
    /// One permit, and one holder.
    #[default]
    Mutex,
    /// This number of permits.
    Semaphore(u32),
    /// A reader takes one permit, and a writer takes all of this number.
    ReadWrite(u32),
}

impl ModelKind {
    /// How many permits there are.
    pub(crate) fn permits(self) -> u32 {
        match self {
            ModelKind::Mutex => 1,
            ModelKind::Semaphore(permits) | ModelKind::ReadWrite(permits) => permits,
        }
    }

    /// Whether a grant of this number of permits has a new fence. A reader shares the fence of the
    /// last writer.
    pub(crate) fn raises_fence(self, permits: u32) -> bool {
        !matches!(self, ModelKind::ReadWrite(all) if permits < all)
    }
}

/// Short, because a trace shows many: `3@0 Fixed` is the third attempt of all, made by client 0,
/// and `3@0 Fixed ×2` asks for two permits.
impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} {:?}", self.number, self.client, self.lease)?;
        if self.permits == 1 {
            Ok(())
        } else {
            write!(f, " ×{}", self.permits)
        }
    }
}

/// Whether the process renews its lease while it holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LeaseTerm {
    /// If it lapses, the process is dead (R10: places of the dead).
    Renewed,
    /// If it lapses, that says nothing about the rest of its process.
    Fixed,
}

/// Something that is done with one name, or that happens to it.
///
/// Some operations are visible to a client alone, and only a
/// [`PossibleState`](super::PossibleState) knows them: for example, taking a grant. Some are
/// visible to the server alone, and only a [`ModelLock`](super::ModelLock) knows them: for example,
/// a sign of life. Most are visible to both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// The next request arrives while this is true at the server.
    Arrive(ServerView),
    /// The sign of life that a client's waiters send.
    Sync {
        /// The client that sends it.
        client: u8,
    },
    /// A late copy of an acquire arrives after its waiter has left the queue. A dead entry may
    /// still keep its place there.
    Rejoin(Attempt),
    /// The server loses data.
    LoseData(DataLoss),
    /// Take the lock if it is free and nobody waits.
    TryLock(Attempt),
    /// Take the lock, or a place in its queue.
    Enqueue(Attempt),
    /// Ask a waiter for its grant, and make a guard of it.
    TakeGrant(Attempt),
    /// Drop a waiter, granted or not.
    Cancel(Attempt),
    /// Release a guard, and look at the result.
    Unlock(Attempt),
    /// The same after several turns. The last one's fence is this far behind the first.
    UnlockAfterTurns(Attempt, u64),
    /// Drop a guard.
    Drop(Attempt),
    /// Release all permits but one.
    Downgrade(Attempt),
    /// Renew the lease.
    Renew(Attempt),
    /// Take the lock away from every holder that has this fence.
    ForceRelease {
        /// The client that does it.
        client: u8,
        /// The fence that the client saw.
        fence: u64,
    },
    /// List the holders and the waiters.
    Inspect,
    /// A copy of a holder's acquire arrives again. The number names the holder; `None` if
    /// there is no holder.
    Repeat(Option<u16>),
    /// Ask for something that is not allowed.
    Misuse,
    /// The lease of every holder expires, and nobody has noticed yet.
    Expire,
    /// The lease of every holder expires, and a stranger's request notices it. The stranger
    /// neither holds nor waits.
    Lapse,
}

/// The decisions of the server's clock about a name at the arrival of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerView {
    /// No new fence is less than this (P2).
    pub(crate) clock: u64,
    /// The attempts whose lease has expired. For a lock that was released too early, the attempts
    /// whose least hold time is over (R16: hold_at_least).
    pub(crate) expired: BTreeSet<u16>,
    /// The attempts that were released too early and whose least hold time is over. Only this set
    /// decides for an attempt that holds the lock again by now.
    pub(crate) cooled: BTreeSet<u16>,
    /// The clients, a bit for each, that were silent for longer than the horizon of served time
    /// (R2: served time).
    pub(crate) silent: u128,
    /// Nobody was served for longer than a step.
    pub(crate) outage: bool,
    /// The holders that were silent for a whole outage and that the test saw get one step of grace.
    pub(crate) grace: BTreeSet<u16>,
    /// If the holder releases the lock with this request, the lock stays taken until the holder's
    /// least hold time is over (R16: hold_at_least).
    pub(crate) must_cool: bool,
    /// How many waiters this request can reach, if the queue has more entries than one request
    /// looks at.
    pub(crate) reach: Option<usize>,
}

/// The data that the server has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DataLoss {
    /// Everything. For a mutex, the queue may survive.
    All,
    /// The record alone, for locks whose holders have a key of their own.
    Record,
    /// The queue alone. The record still counts its entries.
    Queue,
    /// The holders of permits. The permits count as taken until the first of their leases would
    /// have lapsed.
    Holders,
}

/// The result of an [`Op`], as a caller or the test sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ModelOutcome {
    /// The attempt holds the lock, with this fence. A waiter that is granted the lock at once
    /// reports `Waiting` first.
    Granted {
        /// The fence.
        fence: u64,
    },
    /// The lock is taken.
    Busy,
    /// The attempt has a place in the queue.
    Waiting {
        /// As the crate's `Waiter::position` says it.
        position: Option<u64>,
    },
    /// The waiter has no grant yet.
    NotYet,
    /// The guard released it while it held it. For a lapse or a forced release: there was a
    /// holder.
    Released,
    /// The lease has its full time again.
    Renewed,
    /// One permit is left to the guard.
    Downgraded,
    /// The guard had lost the lock before.
    Lost,
    /// The request came too late, and the server refused it (R5: dated requests).
    Late,
    /// More waiters have to be passed over than one request looks at. The caller must send it
    /// again.
    SendAgain,
    /// There is no record.
    Absent,
    /// There was nothing to take away.
    Refused,
    /// The holders and the waiters; `None` if there are none.
    Seen(Option<Observation>),
    /// The call failed as an error, and sent no request.
    Forbidden,
    /// Nobody sees the result.
    Done,
}

/// The result of an inspection, by the numbers of attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observation {
    /// The fence of each holder.
    pub(crate) holders: BTreeMap<u16, u64>,
    /// The waiters, in the order of the queue.
    pub(crate) queue: Vec<u16>,
    /// The last fence of a mutex that counts as used, if the test looked.
    pub(crate) last_fence: Option<u64>,
}
