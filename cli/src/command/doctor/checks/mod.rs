//! All checks, in the order in which their findings are shown. No file here asks a server.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the order, and [`Limits`]: the numbers of locks that the checks compare with |
//! | `server`, `memory`, `persistence`, `replicas`, `use_of_server` | checks of one server |
//! | `clocks`, `cluster`, `sentinels`, `majority` | checks of several servers |

#[cfg(test)]
mod answer_tests;
mod clocks;
mod cluster;
mod majority;
mod memory;
mod persistence;
mod replicas;
#[cfg(test)]
mod sentinel_tests;
mod sentinels;
mod server;
#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod tests;
mod use_of_server;

use std::time::Duration;

use super::finding::{Check, Diagnosis, Finding, Findings, Level};
use super::{answer, facts, failure};
use answer::Answer;
use facts::{Deployment, Facts, NodeAnswers, NodeFacts, NodeRole};

/// The numbers of locks that the checks compare with.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) ttl: Duration,
    pub(super) connect_timeout: Duration,
    /// T
    pub(super) command_timeout: Duration,
    /// P
    pub(super) check_period: Duration,
    /// How many replicas must acknowledge a lock.
    pub(super) replica_acks: u32,
}

impl Limits {
    /// How long a reply may take until something is late: the command timeout, or a tenth of the
    /// ttl. A renewal is due at a third of the ttl and is tried three times before the lease ends.
    fn reply(&self) -> Duration {
        self.command_timeout.min(self.ttl / 10)
    }

    /// How long the renewal thread's connection is idle at most, while a lock is held or awaited.
    fn longest_pause(&self) -> Duration {
        (self.ttl / 3).max(self.check_period)
    }

    /// P1 (one holder) holds across a failover if the clocks of master and replica differ by less:
    /// 1 % of the ttl and 2 ms.
    fn clock_margin(&self) -> Duration {
        self.ttl / 100 + Duration::from_millis(2)
    }
}

/// The meaning of the facts for locks with these numbers.
pub(super) fn diagnose(facts: &Facts, limits: &Limits) -> Diagnosis {
    let mut findings = Vec::new();
    findings.extend(majority::majority(facts, limits));
    findings.extend(sentinels::agreement(facts));
    findings.extend(clocks::clocks(facts, limits));
    for sentinel in &facts.sentinels {
        findings.extend(sentinels::sentinel(facts, sentinel, limits));
    }
    for node in &facts.nodes {
        findings.extend(node_findings(facts, node, limits));
    }
    Diagnosis { findings }
}

fn node_findings(facts: &Facts, node: &NodeFacts, limits: &Limits) -> Vec<Finding> {
    let mut findings = match &node.answers {
        Ok(answers) => checks(facts, node, answers, limits),
        Err(error) => vec![failure::of_server(error, Check::Connection, &node.address)],
    };
    // Without it, locks go on: as long as its master lives, or the majority of a quorum.
    let is_spare = node.role == NodeRole::Replica;
    if is_spare || node.answers.is_err() && majority::is_spared(facts) {
        for finding in &mut findings {
            finding.level = finding.level.min(Level::Warning);
        }
    }
    findings
}

fn checks(facts: &Facts, node: &NodeFacts, answers: &NodeAnswers, limits: &Limits) -> Vec<Finding> {
    use Check::{
        Clients, Clock, Cluster, Connection, Eviction, Memory, Messages, Persistence, Replicas,
        Rights, Role, RoundTrip, Scripts, Version,
    };
    let mut all = Vec::new();
    let mut check = |check, find: &dyn Fn(&mut Findings<'_>) -> Answer<String>| {
        all.extend(Findings::of(check, Some(&node.address), find));
    };
    let deployment = facts.deployment;
    check(Connection, &|f| server::connection(f, answers, limits));
    check(RoundTrip, &|f| server::round_trip(f, answers, limits));
    check(Version, &|f| server::version(f, answers));
    check(Role, &|f| server::role(f, deployment, node.role, answers));
    // The servers of a quorum have none.
    let is_master = node.role == NodeRole::Master && !node.is_replica();
    if is_master && deployment != Deployment::Quorum {
        check(Replicas, &|f| {
            replicas::replicas(f, deployment, answers, limits)
        });
    }
    if let Some(view) = &answers.cluster
        && node.role == NodeRole::Master
    {
        check(Cluster, &|f| cluster::cluster(f, view, answers));
    }
    check(Eviction, &|f| memory::eviction(f, answers));
    check(Memory, &|f| memory::memory(f, answers));
    check(Persistence, &|f| {
        persistence::persistence(f, deployment, answers)
    });
    check(Clients, &|f| use_of_server::clients(f, answers, limits));
    check(Clock, &|_| clocks::clock(answers));
    if let Some(work) = &answers.work {
        check(Rights, &|f| use_of_server::rights(f, &node.user, work));
        check(Scripts, &|f| use_of_server::scripts(f, work, answers));
        if let Some(message) = &work.message {
            check(Messages, &|f| use_of_server::messages(f, message, answers));
        }
    }
    all
}
