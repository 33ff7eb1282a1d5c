//! The lines of one manager. A *slot* has those of one name, under one mutex.

use std::collections::HashMap;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::ended::EndedGrant;
use super::keeper::Keeper;
use super::state::{LineState, Tenure};
use crate::engine::{
    Acquiring, Engine, Handovers, Hearing, HeldLease, LeaseOwner, LostBy, Releasing, Request,
    Timer, WaiterEntry, WaiterOwner, WantedListener,
};
use crate::key::Key;
use crate::loss::Loss;
use crate::options::LockOptions;
use crate::script::{Mode, Token};
use crate::setting::LOCAL_HANDOVERS;
use crate::store::clock::Time;
use crate::sync::{Mutex, MutexGuard};

pub(super) type Line = LineState<Arc<WaiterEntry>, Arc<HeldLease>, KeptBy>;
pub(super) type LineTenure = Tenure<Arc<WaiterEntry>, Arc<HeldLease>, KeptBy>;

/// Threads that use different names seldom meet at the same mutex of the map of slots.
const SHARDS: usize = if cfg!(fairlock_loom) { 1 } else { 64 };

/// Requests for a name with the same key wait in the same line.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) struct LineKey {
    ttl: Duration,
    max: u32,
    shared_as: u64,
}

/// Lines with numbers from this one on have one caller each.
const FIRST_OWN_LINE: u64 = 8;

impl LineKey {
    pub(super) fn of(request: &Request) -> LineKey {
        LineKey {
            ttl: request.ttl,
            max: request.handovers,
            shared_as: request.shared_as,
        }
    }
}

/// All lines that have members, a place or a tenure.
///
/// Order of mutexes: that of a shard, a slot's, the registry's, a waiter's state. The first two are
/// never held over I/O, a notification or a callback, and nothing of a user is dropped under them.
pub(crate) struct Lines {
    pub(super) acquiring: Arc<Acquiring>,
    pub(super) releasing: Arc<Releasing>,
    pub(super) hearing: Arc<Hearing>,
    pub(super) owner: Arc<LinesOwner>,
    pub(super) keeper: Keeper,
    own_lines: AtomicU64,
    shards: [Shard; SHARDS],
}

/// Padded, so that two shards share no cache line.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashMap<Arc<str>, Arc<NameSlot>>>);

/// The lines of one name.
#[repr(align(128))]
pub(crate) struct NameSlot {
    name: Arc<str>,
    state: Mutex<SlotState>,
}

/// The state of a slot. Its mutex is held for as long as a reference to this lives.
#[derive(Default)]
pub(super) struct SlotState {
    lines: Vec<(LineKey, Line)>,
    /// Kept grants that have ended here, until their releases are answered.
    pub(super) ended: Vec<EndedGrant>,
    /// When its tenures are looked at next.
    pub(super) look_at: Time,
    /// Others wait behind the grants up to this fence.
    wanted_fence: u64,
    /// How many handles have it at hand.
    pins: usize,
    /// The map of slots has this one no more.
    retired: bool,
}

/// The request by which a kept grant is lent.
pub(super) struct KeptBy {
    /// The request of its last guard. Callers with the same options share it.
    pub(super) request: Arc<Request>,
}

/// A slot that a handle has at hand. While it does, the map keeps the slot.
pub(crate) struct PinnedSlot {
    lines: Arc<Lines>,
    slot: Arc<NameSlot>,
}

impl PinnedSlot {
    pub(super) fn slot(&self) -> &Arc<NameSlot> {
        &self.slot
    }
}

impl Clone for PinnedSlot {
    fn clone(&self) -> PinnedSlot {
        if !self.lines.acquiring.is_forked() {
            self.slot.lock().pins += 1;
        }
        PinnedSlot {
            lines: Arc::clone(&self.lines),
            slot: Arc::clone(&self.slot),
        }
    }
}

impl Drop for PinnedSlot {
    fn drop(&mut self) {
        // Another thread of the parent may have had the mutex at the fork.
        if self.lines.acquiring.is_forked() {
            return;
        }
        let mut state = self.slot.lock();
        state.pins -= 1;
        let is_idle = state.is_idle();
        drop(state);
        if is_idle {
            self.lines.retire(&self.slot);
        }
    }
}

impl NameSlot {
    fn new(name: Arc<str>) -> NameSlot {
        NameSlot {
            name,
            state: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock()
    }
}

impl RefUnwindSafe for Lines {}
impl RefUnwindSafe for NameSlot {}

impl Lines {
    pub(super) fn new(engine: &Engine) -> Arc<Lines> {
        let lines = Arc::new_cyclic(|lines| Lines {
            acquiring: Arc::clone(engine.acquiring()),
            releasing: Arc::clone(engine.releasing()),
            hearing: Arc::clone(engine.hearing()),
            owner: Arc::new(LinesOwner(Weak::clone(lines))),
            keeper: Keeper::new(engine.config().max_kept as usize),
            own_lines: AtomicU64::new(FIRST_OWN_LINE),
            shards: std::array::from_fn(|_| Shard::default()),
        });
        let owner = Arc::downgrade(&lines.owner);
        lines.hearing.set_listener(owner);
        lines
    }

