//! The threads of this process that hold locks while they wait for another. Their waits may close a
//! circle, in which nobody can go on. This finds it when the wait begins that closes it. `circle` has
//! its text, and `reports` says when it is logged.
//!
//! A thread that holds nothing cannot be part of a circle, so it does not come here. The threads in
//! a circle sleep, and a sleeping thread takes no lock. So a circle comes into being when the last
//! of its waits begins, and never later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Thread;

use crate::engine::lease::{EngineId, Lease, TakenLease, taken_by_this_thread};
use crate::engine::waiter::circle::{Circle, CircleLink, ThreadLabel, WaitEnds};
use crate::engine::waiter::entry::WaiterEntry;
use crate::engine::waiter::state::CircleWarning;
use crate::script::LockSpec;
use crate::thread_id;

/// The nested waits of this process, of all its managers.
///
/// Order of mutexes: this one first, then a waiter's state. It is held for a search in memory, never
/// over I/O, a notification or a log call.
static NESTED: parking_lot::Mutex<NestedWaits> = parking_lot::const_mutex(NestedWaits::new());
/// The process that [`NESTED`] belongs to. A fork may copy the mutex while another thread holds it,
/// and in the child nobody would ever release it. So a child of a process with nested waits looks
/// for no circles.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A wait of a thread that holds locks. It is known until this is dropped.
pub(crate) struct NestedWait {
    id: u64,
}

impl NestedWait {
    /// A thread begins to wait. `None` if it holds nothing.
    ///
    /// Also returns the circle that this wait closes, if it closes one that is not logged yet. The
    /// caller reports it, when no mutex is held.
    pub(crate) fn begin(
        engine: EngineId,
        waiter: &Arc<WaiterEntry>,
        thread: Thread,
        ends: WaitEnds,
    ) -> Option<(NestedWait, Option<Circle>)> {
        let takes = taken_by_this_thread();
        if takes.is_empty() {
            return None;
        }
        let process = std::process::id();
        if !belongs_to(process) {
            return None;
        }
        let wait = ThreadWait {
            engine,
            waiter: Arc::clone(waiter),
            thread: ThreadLabel {
                thread,
                id: thread_id::in_process(process),
            },
            ends,
            takes,
        };
        let mut nested = NESTED.lock();
        let id = nested.add(wait);
        let circle = nested.circle_of(id);
        Some((NestedWait { id }, circle))
    }
}

impl Drop for NestedWait {
    fn drop(&mut self) {
        let ended = NESTED.lock().remove(self.id);
        // The last owner of a lease drops a callback of the user with it: not under the mutex.
        drop(ended);
    }
}

/// The circle that this nested wait closes, if it still does and the log has no warning of it.
pub(crate) fn circle_of(wait: u64) -> Option<Circle> {
    NESTED.lock().circle_of(wait)
}

fn belongs_to(process: u32) -> bool {
    let owner = PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    owner.is_ok() || owner == Err(process)
}

/// Whether a request of this kind waits for this many held permits of its name.
type WaitRule = fn(&LockSpec, u64) -> bool;

/// A name of one engine.
type LockId = (EngineId, Arc<str>);

struct NestedWaits {
    last_id: u64,
    waits: BTreeMap<u64, ThreadWait>,
    /// The waits whose threads took a lock of this name.
    takers: BTreeMap<LockId, Vec<u64>>,
}

struct ThreadWait {
    engine: EngineId,
    waiter: Arc<WaiterEntry>,
    thread: ThreadLabel,
    ends: WaitEnds,
    takes: Vec<TakenLease>,
}

impl ThreadWait {
    fn lock(&self) -> LockId {
        (self.engine, Arc::clone(&self.waiter.request.key.name))
    }

    /// The leases of this name that the thread took and that are not over.
    fn taken<'a>(&'a self, (engine, name): &'a LockId) -> impl Iterator<Item = &'a Arc<Lease>> {
        let of_name = |taken: &&TakenLease| {
            taken.engine == *engine
                && taken.lease.request.key.name == *name
                && !taken.lease.is_over()
        };
        self.takes.iter().filter(of_name).map(|taken| &taken.lease)
    }

    /// Whether, by this rule, this wait is for something that the other's thread took.
    fn waits_for(&self, other: &ThreadWait, rule: WaitRule) -> bool {
        let lock = self.lock();
        let permits = other.taken(&lock).map(|lease| u64::from(lease.permits()));
        rule(&self.waiter.request.spec, permits.sum())
    }

    /// Whether it still waits. It may have been granted and not woken yet.
    fn waits(&self) -> bool {
        self.waiter.state.lock().awaits_grant()
    }
}

impl NestedWaits {
    const fn new() -> NestedWaits {
        NestedWaits {
            last_id: 0,
            waits: BTreeMap::new(),
            takers: BTreeMap::new(),
        }
    }

