//! Kept grants: after the last guard was dropped, the tenure goes on until somebody else wants the
//! lock. The next caller of this manager has it without Redis.
//!
//! A kept grant ends if others want it, if it is unused, if another name is used more often and finds no
//! room, if what is known of it is too old to lend it, if a caller of this manager wants the name in
//! another way, and with the manager. It ends here first
//! (R14), under the mutex of its slot. The thread that ended it sends its release, or the renewal
//! thread does. A caller that comes before that release is answered sends it once more, so that its
//! own request comes behind it.

use std::sync::Arc;
use std::time::Duration;

use super::ended::{EndedGrant, KeptEnd};
use super::keeper::LEAST_TURNS;
use super::lines::{Line, LineKey, LineTenure, Lines, NameSlot, SlotState};
use super::state::Turn;
use crate::engine::{HeldLease, Timer, WantResult};
use crate::error::Error;
use crate::key::Key;
use crate::logging::Logger;
use crate::loss::{LossReason, PreviousHolder};
use crate::options::LockOptions;
use crate::script::Mode;
use crate::stats::Count;
use crate::store::clock::Time;

/// A grant whose release this thread is to send before any other request for the name.
#[must_use]
pub(super) struct ToRelease {
    lease: Arc<HeldLease>,
    /// It was lost before.
    is_lost: bool,
    /// Another thread sends it, too.
    is_second: bool,
    /// Dropped without a mutex: they may have what is a user's.
    _tenure: Option<LineTenure>,
}

/// The least time from one look to the next.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// A caller that finds no room looks at so many kept grants, and no more.
const MOST_LOOKS: usize = 8;
/// The least time while a guard has the lock.
const PAUSE_IN_USE: Duration = Duration::from_millis(10);

impl Lines {
    /// Lends a kept lease of this name to a caller with these options, without Redis, and counts its
    /// guard. `None`: there is none.
    pub(super) fn lend_kept(
        &self,
        slot: &NameSlot,
        options: &LockOptions,
    ) -> Option<Arc<HeldLease>> {
        let now = self.acquiring.client().now();
        let mut state = slot.lock();
        let line = state.kept_line(options)?;
        let (tenure, _) = line.kept()?;
        if !self.may_lend(&tenure.lease, now) {
            return None;
        }
        let lender = Arc::clone(&tenure.lease);
        let by = line.lend_kept()?;
        let turn = HeldLease::lent(lender, by.request, PreviousHolder::Released, now);
        let turn = Arc::new(turn);
        line.set_turn(Turn {
            member: None,
            lease: Arc::clone(&turn),
        });
        let meter = self.acquiring.client().meter();
        // Under the mutex: a shutdown looks at all slots, and then waits for all guards.
        meter.count_guard();
        drop(state);
        meter.on_lent();
        self.acquiring.note_lent(&turn);
        Some(turn)
    }

    /// Whether a lease may be lent once more. At least half of it must be left: then the next guard has
    /// as much time as a waiter that Redis grants the lock. Where this process relies on others to tell
    /// it that they wait, they must have been able to, since the lease was last confirmed.
    pub(super) fn may_lend(&self, lease: &HeldLease, now: Time) -> bool {
        lease.is_held(now)
            && lease.remaining(now) >= lease.request.ttl / 2
            && lease.has_spare_fence()
            && !lease.may_be_passed()
            && (!lease.request.hears || self.is_heard_about(lease, now))
    }

    fn is_heard_about(&self, lease: &HeldLease, now: Time) -> bool {
        self.hearing.is_heard(now)
            && lease.is_confirmed(self.hearing.troubles())
            && self.acquiring.check_open().is_ok()
    }

    /// Ends the kept grants of a slot here, but one of this line that may be lent. The result is to
    /// be sent before the caller's own request: [`Lines::send_releases`].
    pub(super) fn end_kept(
        &self,
        slot: &mut SlotState,
        but: Option<LineKey>,
        now: Time,
    ) -> Vec<ToRelease> {
        // Mostly there is one line, and it has no kept grant.
        let mut ended = Vec::new();
        for grant in &slot.ended {
            if !grant.is_answered() {
                ended.push(ToRelease {
                    lease: Arc::clone(&grant.lease),
                    is_lost: false,
                    is_second: true,
                    _tenure: None,
                });
            }
        }
        for (key, line) in slot.lines() {
            let is_own = but == Some(key);
            if !is_own {
                line.note_wanted_here();
            }
            let Some((tenure, _)) = line.kept() else {
                continue;
            };
            if is_own && self.may_lend(&tenure.lease, now) {
                continue;
            }
            ended.extend(self.end_one(line, now));
        }
        ended
    }

