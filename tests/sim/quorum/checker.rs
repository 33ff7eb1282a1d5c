//! Checks what must be true after each event, and at the end of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::NODES;
use super::node::{NodeRecord, SimNode};
use super::process::{Guard, SimProcess};
use crate::key::Key;
use crate::script::Token;
use crate::sim::Promise;

/// A promise that a run broke.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Breach {
    pub(super) promise: Promise,
    pub(super) what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

pub(super) fn breach<T>(promise: Promise, what: impl Into<String>) -> Result<T, Breach> {
    Err(Breach {
        promise,
        what: what.into(),
    })
}

#[derive(Default)]
pub(super) struct Checker {
    pub(super) grants: u64,
    /// The largest fence that a caller got, by name.
    fences: BTreeMap<String, u64>,
    /// Releases that a node has answered so that no copy can take the name any more.
    done: BTreeSet<(Token, usize)>,
}

impl Checker {
    /// P1 (one holder), P2 (rising fences): a caller gets a guard.
    pub(super) fn on_guard(&mut self, guard: &Guard) -> Result<(), Breach> {
        self.grants += 1;
        let name = guard.wanted.key.name.to_string();
        let last = self.fences.insert(name, guard.fence).unwrap_or(0);
        if guard.fence <= last {
            let what = format!("fence {} was granted after fence {last}", guard.fence);
            return breach(Promise::Fencing, what);
        }
        Ok(())
    }

    /// P1 (one holder): no two callers believe in one name at the same true time.
    pub(super) fn check_beliefs(&self, processes: &[SimProcess], now: u64) -> Result<(), Breach> {
        for (at, process) in processes.iter().enumerate() {
            let Some(one) = process.believes(now) else {
                continue;
            };
            let others = processes[..at].iter().filter_map(|p| p.believes(now));
            if let Some(other) = others.into_iter().find(|g| g.wanted.key == one.wanted.key) {
                let what = format!(
                    "two callers hold {:?}: fences {} and {}",
                    one.wanted.key.name, other.fence, one.fence
                );
                return breach(Promise::Exclusion, what);
            }
        }
        Ok(())
    }

    /// A node has answered a release, and no copy of a request can take the name any more.
    pub(super) fn on_release_done(&mut self, token: Token, node: usize) {
        self.done.insert((token, node));
    }

    /// Checks what a node did with a request.
    pub(super) fn on_request(
        &self,
        node: usize,
        before: Option<NodeRecord>,
        after: Option<NodeRecord>,
    ) -> Result<(), Breach> {
        let Some(after) = after else {
            return Ok(());
        };
        if !after.has_expiry {
            return breach(Promise::Leftovers, "a key has no expiry");
        }
        if before.is_some_and(|before| before.fence > after.fence) {
            let what = format!("the fence of node {node} fell: {before:?}, {after:?}");
            return breach(Promise::Fencing, what);
        }
        let taken = after
            .owner
            .filter(|_| before.and_then(|before| before.owner) != after.owner);
        match taken {
            Some(token) if self.done.contains(&(token, node)) => breach(
                Promise::OneGrant,
                format!("a late copy took node {node} for {token:?}, whose release is done"),
            ),
            _ => Ok(()),
        }
    }

    /// After some time without faults and requests, nobody holds anything.
    pub(super) fn check_leftovers(
        &self,
        nodes: &[SimNode; NODES],
        keys: &[Key],
        now: u64,
    ) -> Result<(), Breach> {
        for (at, node) in nodes.iter().enumerate() {
            for key in keys {
                let record = node.record(key);
                let owner = record.filter(|record| record.lease_end > node.clock.at(now));
                if let Some(NodeRecord {
                    owner: Some(owner), ..
                }) = owner
                {
                    let what = format!(
                        "node {at} still has {owner:?} as the owner of {:?}",
                        key.name
                    );
                    return breach(Promise::Leftovers, what);
                }
            }
        }
        Ok(())
    }
}
