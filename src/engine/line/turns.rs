//! The turns of a line: its members have the lock one after the other, until its grant ends.

use std::sync::Arc;

use super::state::{AfterTurn, Turn, TurnEnd};
use super::{Line, Lines, LockedLines};
use crate::engine::lease::Lease;
use crate::engine::waiter::{TakeGrant, WaiterEntry};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::Mode;
use crate::store::clock::Time;

/// The result of a place's grant.
#[must_use]
pub(crate) enum GrantedPlace {
    Nothing,
    /// R12 (doubtful grants): a renewal confirms the grant first.
    InDoubt,
    /// This member has the lock now, and is to be woken.
    Turn(Arc<WaiterEntry>, Arc<Lease>),
    /// No member waits any more.
    Unwanted(Arc<Lease>),
}

/// The lock's state after a turn.
#[must_use]
pub(crate) enum Ended {
    /// This member has it now, and is to be woken.
    PassedTo(Arc<WaiterEntry>, Arc<Lease>),
    /// The grant has ended here, and is to be released.
    Left(Leaving),
    /// The grant was lost while the turn ended, so the guard has lost the lock after all.
    Lost(LossReason),
}

/// A line has ended its tenure.
pub(crate) struct Leaving {
    pub(crate) tenure: Arc<Lease>,
    /// How the grant is released.
    pub(crate) mode: Mode,
    /// The place of the members that still wait. It is registered, and to be sent before the
    /// release, so that no waiter behind it is served first.
    pub(crate) place: Option<Arc<WaiterEntry>>,
}

/// The lost tenure of a line.
pub(crate) struct LostTenure {
    /// The turn whose guard has lost the lock.
    pub(crate) turn: Option<Arc<Lease>>,
    /// The place of the members that still wait.
    pub(crate) place: Option<Arc<WaiterEntry>>,
    /// How the grant is released.
    pub(crate) mode: Mode,
}

impl Lines {
    /// Redis has granted the place of a line, and the renewal thread keeps that grant: its first
    /// member gets a turn.
    pub(crate) fn on_place_granted(&self, place: &Arc<WaiterEntry>, now: Time) -> GrantedPlace {
        let mut lines = self.lock();
        // Without a line, the place was cancelled. The thread that did that abandons the grant.
        let Some(line) = lines.line_of_place(place) else {
            return GrantedPlace::Nothing;
        };
        let taken = place.state.lock().take_grant(now, &place.request);
        let tenure = match taken {
            TakeGrant::Taken(tenure) => tenure,
            TakeGrant::Confirm => return GrantedPlace::InDoubt,
            TakeGrant::Failed(_) | TakeGrant::NotYet => return GrantedPlace::Nothing,
        };
        if tenure.was_queued {
            self.registry.mark_guarded(tenure.token);
        }
        line.begin_tenure(Arc::clone(&tenure));
        let given = give_turn(line, &tenure, 0, tenure.previous, now);
        if given.is_some() {
            line.members().for_each(|member| member.note_turn());
        } else {
            line.end_tenure();
            lines.forget_if_idle(&place.request);
        }
        drop(lines);
        self.registry.forget(place);
        match given {
            Some((member, turn)) => GrantedPlace::Turn(member, turn),
            None => GrantedPlace::Unwanted(tenure),
        }
    }

    /// Ends a turn here. Sends nothing, and wakes no member.
    ///
    /// R14 (release first, then send): if the grant is to be released, it has ended here.
    pub(crate) fn end_turn(&self, turn: &Arc<Lease>, mode: Mode, now: Time) -> Result<Ended> {
        let mut lines = self.lock();
        turn.end(now).map_err(|loss| Error::Lost { loss })?;
        let ended = self.pass_or_leave(&mut lines, turn, mode, now);
        drop(lines);
        turn.disconnect();
        ended
    }

    /// Passes the lock on if it may, or ends the tenure.
    fn pass_or_leave(
        &self,
        lines: &mut LockedLines<'_>,
        turn: &Arc<Lease>,
        mode: Mode,
        now: Time,
    ) -> Result<Ended> {
        let tenure = turn.renewed_lease();
        if mode != Mode::Unused {
            tenure.note_last_turn(turn);
        }
        let end = turn_end(mode);
        let Some(line) = lines.line_of_tenure(tenure) else {
            let loss = turn.loss_for(LossReason::Expired);
            return Err(Error::Lost { loss });
        };
        let next = line.end_turn(end, tenure.remaining(now), tenure.request.ttl);
        if let AfterTurn::Pass { fence_offset } = next {
            let previous = previous_holder(line, tenure);
            if let Some((member, turn)) = give_turn(line, tenure, fence_offset, previous, now) {
                return Ok(Ended::PassedTo(member, turn));
            }
        }
        Ok(self.end_tenure(lines, tenure, end, now))
    }

