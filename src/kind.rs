//! The kinds of lock.

use std::fmt;
use std::sync::Arc;

/// The kind of lock that a name is used as.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(
    all(feature = "serde", feature = "unstable-servers"),
    derive(serde::Deserialize)
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
