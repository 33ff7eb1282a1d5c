//! The threads of this process that hold locks while they wait for another. Their waits may close a
//! circle, in which nobody can go on. This finds it when the wait begins that closes it. `circles`
//! says when it is logged.
//!
//! A thread that holds nothing cannot be part of a circle, so it does not come here. The threads in
//! a circle sleep, and a sleeping thread takes no lock. So a circle comes into being when the last
//! of its waits begins, and never later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Thread;

use crate::engine::lease::{EngineId, Lease, TakenLease, taken_by_this_thread};
use crate::engine::log_text::{Details, ThreadText, label_detail};
use crate::engine::request::Request;
use crate::engine::waiter::registry::WaiterEntry;
use crate::engine::waiter::state::CircleWarning;
use crate::script::{Family, LockSpec};
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

/// The most threads of a circle that a warning names.
const MOST_NAMED: usize = 16;

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

/// Whether a wait ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnds {
    WithTheLock,
    AtADeadline,
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
        Circle::of(id, &waits, is_certain)
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

/// Threads each of which waits for the next, and the last for the first.
pub(crate) struct Circle {
    /// The nested wait that it was found by. It is the first of the waiters.
    wait: u64,
    waiters: Vec<Arc<WaiterEntry>>,
    links: Vec<CircleLink>,
    unnamed: usize,
    /// Each thread waits for the next one. Otherwise a reader waits behind a writer that may give
    /// up.
    is_certain: bool,
}

/// A wait of a circle, and what the next thread took of its name.
struct CircleLink {
    waiter: Arc<WaiterEntry>,
    thread: ThreadLabel,
    ends: WaitEnds,
    taken: Arc<Lease>,
}

#[derive(Clone)]
struct ThreadLabel {
    thread: Thread,
    id: u32,
}

impl ThreadLabel {
    fn text(&self) -> ThreadText<'_> {
        ThreadText {
            thread: &self.thread,
            id: Some(self.id),
        }
    }

    /// By its name alone if it has one.
    fn short_text(&self) -> ThreadText<'_> {
        ThreadText {
            thread: &self.thread,
            id: self.thread.name().is_none().then_some(self.id),
        }
    }
}

impl CircleLink {
    /// The label of the request that waits.
    fn waiter_details(&self) -> Details<1> {
        Details([label_detail(self.waiter.request.label())])
    }

    fn taken_details(&self) -> Details<2> {
        let fence = format!("fence {}", self.taken.fence);
        Details([label_detail(self.taken.request.label()), Some(fence)])
    }
}

impl Circle {
    fn of(wait: u64, waits: &[&ThreadWait], is_certain: bool) -> Option<Circle> {
        let takers = waits.iter().cycle().skip(1);
        let links = waits.iter().zip(takers).map(|(wait, taker)| {
            Some(CircleLink {
                waiter: Arc::clone(&wait.waiter),
                thread: wait.thread.clone(),
                ends: wait.ends,
                taken: Arc::clone(taker.taken(&wait.lock()).next()?),
            })
        });
        Some(Circle {
            wait,
            waiters: waits.iter().map(|wait| Arc::clone(&wait.waiter)).collect(),
            links: links
                .take(MOST_NAMED)
                .collect::<Option<Vec<CircleLink>>>()?,
            unnamed: waits.len().saturating_sub(MOST_NAMED),
            is_certain,
        })
    }

    /// The names that its threads wait for, each once.
    pub(crate) fn names(&self) -> BTreeSet<Arc<str>> {
        let names = self.waiters.iter().map(|waiter| &waiter.request.key.name);
        names.cloned().collect()
    }

    /// One warning is enough for each of its waits.
    pub(crate) fn mark_logged(&self) {
        for waiter in &self.waiters {
            waiter.state.lock().circle_warning = CircleWarning::Logged;
        }
    }

    /// The wait that closes it looks for it again.
    pub(crate) fn postpone(&self) {
        self.waiters[0].state.lock().postpone_circle(self.wait);
    }

    /// Logs the warning. Nobody sees which thread has a guard by now. So it says what is known: the
    /// thread that took it.
    pub(crate) fn warn(&self) {
        match &self.links[..] {
            [own] if self.is_certain => warn_of_self_wait(own),
            [own] => warn_of_second_read(own),
            links if self.is_certain => log::warn!(
                "deadlock of {} threads, unless another thread has one of these guards by now: {}: take these names in one order, or together by lock_all{}",
                links.len() + self.unnamed,
                chain(links, self.unnamed),
                Remark(links)
            ),
            links => log::warn!(
                "deadlock of {} threads, unless a writer before a reader gives up, or another thread has one of these guards by now: {}: take these names in one order, or together by lock_all{}",
                links.len() + self.unnamed,
                chain(links, self.unnamed),
                Remark(links)
            ),
        }
    }
}

fn warn_of_second_read(own: &CircleLink) {
    log::warn!(
        "{} waits to read {:?}{} behind a writer, and a read lock that it took itself is still held{}: drop that guard first, unless the writer gives up or another thread has that guard by now{}",
        own.thread.short_text(),
        own.waiter.request.key.name,
        own.waiter_details(),
        own.taken_details(),
        Remark(std::slice::from_ref(own))
    );
}

fn warn_of_self_wait(own: &CircleLink) {
    let requests = [&own.waiter.request, &own.taken.request];
    let has_permits = |request: &Arc<Request>| request.spec.family == Family::Permit;
    let instead = if requests.into_iter().any(has_permits) {
        ""
    } else {
        ", or use reentrant_mutex"
    };
    log::warn!(
        "{} waits for {:?}{}, which it took itself{} and which is still held: drop that guard first{}, unless another thread has that guard by now{}",
        own.thread.short_text(),
        own.waiter.request.key.name,
        own.waiter_details(),
        own.taken_details(),
        instead,
        Remark(std::slice::from_ref(own))
    );
}

fn chain(links: &[CircleLink], unnamed: usize) -> String {
    let mut text = String::new();
    let takers = links.iter().cycle().skip(1);
    for (at, (link, taker)) in links.iter().zip(takers).enumerate() {
        let separator = if at == 0 { "" } else { "; " };
        let is_last_named = at + 1 == links.len();
        let _ = write!(
            text,
            "{separator}{} waits for {:?}{}, which ",
            link.thread.text(),
            link.waiter.request.key.name,
            link.waiter_details(),
        );
        let _ = if is_last_named && unnamed > 0 {
            write!(text, "the next of {unnamed} further threads took")
        } else {
            write!(text, "{} took", taker.thread.text())
        };
        let _ = write!(text, "{}", link.taken_details());
    }
    text
}

/// Says how a circle can end by itself.
struct Remark<'a>(&'a [CircleLink]);

impl fmt::Display for Remark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self
            .0
            .iter()
            .find(|link| link.ends == WaitEnds::AtADeadline)
        {
            Some(link) => write!(
                f,
                "; the wait for {:?} has a deadline",
                link.waiter.request.key.name
            ),
            None => Ok(()),
        }
    }
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
