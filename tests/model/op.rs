//! What clients do with a lock, what befalls it, and what they see of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One request for a lock, and all that comes of it: a try, or a place in the queue, and the guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Attempt {
    /// Attempts are numbered in the order in which they are made. A process that has lost places takes them
    /// again in that order (R4).
    pub(crate) number: u16,
    /// The process that makes it.
    pub(crate) client: u8,
    /// On what terms.
    pub(crate) lease: LeaseTerm,
    /// How many permits it asks for. A mutex has one.
    pub(crate) permits: u32,
}

/// What a name is used as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ModelKind {
    /// One permit, and one holder.
    #[default]
    Mutex,
    /// So many permits.
    Semaphore(u32),
    /// Readers take one permit each, and a writer all of these.
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

    /// Whether one who asks for so many has a fence of his own; else he shares the last one's.
    pub(crate) fn raises_fence(self, permits: u32) -> bool {
        !matches!(self, ModelKind::ReadWrite(all) if permits < all)
    }
}

/// Short, since whoever reads of one reads of many: `3@0 Fixed` is the third of all, by client 0, and `3@0 Fixed ×2` asks
/// for two permits.
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

/// Whether somebody renews a lock while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LeaseTerm {
    /// Its lapse means that the process is dead (R10).
    Renewed,
    /// Its lapse means nothing for the rest of its process.
    Fixed,
}

/// Something that is done with one name, or befalls it.
///
/// Some are a client's alone, and mean something to [`PossibleState`](super::PossibleState): to claim a grant. Some only the server
/// sees, and they mean something to [`ModelLock`](super::ModelLock): a sign of life. Most are both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// What is true when the next request arrives, of what only the server's clock knows.
    Arrive(ServerView),
    /// The sign of life that a client's waiters send.
    Sync {
        /// Whose.
        client: u8,
    },
    /// A copy of the request of somebody who has left the queue, where a dead entry may still keep the place.
    Rejoin(Attempt),
    /// The server loses data.
    LoseData(DataLoss),
    /// Take it if it is free and nobody waits.
    TryLock(Attempt),
    /// Take it or a place in its queue.
    Enqueue(Attempt),
    /// Look whether a place was granted, and make a guard of the grant.
    TakeGrant(Attempt),
    /// Give a place up, granted or not.
    Cancel(Attempt),
    /// Give a guard up, and ask how that went.
    Unlock(Attempt),
    /// Give a guard up.
    Drop(Attempt),
    /// Give all permits back but one.
    Downgrade(Attempt),
    /// Ask for more time.
    Renew(Attempt),
    /// Take the lock from whoever was granted it with this fence.
    ForceRelease {
        /// Who does.
        client: u8,
        /// The fence that was seen.
        fence: u64,
    },
    /// Who holds it, who waits?
    Inspect,
    /// A copy of a holder's request arrives once more, if there is a holder: the one with this number.
    Repeat(Option<u16>),
    /// Ask for something that is not allowed.
    Misuse,
    /// Every holder's time runs out, and nobody has noticed yet.
    Expire,
    /// Every holder's time runs out, and somebody who neither holds nor waits notices.
    Lapse,
}

/// What the server's clock says of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerView {
    /// No fence is less than it (P2).
    pub(crate) clock: u64,
    /// Whose time is over, by the numbers of attempts; or, if one was released too soon, the least time that it was asked
    /// for (R16).
    pub(crate) expired: BTreeSet<u16>,
    /// Whose least time is over, of those who were released too soon; of who holds again meanwhile no other tells.
    pub(crate) cooled: BTreeSet<u16>,
    /// Clients, a bit for each, that were silent for longer than the horizon of served time (R2).
    pub(crate) silent: u128,
    /// Nobody was served for longer than a step.
    pub(crate) outage: bool,
    /// Holders who were silent for all of an outage and are seen to be given one step more.
    pub(crate) grace: BTreeSet<u16>,
    /// The server looks who holds permits, and does not go by how many it counted.
    pub(crate) recounts: bool,
    /// If who holds it releases it now, it is nobody's until its least time is over.
    pub(crate) must_cool: bool,
    /// How many of those who wait this request can come to, if there are more entries than it looks at.
    pub(crate) reach: Option<usize>,
}

/// What the server has no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DataLoss {
    /// All that there is; of a mutex, perhaps but for the queue.
    All,
    /// The record alone, of several that each say who holds it.
    Record,
    /// The queue alone, of which the record still counts the entries.
    Queue,
    /// Who holds permits; they are counted as taken until the first of them would have lapsed.
    Holders,
}

/// What is seen of an [`Op`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ModelOutcome {
    /// It is held, under this fence. Of a place that was granted as it was asked for, `Waiting` tells first.
    Granted {
        /// The fence.
        fence: u64,
    },
    /// Others have it.
    Busy,
    /// It has a place.
    Waiting {
        /// As [`Waiter::position`](crate::Waiter::position).
        position: Option<u64>,
    },
    /// A place that has heard of no grant.
    NotYet,
    /// It was released while it was the guard's; by a lapse or by force, while somebody had it.
    Released,
    /// It has its full time again.
    Renewed,
    /// It has one permit left.
    Downgraded,
    /// The guard had lost it; it is another's, or nobody's.
    Lost,
    /// It came too late and was refused (R5).
    Late,
    /// There are more to be passed over than one request looks at: it is to be sent again.
    SendAgain,
    /// There is no record.
    Absent,
    /// There was nothing to take away.
    Refused,
    /// Those who hold it and those who wait; `None` if there is nobody.
    Seen(Option<Observation>),
    /// It was called an error, and no request was sent.
    Forbidden,
    /// Nobody says what came of it.
    Done,
}

/// What an inspection shows, by the numbers of attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observation {
    /// The holders and their fences, by their numbers.
    pub(crate) holders: BTreeMap<u16, u64>,
    /// Those who wait, in order.
    pub(crate) queue: Vec<u16>,
}