    /// The uses of a grant for a caller with these options. It is to be kept for `keep_idle`, if at all.
    ///
    /// Callers share a line, and so a place in the queue, if they hand the lock over, or may keep it: also
    /// while this manager does not keep the name, so that it has one place at all times. A caller that is
    /// only to be told has a line of its own, and so a place of its own.
    pub(super) fn handovers(&self, options: &LockOptions, keep: Option<Duration>) -> Handovers {
        let most = options.most_local_handovers();
        let (keeps, notifies) = (options.keep_time().is_some(), options.notifies_wanted());
        Handovers {
            most,
            spare_fences: keep.map_or(most, |_| LOCAL_HANDOVERS.most),
            hears: keep.is_some() || notifies,
            keep,
            shared_as: if most > 0 || keeps {
                1 + u64::from(keeps) + 2 * u64::from(notifies)
            } else if notifies {
                self.own_line()
            } else {
                0
            },
        }
    }

    /// The number of a line that has one caller.
    pub(super) fn own_line(&self) -> u64 {
        self.own_lines.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs this with the slot of a name, which may be new.
    pub(super) fn with_slot<R>(&self, name: &Arc<str>, run: impl FnOnce(&mut SlotState) -> R) -> R {
        loop {
            let mut shard = self.shard(name).lock();
            let slot = match shard.get(name) {
                Some(slot) => Arc::clone(slot),
                None => {
                    let slot = Arc::new(NameSlot::new(Arc::clone(name)));
                    shard.insert(Arc::clone(name), Arc::clone(&slot));
                    slot
                }
            };
            drop(shard);
            let state = slot.lock();
            if !state.retired {
                return self.run(&slot, state, run);
            }
        }
    }

    /// Runs this with the slot of a name. `None`: nobody waits for the name here, and nothing of it is
    /// held.
    pub(super) fn with_known_slot<R>(
        &self,
        name: &str,
        run: impl FnOnce(&mut SlotState) -> R,
    ) -> Option<R> {
        let slot = self.known_slot(name)?;
        self.with(&slot, run)
    }

    /// Runs this with a slot that was found before. `None`: the map has it no more.
    pub(super) fn with<R>(
        &self,
        slot: &Arc<NameSlot>,
        run: impl FnOnce(&mut SlotState) -> R,
    ) -> Option<R> {
        let state = slot.lock();
        (!state.retired).then(|| self.run(slot, state, run))
    }

    fn run<R>(
        &self,
        slot: &Arc<NameSlot>,
        mut state: MutexGuard<'_, SlotState>,
        run: impl FnOnce(&mut SlotState) -> R,
    ) -> R {
        let result = run(&mut state);
        if state.is_unused() {
            // Fences may be smaller after a loss of data.
            state.wanted_fence = 0;
        }
        let is_idle = state.is_idle();
        drop(state);
        if is_idle {
            self.retire(slot);
        }
        result
    }

    pub(super) fn known_slot(&self, name: &str) -> Option<Arc<NameSlot>> {
        self.shard(name).lock().get(name).map(Arc::clone)
    }

    /// Keeps a slot at hand. `None`: the map has it no more.
    pub(super) fn pin(self: &Arc<Self>, slot: &Arc<NameSlot>) -> Option<PinnedSlot> {
        let mut state = slot.lock();
        if state.retired {
            return None;
        }
        state.pins += 1;
        drop(state);
        Some(PinnedSlot {
            lines: Arc::clone(self),
            slot: Arc::clone(slot),
        })
    }

    fn shard(&self, name: &str) -> &Mutex<HashMap<Arc<str>, Arc<NameSlot>>> {
        // The map has a hash of its own, which nobody outside can foresee.
        let sum = name.bytes().fold(0, |sum: usize, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        &self.shards[sum % SHARDS].0
    }

    fn retire(&self, slot: &Arc<NameSlot>) {
        let mut shard = self.shard(&slot.name).lock();
        let mut state = slot.lock();
        if state.is_idle() && !state.retired {
            state.retired = true;
            shard.remove(&slot.name);
        }
    }

    /// The names that have a slot.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let names = |shard: &Shard| shard.0.lock().keys().cloned().collect::<Vec<_>>();
        self.shards.iter().flat_map(names).collect()
    }
}

impl SlotState {
    /// The line of a request, which may be new.
    pub(super) fn line(&mut self, request: &Request) -> &mut Line {
        let key = LineKey::of(request);
        let at = match self.lines.iter().position(|(other, _)| *other == key) {
            Some(at) => at,
            None => {
                // A line that is idle has nothing of a user.
                self.lines.retain(|(_, line)| !line.is_idle());
                self.lines.push((key, LineState::new(key.max)));
                self.lines.len() - 1
            }
        };
        &mut self.lines[at].1
    }

