//! All servers, asked at once, each on a thread that nobody joins: one that hangs delays no other.

use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use fairlock::servers::{Deployment, Servers};
use fairlock::{LockManager, servers::Server};

use super::ask;
use super::derived::together;
use super::facts::{Facts, Kind};
use super::{remedy, trial};

/// Examines all servers, for eight timeouts at most. One manager takes a lock on each master and
/// hands it over to the other. Without managers, no lock can be taken. All share these facts.
///
/// Returns the facts about all servers together, and then those about each: sentinels, masters, and
/// the replicas that these know.
pub(super) fn run(
    servers: &Servers,
    managers: Option<&[LockManager; 2]>,
    shared: &Facts,
) -> Vec<Facts> {
    let ask = |kind, these, timeouts| ask_all(shared, managers, kind, these, timeouts);
    let at = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        Some(servers.at(host, port.parse().ok()?))
    };
    let mut all = vec![shared.clone()];
    let mut masters = servers.named();
    if shared.deployment == Deployment::Sentinel {
        all.extend(ask(Kind::Sentinel, masters, 2));
        // That of the newest configuration.
        let naming = all.iter().filter(|f| f.has("master"));
        let newest = naming.max_by_key(|f| f.num("config_epoch") as u64);
        masters = newest
            .and_then(|f| at(f.text("master")))
            .into_iter()
            .collect();
    } else if shared.deployment == Deployment::Cluster {
        let seeds = ask(Kind::Seed, masters.clone(), 2);
        if let Some(map) = seeds.iter().find(|f| f.has("masters")) {
            masters = map.words("masters").filter_map(at).collect();
        }
    }
    all.extend(ask(Kind::Master, masters, 4));
    let known = all.iter().flat_map(|f| f.words("replica_addresses"));
    let mut replicas: BTreeSet<&str> = known.collect();
    for server in all.iter().filter_map(|f| f.server.as_deref()) {
        replicas.remove(server);
    }
    let replicas = replicas.into_iter().filter_map(at).collect();
    all.extend(ask(Kind::Replica, replicas, 2));
    together(&mut all);
    all
}

/// Asks servers of one kind, for so many timeouts at most. Then tries a lock on masters.
fn ask_all(
    shared: &Facts,
    managers: Option<&[LockManager; 2]>,
    kind: Kind,
    servers: Vec<Server>,
    timeouts: u32,
) -> Vec<Facts> {
    let timeout = shared.time("timeout_ms");
    let until = Instant::now() + timeout * timeouts;
    let (sender, answers) = unbounded();
    let mut asked = Vec::new();
    for (at, server) in servers.into_iter().enumerate() {
        let mut facts = shared.clone();
        (facts.kind, facts.server) = (kind, Some(server.to_string()));
        let mut silent = facts.clone();
        let message = format!("redis at {server} did not answer in time");
        silent.set_failure((message, remedy::of_error("Reply").to_owned()));
        asked.push(silent);
        let managers = managers.filter(|_| kind == Kind::Master).cloned();
        let sender = sender.clone();
        // Without a thread it is silent. Nobody may be there any more to read its answers.
        let _ = thread::Builder::new().spawn(move || {
            if let Err(failure) = ask::ask(&mut facts, &server, until - timeout / 4) {
                facts.set_failure(failure);
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
