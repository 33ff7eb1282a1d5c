//! The state machine of one line. It is pure: it does no I/O and reads no clock. `turns` and
//! `places` call it with what happened, under the mutex of the lines, and do what it returns.
//!
//! A *line* is one manager's waiters for the same name, with the same ttl and hand-overs. Only
//! the line's own *place* is in the queue in Redis. A *tenure* is one grant by Redis. Within a
//! tenure, the members of the line have the lock one after the other, in *turns*. A tenure without a
//! turn is *kept*: the next caller has it without Redis.
//!
//! | event | call | then its caller |
//! |---|---|---|
//! | a waiter comes | [`LineState::join`] | sends the place, if the result says so, after [`LineState::set_place`] |
//! | a thread tries | [`LineState::begin_try`] | sends its acquire, and calls [`LineState::begin_tenure`] or [`LineState::end_try`] |
//! | a waiter leaves | [`LineState::leave`] | cancels the place that is returned |
//! | Redis grants the place | [`LineState::begin_tenure`] | offers the first turn |
//! | a guard is released | [`LineState::end_turn`] | offers the next turn, or leaves |
//! | a turn is to be offered | [`LineState::next_member`] | asks the member, and then calls [`LineState::set_turn`] |
//! | a released grant is kept | [`LineState::keep`] | lends it again after [`LineState::lend_kept`], or ends it |
//! | nobody takes the turn | [`LineState::end_tenure`] | releases the grant, and sends the place of the members that are left |
//! | the grant is lost while its last turn ends | [`LineState::note_lost`] | reports it to that turn's guard |
//! | the grant is lost | [`LineState::end_tenure`] | reports it, and sends the place of the members that are left |
//!
//! The machine knows a member, its place and a lease only as `W` and `L`. A member's number says
//! when it came, and no two have the same.

use crate::store::clock::Time;
use std::collections::BTreeMap;

/// The waiters of one line, and what the line has. `K` is what a kept tenure is lent by.
pub(crate) struct LineState<W, L, K = ()> {
    /// The waiters that have no turn, in the order in which they came.
    members: BTreeMap<u64, W>,
    stage: LineStage<W, L, K>,
    /// The most local hand-overs in one tenure while others wait for the lock.
    max: u32,
}

/// | stage | meaning | becomes |
/// |---|---|---|
/// | Idle   | nobody waits, and nothing is held         | Queued, Trying |
/// | Trying | a thread asks for the lock, and will not wait for it | Held, Queued, Idle |
/// | Queued | its place is in Redis's queue, or on its way there | Held, Idle |
/// | Held   | a member has a turn, or is offered one; or the tenure is kept without a turn | Queued, Idle |
enum LineStage<W, L, K> {
    Idle,
    Trying,
    Queued { number: u64, place: W },
    Held(Tenure<W, L, K>),
}

/// A grant by Redis, and the turn that a member has now.
pub(crate) struct Tenure<W, L, K = ()> {
    pub(crate) lease: L,
    /// The request by which it is lent, while it is kept, and since when.
    kept: Option<(K, Time)>,
    /// Whether others tell this process that they wait. Without that it assumes that they do.
    hears: bool,
    /// Others wait for the lock.
    is_wanted: bool,
    /// Callers of this manager have asked for the lock in another way. So they may be those others.
    is_wanted_here: bool,
    turn: Option<Turn<W, L>>,
    /// How many turns were offered after the first.
    offered: u64,
    /// How many of them were offered while others waited, as far as is known here.
    offered_while_wanted: u32,
    /// How the last guard of this tenure ended. `None`: no guard had it yet.
    last_end: Option<TurnEnd>,
}

/// The time in which one guard has the lock.
pub(crate) struct Turn<W, L> {
    /// The member that got it, with its number. `None`: its caller had not to wait.
    pub(crate) member: Option<(u64, W)>,
    pub(crate) lease: L,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    Finished,
    /// Its guard left its work half done.
    Unfinished,
    /// No guard had it.
    Unused,
}

/// The line's choice after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterTurn {
    /// The next member gets a turn.
    Pass,
    /// Nobody waits, and the tenure goes on: [`LineState::keep`].
    Keep,
    /// The grant is released.
    Leave,
}

