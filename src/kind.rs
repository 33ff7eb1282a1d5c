//! The kinds of lock.

use std::fmt;
use std::sync::Arc;

/// What a name is used as.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// Permits out of a number of them.
    #[non_exhaustive]
    Semaphore {
        /// How many there are.
        permits: u32,
    },
    /// Any number of readers, or one writer.
    RwLock,
    /// A kind that this version does not know, as the record names it.
    Other(Arc<str>),
}

impl Kind {
    /// From a record's kind field, `<kind>/<version of the protocol>`, of permits with their number behind it.
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
