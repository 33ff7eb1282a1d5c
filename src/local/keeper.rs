//! Which names are kept: those that were locked a short time ago, and that no other manager wants as
//! often as this one. And when to look at the grants about which others tell this process.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::store::clock::Time;
use crate::sync::Mutex;

/// A tenure that ends after fewer turns than this was not worth it: to take a kept lock back costs as
/// much as 4 to 6 round trips.
pub(super) const LEAST_TURNS: u64 = 6;
/// A name is cold for this time at least, and for twice as long at most.
const COLD: Duration = Duration::from_secs(30);
/// Names that were locked longer ago are forgotten, once so many others were, or as many as may be kept.
const MOST_SEEN: usize = 16_384;

/// A manager's knowledge of names, besides their lines.
pub(super) struct Keeper {
    /// The most grants that are kept at a time.
    max_kept: usize,
    state: Mutex<KeeperState>,
    /// The grants about which others tell this process.
    tenures: AtomicUsize,
    /// Those of them that are kept after their guards.
    kept: AtomicUsize,
    /// There was such a grant.
    has_begun: AtomicBool,
    /// The names that became cold and are not counted yet.
    new_cold: AtomicU64,
}

#[derive(Default)]
struct KeeperState {
    /// When a name was last locked, newer ones first, and what came before those.
    seen: [HashMap<Arc<str>, Time>; 2],
    /// The names that are not kept, and those from the time before.
    cold: [HashMap<Arc<str>, ()>; 2],
    cold_since: Time,
    /// When to look at a name's tenures.
    looks: BTreeSet<(Time, Arc<str>)>,
    /// The look that a caller took last, which found no room.
    hand: Option<(Time, Arc<str>)>,
    /// The one timer for these looks.
    timer_at: Option<Time>,
}

impl Keeper {
    pub(super) fn new(max_kept: usize) -> Keeper {
        Keeper {
            max_kept,
            state: Mutex::default(),
            tenures: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            has_begun: AtomicBool::new(false),
            new_cold: AtomicU64::new(0),
        }
    }

    /// A caller asks Redis for this name. The time since the last one did, if that is at most this, and
    /// the name may be kept.
    pub(super) fn note_asked(
        &self,
        name: &Arc<str>,
        keep: Duration,
        now: Time,
    ) -> Option<Duration> {
        let mut state = self.state.lock();
        state.forget_old_cold(now);
        let [newer, older] = &mut state.seen;
        let last = newer.insert(Arc::clone(name), now);
        let last = last.or_else(|| older.get(name).copied());
        if newer.len() >= MOST_SEEN.max(self.max_kept) {
            *older = std::mem::take(newer);
        }
        let is_cold = state.cold.iter().any(|names| names.contains_key(name));
        let pause = now - last?;
        (pause <= keep && !is_cold).then_some(pause)
    }

    /// Whether one grant more may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.kept.load(Ordering::Relaxed) < self.max_kept
    }

    /// Whether too many are kept: several callers may have found the last room.
    pub(super) fn is_overfull(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > self.max_kept
    }

    /// This name is not kept for a while.
    pub(super) fn note_cold(&self, name: &Arc<str>, now: Time) {
        let mut state = self.state.lock();
        state.forget_old_cold(now);
        if state.cold[0].insert(Arc::clone(name), ()).is_none() {
            self.new_cold.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many names became cold since the last call.
    pub(super) fn take_new_cold(&self) -> u64 {
        if self.new_cold.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.new_cold.swap(0, Ordering::Relaxed)
    }

    /// Every name may be kept again, as if a long time had passed.
    #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
    pub(super) fn forget_cold(&self) {
        self.state.lock().cold = Default::default();
    }

    /// How many grants there are about which others tell this process.
    pub(super) fn tenures(&self) -> usize {
        self.tenures.load(Ordering::Relaxed)
    }

    /// Whether a name can have a kept grant, or one whose release is not answered yet.
    pub(super) fn has_kept(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    pub(super) fn on_tenure_begun(&self, may_keep: bool) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.tenures.fetch_add(1, Ordering::Relaxed);
        self.kept.fetch_add(may_keep.into(), Ordering::Relaxed);
    }

    pub(super) fn on_tenure_ended(&self, may_keep: bool) {
        self.tenures.fetch_sub(1, Ordering::Relaxed);
        self.kept.fetch_sub(may_keep.into(), Ordering::Relaxed);
    }

    /// A name is to be looked at then. True: a timer is needed for that time.
    #[must_use]
    pub(super) fn look_at(&self, name: &Arc<str>, at: Time) -> bool {
        let mut state = self.state.lock();
        state.looks.insert((at, Arc::clone(name)));
        let is_first = state.timer_at.is_none_or(|timer_at| at < timer_at);
        if is_first {
            state.timer_at = Some(at);
        }
        is_first
    }

    /// A name that is due.
    pub(super) fn take_due(&self, now: Time) -> Option<Arc<str>> {
        let mut state = self.state.lock();
        let (at, _) = state.looks.first()?;
        if *at > now {
            return None;
        }
        state.looks.pop_first().map(|(_, name)| name)
    }

    /// The name that comes after the last one that this returned, in the order of their looks, and when it
    /// is due. After the last one the first comes again.
    pub(super) fn take_next(&self) -> Option<(Time, Arc<str>)> {
        let mut state = self.state.lock();
        let after = state.hand.take().map_or(Unbounded, Excluded);
        let next = state.looks.range((after, Unbounded)).next();
        let next = next.or_else(|| state.looks.first())?.clone();
        state.looks.remove(&next);
        state.hand = Some(next.clone());
        Some(next)
    }

    /// A timer has come. When it is to come again. `None` if another one is set.
    pub(super) fn next_timer(&self, now: Time) -> Option<Time> {
        let mut state = self.state.lock();
        if state.timer_at.is_some_and(|timer_at| timer_at > now) {
            return None;
        }
        state.timer_at = state.looks.first().map(|(at, _)| *at);
        state.timer_at
    }
}

impl KeeperState {
    fn forget_old_cold(&mut self, now: Time) {
        if now - self.cold_since >= COLD {
            let [newer, older] = &mut self.cold;
            *older = std::mem::take(newer);
            if now - self.cold_since >= COLD * 2 {
                older.clear();
            }
            self.cold_since = now;
        }
    }
}
