//! The nodes that calls go to: each with its lanes, from the first call to the last reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::stats::Traffic;
use crate::store::Address;
use crate::store::clock::Time;
use crate::store::node::{Lanes, Node};

/// A node that calls go to.
pub(super) struct ClusterNode {
    /// Counts from 0, in the order in which the members were met. An address that comes back later
    /// gets another number.
    pub(super) number: u64,
    pub(super) address: Address,
    pub(super) node: Arc<Node>,
    pub(super) lanes: Lanes,
    pub(super) is_retired: AtomicBool,
    /// A node answered ASK or MOVED with this one since the last refresh. It may own no slot yet.
    is_redirect_target: AtomicBool,
}

/// All members.
pub(super) struct Members {
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    current: Vec<Arc<ClusterNode>>,
    /// They own no slot any more. Each stays until its unread calls have replies.
    retired: Vec<Arc<ClusterNode>>,
    met: u64,
    /// The counts of nodes that are gone.
    gone: Traffic,
}

impl Members {
    pub(super) fn new() -> Members {
        Members {
            registry: Mutex::default(),
        }
    }

    /// The member at an address, which `make` makes of its node and lanes if it is new.
    pub(super) fn at(
        &self,
        address: &Address,
        make: impl FnOnce() -> (Arc<Node>, Lanes),
    ) -> Arc<ClusterNode> {
        let mut registry = self.registry.lock();
        let known = registry.current.iter().find(|m| m.address == *address);
        if let Some(member) = known {
            return Arc::clone(member);
        }
        let (node, lanes) = make();
        let member = Arc::new(ClusterNode {
            number: registry.met,
            address: address.clone(),
            node,
            lanes,
            is_retired: AtomicBool::new(false),
            is_redirect_target: AtomicBool::new(false),
        });
        registry.met += 1;
        registry.current.push(Arc::clone(&member));
        member
    }

    /// Retires all members but these and the targets of redirects. Returns the retired ones. Their
    /// connections are closed by [`Members::drop_finished`].
    pub(super) fn keep(&self, owners: &[Arc<ClusterNode>]) -> Vec<Arc<ClusterNode>> {
        let mut registry = self.registry.lock();
        let stays = |member: &mut Arc<ClusterNode>| {
            let is_owner = owners.iter().any(|owner| owner.number == member.number);
            let is_redirect_target = member.is_redirect_target.swap(false, Ordering::Relaxed);
            is_owner || is_redirect_target
        };
        let retired: Vec<_> = registry.current.extract_if(.., |m| !stays(m)).collect();
        for member in &retired {
            // Its subscription and the renewal thread's connection end.
            member.is_retired.store(true, Ordering::Release);
            member.node.retire_now();
        }
        registry.retired.extend(retired.iter().cloned());
        retired
    }

    /// Drops the retired members that nobody uses and whose calls all have replies.
    pub(super) fn drop_finished(&self) {
        let mut registry = self.registry.lock();
        if registry.retired.is_empty() {
            return;
        }
        // A caller that may still leave work on a member holds it, or a map that does.
        let is_finished = |member: &mut Arc<ClusterNode>| {
            Arc::strong_count(member) == 1 && member.lanes.unread_due() == Time::NEVER
        };
        let finished: Vec<_> = registry.retired.extract_if(.., is_finished).collect();
        for member in &finished {
            registry.gone += member.node.traffic();
        }
        // Closing connections takes time.
        drop(registry);
        drop(finished);
    }

    /// Counts what a node has sent that is no member.
    pub(super) fn count(&self, node: &Node) {
        self.registry.lock().gone += node.traffic();
    }

    /// All members, retired ones too.
    pub(super) fn all(&self) -> Vec<Arc<ClusterNode>> {
        let registry = self.registry.lock();
        let all = registry.current.iter().chain(&registry.retired);
        all.cloned().collect()
    }

    pub(super) fn traffic(&self) -> Traffic {
        let gone = self.registry.lock().gone;
        gone + self.all().iter().map(|m| m.node.traffic()).sum()
    }
}

impl ClusterNode {
    pub(super) fn note_redirect_target(&self) {
        self.is_redirect_target.store(true, Ordering::Relaxed);
    }
}
