//! A set of independent servers, and managers on it.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fairlock::{Builder, LockGuard, LockManager, LockOptions, endpoint::Endpoint};

use crate::support::{SLACK, Server, until, until_some};

pub(crate) const TTL: Duration = Duration::from_secs(5);
/// The command timeout, T.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(600);
/// A loaded machine may take long to open ten connections.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Set {
    pub(crate) servers: Vec<Server>,
}

impl Set {
    pub(crate) fn start(nodes: usize) -> Set {
        Set::of((0..nodes).map(|_| thread::spawn(Server::start)))
    }

    /// Servers that are started at the same time.
    pub(crate) fn of(starting: impl Iterator<Item = thread::JoinHandle<Server>>) -> Set {
        let starting: Vec<_> = starting.collect();
        let servers = starting
            .into_iter()
            .map(|server| server.join().expect("it starts"));
        Set {
            servers: servers.collect(),
        }
    }

    pub(crate) fn quorum(&self) -> Endpoint {
        Endpoint::quorum(self.servers.iter().map(Server::url))
    }

    /// The servers have just started, so the uptime check is off.
    pub(crate) fn builder(&self) -> Builder {
        builder(self.quorum())
    }

    pub(crate) fn manager(&self) -> LockManager {
        self.builder().build().expect("a majority can be reached")
    }

    /// On how many servers the name has an owner.
    pub(crate) fn owners(&self, name: &str) -> usize {
        let has_owner = |server: &&Server| owner(server, name).is_some();
        self.servers.iter().filter(has_owner).count()
    }

    /// Takes and releases the lock until it was on all nodes: then the lane of its name is open to
    /// each of them.
    #[track_caller]
    pub(crate) fn warm_up(&self, manager: &LockManager, name: &str) {
        until(TTL, "a lock on all nodes", || {
            let guard = manager.try_lock(name);
            let started = Instant::now();
            while self.owners(name) < self.servers.len() && started.elapsed() < TIMEOUT {
                thread::yield_now();
            }
            let is_everywhere = self.owners(name) == self.servers.len();
            drop(guard);
            is_everywhere
        });
        self.await_owners(name, 0);
    }

    #[track_caller]
    pub(crate) fn await_owners(&self, name: &str, owners: usize) {
        until(TIMEOUT + SLACK, "the number of nodes with an owner", || {
            self.owners(name) == owners
        });
    }
}

pub(crate) fn builder(quorum: Endpoint) -> Builder {
    LockManager::builder(quorum)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .uptime_check(false)
}

/// Asks until the lock is free.
#[track_caller]
pub(crate) fn take(manager: &LockManager, name: &str, within: Duration) -> LockGuard {
    until_some(within + SLACK, "the lock is granted", || {
        manager.try_lock(name).ok().flatten()
    })
}

pub(crate) fn record(name: &str) -> String {
    format!("fairlock:{{{name}}}")
}

/// The token that owns the name on one server.
pub(crate) fn owner(server: &Server, name: &str) -> Option<String> {
    server.query(&["HGET", &record(name), "o"])
}

/// When the lease of the name ends on one server, and the largest fence that it granted, in µs.
pub(crate) fn numbers(server: &Server, name: &str) -> (u64, u64) {
    let packed: Vec<u8> = server.query(&["HGET", &record(name), "g"]);
    let number = |at: usize| {
        let bytes = packed.get(at..at + 8).map(|bytes| bytes.try_into());
        bytes.map_or(0, |bytes| {
            f64::from_le_bytes(bytes.expect("8 bytes")) as u64
        })
    };
    (number(0), number(16))
}

/// The clock of this host and of its servers, in µs.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_micros() as u64
}
