//! A quorum: whether enough servers have a vote.

use std::time::Duration;

use super::facts::{Deployment, Facts, NodeFacts};
use super::{Check, Finding, Findings, Limits};

fn answering(facts: &Facts) -> usize {
    let answer = facts.nodes.iter().filter(|node| node.answers.is_ok());
    answer.count()
}

fn needed(facts: &Facts) -> usize {
    facts.nodes.len() / 2 + 1
}

/// Whether locks go on without the servers that do not answer.
pub(super) fn is_spared(facts: &Facts) -> bool {
    facts.deployment == Deployment::Quorum && answering(facts) >= needed(facts)
}

pub(super) fn majority(facts: &Facts, limits: &Limits) -> Vec<Finding> {
    if facts.deployment != Deployment::Quorum {
        return Vec::new();
    }
    Findings::of(Check::Majority, None, |findings| {
        let (all, answering, needed) = (facts.nodes.len(), answering(facts), needed(facts));
        let message = format!("{answering} of {all} servers answer, and {needed} must");
        let remedy = "start the servers that do not answer";
        if answering < needed {
            findings.fail(format!("{message}: no lock can be taken"), remedy);
        } else if answering < all {
            findings.warn(message.as_str(), remedy);
        }
        twins(findings, facts);
        young(findings, facts, answering, limits);
        Ok(message)
    })
}

/// One server at two addresses would have two votes.
fn twins(findings: &mut Findings<'_>, facts: &Facts) {
    for (at, node) in facts.nodes.iter().enumerate() {
        let Some(id) = run_id(node) else { continue };
        let is_same = |other: &&NodeFacts| run_id(other) == Some(id);
        if let Some(twin) = facts.nodes[..at].iter().find(is_same) {
            findings.fail(
                format!(
                    "{} and {} are the same server: it has one vote",
                    twin.address, node.address
                ),
                "name three or five different servers",
            );
        }
    }
}

fn run_id(node: &NodeFacts) -> Option<&str> {
    let info = node.answers.as_ref().ok()?.info.as_ref().ok()?;
    // A service may hide it.
    info.get("run_id")
        .filter(|id| id.bytes().any(|letter| letter != b'0'))
}

/// A server that has just started has no vote, since it may have forgotten its locks.
fn young(findings: &mut Findings<'_>, facts: &Facts, answering: usize, limits: &Limits) {
    let ttl = limits.ttl;
    let young: Vec<&NodeFacts> = facts
        .nodes
        .iter()
        .filter(|node| uptime(node).is_some_and(|uptime| uptime < ttl))
        .collect();
    let Some(wait) = young.iter().filter_map(|node| uptime(node)).min() else {
        return;
    };
    let names: Vec<&str> = young.iter().map(|node| node.address.as_str()).collect();
    let message = format!(
        "{} started less than a ttl ago and has no vote yet",
        names.join(", ")
    );
    let remedy = format!("wait for {:?}", ttl - wait);
    if answering - young.len() < needed(facts) {
        findings.fail(format!("{message}: no lock can be taken"), remedy);
    } else {
        findings.warn(message, remedy);
    }
}

fn uptime(node: &NodeFacts) -> Option<Duration> {
    let info = node.answers.as_ref().ok()?.info.as_ref().ok()?;
    let seconds = info.number("uptime_in_seconds").ok()?;
    // It counts in whole seconds, and may say one second too many.
    Some(Duration::from_secs(seconds.saturating_sub(1)))
}
