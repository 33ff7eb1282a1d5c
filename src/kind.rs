//! The kinds of lock.

use std::fmt;
use std::sync::Arc;

/// What a name is used as.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// A kind that this version does not know, as the record names it.
    Other(Arc<str>),
}

impl Kind {
    /// From a record's kind field, `<kind>/<version of the protocol>`.
    pub(crate) fn from_record(field: &str) -> Kind {
        match field.split('/').next().unwrap_or(field) {
            "mutex" => Kind::Mutex,
            other => Kind::Other(other.into()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Mutex => f.write_str("mutex"),
            Kind::Other(name) => f.write_str(name),
        }
    }
}
