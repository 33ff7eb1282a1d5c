//! Where the locks of this run live.

#[cfg(feature = "memory")]
use std::env;

use fairlock::endpoint::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::Memory;

use super::private_redis::{Over, Redis, redis_or_exit};

/// The store to connect to: `LockManager::connect(&store)`.
pub(crate) enum Store {
    Redis(Redis),
    /// A store in this process. Each manager on it acts like a separate process.
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl Store {
    /// The Redis of `REDIS_URL`. Without that memory, if it is built in, or else a private
    /// redis-server.
    pub(crate) fn choose_or_exit() -> Store {
        #[cfg(feature = "memory")]
        if env::var_os("REDIS_URL").is_none_or(|url| url.is_empty()) {
            return Store::Memory(Memory::new());
        }
        let (package, example) = (env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
        // An example that needs crates of its own is a package.
        let option = if package == example {
            "-p"
        } else {
            "--example"
        };
        let without = format!("cargo run --features memory {option} {example}");
        Store::Redis(redis_or_exit("REDIS_URL", Over::UnixSocket, Some(&without)))
    }

    /// A text for people.
    pub(crate) fn about(&self) -> String {
        match self {
            Store::Redis(redis) => format!("on a Redis: {}", redis.about),
            #[cfg(feature = "memory")]
            Store::Memory(_) => {
                "on an in-memory store, where each manager is like a process of its own".to_owned()
            }
        }
    }
}

impl From<&Store> for Endpoint {
    fn from(store: &Store) -> Endpoint {
        match store {
            Store::Redis(redis) => endpoint(&redis.url),
            #[cfg(feature = "memory")]
            Store::Memory(memory) => memory.into(),
        }
    }
}

/// The endpoint that `REDIS_URL` names: one URL of any form, or the URLs of a quorum with spaces
/// between them.
pub(crate) fn endpoint(urls: &str) -> Endpoint {
    let each: Vec<&str> = urls.split_whitespace().collect();
    match each[..] {
        [_, _, ..] => Endpoint::quorum(each),
        _ => urls.into(),
    }
}