    /// Ends the kept grant of a line, if it has one.
    fn end_one(&self, line: &mut Line, now: Time) -> Option<ToRelease> {
        let tenure = line.end_tenure()?;
        let lease = Arc::clone(&tenure.lease);
        self.on_tenure_ended(&tenure, now);
        let is_lost = lease.end(now).is_err();
        Some(ToRelease {
            lease,
            is_lost,
            is_second: false,
            _tenure: Some(tenure),
        })
    }

    /// Sends these releases on the name's lane. So what this thread asks for next comes behind them.
    pub(super) fn send_releases(&self, ended: Vec<ToRelease>, now: Time) {
        for grant in &ended {
            let lease = &grant.lease;
            if grant.is_lost {
                let loss = lease.loss_at(now);
                let reason = loss.map_or(LossReason::Expired, |loss| loss.reason);
                self.acquiring.client().meter().on_found_lost(reason);
                log_loss(lease, reason);
            }
            // The renewal thread releases a lost one, too. But Redis may still think that it is held.
            if grant.is_second || grant.is_lost {
                self.releasing.repeat_release(lease, Mode::Used, now);
                continue;
            }
            lease.disconnect();
            let want = WantResult::No;
            let sent = self
                .releasing
                .release_behind(None, lease, Mode::Used, now, want);
            if let Err(Error::Lost { loss }) = sent {
                log_loss(lease, loss.reason);
            }
        }
    }

    /// A caller of this manager is about to ask for this name in a way of its own. A kept grant would
    /// be in its way. Blocks as the drop of a guard.
    pub(crate) fn make_way(&self, name: &str) {
        if !self.keeper.has_kept() {
            return;
        }
        let now = self.acquiring.client().now();
        let ended = self.with_known_slot(name, |slot| self.end_kept(slot, None, now));
        self.send_releases(ended.unwrap_or_default(), now);
    }

    /// Others wait behind the grant with this fence. The thread that received that must not block.
    pub(super) fn on_wanted(&self, name: &Arc<str>, fence: u64) {
        let now = self.acquiring.client().now();
        let mut turns = Vec::new();
        let ended = self.with_known_slot(name, |slot| {
            slot.note_wanted(fence);
            let mut ended = Vec::new();
            let (mut recalls, wanted) = (0, slot.wanted());
            for (_, line) in slot.lines() {
                let Some(tenure) = line.tenure() else {
                    continue;
                };
                if tenure.lease.fence() > wanted {
                    continue;
                }
                recalls += u64::from(!tenure.is_wanted());
                turns.extend(tenure.turn().map(|turn| Arc::clone(&turn.lease)));
                line.note_wanted();
                if line.kept().is_some_and(|(kept, _)| kept.lease.is_held(now)) {
                    ended.extend(self.end_one(line, now));
                }
            }
            slot.note_ended(&ended);
            (ended, recalls)
        });
        let (ended, recalls) = ended.unwrap_or_default();
        self.acquiring.client().meter().add(Count::Recalls, recalls);
        turns.iter().for_each(|turn| turn.note_wanted());
        self.release_in_background(name, ended, now);
    }

    /// Has the renewal thread release these grants.
    fn release_in_background(&self, name: &Arc<str>, ended: Vec<ToRelease>, now: Time) {
        if ended.is_empty() {
            return;
        }
        for grant in ended.iter().filter(|grant| !grant.is_lost) {
            let lease = &grant.lease;
            lease.disconnect();
            let answered = self
                .releasing
                .release_ended_in_background(lease, Mode::Used, now);
            self.with_known_slot(name, |slot| {
                let mut ended = slot.ended.iter_mut();
                if let Some(grant) = ended.find(|grant| Arc::ptr_eq(&grant.lease, lease)) {
                    grant.set_sent(answered);
                }
            });
        }
        self.watch(name, now, self.acquiring.client().config().command_timeout);
    }

