//! The masters of a cluster.

mod basics;
mod failures;
mod hidden;
mod kept;
mod loops;
mod moved_slots;
mod nodes;
mod tries;

use std::time::Duration;

pub(crate) use tries::WANTS;

use fairlock::{LockManager, LockOptions};

use crate::cluster_set::ClusterSet;

/// Leases of 3 s, so that timeouts are short.
fn manager(set: &ClusterSet) -> LockManager {
    manager_with(set, Duration::from_secs(3))
}

fn manager_with(set: &ClusterSet, ttl: Duration) -> LockManager {
    let options = LockOptions::new().ttl(ttl);
    let manager = LockManager::builder(set.url()).options(options).build();
    manager.expect("the cluster is in order")
}
