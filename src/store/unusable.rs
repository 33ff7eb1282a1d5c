//! Servers for which no store could be opened, examined for a diagnosis: as far as each of them
//! answers.

use std::sync::Arc;

use super::clock::Clock;
use super::node::{ExamTime, examine_only};
use super::sentinel::examine_without_master;
use super::topology::servers;
use super::{ServerSettings, Topology};
use crate::config::Config;
use crate::diagnosis::facts::{Deployment, Facts, NodeRole};
use crate::script::CallerId;

/// Blocks for at most two connect timeouts and six command timeouts.
pub(crate) fn examine_unusable(
    topology: &Topology,
    config: &Config,
    caller_id: &Arc<CallerId>,
) -> Facts {
    let time = ExamTime::new(&Clock::default(), config);
    let examine = |deployment: Deployment, servers: &[ServerSettings]| {
        let masters: Vec<_> = servers
            .iter()
            .map(|server| (server.clone(), NodeRole::Master))
            .collect();
        let is_in_cluster = deployment == Deployment::Cluster;
        Facts {
            deployment,
            sentinels: Vec::new(),
            nodes: examine_only(&masters, is_in_cluster, caller_id, &time),
        }
    };
    match topology {
        Topology::Single(server) => examine(Deployment::Single, std::slice::from_ref(server)),
        Topology::Quorum(servers) => examine(Deployment::Quorum, servers),
        Topology::Cluster(settings) => {
            let mut facts = examine(
                Deployment::Cluster,
                &servers(&settings.seeds, &settings.login),
            );
            // A seed may be any node of the cluster.
            for node in &mut facts.nodes {
                if node.is_replica() {
                    node.role = NodeRole::Replica;
                }
            }
            facts
        }
        Topology::Sentinel(settings) => examine_without_master(settings, caller_id, &time),
    }
}
