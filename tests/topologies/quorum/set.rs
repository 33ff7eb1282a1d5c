//! A set of independent servers, and managers on it.

use std::{thread, time::Duration};

use fairlock::{Builder, LockManager, LockOptions, Quorum};

use crate::support::{SLACK, Server, until};

pub(crate) const TTL: Duration = Duration::from_secs(3);
/// The command timeout, T.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);

pub(crate) struct Set {
    pub(crate) servers: Vec<Server>,
}

impl Set {
    pub(crate) fn start(nodes: usize) -> Set {
        let start = || thread::spawn(Server::start);
        let started: Vec<_> = (0..nodes).map(|_| start()).collect();
        let servers = started
            .into_iter()
            .map(|server| server.join().expect("it starts"));
        Set {
            servers: servers.collect(),
        }
    }

    pub(crate) fn quorum(&self) -> Quorum {
        Quorum::new(self.servers.iter().map(Server::url))
    }

    /// The servers have just started, so the uptime check is off.
    pub(crate) fn builder(&self) -> Builder {
        LockManager::builder(self.quorum())
            .options(LockOptions::new().ttl(TTL))
            .command_timeout(TIMEOUT)
            .uptime_check(false)
    }

    pub(crate) fn manager(&self) -> LockManager {
        self.builder().build().expect("a majority can be reached")
    }

    /// On how many servers the name has an owner.
    pub(crate) fn owners(&self, name: &str) -> usize {
        let has_owner = |server: &&Server| owner(server, name).is_some();
        self.servers.iter().filter(has_owner).count()
    }

    pub(crate) fn await_owners(&self, name: &str, owners: usize) {
        until(TIMEOUT + SLACK, "the number of nodes with an owner", || {
            self.owners(name) == owners
        });
    }
}

/// The token that owns the name on one server.
pub(crate) fn owner(server: &Server, name: &str) -> Option<String> {
    server.query(&["HGET", &format!("fairlock:{{{name}}}"), "o"])
}
