//! Where the locks live in this run.

#[cfg(feature = "memory")]
use std::env;

use fairlock::LockManager;
#[cfg(feature = "memory")]
use fairlock::memory::Memory;

use crate::private_redis::{Over, Redis, redis_or_exit};

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
        let without = "cargo run --features memory --example worker_pool";
        Store::Redis(redis_or_exit("REDIS_URL", Over::UnixSocket, Some(without)))
    }

    pub(crate) fn connect(&self) -> fairlock::Result<LockManager> {
        match self {
            Store::Redis(redis) => LockManager::connect(redis.url.as_str()),
            #[cfg(feature = "memory")]
            Store::Memory(memory) => LockManager::connect(memory),
        }
    }

    /// For people.
    pub(crate) fn about(&self) -> String {
        match self {
            Store::Redis(redis) => format!("on a Redis: {}", redis.about),
            #[cfg(feature = "memory")]
            Store::Memory(_) => "on an in-memory store, with one manager for each would-be process".to_owned(),
        }
    }
}
