//! What clients do with a lock, what befalls it, and what they see of it.

use std::fmt;

/// One wish for a lock, and all that comes of it: a try, or a place in the queue, and the guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// Attempts are numbered in the order in which they are made. A process that has lost places takes them
    /// again in that order (R4).
    pub number: u16,
    /// The process that makes it.
    pub client: u8,
    /// On what terms.
    pub lease: Lease,
}

/// Short, since whoever reads of one reads of many: `3@0 Fixed` is the third of all, by client 0.
impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} {:?}", self.number, self.client, self.lease)
    }
}

/// Whether somebody renews a lock while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lease {
    /// Its lapse means that the process is dead (R10).
    Renewed,
    /// Its lapse means nothing for the rest of its process.
    Fixed,
}

/// Something that is done with one name, or befalls it.
///
/// Some are a client's alone, and mean something to [`World`](super::World): to claim a grant. Some only the server
/// sees, and they mean something to [`Lock`](super::Lock): a sign of life. Most are both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// What is true when the next request arrives, of what only the server's clock knows.
    At(Moment),
    /// The sign of life that a client's waiters send.
    Sync {
        /// Whose.
        client: u8,
    },
    /// A copy of the request of somebody who has left the queue, where a dead entry may still keep the place.
    Return(Attempt),
    /// The server loses data.
    Lose(Loss),
    /// Take it if it is free and nobody waits.
    TryLock(Attempt),
    /// Take it or a place in its queue.
    Enqueue(Attempt),
    /// Look whether a place was granted, and make a guard of the grant.
    Claim(Attempt),
    /// Give a place up, granted or not.
    Leave(Attempt),
    /// Give a guard up, and ask how that went.
    Unlock(Attempt),
    /// Give a guard up.
    Drop(Attempt),
    /// Ask for more time.
    Renew(Attempt),
    /// Take the lock from whoever was granted it with this fence.
    ForceRelease {
        /// The fence that was seen.
        fence: u64,
    },
    /// Who holds it, who waits?
    Inspect,
    /// A copy of the owner's request arrives once more.
    Repeat,
    /// Ask for something that is not allowed.
    Misuse,
    /// The holder's time runs out, and nobody has noticed yet.
    RunOut,
    /// The holder's time runs out, and somebody who neither holds nor waits notices.
    Lapse,
}

/// What the server's clock says of a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment {
    /// No fence is less than it (P2).
    pub clock: u64,
    /// The holder's time is over; or, if it was released too soon, the least time that it was asked for (R16).
    pub over: bool,
    /// Clients, a bit for each, that were silent for longer than the horizon of served time (R2).
    pub silent: u128,
    /// Nobody was served for longer than a step.
    pub outage: bool,
    /// The holder, who was silent for all of an outage, is seen to be given one step more.
    pub grace: bool,
    /// If the holder releases it now, it is nobody's until its least time is over.
    pub cools: bool,
}

/// What the server has no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The record, with the queue or without.
    Record,
    /// The queue alone, of which the record still counts the entries.
    Queue,
}

/// What is seen of an [`Op`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
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
    /// The guard had lost it; it is another's, or nobody's.
    Lost,
    /// It came too late and was refused (R5).
    Late,
    /// There is no record.
    Absent,
    /// There was nothing to take away.
    Refused,
    /// The one who holds it and those who wait; `None` if there is nobody.
    Seen(Option<Sight>),
    /// It was called an error, and no request was sent.
    Forbidden,
    /// Nobody says what came of it.
    Done,
}

/// What an inspection shows, by the numbers of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The holder and its fence.
    pub holder: Option<(u16, u64)>,
    /// Those who wait, in order.
    pub queue: Vec<u16>,
}
