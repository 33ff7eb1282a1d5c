//! The store of each topology, and the id under which the manager is known there.

use std::sync::Arc;

use super::remedy::Needs;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::options::LockOptions;
use crate::script::CallerId;
use crate::store::{ClusterStore, QuorumStore, SentinelStore, Single, Store, Topology};

pub(super) fn caller_id(config: &Config, options: &LockOptions) -> Arc<CallerId> {
    let caller_id = CallerId::new(
        &config.prefix,
        config.check_period + config.command_timeout,
        config.horizon,
    );
    Arc::new(caller_id.labelled(options.label_text()))
}

/// The store of a topology. Blocks for at most the connect timeout.
pub(super) fn connect(
    topology: Topology,
    config: &Config,
    options: &LockOptions,
    caller_id: &Arc<CallerId>,
) -> Result<Box<dyn Store>> {
    if let Topology::Quorum(_) = topology {
        // Each of its calls would fail.
        config.check_for_quorum(options)?;
    }
    let needs = Needs::of(&topology);
    store_of(topology, config, caller_id).map_err(|error| needs.with_remedy(error))
}

fn store_of(
    topology: Topology,
    config: &Config,
    caller_id: &Arc<CallerId>,
) -> Result<Box<dyn Store>> {
    let caller_id = Arc::clone(caller_id);
    Ok(match topology {
        Topology::Quorum(_) if config.replica_acks.is_some() => return Err(no_replicas()),
        Topology::Single(server) => Box::new(Single::connect(server, config, caller_id)?),
        Topology::Sentinel(settings) => {
            Box::new(SentinelStore::connect(settings, config, caller_id)?)
        }
        Topology::Cluster(settings) => {
            Box::new(ClusterStore::connect(settings, config, caller_id)?)
        }
        Topology::Quorum(servers) => Box::new(QuorumStore::connect(servers, config, &caller_id)?),
    })
}

pub(super) fn no_replicas() -> Error {
    Error::setting(
        "replica_acks",
        "one server, Sentinel or Cluster; a quorum and a Memory have no replicas",
    )
}