    /// A tenure has begun, which may be kept. From now on it is looked at while it lasts.
    pub(super) fn watch_kept(&self, lease: &HeldLease, now: Time) {
        if let Some(keep) = lease.request.keep {
            self.watch(&lease.request.key.name, now, unused_after(keep));
        }
    }

    fn watch(&self, name: &Arc<str>, now: Time, pause: Duration) {
        let at = now + pause;
        let is_new = self.with_known_slot(name, |slot| {
            let is_new = slot.look_at <= now || at < slot.look_at;
            if is_new {
                slot.look_at = at;
            }
            is_new
        });
        if is_new == Some(true) && self.keeper.look_at(name, at) {
            self.acquiring
                .call_at(at, Arc::clone(&self.owner) as Arc<dyn Timer>);
        }
    }

    /// Ends the kept grants that are unused, or too doubtful to lend. Returns when to look again.
    pub(super) fn look_at_tenures(&self, now: Time) -> Option<Time> {
        // One at a time: after a panic the others are still due.
        while let Some(name) = self.keeper.take_due(now) {
            self.look_at_name(&name, now, now, Duration::MAX);
        }
        self.emit_cold_names();
        self.keeper.next_timer(now)
    }

    /// Ends kept grants that were unused for longer than `idle`, until there is room for one more. Each
    /// caller looks at a few of them, and the next one goes on there.
    fn make_room(&self, idle: Duration, now: Time) -> bool {
        for _ in 0..MOST_LOOKS {
            if self.keeper.has_room() {
                break;
            }
            let Some((due, name)) = self.keeper.take_next() else {
                break;
            };
            self.look_at_name(&name, due, now, idle);
        }
        self.keeper.has_room()
    }

    /// Looks at a name that is `due`, perhaps later than now. If no handle has it at hand, a kept grant that
    /// was unused for longer than `idle` makes room for another.
    fn look_at_name(&self, name: &Arc<str>, due: Time, now: Time, idle: Duration) {
        let mut lost = Vec::new();
        let heard_for = (self.hearing.heard_until() - now).max(LEAST_PAUSE);
        let looked = self.with_known_slot(name, |slot| {
            // A later look has taken the place of this one.
            if slot.look_at > due.max(now) {
                return None;
            }
            slot.look_at = now;
            let idle = if slot.is_pinned() {
                Duration::MAX
            } else {
                idle
            };
            lost = slot.take_answered();
            let mut pause =
                (!slot.ended.is_empty()).then(|| self.acquiring.client().config().command_timeout);
            let mut ended = Vec::new();
            for (_, line) in slot.lines() {
                let keep = line.tenure().and_then(|tenure| tenure.lease.request.keep);
                let Some(keep) = keep else {
                    continue;
                };
                let unused_at = line.kept_since().map(|since| since + unused_after(keep));
                let is_unused = line
                    .kept_since()
                    .is_some_and(|since| now - since >= unused_after(keep).min(idle));
                let is_over = line.kept().is_some_and(|(tenure, _)| {
                    let is_doubtful = !self.may_lend(&tenure.lease, now);
                    tenure.lease.is_held(now) && (is_unused || is_doubtful)
                });
                if is_over {
                    ended.extend(self.end_one(line, now));
                } else {
                    // Unheard, it is not kept any longer. While a guard has it, there is nothing to end.
                    let next = match unused_at {
                        Some(at) => (at - now).max(LEAST_PAUSE).min(heard_for),
                        None => unused_after(keep).max(PAUSE_IN_USE),
                    };
                    pause = Some(pause.map_or(next, |pause| pause.min(next)));
                }
            }
            slot.note_ended(&ended);
            Some((ended, pause))
        });
        for (lease, reason) in lost {
            log_loss(&lease, reason);
        }
        let Some((ended, pause)) = looked.flatten() else {
            return;
        };
        if let Some(pause) = pause {
            self.watch(name, now, pause);
        }
        self.release_in_background(name, ended, now);
    }

