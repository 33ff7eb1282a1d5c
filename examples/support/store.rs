//! Where the locks live in this run.

#[cfg(feature = "memory")]
use std::env;

use fairlock::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::Memory;

use super::private_redis::{Over, Redis, redis_or_exit};

/// A place to connect to: `LockManager::connect(&store)`.
pub(crate) enum Store {
    Redis(Redis),
    /// A world in this process. Each manager on it is like a process of its own.
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl Store {
    /// The Redis that `REDIS_URL` names; else memory, if it is built in; else a private redis-server.
    pub(crate) fn choose_or_exit() -> Store {
        #[cfg(feature = "memory")]
        if env::var_os("REDIS_URL").is_none_or(|url| url.is_empty()) {
            return Store::Memory(Memory::new());
        }
        let without = concat!(
            "cargo run --features memory --example ",
            env!("CARGO_CRATE_NAME")
        );
        Store::Redis(redis_or_exit("REDIS_URL", Over::UnixSocket, Some(without)))
    }

    /// For people.
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
            Store::Redis(redis) => redis.url.as_str().into(),
            #[cfg(feature = "memory")]
            Store::Memory(memory) => memory.into(),
        }
    }
}
