//! The masters of a cluster and their replicas, examined for a diagnosis.

use std::sync::Arc;

use super::members::ClusterNode;
use super::slots::{SLOTS, SlotMap, slot_of};
use super::state::ClusterState;
use crate::config::Config;
use crate::diagnosis::facts::{Deployment, Facts};
use crate::key::Key;
use crate::script::LockSpec;
use crate::store::node::{ExamTime, Subject, examine_with_replicas};

/// How many names are tried until one is in a slot of a certain master. Each is in its slots with a
/// chance of one to the number of all slots at least.
const NAMES: u32 = 20 * SLOTS as u32;

impl ClusterState {
    /// A message from each master is awaited at the next one: it must cross the cluster.
    pub(super) fn examine(&self, config: &Config) -> Facts {
        let map = self.map();
        let mut masters: Vec<&Arc<ClusterNode>> = map.masters().iter().collect();
        masters.sort_by_key(|master| master.number);
        let next = masters.iter().cycle().skip(1);
        let subject = |(master, next): (&&Arc<ClusterNode>, &&Arc<ClusterNode>)| {
            Some(Subject {
                node: Arc::clone(&master.node),
                key: key_on(&map, master, &config.prefix)?,
                spec: LockSpec::MUTEX,
                listener: Some(Arc::clone(&next.node)),
            })
        };
        let subjects: Vec<Subject> = masters.iter().zip(next).filter_map(subject).collect();
        Facts {
            deployment: Deployment::Cluster,
            sentinels: Vec::new(),
            nodes: examine_with_replicas(&subjects, &ExamTime::new(&self.clock, config)),
        }
    }
}

/// A name that this master keeps. `None` if it has no slot any more.
fn key_on(map: &SlotMap, master: &ClusterNode, prefix: &str) -> Option<Key> {
    let keys = (0..NAMES).map(|number| Key::for_diagnosis(prefix, number));
    let mut on_it = keys.filter(|key| {
        let owner = map.owner(slot_of(key));
        owner.is_some_and(|owner| owner.number == master.number)
    });
    on_it.next()
}
