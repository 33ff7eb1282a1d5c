//! All checks, in the order in which their findings are shown.

use super::facts::{Deployment, Facts, NodeAnswers, NodeFacts, NodeRole};
use super::{
    Check, Diagnosis, Finding, Level, Limits, clocks, cluster, failure, majority, memory,
    persistence, replicas, sentinels, server, use_of_server,
};

/// The meaning of the facts for locks with these numbers.
pub(crate) fn diagnose(facts: &Facts, limits: &Limits<'_>) -> Diagnosis {
    let mut findings = Vec::new();
    #[cfg(feature = "memory")]
    findings.extend(in_memory(facts));
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

fn node_findings(facts: &Facts, node: &NodeFacts, limits: &Limits<'_>) -> Vec<Finding> {
    let mut findings = match &node.answers {
        Ok(answers) => checks(facts, node, answers, limits),
        Err(error) => vec![failure::finding(
            error,
            Check::Connection,
            Some(&node.address),
        )],
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

fn checks(
    facts: &Facts,
    node: &NodeFacts,
    answers: &NodeAnswers,
    limits: &Limits<'_>,
) -> Vec<Finding> {
    let address = &node.address;
    let mut findings = server::connection(address, answers, limits);
    findings.extend(server::round_trip(address, answers, limits));
    findings.extend(server::version(address, answers));
    findings.extend(server::role(facts.deployment, node, answers));
    // The servers of a quorum have none.
    let is_master = node.role == NodeRole::Master && !node.is_replica();
    if is_master && facts.deployment != Deployment::Quorum {
        findings.extend(replicas::replicas(
            facts.deployment,
            address,
            answers,
            limits,
        ));
    }
    if let Some(view) = answers
        .cluster
        .as_ref()
        .filter(|_| node.role == NodeRole::Master)
    {
        findings.extend(cluster::cluster(address, view, answers));
    }
    findings.extend(memory::eviction(address, answers));
    findings.extend(memory::memory(address, answers));
    findings.extend(persistence::persistence(
        facts.deployment,
        address,
        answers,
        limits,
    ));
    findings.extend(use_of_server::clients(address, answers, limits));
    findings.extend(clocks::clock(address, answers));
    if let Some(work) = &answers.work {
        findings.extend(use_of_server::rights(node, work));
        findings.extend(use_of_server::scripts(address, work, answers));
        findings.extend(use_of_server::messages(address, work, answers));
    }
    findings
}

/// A store in this process has nothing to set, and nothing to ask.
#[cfg(feature = "memory")]
fn in_memory(facts: &Facts) -> Vec<Finding> {
    use super::Findings;
    if facts.deployment != Deployment::Memory || !facts.nodes.is_empty() {
        return Vec::new();
    }
    let mut findings = Findings::of(Check::Connection, None).or_ok("in this process");
    findings.extend(Findings::of(Check::Persistence, None).or_ok("locks end with this process"));
    findings
}
