//! The use of the name, and its users.

use std::fmt;

use super::record_state::CLIENTS;
use crate::script::{Family, LockSpec};
use crate::sim::model::ModelKind;

/// The use of the name, and how many permits each of the three processes asks for, every time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SmallSetting {
    pub(super) kind: ModelKind,
    /// In rising order. Processes that ask for the same number are alike.
    permits: [u32; CLIENTS as usize],
    /// Each renewal of a mutex comes together with others.
    pub(super) renews_together: bool,
    /// How many fences each grant of the mutex reserves behind its first, for further turns.
    pub(super) spare: u32,
    /// Each owner wants to hear that somebody waits.
    pub(super) hears: bool,
    /// The fences are ahead of the server's clock, so the next one is the next number.
    pub(super) fences_ahead: bool,
    /// A list is written anew as soon as it has a dead entry.
    pub(super) rewrites_early: bool,
    /// How many of the processes keep the lock after its guard was dropped, until others want it. These
    /// come first.
    pub(super) keepers: u8,
}

impl Default for SmallSetting {
    fn default() -> SmallSetting {
        SmallSetting::mutex()
    }
}

impl SmallSetting {
    /// Each process asks for the mutex.
    pub(crate) fn mutex() -> SmallSetting {
        SmallSetting {
            kind: ModelKind::Mutex,
            permits: [1; CLIENTS as usize],
            renews_together: true,
            spare: 0,
            hears: false,
            fences_ahead: false,
            rewrites_early: false,
            keepers: 0,
        }
    }

    /// A list with one dead entry is long enough to be written anew.
    pub(crate) fn rewriting_early(self) -> SmallSetting {
        SmallSetting {
            rewrites_early: true,
            ..self
        }
    }

    /// Each grant reserves this many fences behind its first. The processes hand the lock over
    /// within themselves.
    pub(crate) fn with_turns(self, spare: u32) -> SmallSetting {
        SmallSetting { spare, ..self }
    }

    /// Each owner wants to hear that somebody waits.
    pub(crate) fn hearing(self) -> SmallSetting {
        SmallSetting {
            hears: true,
            ..self
        }
    }

    /// The clock does not hide a fence that was given out before: the server's clock went back, and
    /// the fences are ahead of it.
    pub(crate) fn with_fences_ahead(self) -> SmallSetting {
        SmallSetting {
            fences_ahead: true,
            ..self
        }
    }

    /// So many of the processes keep the lock. The others have no turns.
    pub(crate) fn with_keepers(self, keepers: u8) -> SmallSetting {
        SmallSetting { keepers, ..self }
    }

    pub(super) fn keeps(&self, client: u8) -> bool {
        client < self.keepers
    }

    /// How many fences a grant of this client reserves behind its first.
    pub(super) fn spare_of(&self, client: u8) -> u32 {
        if self.keepers == 0 || self.keeps(client) {
            self.spare
        } else {
            0
        }
    }

    /// Clients with the same number are alike.
    pub(super) fn sort_of(&self, client: u8) -> (u32, bool) {
        (self.permits(client), !self.keeps(client))
    }

    /// Each renewal comes alone.
    pub(crate) fn renewing_alone(self) -> SmallSetting {
        SmallSetting {
            renews_together: false,
            ..self
        }
    }

    /// A semaphore with `all` permits, and how many of them each process asks for.
    pub(crate) fn semaphore(all: u32, mut permits: [u32; 3]) -> SmallSetting {
        permits.sort_unstable();
        SmallSetting {
            kind: ModelKind::Semaphore(all),
            permits,
            renews_together: false,
            ..SmallSetting::mutex()
        }
    }

    /// A reader/writer lock. At most three processes write, and the others read. It has as many
    /// permits as a shipped one.
    pub(crate) fn readers_and_writers(writers: u8) -> SmallSetting {
        let all = LockSpec::write().weight;
        let permits = std::array::from_fn(|c| {
            if c + usize::from(writers) < usize::from(CLIENTS) {
                1
            } else {
                all
            }
        });
        SmallSetting {
            kind: ModelKind::ReadWrite(all),
            permits,
            renews_together: false,
            ..SmallSetting::mutex()
        }
    }

    pub(super) fn permits(&self, client: u8) -> u32 {
        self.permits[usize::from(client)]
    }

    pub(super) fn family(&self) -> Family {
        if self.kind == ModelKind::Mutex {
            Family::Mutex
        } else {
            Family::Permit
        }
    }

    /// Whether the client is a writer, which can downgrade.
    pub(super) fn writes(&self, client: u8) -> bool {
        matches!(self.kind, ModelKind::ReadWrite(all) if self.permits(client) == all)
    }

    pub(super) fn spec(&self, client: u8) -> LockSpec {
        match self.kind {
            ModelKind::Mutex => LockSpec::MUTEX,
            ModelKind::Semaphore(all) => LockSpec::semaphore(all, self.permits(client)),
            ModelKind::ReadWrite(_) if self.writes(client) => LockSpec::write(),
            ModelKind::ReadWrite(_) => LockSpec::read(),
        }
    }

    /// The parameters of a client's acquire, as a script reads them: ttl, fixed, hold, and the permits,
    /// or the spare and whether the owner hears.
    pub(super) fn params(&self, client: u8, ttl_ms: u64) -> String {
        match self.family() {
            Family::Mutex | Family::Quorum => {
                let hears = self.hears || self.keeps(client);
                let words = handover_words(self.spare_of(client), hears);
                format!("{ttl_ms} 0 0{words}")
            }
            Family::Permit => format!("{ttl_ms} 0 0 {}", self.permits(client)),
        }
    }

    /// The same in a waiter's record: with the capacity in its request.
    pub(super) fn waiter_params(&self, client: u8, ttl_ms: u64) -> String {
        let params = self.params(client, ttl_ms);
        match self.kind {
            ModelKind::Mutex => params,
            ModelKind::Semaphore(all) | ModelKind::ReadWrite(all) => format!("{params} {all}"),
        }
    }
}

/// The words of a mutex's request behind those that each request has.
pub(super) fn handover_words(spare: u32, hears: bool) -> String {
    match (spare, hears) {
        (0, false) => String::new(),
        _ => format!(" {spare} {}", u8::from(hears)),
    }
}

impl fmt::Display for SmallSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ModelKind::Mutex if self.keepers > 0 => {
                write!(
                    f,
                    "mutex, {} keep for {} more turns",
                    self.keepers, self.spare
                )
            }
            ModelKind::Mutex if self.spare > 0 => write!(f, "mutex with {} more turns", self.spare),
            ModelKind::Mutex if self.hears => f.write_str("mutex whose owner hears"),
            ModelKind::Mutex => f.write_str("mutex"),
            ModelKind::Semaphore(all) => write!(f, "{:?} of {all} permits", self.permits),
            ModelKind::ReadWrite(_) => {
                let writers = (0..CLIENTS).filter(|client| self.writes(*client)).count();
                write!(
                    f,
                    "{writers} writers, {} readers",
                    usize::from(CLIENTS) - writers
                )
            }
        }
    }
}
