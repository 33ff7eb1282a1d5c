//! What a name's keys hold, in small numbers, and what is asked of them and answered.

use std::fmt;

use crate::loss::PreviousHolder;
use crate::script::Mode;

/// All times are in ticks.
pub(super) const TTL: u8 = 3;
/// P, T and, as for a ttl of 3, a third of the ttl, at which leases are renewed.
pub(super) const PERIOD: u8 = 1;
/// H
pub(super) const HORIZON: u8 = 2;
/// P + T, the most that a script adds to served time.
pub(super) const STEP: u8 = 2 * PERIOD;
pub(super) const CLIENTS: u8 = 3;

/// An attempt's token. Those of a client are numbered from 1, by their age among those that anybody still has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Tok {
    pub(super) client: u8,
    pub(super) number: u8,
}

/// So that a trace can put the client's name there.
impl fmt::Debug for Tok {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}{}", self.client, self.number)
    }
}

/// A record, its queue and its holders. Left out is what changes no decision of a script here: labels, the time of the
/// grant, how the last holder ended, the number of stamps before a sweep, times to live of an hour, and the shortest and
/// the longest lease, since all leases are of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Shelf {
    /// By their tokens. A mutex has one at most.
    pub(super) holders: Vec<Holder>,
    /// Ticks until the time before which no holder of permits lapses; `None` if there is none.
    pub(super) look: Option<u8>,
    /// The fields f and x, of permits f alone; 0 if there is no record.
    pub(super) fence: u32,
    pub(super) ended: u32,
    /// Ticks since served time was brought up to date; no more than one beyond the step.
    pub(super) idle: u8,
    /// The list.
    pub(super) queue: Vec<Tok>,
    /// Those that have a record, with their tickets less the one last served.
    pub(super) waiters: Vec<(Tok, u8)>,
    /// Tickets given out and not served.
    pub(super) tickets: u8,
    pub(super) stamps: Vec<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) tok: Tok,
    pub(super) permits: u32,
    pub(super) fence: u32,
    /// Ticks until its lease ends, or, if it lapsed, until it is forgotten; 0 if that is past.
    pub(super) left: u8,
    pub(super) stands: Stands,
    /// It has a ticket: it stood in the queue. Only a mutex tells by it.
    pub(super) waited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stands {
    Holds,
    /// It holds, and has had its grace.
    Spared,
    /// It takes no permits any more, and stays so that it hears of it.
    Lapsed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Stamp {
    pub(super) client: u8,
    /// Less the served time; −1 if that is past it.
    pub(super) ahead: i8,
    pub(super) since: u32,
}

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Ask {
    Acquire(Tok),
    Release(Tok, u32, Way),
    Renew(Tok),
    Sync(Tok),
    Lookup(Tok),
}

/// A mode of release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Way {
    Used,
    Unused,
    Lost,
    KeepIfOwner,
    Downgrade,
}

/// The news of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct News {
    pub(super) to: Tok,
    pub(super) fence: u32,
    pub(super) left: u8,
}

/// What a reply says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Said {
    Granted(News),
    Waiting {
        since: u32,
    },
    Late,
    Released,
    Already,
    /// Of a release: the token was not the owner's, and its fence says no more.
    NotOwner,
    Renewed {
        left: u8,
    },
    Gone,
    Synced {
        owner: Option<News>,
        /// It waited, and is the caller's.
        ours: bool,
        since: u32,
        known: bool,
        left: u8,
    },
    Absent,
    /// Of a lookup: whether the token waits, or whether it has the mutex. Grants of permits are in the answer.
    Present {
        waits: bool,
        owns: bool,
        since: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Answer {
    pub(super) said: Said,
    /// To other waiters of the caller.
    pub(super) grants: Vec<News>,
}

/// What a script did.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) shelf: Shelf,
    pub(super) answer: Answer,
    /// What was published.
    pub(super) news: Vec<News>,
    /// How the last holder ended. It is not known before each step, so this is what the step made of it.
    pub(super) ended: PreviousHolder,
    /// What those are told of that who are told of a grant.
    pub(super) previous: Vec<(Tok, PreviousHolder)>,
}

impl Ask {
    pub(super) fn tok(self) -> Tok {
        match self {
            Ask::Acquire(tok)
            | Ask::Release(tok, ..)
            | Ask::Renew(tok)
            | Ask::Sync(tok)
            | Ask::Lookup(tok) => tok,
        }
    }

    /// Whose lapse it does not see (R9). A sync is nobody's own.
    pub(super) fn own(self) -> Option<Tok> {
        (!matches!(self, Ask::Sync(_))).then(|| self.tok())
    }
}

impl Way {
    pub(super) fn mode(self) -> Mode {
        match self {
            Way::Used => Mode::Used,
            Way::Unused => Mode::Unused,
            Way::Lost => Mode::Lost,
            Way::KeepIfOwner => Mode::KeepIfOwner,
            Way::Downgrade => Mode::Downgrade,
        }
    }
}

impl Shelf {
    /// Those who hold it, lapsed or not, as long as nobody has noticed.
    pub(super) fn holding(&self) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(|holder| holder.stands != Stands::Lapsed)
    }

    pub(super) fn holder(&self, tok: Tok) -> Option<&Holder> {
        self.holding().find(|holder| holder.tok == tok)
    }

    pub(super) fn is_waiting(&self, tok: Tok) -> bool {
        self.waiters.iter().any(|(waiter, _)| *waiter == tok)
    }

    pub(super) fn tick(&mut self) {
        for left in self
            .holders
            .iter_mut()
            .map(|holder| &mut holder.left)
            .chain(&mut self.look)
        {
            *left = left.saturating_sub(1);
        }
        if !self.queue.is_empty() || !self.stamps.is_empty() {
            self.idle = (self.idle + 1).min(STEP + 1);
        }
    }
}