/// A line's answer to a caller that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Nothing: a place is queued, or a member has the lock.
    Waits,
    /// The line needs a place in Redis's queue.
    NeedsPlace,
    /// The tenure is kept, and is to be lent or ended.
    FindsKept,
}

impl<W: Clone, L, K> LineState<W, L, K> {
    pub(crate) fn new(max: u32) -> LineState<W, L, K> {
        LineState {
            members: BTreeMap::new(),
            stage: LineStage::Idle,
            max,
        }
    }

    /// A waiter comes.
    #[must_use]
    pub(crate) fn join(&mut self, number: u64, member: W) -> Joined {
        self.members.insert(number, member);
        match &self.stage {
            LineStage::Idle => Joined::NeedsPlace,
            LineStage::Held(tenure) if tenure.kept.is_some() => Joined::FindsKept,
            LineStage::Trying | LineStage::Queued { .. } | LineStage::Held(_) => Joined::Waits,
        }
    }

    /// The line has a place, which is not sent yet.
    pub(crate) fn set_place(&mut self, number: u64, place: W) {
        self.stage = LineStage::Queued { number, place };
    }

    /// A thread asks for the lock, and will not wait. False: the line is not idle.
    #[must_use]
    pub(crate) fn begin_try(&mut self) -> bool {
        let is_idle = matches!(self.stage, LineStage::Idle) && self.members.is_empty();
        if is_idle {
            self.stage = LineStage::Trying;
        }
        is_idle
    }

    /// Whether a thread tries now.
    pub(crate) fn is_tried(&self) -> bool {
        matches!(self.stage, LineStage::Trying)
    }

    /// The try has ended without the lock. True: the line needs a place, for members that came
    /// meanwhile.
    #[must_use]
    pub(crate) fn end_try(&mut self) -> bool {
        self.stage = LineStage::Idle;
        self.has_members()
    }

