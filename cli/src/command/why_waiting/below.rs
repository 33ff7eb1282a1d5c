//! The waiters below a holder: the processes of a run's command, for which the run waits.
//!
//! On this host `/proc` shows which processes are below one. A run on any host writes into its
//! label which run is around it.

use std::collections::{HashMap, HashSet};

use fairlock::inspect::{LockInfo, Party};

use super::Locks;
use crate::command::run::label;
use crate::parties::{Place, fence_of, live_holders};
use crate::processes::Descent;

/// More runs inside each other than this are a circle of labels that people wrote.
const MOST_AROUND: usize = 100;

/// The view of processes from this host.
#[derive(Debug)]
pub(super) struct Sight {
    host: String,
    descent: Option<Descent>,
}

impl Sight {
    pub(super) fn from_this_host() -> Sight {
        let name = rustix::system::uname();
        Sight {
            // As the library writes it.
            host: name.nodename().to_string_lossy().replace(' ', "-"),
            descent: Descent::read(),
        }
    }

    #[cfg(test)]
    pub(super) fn nothing() -> Sight {
        Sight {
            host: String::new(),
            descent: None,
        }
    }

    /// Whether a process of the holder's command may wait unseen.
    pub(super) fn may_miss_waits_below(&self, holder: &Party) -> bool {
        is_run(holder) && self.processes_of(holder).is_none()
    }

    /// The processes of this host, if this one is among them.
    fn processes_of(&self, party: &Party) -> Option<&Descent> {
        let is_here = |descent: &&Descent| party.host == self.host && descent.has(party.pid);
        self.descent.as_ref().filter(is_here)
    }
}

/// The places in all queues, by the holders that they are below.
pub(super) struct Below<'a> {
    sight: &'a Sight,
    /// By processes of this host. Each with whether both are in one session.
    by_process: HashMap<u32, Vec<(Place<'a>, bool)>>,
    /// By the names and fences of the runs around it.
    by_label: HashMap<(&'a str, u64), Vec<Place<'a>>>,
}

impl<'a> Below<'a> {
    pub(super) fn of(
        places: impl Iterator<Item = Place<'a>>,
        locks: &'a Locks,
        sight: &'a Sight,
    ) -> Below<'a> {
        let mut below = Below {
            sight,
            by_process: HashMap::new(),
            by_label: HashMap::new(),
        };
        for place in places {
            if let Some(descent) = sight.processes_of(place.waiter) {
                for (pid, is_in_session) in descent.above(place.waiter.pid) {
                    let of_process = below.by_process.entry(pid).or_default();
                    of_process.push((place, is_in_session));
                }
            }
            for around in runs_around(place.waiter, locks) {
                below.by_label.entry(around).or_default().push(place);
            }
        }
        below
    }

    /// The places of the processes below a holder. Each with whether the holder surely waits for
    /// that process.
    pub(super) fn places_of(&self, holds: &'a LockInfo, holder: &Party) -> Vec<(Place<'a>, bool)> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        // A process of the library does other work than to wait for its children.
        if !is_run(holder) {
            return found;
        }
        if self.sight.processes_of(holder).is_some() {
            let below = self.by_process.get(&holder.pid).into_iter().flatten();
            for &(place, is_in_session) in below {
                seen.insert((&*place.lock.name, place.position));
                // A run waits for its command, and then for the rest of its session.
                found.push((place, is_in_session));
            }
        }
        let fence = fence_of(holds, holder);
        // The readers of a lock share a fence, so the label does not say which one it is below.
        let with_fence = live_holders(holds).filter(|other| fence_of(holds, other) == fence);
        let is_only_one = with_fence.count() == 1;
        let labelled = self.by_label.get(&(&*holds.name, fence));
        for place in labelled.into_iter().flatten() {
            if seen.contains(&(&*place.lock.name, place.position)) {
                continue;
            }
            // Both are here, and the waiter has left the processes of the run.
            let sees = |party| self.sight.processes_of(party).is_some();
            let has_left = sees(holder) && sees(place.waiter);
            if !has_left || is_only_one {
                found.push((*place, is_only_one && !has_left));
            }
        }
        found
    }
}

/// Whether `fairlock run` holds it.
fn is_run(holder: &Party) -> bool {
    holder.thread == label::THREAD
}

/// The runs around this one, the nearest first, by what they hold.
fn runs_around<'a>(waiter: &'a Party, locks: &'a Locks) -> Vec<(&'a str, u64)> {
    let mut found = Vec::new();
    let mut inner = Some(waiter);
    while let Some((name, fence)) = inner.and_then(|inner| label::around(&inner.label))
        && found.len() < MOST_AROUND
    {
        found.push((name, fence));
        inner = locks
            .get(name)
            .and_then(|lock| live_holders(lock).find(|holder| fence_of(lock, holder) == fence));
    }
    found
}

/// Whether a holder of the lock is inside another run.
pub(super) fn is_held_inside_a_run(lock: &LockInfo) -> bool {
    live_holders(lock).any(|holder| label::around(&holder.label).is_some())
}