    fn add(&mut self, wait: ThreadWait) -> u64 {
        self.last_id += 1;
        for lock in locks_of(&wait) {
            self.takers.entry(lock).or_default().push(self.last_id);
        }
        self.waits.insert(self.last_id, wait);
        self.last_id
    }

    fn remove(&mut self, id: u64) -> Option<ThreadWait> {
        let wait = self.waits.remove(&id)?;
        for lock in locks_of(&wait) {
            if let Some(takers) = self.takers.get_mut(&lock) {
                takers.retain(|taker| *taker != id);
                if takers.is_empty() {
                    self.takers.remove(&lock);
                }
            }
        }
        Some(wait)
    }

    /// The circle that a wait closes, if it closes one that is not logged yet.
    fn circle_of(&self, id: u64) -> Option<Circle> {
        let first = self.waits.get(&id)?;
        if first.waiter.state.lock().circle_warning == CircleWarning::Logged {
            return None;
        }
        let certain = self.circle_by(id, LockSpec::must_wait_for);
        let is_certain = certain.is_some();
        let circle = certain.or_else(|| self.circle_by(id, LockSpec::may_wait_for))?;
        let waits: Vec<&ThreadWait> = circle.iter().map(|id| &self.waits[id]).collect();
        let takers = waits.iter().cycle().skip(1);
        let links = waits.iter().zip(takers).map(|(wait, taker)| {
            Some(CircleLink {
                waiter: Arc::clone(&wait.waiter),
                thread: wait.thread.clone(),
                ends: wait.ends,
                taken: Arc::clone(taker.taken(&wait.lock()).next()?),
            })
        });
        let waiters = waits.iter().map(|wait| Arc::clone(&wait.waiter));
        Circle::new(id, waiters.collect(), links, is_certain)
    }

    /// The circle that a wait closes, if by this rule each of its waits is for the next thread.
    fn circle_by(&self, id: u64, rule: WaitRule) -> Option<Vec<u64>> {
        circle_through(id, |id| {
            let wait = &self.waits[&id];
            if !wait.waits() {
                return Vec::new();
            }
            let takers = self.takers.get(&wait.lock()).into_iter().flatten();
            let blocks = |taker: &u64| wait.waits_for(&self.waits[taker], rule);
            takers.copied().filter(blocks).collect()
        })
    }
}

/// The locks of which the wait's thread took leases, each once.
fn locks_of(wait: &ThreadWait) -> Vec<LockId> {
    let mut locks: Vec<LockId> = wait
        .takes
        .iter()
        .map(|taken| (taken.engine, Arc::clone(&taken.lease.request.key.name)))
        .collect();
    locks.sort();
    locks.dedup();
    locks
}

/// A way from `start` back to `start`, each step to one of the `next`. Begins with `start`.
fn circle_through(start: u64, mut next: impl FnMut(u64) -> Vec<u64>) -> Option<Vec<u64>> {
    let mut seen = BTreeSet::from([start]);
    // The way so far, and for each of its steps those that were not gone to yet.
    let mut way = vec![(start, next(start))];
    while let Some((_, open)) = way.last_mut() {
        match open.pop() {
            Some(id) if id == start => return Some(way.into_iter().map(|(id, _)| id).collect()),
            Some(id) if seen.insert(id) => {
                let open = next(id);
                way.push((id, open));
            }
            Some(_) => {}
            None => {
                way.pop();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(start: u64, edges: &[(u64, &[u64])]) -> Option<Vec<u64>> {
        let edges: BTreeMap<u64, &[u64]> = edges.iter().copied().collect();
        circle_through(start, |id| {
            edges.get(&id).map_or_else(Vec::new, |to| to.to_vec())
        })
    }

    #[test]
    fn circles_of_any_length_are_found() {
        assert_eq!(circle(1, &[(1, &[1])]), Some(vec![1]));
        assert_eq!(circle(1, &[(1, &[2]), (2, &[1])]), Some(vec![1, 2]));
        let long: Vec<(u64, [u64; 1])> = (0..1000).map(|id| (id, [(id + 1) % 1000])).collect();
        let long: Vec<(u64, &[u64])> = long.iter().map(|(id, to)| (*id, &to[..])).collect();
        assert_eq!(circle(7, &long).map(|circle| circle.len()), Some(1000));
    }

    #[test]
    fn way_that_ends_is_no_circle() {
        assert_eq!(circle(1, &[]), None);
        assert_eq!(circle(1, &[(1, &[2]), (2, &[3]), (3, &[])]), None);
    }

    /// The circle of others has been reported, and this wait is not part of it.
    #[test]
    fn circle_of_others_behind_is_not_taken_for_an_own_one() {
        assert_eq!(circle(1, &[(1, &[2]), (2, &[3]), (3, &[2])]), None);
    }

    #[test]
    fn circle_through_one_of_several_holders_is_found() {
        let edges: &[(u64, &[u64])] = &[(1, &[2, 3, 4]), (2, &[5]), (3, &[5, 1]), (5, &[])];
        assert_eq!(circle(1, edges), Some(vec![1, 3]));
    }
}
