//! Finds the circles among waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use fairlock::inspect::{Kind, LockInfo, Party};

/// A holder of one lock stands in the queue of another, or a process for which it waits does.
#[derive(Debug, Clone)]
pub(super) struct Wait<'a> {
    pub(super) holds: &'a LockInfo,
    pub(super) holder: &'a Party,
    pub(super) waits_for: &'a LockInfo,
    pub(super) waiter: &'a Party,
    /// In the queue, from 1.
    pub(super) position: usize,
    /// Whether the waiter is a process below that of the holder.
    pub(super) is_below: bool,
    /// Whether holder and waiter are surely the same thread; or, if it is below, whether the holder
    /// surely waits for it.
    pub(super) is_certain: bool,
}

/// Waits of which each is for a lock that the next one holds, and the last for one of the first.
#[derive(Debug)]
pub(super) struct Circle<'a> {
    pub(super) waits: Vec<Wait<'a>>,
    /// Whether it cannot end without help.
    pub(super) is_certain: bool,
}

impl Circle<'_> {
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let held = self.waits.iter().map(|wait| &wait.holds.name);
        held.cloned().collect()
    }
}

/// Circles that cover each wait that is in one. Each is a shortest one through some wait: a certain
/// one, if that wait is in one. The certain ones come first. One that is not certain is left out if
/// all its names are in certain ones: those must be ended anyway.
pub(super) fn circles<'a>(waits: &[Wait<'a>]) -> Vec<Circle<'a>> {
    let search = Search::of(waits);
    let mut circles: Vec<Circle<'a>> = Vec::new();
    let mut is_covered = vec![false; waits.len()];
    let mut names_in_certain = HashSet::new();
    for is_certain in [true, false] {
        for start in 0..waits.len() {
            if is_covered[start] || !search.may_be_in_circle[start] {
                continue;
            }
            let Some(path) = search.shortest(start, is_certain) else {
                continue;
            };
            for &at in &path {
                is_covered[at] = true;
            }
            let circle = Circle {
                waits: path.iter().map(|&at| waits[at].clone()).collect(),
                is_certain,
            };
            if is_certain {
                names_in_certain.extend(circle.names());
            }
            let is_news = |name| is_certain || !names_in_certain.contains(name);
            if circle.names().iter().any(is_news) {
                circles.push(circle);
            }
        }
    }
    circles
}

/// The waits as a graph. A wait leads to the waits of those that hold its lock.
struct Search<'w, 'a> {
    waits: &'w [Wait<'a>],
    /// The waits of each lock's holders.
    of_holders: HashMap<&'a str, Vec<usize>>,
    /// False for waits that lead only to the end of a chain, or that no wait leads to.
    may_be_in_circle: Vec<bool>,
}

impl<'w, 'a> Search<'w, 'a> {
    fn of(waits: &'w [Wait<'a>]) -> Search<'w, 'a> {
        let mut of_holders: HashMap<&'a str, Vec<usize>> = HashMap::new();
        for (at, wait) in waits.iter().enumerate() {
            of_holders.entry(&wait.holds.name).or_default().push(at);
        }
        let mut search = Search {
            waits,
            of_holders,
            may_be_in_circle: vec![true; waits.len()],
        };
        search.leave_out_ends();
        search
    }

    /// Leaves out waits that cannot be in a circle, until none is left. So a search for a circle
    /// goes through few others, however long the chains are.
    fn leave_out_ends(&mut self) {
        loop {
            let mut is_led_to = HashSet::new();
            let mut leads_on = HashSet::new();
            for at in (0..self.waits.len()).filter(|&at| self.may_be_in_circle[at]) {
                is_led_to.insert(&*self.waits[at].waits_for.name);
                leads_on.insert(&*self.waits[at].holds.name);
            }
            let mut is_done = true;
            for (at, wait) in self.waits.iter().enumerate() {
                let stays = is_led_to.contains(&*wait.holds.name)
                    && leads_on.contains(&*wait.waits_for.name);
                if self.may_be_in_circle[at] && !stays {
                    self.may_be_in_circle[at] = false;
                    is_done = false;
                }
            }
            if is_done {
                return;
            }
        }
    }

    /// A shortest circle that begins with this wait.
    fn shortest(&self, start: usize, must_be_certain: bool) -> Option<Vec<usize>> {
        let mut came_from: HashMap<usize, usize> = HashMap::new();
        let mut reached = VecDeque::from([start]);
        while let Some(at) = reached.pop_front() {
            for next in self.behind(at) {
                if must_be_certain && !self.is_certain(at, next) {
                    continue;
                }
                if next == start {
                    let mut path = vec![at];
                    while let Some(&before) = came_from.get(&path[path.len() - 1]) {
                        path.push(before);
                    }
                    path.reverse();
                    return Some(path);
                }
                came_from.entry(next).or_insert_with(|| {
                    reached.push_back(next);
                    at
                });
            }
        }
        None
    }

    /// The waits of those that hold what this one waits for.
    fn behind(&self, at: usize) -> impl Iterator<Item = usize> {
        let waits = self.of_holders.get(&*self.waits[at].waits_for.name);
        let waits = waits.into_iter().flatten().copied();
        waits.filter(|&at| self.may_be_in_circle[at])
    }

    /// Whether a wait surely lasts for as long as the next one.
    fn is_certain(&self, at: usize, next: usize) -> bool {
        let wait = &self.waits[at];
        wait.is_certain && cannot_pass(wait, self.waits[next].holder)
    }
}

/// Whether a wait cannot end while this holder of its lock keeps what it has.
fn cannot_pass(wait: &Wait<'_>, taker: &Party) -> bool {
    match wait.waits_for.kind {
        Kind::Semaphore { permits, .. } => {
            u64::from(wait.waiter.permits) + u64::from(taker.permits) > u64::from(permits)
        }
        // A second reader waits only behind a writer, and that writer waits for the first.
        _ => true,
    }
}