    /// Has all kept grants released in the background: the manager ends, or no message that somebody
    /// waits reaches it.
    pub(super) fn release_all_kept(&self) {
        if self.keeper.tenures() == 0 {
            return;
        }
        let now = self.acquiring.client().now();
        for name in self.names() {
            let ended = self.with_known_slot(&name, |slot| {
                let mut ended = Vec::new();
                for (_, line) in slot.lines() {
                    if line.kept().is_some_and(|(kept, _)| kept.lease.is_held(now)) {
                        ended.extend(self.end_one(line, now));
                    }
                }
                slot.note_ended(&ended);
                ended
            });
            self.release_in_background(&name, ended.unwrap_or_default(), now);
        }
    }

    /// A tenure has begun, about which others may tell this process.
    pub(super) fn on_tenure_begun(&self, lease: &HeldLease) {
        if lease.request.hears {
            self.keeper.on_tenure_begun(lease.request.keep.is_some());
        }
    }

    /// A tenure has ended. If another manager has recalled it after few turns, the name is not kept for a
    /// while. However else it ended, that says nothing of what others want.
    pub(super) fn on_tenure_ended(&self, tenure: &LineTenure, now: Time) {
        if !tenure.hears() {
            return;
        }
        let request = &tenure.lease.request;
        self.keeper.on_tenure_ended(request.keep.is_some());
        if request.keep.is_some() && tenure.is_recalled() && tenure.turns() < LEAST_TURNS {
            self.keeper.note_cold(&request.key.name, now);
        }
    }

    /// Counts the names that became cold. Not where that happens: a slot's mutex is held there, and a
    /// recorder is not ours.
    fn emit_cold_names(&self) {
        let new = self.keeper.take_new_cold();
        self.acquiring.client().meter().add(Count::ColdNames, new);
    }

    /// A caller asks for this name. Whether the grant is to be kept for `keep_idle`.
    pub(super) fn is_worth_keeping(&self, key: &Key, keep: Duration) -> bool {
        let now = self.acquiring.client().now();
        self.emit_cold_names();
        let Some(pause) = self.keeper.note_asked(&key.name, keep, now) else {
            return false;
        };
        // Until others can tell this process that they wait, it keeps nothing from them.
        self.acquiring.start_subscription();
        self.acquiring.ask_for_proof(key, now);
        if !self.hearing.is_heard(now) {
            return false;
        }
        let has_room = self.has_room_for(&key.name, pause, keep, now);
        if !has_room {
            self.acquiring.client().meter().count(Count::NotKeptFull);
        }
        has_room
    }

    /// Whether this name may be kept beside the others. A name that is used less often than this one makes
    /// room for it. So in a loop over too many names none does: each would be the next one to be asked for.
    fn has_room_for(&self, name: &str, pause: Duration, keep: Duration, now: Time) -> bool {
        let is_kept = |slot: &mut SlotState| {
            let mut tenures = slot.lines().filter_map(|(_, line)| line.tenure());
            tenures.any(|tenure| tenure.lease.request.keep.is_some())
        };
        self.keeper.has_room()
            || self.with_known_slot(name, is_kept) == Some(true)
            || self.make_room((pause * 2).max(keep / 4), now)
    }
}

/// A grant that no guard had for this time is not kept any longer. It is less than `keep_idle`, since the look
/// may come late.
fn unused_after(keep: Duration) -> Duration {
    keep * 3 / 4
}

impl SlotState {
    fn note_ended(&mut self, ended: &[ToRelease]) {
        let ended = ended.iter().filter(|grant| !grant.is_lost);
        let ended = ended.map(|grant| Arc::clone(&grant.lease));
        self.ended.extend(ended.map(EndedGrant::new));
    }

    /// Forgets the ended grants whose releases were answered. Returns those that were lost before.
    fn take_answered(&mut self) -> Vec<(Arc<HeldLease>, LossReason)> {
        let mut lost = Vec::new();
        self.ended.retain(|grant| match grant.take_result() {
            KeptEnd::Unanswered => true,
            KeptEnd::Released => false,
            KeptEnd::Lost(reason) => {
                lost.push((Arc::clone(&grant.lease), reason));
                false
            }
        });
        lost
    }
}

/// No guard is told: none had the lock.
pub(super) fn log_loss(lease: &HeldLease, reason: LossReason) {
    let (name, fence) = (&lease.request.key.name, lease.fence());
    log::warn!(
        logger: Logger,
        "lost {name:?} (fence {fence}) while it was kept for the next guard: {reason}"
    );
}
