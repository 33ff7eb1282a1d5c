//! All servers, asked at once, each on a thread that nobody joins: one that hangs delays no other.

use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use fairlock::LockManager;
use fairlock::servers::{Deployment, Server, Servers};

use super::ask;
use super::derived::together;
use super::facts::{Facts, Kind};
use super::{remedy, trial};

/// The servers, and the managers that take a lock on each master. Without managers, no lock can be
/// taken.
pub(super) struct Examination<'a> {
    pub(super) servers: &'a Servers,
    pub(super) managers: Option<&'a [LockManager; 2]>,
    /// The facts that all servers share.
    pub(super) shared: &'a Facts,
}

impl Examination<'_> {
    /// Examines all servers, for eight timeouts at most.
    ///
    /// Returns the facts about all servers together, and then those about each: sentinels, masters,
    /// and the replicas that these know.
    pub(super) fn run(&self) -> Vec<Facts> {
        let at = |address: &str| {
            let (host, port) = address.rsplit_once(':')?;
            Some(self.servers.at(host, port.parse().ok()?))
        };
        let mut all = vec![self.shared.clone()];
        let mut masters = self.servers.named();
        if self.shared.deployment == Deployment::Sentinel {
            all.extend(self.ask(Kind::Sentinel, masters, 2));
            // That of the newest configuration.
            let naming = all.iter().filter(|f| f.has("master"));
            let newest = naming.max_by_key(|f| f.num("config_epoch") as u64);
            let newest = newest.and_then(|f| at(f.text("master")));
            masters = newest.into_iter().collect();
        } else if self.shared.deployment == Deployment::Cluster {
            let seeds = self.ask(Kind::Seed, masters.clone(), 2);
            if let Some(map) = seeds.iter().find(|f| f.has("masters")) {
                masters = map.words("masters").filter_map(at).collect();
            }
        }
        all.extend(self.ask(Kind::Master, masters, 4));
        let known = all.iter().flat_map(|f| f.words("replica_addresses"));
        let mut replicas: BTreeSet<&str> = known.collect();
        for server in all.iter().filter_map(|f| f.server.as_deref()) {
            replicas.remove(server);
        }
        let replicas = replicas.into_iter().filter_map(at).collect();
        all.extend(self.ask(Kind::Replica, replicas, 2));
        together(&mut all);
        all
    }

    /// Asks servers of one kind, for so many timeouts at most. Then tries a lock on masters.
    fn ask(&self, kind: Kind, servers: Vec<Server>, timeouts: u32) -> Vec<Facts> {
        let timeout = self.shared.time("timeout_ms");
        let until = Instant::now() + timeout * timeouts;
        let (sender, answers) = unbounded();
        let mut asked = Vec::new();
        for (at, server) in servers.into_iter().enumerate() {
            let mut facts = self.shared.clone();
            (facts.kind, facts.server) = (kind, Some(server.to_string()));
            let mut silent = facts.clone();
            let message = format!("redis at {server} did not answer in time");
            silent.set_error("failure", (message, remedy::of_error("Reply").to_owned()));
            asked.push(silent);
            let managers = self.managers.filter(|_| kind == Kind::Master).cloned();
            let (sender, servers) = (sender.clone(), self.servers.clone());
            // Without a thread it is silent. Nobody may be there any more to read its answers.
            let _ = thread::Builder::new().spawn(move || {
                if let Err(error) = ask::ask(&mut facts, &servers, &server, until - timeout / 4) {
                    facts.set_error("failure", error);
                }
                let _ = sender.send((at, facts.clone()));
                if let (Some(managers), false) = (managers, facts.has("failure")) {
                    trial::run(&mut facts, server, &managers);
                    let _ = sender.send((at, facts));
                }
            });
        }
        drop(sender);
        // A trial that hangs takes no answer away.
        while let Ok((at, facts)) = answers.recv_deadline(until) {
            asked[at] = facts;
        }
        asked
    }
}