    /// The line of a request, if there is one.
    pub(super) fn known(&mut self, request: &Request) -> Option<&mut Line> {
        let key = LineKey::of(request);
        let mut lines = self.lines.iter_mut();
        lines.find_map(|(other, line)| (*other == key && !line.is_idle()).then_some(line))
    }

    /// The line whose place this is.
    pub(super) fn line_of_place(&mut self, place: &WaiterEntry) -> Option<&mut Line> {
        let line = self.known(&place.request)?;
        let number = line.place().map(|(number, _)| number);
        (number == Some(place.order())).then_some(line)
    }

    /// The line that has the grant which this request got by this token.
    pub(super) fn line_of_tenure(&mut self, request: &Request, token: Token) -> Option<&mut Line> {
        let line = self.known(request)?;
        let held = line.tenure()?;
        (held.lease.token == token).then_some(line)
    }

    /// The line that has a kept grant for a caller with these options.
    pub(super) fn kept_line(&mut self, options: &LockOptions) -> Option<&mut Line> {
        let mut lines = self.lines.iter_mut().map(|(_, line)| line);
        lines.find(|line| {
            let kept = line.kept();
            kept.is_some_and(|(_, by)| by.request.fits(options))
        })
    }

    pub(super) fn lines(&mut self) -> impl Iterator<Item = (LineKey, &mut Line)> {
        self.lines.iter_mut().map(|(key, line)| (*key, line))
    }

    /// Others wait behind this grant, and behind older ones.
    pub(super) fn note_wanted(&mut self, fence: u64) {
        self.wanted_fence = self.wanted_fence.max(fence);
    }

    pub(super) fn wanted(&self) -> u64 {
        self.wanted_fence
    }

    pub(super) fn is_wanted(&self, lease: &HeldLease) -> bool {
        lease.was_wanted || lease.fence() <= self.wanted_fence
    }

    fn is_idle(&self) -> bool {
        !self.is_pinned() && self.is_unused()
    }

    /// Whether a handle has it at hand.
    pub(super) fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Whether nobody waits for the name, and nothing of it is held, or to be released.
    fn is_unused(&self) -> bool {
        self.ended.is_empty() && self.lines.iter().all(|(_, line)| line.is_idle())
    }
}

/// The owner of the waiters and leases of all lines, as the engine calls it. They do not keep the
/// lines, because the lines keep them.
pub(super) struct LinesOwner(Weak<Lines>);

impl WaiterOwner for LinesOwner {
    fn on_change(&self, asking: &Arc<WaiterEntry>) {
        if let Some(lines) = self.0.upgrade() {
            lines.on_place_changed(asking);
        }
    }

    fn on_left(&self, caller: &WaiterEntry, given: Option<Arc<HeldLease>>) {
        let Some(lines) = self.0.upgrade() else {
            return;
        };
        match given {
            Some(turn) => lines.pass_on(&turn),
            None => lines.leave(caller),
        }
    }

    fn callers(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        let lines = self.0.upgrade();
        lines.map_or_else(Vec::new, |lines| lines.members_with(waiter))
    }

    fn position(&self, caller: &WaiterEntry) -> Option<u64> {
        self.0.upgrade()?.position_of(caller)
    }
}

impl LeaseOwner for LinesOwner {
    fn on_lost(&self, request: &Request, token: Token, loss: &Loss) -> LostBy {
        let lines = self.0.upgrade();
        let (mode, place) = lines.map_or((Mode::Unused, None), |lines| {
            lines.on_tenure_lost(request, token, loss)
        });
        LostBy::Owner {
            mode,
            queue_first: place.map(|place| place.state.lock().token),
        }
    }

    fn lends(&self) -> bool {
        true
    }
}

impl WantedListener for LinesOwner {
    fn on_wanted(&self, key: &Key, fence: u64) {
        if let Some(lines) = self.0.upgrade() {
            lines.on_wanted(&key.name, fence);
        }
    }

    fn on_unheard(&self) {
        if let Some(lines) = self.0.upgrade() {
            lines.release_all_kept();
        }
    }

    fn is_listening(&self) -> bool {
        let lines = self.0.upgrade();
        lines.is_some_and(|lines| lines.keeper.tenures() > 0)
    }
}

impl Timer for LinesOwner {
    fn on_time(&self, now: Time) -> Option<Time> {
        self.0.upgrade()?.look_at_tenures(now)
    }
}
