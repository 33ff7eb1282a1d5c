//! The kinds of lock, and how each is used.

use std::fmt;
use std::sync::Arc;

/// The kind of lock that a name is used as.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// Up to a number of permits at a time.
    #[non_exhaustive]
    Semaphore {
        /// How many permits there are in all, by the newest grant. Each request uses its own
        /// number.
        permits: u32,
    },
    /// Any number of readers, or one writer.
    RwLock,
    /// A kind that this version does not know. The text is the name in the record.
    Other(Arc<str>),
}

impl Kind {
    /// Parses the kind field of a record: `<kind>/<protocol version>`, and for permits a space and
    /// the capacity.
    pub(crate) fn from_record(field: &str) -> Kind {
        let (name, rest) = field.split_once('/').unwrap_or((field, ""));
        let capacity = rest
            .split_once(' ')
            .and_then(|(_, capacity)| capacity.parse().ok());
        match (name, capacity) {
            ("mutex", _) => Kind::Mutex,
            ("semaphore", Some(permits)) => Kind::Semaphore { permits },
            ("rw", Some(_)) => Kind::RwLock,
            _ => Kind::Other(name.into()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Mutex => f.write_str("mutex"),
            Kind::Semaphore { permits } => write!(f, "semaphore of {permits} permits"),
            Kind::RwLock => f.write_str("reader/writer lock"),
            Kind::Other(name) => f.write_str(name),
        }
    }
}

/// How a holder uses a lock, or how a waiter asks to use it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Access {
    /// Alone, as the owner of a mutex.
    Owner,
    /// As a reader, beside other readers.
    Reader,
    /// As a writer, alone.
    Writer,
    /// With this number of permits of a semaphore.
    #[non_exhaustive]
    Permits {
        /// How many it holds now, or asks for.
        permits: u32,
    },
}

impl Access {
    /// The access that this number of permits gives.
    pub(crate) fn of(kind: &Kind, permits: u32) -> Access {
        match kind {
            Kind::Semaphore { .. } => Access::Permits { permits },
            Kind::RwLock if permits == 1 => Access::Reader,
            Kind::RwLock => Access::Writer,
            Kind::Mutex | Kind::Other(_) => Access::Owner,
        }
    }

    /// How many permits of a semaphore it has. 1 for any other kind of lock.
    pub(crate) fn permits(self) -> u32 {
        match self {
            Access::Permits { permits } => permits,
            Access::Owner | Access::Reader | Access::Writer => 1,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Owner => f.write_str("owner"),
            Access::Reader => f.write_str("reader"),
            Access::Writer => f.write_str("writer"),
            Access::Permits { permits: 1 } => f.write_str("1 permit"),
            Access::Permits { permits } => write!(f, "{permits} permits"),
        }
    }
}
