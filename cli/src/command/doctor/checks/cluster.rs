//! The state of a cluster, as one of its masters sees it.

use super::Findings;
use super::answer::{Answer, Info};
use super::facts::{ClusterAnswers, NodeAnswers};

/// All slots of a cluster.
const SLOTS: u64 = 16_384;

pub(super) fn cluster(
    findings: &mut Findings<'_>,
    view: &ClusterAnswers,
    answers: &NodeAnswers,
) -> Answer<String> {
    let info = view.info.as_ref().map_err(Clone::clone)?;
    slots(findings, info);
    if let Ok(nodes) = &view.nodes {
        members(findings, nodes);
    }
    if answers.settings.get("cluster-require-full-coverage") == Ok("yes") {
        findings.warn(
            "cluster-require-full-coverage is yes: all masters refuse locks while one shard is \
             down",
            "CONFIG SET cluster-require-full-coverage no, on every node",
        );
    }
    let known = info.get("cluster_known_nodes").unwrap_or("some");
    Ok(format!("state ok, all slots served, {known} nodes known"))
}

fn slots(findings: &mut Findings<'_>, info: &Info) {
    let number = |field: &str| info.number(field).unwrap_or(0);
    let check = "redis-cli --cluster check shows the slots; start their masters again, and only \
                 if they are gone for good, --cluster fix gives the slots to others";
    if info.get("cluster_state").is_some_and(|state| state != "ok") {
        findings.fail(
            "cluster_state is fail: locks are refused (CLUSTERDOWN)",
            check,
        );
    }
    let assigned = info.number("cluster_slots_assigned").unwrap_or(SLOTS);
    if assigned < SLOTS {
        findings.fail(
            format!(
                "{} slots belong to nobody: names in them fail",
                SLOTS - assigned
            ),
            check,
        );
    }
    if number("cluster_slots_fail") > 0 {
        findings.fail(
            format!(
                "the master of {} slots is down",
                number("cluster_slots_fail")
            ),
            "start it, or CLUSTER FAILOVER TAKEOVER on a replica of it",
        );
    }
    if number("cluster_slots_pfail") > 0 {
        findings.warn(
            format!(
                "the master of {} slots does not answer",
                number("cluster_slots_pfail")
            ),
            "is it stopped or cut off? Its replica takes over after cluster-node-timeout",
        );
    }
}

/// Each line is `id host:port@bus flags master ping pong epoch link slots`.
fn members(findings: &mut Findings<'_>, nodes: &str) {
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, flags, ..] = words[..] else {
            continue;
        };
        let has = |flag: &str| flags.split(',').any(|word| word == flag);
        let node = place.split(['@', ',']).next().unwrap_or(place);
        if has("handshake") {
            continue;
        }
        if has("noaddr") || is_without_host(node) && !has("myself") {
            findings.warn(
                format!("a node has no address: {place}"),
                "CLUSTER MEET it again, or CLUSTER FORGET its id",
            );
        } else if has("fail") {
            findings.warn(
                format!("{node} is down"),
                "start it; only if it is gone for good, CLUSTER FORGET its id on every node",
            );
        } else if has("fail?") {
            findings.warn(
                format!("{node} does not answer this node"),
                "is it stopped, or cut off from this node?",
            );
        }
    }
}

/// `:7000`. An address of IPv6 may begin with two colons.
fn is_without_host(node: &str) -> bool {
    node.starts_with(':') && !node.starts_with("::")
}
