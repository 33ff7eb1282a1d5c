//! Where the locks of a manager live.

use std::fmt;

#[cfg(feature = "memory")]
use crate::store::memory::Memory;
use crate::store::{Topology, parse_url};

/// Where the locks live. A URL, in one of these forms:
///
/// - `redis://[user:password@]host[:port][/database]`
/// - `redis+unix:///path/to/socket[?db=n&user=u&pass=p]`
///
/// With the feature `memory` also a `&Memory`. [`Builder::build`](crate::Builder::build) reports
/// what is wrong with a URL.
#[derive(Clone)]
pub struct Endpoint(pub(crate) Location);

#[derive(Clone)]
pub(crate) enum Location {
    /// As the user wrote it. Not checked yet, and it may contain a password.
    Url(String),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

/// Any text: `&str`, `String`, `&String`, `Arc<str>` and so on.
impl<T: AsRef<str>> From<T> for Endpoint {
    fn from(url: T) -> Endpoint {
        Endpoint(Location::Url(url.as_ref().to_owned()))
    }
}

#[cfg(feature = "memory")]
impl From<&Memory> for Endpoint {
    fn from(memory: &Memory) -> Endpoint {
        Endpoint(Location::Memory(memory.clone()))
    }
}

/// Shows the address, never the password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::Url(url) => match parse_url(url) {
                Ok(Topology::Single(server)) => write!(f, "Endpoint({})", server.address),
                _ => f.write_str("Endpoint(not a URL)"),
            },
            #[cfg(feature = "memory")]
            Location::Memory(_) => f.write_str("Endpoint(in memory)"),
        }
    }
}