    /// A waiter does not wait any more. The last one takes the line's place with it: the result is
    /// the place that nobody wants.
    #[must_use]
    pub(crate) fn leave(&mut self, number: u64) -> Option<W> {
        self.members.remove(&number);
        if !self.members.is_empty() || !matches!(self.stage, LineStage::Queued { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.stage, LineStage::Idle) {
            LineStage::Queued { place, .. } => Some(place),
            _ => unreachable!("the stage was looked at above"),
        }
    }

    /// Redis has granted the lock. Its first turn is to be offered: [`LineState::next_member`].
    pub(crate) fn begin_tenure(&mut self, lease: L, hears: bool, is_wanted: bool) {
        self.stage = LineStage::Held(Tenure {
            lease,
            kept: None,
            hears,
            is_wanted,
            is_wanted_here: false,
            turn: None,
            offered: 0,
            offered_while_wanted: 0,
            last_end: None,
        });
    }

    /// The member that has waited longest leaves the line. It is offered the turn, or the error of
    /// the line's place.
    pub(crate) fn next_member(&mut self) -> Option<(u64, W)> {
        self.members.pop_first()
    }

    /// A member, or a caller that had not to wait, has the turn.
    pub(crate) fn set_turn(&mut self, turn: Turn<W, L>) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.turn = Some(turn);
        }
    }

    /// Others wait for the lock behind this tenure.
    pub(crate) fn note_wanted(&mut self) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.is_wanted = true;
        }
    }

    /// A caller of this manager asks for the lock in another way.
    pub(crate) fn note_wanted_here(&mut self) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.is_wanted_here = true;
        }
    }

    /// The current turn ends. `may_go_on`: the lease can be lent again.
    ///
    /// The grant is passed on if somebody waits here. While others wait for it, this tenure has no
    /// more than `max` hand-overs. If nobody waits here or there, it may be kept.
    pub(crate) fn end_turn(&mut self, end: TurnEnd, may_go_on: bool, may_keep: bool) -> AfterTurn {
        let has_members = self.has_members();
        let max = self.max;
        let Some(tenure) = self.tenure_mut() else {
            return AfterTurn::Leave;
        };
        tenure.turn = None;
        if end != TurnEnd::Unused {
            tenure.last_end = Some(end);
        }
        let is_unwanted = tenure.hears && !tenure.is_wanted;
        if !may_go_on {
            AfterTurn::Leave
        } else if !has_members {
            let may_keep = may_keep && is_unwanted && end == TurnEnd::Finished;
            if may_keep {
                AfterTurn::Keep
            } else {
                AfterTurn::Leave
            }
        } else if is_unwanted {
            tenure.offered += 1;
            AfterTurn::Pass
        } else if tenure.offered_while_wanted < max {
            tenure.offered += 1;
            tenure.offered_while_wanted += 1;
            AfterTurn::Pass
        } else {
            AfterTurn::Leave
        }
    }

    /// The tenure goes on without a turn. It is lent again by what is kept with it.
    pub(crate) fn keep(&mut self, kept: K, now: Time) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.kept = Some((kept, now));
        }
    }

    /// The kept tenure, and what it is lent by.
    pub(crate) fn kept(&self) -> Option<(&Tenure<W, L, K>, &K)> {
        let tenure = self.tenure()?;
        Some((tenure, &tenure.kept.as_ref()?.0))
    }

    /// Since when the tenure is kept.
    pub(crate) fn kept_since(&self) -> Option<Time> {
        Some(self.tenure()?.kept.as_ref()?.1)
    }

    /// The kept tenure is lent again: its next turn is to be offered, or set.
    pub(crate) fn lend_kept(&mut self) -> Option<K> {
        let tenure = self.tenure_mut()?;
        let (kept, _) = tenure.kept.take()?;
        tenure.offered += 1;
        Some(kept)
    }

    /// The grant is released, kept or not. The caller drops the tenure without a mutex.
    pub(crate) fn end_tenure(&mut self) -> Option<Tenure<W, L, K>> {
        match std::mem::replace(&mut self.stage, LineStage::Idle) {
            LineStage::Held(tenure) => Some(tenure),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// The grant was lost while the turn of its last guard ended.
    pub(crate) fn note_lost(&mut self) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.last_end = Some(TurnEnd::Unfinished);
        }
    }

    pub(crate) fn tenure(&self) -> Option<&Tenure<W, L, K>> {
        match &self.stage {
            LineStage::Held(tenure) => Some(tenure),
            _ => None,
        }
    }

    fn tenure_mut(&mut self) -> Option<&mut Tenure<W, L, K>> {
        match &mut self.stage {
            LineStage::Held(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// The line's place, with its number.
    pub(crate) fn place(&self) -> Option<(u64, &W)> {
        match &self.stage {
            LineStage::Queued { number, place } => Some((*number, place)),
            _ => None,
        }
    }

    /// How many members come before this one. `None` if it is not in the line.
    pub(crate) fn members_before(&self, number: u64) -> Option<usize> {
        let is_member = self.members.contains_key(&number);
        is_member.then(|| self.members.range(..number).count())
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &W> {
        self.members.values()
    }

    pub(crate) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether nobody waits, and nothing is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.members.is_empty() && matches!(self.stage, LineStage::Idle)
    }
}

impl<W, L, K> Tenure<W, L, K> {
    /// Whether the last guard of this tenure left its work half done. `None`: no guard had it yet.
    pub(crate) fn last_end(&self) -> Option<TurnEnd> {
        self.last_end
    }

    pub(crate) fn turn(&self) -> Option<&Turn<W, L>> {
        self.turn.as_ref()
    }

    pub(crate) fn take_kept(&mut self) -> Option<K> {
        Some(self.kept.take()?.0)
    }

    pub(crate) fn into_turn(self) -> Option<Turn<W, L>> {
        self.turn
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether another manager has asked for it, and not just callers of this one.
    pub(crate) fn is_recalled(&self) -> bool {
        self.is_wanted && !self.is_wanted_here
    }

    pub(crate) fn hears(&self) -> bool {
        self.hears
    }

    /// How many guards have had it.
    pub(crate) fn turns(&self) -> u64 {
        self.offered + 1
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests;