    /// Ends a tenure whose last turn has ended.
    pub(super) fn end_tenure(
        &self,
        lines: &mut LockedLines<'_>,
        tenure: &Arc<Lease>,
        end: TurnEnd,
        now: Time,
    ) -> Ended {
        let line = lines.line(&tenure.request);
        if let Err(Loss { reason, .. }) = tenure.release(now) {
            // The renewal thread finds the tenure in the line, and releases it.
            if end != TurnEnd::Unused {
                line.note_lost();
            }
            return Ended::Lost(reason);
        }
        let mode = release_mode(line.end_tenure());
        let waits = line.has_members();
        let place = waits.then(|| self.register_place(line, &tenure.request, now));
        lines.forget_if_idle(&tenure.request);
        Ended::Left(Leaving {
            tenure: Arc::clone(tenure),
            mode,
            place,
        })
    }

    /// The grant of a line is lost. A member that has not taken its turn yet comes back, as the
    /// first of the line.
    pub(crate) fn on_tenure_lost(&self, tenure: &Arc<Lease>, now: Time) -> LostTenure {
        // Dropped after the mutex is free: it may be the last owner of an `on_lost`.
        let _unneeded;
        let mut lines = self.lock();
        let Some(line) = lines.line_of_tenure(tenure) else {
            return LostTenure {
                turn: None,
                place: None,
                mode: Mode::Unused,
            };
        };
        // If no guard has the current turn, the last one that had a turn counts.
        let mut mode = release_mode(line.tenure().and_then(|held| held.last_end()));
        let mut lost = None;
        if let Some(Turn {
            number,
            member,
            lease,
        }) = line.lose_tenure()
        {
            let mut state = member.state.lock();
            let is_back = state.on_turn_lost(&lease);
            let is_taken = state.is_taken();
            drop(state);
            if is_taken {
                mode = Mode::Lost;
                lost = Some(lease);
            } else {
                // Its caller has left, or waits for the next turn.
                lease.close();
                if is_back {
                    member.note_turn();
                    let _ = line.join(number, Arc::clone(&member));
                }
                _unneeded = (member, lease);
            }
        }
        let waits = line.has_members();
        let place = waits.then(|| self.register_place(line, &tenure.request, now));
        lines.forget_if_idle(&tenure.request);
        LostTenure {
            turn: lost,
            place,
            mode,
        }
    }
}

/// Gives a turn to the first member that still waits.
fn give_turn(
    line: &mut Line,
    tenure: &Arc<Lease>,
    fence_offset: u32,
    previous: PreviousHolder,
    now: Time,
) -> Option<(Arc<WaiterEntry>, Arc<Lease>)> {
    while let Some((number, member)) = line.next_member() {
        let request = Arc::clone(&member.request);
        let turn = Arc::new(Lease::turn(tenure, request, fence_offset, previous, now));
        if member.state.lock().on_turn(&turn) {
            if fence_offset > 0 || tenure.request.was_taken() {
                member.request.note_taken();
            }
            line.set_turn(number, Arc::clone(&member), Arc::clone(&turn));
            return Some((member, turn));
        }
    }
    None
}

fn turn_end(mode: Mode) -> TurnEnd {
    match mode {
        Mode::Unused => TurnEnd::Unused,
        Mode::Unfinished => TurnEnd::Unfinished,
        _ => TurnEnd::Finished,
    }
}

/// How a grant is released whose last guard ended like this. `None`: no guard had it.
fn release_mode(last_end: Option<TurnEnd>) -> Mode {
    match last_end {
        None | Some(TurnEnd::Unused) => Mode::Unused,
        Some(TurnEnd::Unfinished) => Mode::Unfinished,
        Some(TurnEnd::Finished) => Mode::Used,
    }
}

/// How the holder before the next turn ended.
fn previous_holder(line: &Line, tenure: &Lease) -> PreviousHolder {
    match line.tenure().and_then(|held| held.last_end()) {
        Some(TurnEnd::Unfinished) => PreviousHolder::Lapsed,
        Some(_) => PreviousHolder::Released,
        None => tenure.previous,
    }
}
