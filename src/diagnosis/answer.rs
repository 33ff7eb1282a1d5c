//! An answer of a server, or why there is none.

use std::fmt;

/// An answer, or why there is none.
pub(crate) type Answer<T> = Result<T, Unknown>;

/// Why something is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The user may not run this command.
    NoRight(&'static str),
    /// The server does not have this command, or not under this name.
    NoCommand(&'static str),
    /// The server has no such setting or field.
    Absent(String),
    /// The server refused it, and why.
    Failed(String),
    /// The server stopped answering before, and why.
    Unanswered(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not known: ")?;
        match self {
            Unknown::NoRight(command) => write!(f, "no right to {command}"),
            Unknown::NoCommand(command) => write!(f, "the server has no {command}"),
            Unknown::Absent(what) => write!(f, "the server does not say {what}"),
            Unknown::Failed(why) | Unknown::Unanswered(why) => f.write_str(why),
        }
    }
}
