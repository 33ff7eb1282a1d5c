//! Where the locks of a manager live.

use std::fmt;

#[cfg(feature = "memory")]
use crate::store::memory::Memory;
use crate::store::parse_url;

/// Where the locks live. From a URL:
///
/// - `redis://[user:password@]host[:port][/database]`
/// - `redis+unix:///path/to/socket[?db=n&user=u&pass=p]`
///
/// or, with the feature `memory`, from a `&Memory`. What is wrong with a URL is told by [`Builder::build`].
#[derive(Clone)]
pub struct Endpoint(pub(crate) Target);

#[derive(Clone)]
pub(crate) enum Target {
    Url(String),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl From<&str> for Endpoint {
    fn from(url: &str) -> Endpoint {
        Endpoint(Target::Url(url.to_owned()))
    }
}

impl From<String> for Endpoint {
    fn from(url: String) -> Endpoint {
        Endpoint(Target::Url(url))
    }
}

#[cfg(feature = "memory")]
impl From<&Memory> for Endpoint {
    fn from(memory: &Memory) -> Endpoint {
        Endpoint(Target::Memory(memory.clone()))
    }
}

/// Shows where, never the password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Target::Url(url) => match parse_url(url) {
                Ok(info) => write!(f, "Endpoint({})", info.addr()),
                Err(_) => f.write_str("Endpoint(not a URL)"),
            },
            #[cfg(feature = "memory")]
            Target::Memory(_) => f.write_str("Endpoint(in memory)"),
        }
    }
}
