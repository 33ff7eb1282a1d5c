//! The use of a name. A kind of lock is data: family, capacity, weight.

/// A set of scripts. Every kind of lock is data for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// One holder, kept inline in the record.
    Mutex,
    /// Several holders. Each has some permits of a capacity, and a lease of its own.
    Permit,
    /// A mutex that a majority of independent nodes decides. Each node has one holder, inline.
    Quorum,
}

/// The use of a name: the scripts that serve it, and what they must know about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockSpec {
    pub(crate) family: Family,
    protocol: Protocol,
    /// How many permits there are.
    capacity: u32,
    /// How many of them one request wants.
    pub(crate) weight: u32,
}

/// The content of a record, and its version. It takes one byte, since every call carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Mutex,
    Quorum,
    Semaphore,
    ReadWrite,
    /// Any of the kinds that have permits.
    Any,
}

impl Family {
    /// The family whose scripts serve a kind on one node, as a record has it. `None` if it is not of
    /// this version, or of a quorum: one node must not touch that.
    pub(crate) fn of_kind(kind: &str) -> Option<Family> {
        match kind.split(' ').next() {
            Some("mutex/1") => Some(Family::Mutex),
            Some("semaphore/1" | "rw/1") => Some(Family::Permit),
            _ => None,
        }
    }
}

impl Protocol {
    fn as_str(self) -> &'static str {
        match self {
            Protocol::Mutex => "mutex/1",
            Protocol::Quorum => "quorum/1",
            Protocol::Semaphore => "semaphore/1",
            Protocol::ReadWrite => "rw/1",
            Protocol::Any => "permit/1",
        }
    }
}

impl LockSpec {
    pub(crate) const MUTEX: LockSpec = LockSpec {
        family: Family::Mutex,
        protocol: Protocol::Mutex,
        capacity: 1,
        weight: 1,
    };

    /// A mutex on one of the nodes of a quorum.
    pub(crate) const QUORUM: LockSpec = LockSpec {
        family: Family::Quorum,
        protocol: Protocol::Quorum,
        ..LockSpec::MUTEX
    };

    /// `weight` permits of a semaphore with `capacity` permits.
    pub(crate) const fn semaphore(capacity: u32, weight: u32) -> LockSpec {
        LockSpec {
            family: Family::Permit,
            protocol: Protocol::Semaphore,
            capacity,
            weight,
        }
    }

    pub(crate) const fn read() -> LockSpec {
        LockSpec {
            family: Family::Permit,
            protocol: Protocol::ReadWrite,
            capacity: ALL,
            weight: 1,
        }
    }

    pub(crate) const fn write() -> LockSpec {
        LockSpec {
            weight: ALL,
            ..LockSpec::read()
        }
    }

    /// To look at a record or to release, whatever kind of the family it is.
    pub(crate) const fn any(family: Family) -> LockSpec {
        match family {
            Family::Mutex => LockSpec::MUTEX,
            Family::Quorum => LockSpec::QUORUM,
            Family::Permit => LockSpec {
                family,
                protocol: Protocol::Any,
                capacity: 0,
                weight: 0,
            },
        }
    }

    /// Whether a request for this cannot be granted before some of `held` permits are released,
    /// which are of the same name.
    pub(crate) fn must_wait_for(&self, held: u64) -> bool {
        match self.protocol {
            Protocol::Semaphore | Protocol::ReadWrite => {
                held + u64::from(self.weight) > u64::from(self.capacity)
            }
            Protocol::Mutex | Protocol::Quorum | Protocol::Any => held > 0,
        }
    }

    /// Whether a request for this that waits may wait for `held` permits. A second reader waits
    /// only behind a writer. That writer waits for the first reader, as long as it does not give up.
    pub(crate) fn may_wait_for(&self, held: u64) -> bool {
        self.must_wait_for(held) || self.protocol == Protocol::ReadWrite && held > 0
    }

    /// The kind as a record has it.
    pub(crate) fn kind(&self) -> String {
        match self.family {
            Family::Mutex | Family::Quorum => self.protocol.as_str().to_owned(),
            Family::Permit => format!("{} {}", self.protocol.as_str(), self.capacity),
        }
    }
}

/// The permits that a writer takes: more than there can be readers.
const ALL: u32 = 1 << 30;
