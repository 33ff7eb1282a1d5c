//! The turns of a line: its members have the lock one after the other, until its grant ends.

use std::sync::Arc;

use super::lines::{Line, Lines, LockedLines};
use super::state::{AfterTurn, Turn, TurnEnd};
use crate::engine::{Lease, Request, TakeGrant, WaiterEntry, WantResult};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::{Mode, Token};
use crate::store::clock::Time;

/// The lock's state after a turn.
#[must_use]
pub(super) enum Ended {
    /// This member has it now, and is to be woken.
    PassedTo(Arc<WaiterEntry>, Arc<Lease>),
    /// The grant has ended here, and is to be released.
    Left(Leaving),
    /// The grant was lost while the turn ended, so the guard has lost the lock after all.
    Lost(LossReason),
}

/// A line has ended its tenure.
pub(super) struct Leaving {
    pub(crate) tenure: Arc<Lease>,
    /// How the grant is released.
    pub(crate) mode: Mode,
    /// The place of the members that still wait. It is registered, and to be sent before the
    /// release, so that no waiter behind it is served first.
    pub(crate) place: Option<Arc<WaiterEntry>>,
}

impl Lines {
    /// Redis has granted the place of a line, and the renewal thread keeps that grant: its first
    /// member gets a turn. Or the place has failed.
    pub(super) fn on_place_changed(&self, place: &Arc<WaiterEntry>) {
        let now = self.acquiring.client().now();
        let mut lines = self.lock();
        // Without a line, the place was cancelled. The thread that did that abandons the grant.
        let Some(line) = lines.line_of_place(place) else {
            return;
        };
        let tenure = match self.acquiring.take_grant(place) {
            TakeGrant::Taken(tenure) => tenure,
            TakeGrant::Confirm => {
                drop(lines);
                return self.acquiring.confirm(place);
            }
            TakeGrant::Failed(error) => {
                drop(lines);
                return self.on_place_failed(place, &error);
            }
            TakeGrant::NotYet => return,
        };
        line.begin_tenure(Arc::clone(&tenure));
        let given = give_turn(line, &tenure, 0, tenure.previous, now);
        if given.is_some() {
            line.members().for_each(|member| member.note_held_here());
        } else {
            line.end_tenure();
            lines.forget_if_idle(&place.request);
        }
        drop(lines);
        match given {
            Some((member, turn)) => self.acquiring.wake_for(&member, &turn),
            // No member waits any more.
            None => self.acquiring.abandon(&tenure),
        }
    }

    /// Ends the turn of a guard. Passes the lock on if it may, without any I/O. Else it is released,
    /// and the line's new place goes out in the same write before the release. Blocks as
    /// [`Engine::release`](crate::engine::Engine::release).
    pub(super) fn release(&self, turn: &Arc<Lease>, mode: Mode, want: WantResult) -> Result<()> {
        let client = self.acquiring.client();
        let started = client.now();
        let ended = self.end_turn(turn, mode, started)?;
        if mode != Mode::Unused {
            client.meter().on_released(turn.held_for(started));
        }
        self.finish_turn(turn, ended, started, want)
    }

    /// Does what is left to do after a turn: wakes the next member, or sends the release.
    pub(super) fn finish_turn(
        &self,
        turn: &Lease,
        ended: Ended,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
        match ended {
            Ended::PassedTo(member, next) => {
                self.on_passed(&member, &next);
                Ok(())
            }
            Ended::Left(Leaving {
                tenure,
                mode,
                place,
            }) => self
                .releasing
                .release_behind(place.as_ref(), &tenure, mode, started, want)
                .map_err(|error| for_turn(error, turn)),
            Ended::Lost(reason) => {
                // The renewal thread finds no turn with the tenure. So the loss is counted here, like
                // one that the reply to a release reports.
                self.acquiring.client().meter().on_found_lost(reason);
                let loss = turn.loss_for(reason);
                Err(Error::Lost { loss })
            }
        }
    }

    pub(super) fn on_passed(&self, member: &Arc<WaiterEntry>, turn: &Arc<Lease>) {
        self.acquiring.client().meter().local_handovers.add(1);
        self.acquiring.wake_for(member, turn);
    }

    /// R13 (unwanted grants): a member was given a turn that nobody wants. Sends nothing itself: this
    /// may be the renewal thread.
    pub(super) fn pass_on(&self, turn: &Arc<Lease>) {
        let now = self.acquiring.client().now();
        match self.end_turn(turn, Mode::Unused, now) {
            Ok(Ended::PassedTo(member, next)) => self.on_passed(&member, &next),
            Ok(Ended::Left(leaving)) => {
                if let Some(place) = &leaving.place {
                    self.acquiring.send_in_background(place);
                }
                self.releasing
                    .abandon_ended(&leaving.tenure, leaving.mode, now);
            }
            // The renewal thread reports the loss to nobody.
            Ok(Ended::Lost(_)) | Err(_) => {}
        }
    }

    /// Ends a turn here. Sends nothing, and wakes no member.
    ///
    /// R14 (release first, then send): if the grant is to be released, it has ended here.
    pub(super) fn end_turn(&self, turn: &Arc<Lease>, mode: Mode, now: Time) -> Result<Ended> {
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
            tenure.note_last_fence(turn.fence);
        }
        let end = turn_end(mode);
        let Some(line) = lines.line_of_tenure(&tenure.request, tenure.token) else {
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
        let place = waits.then(|| self.register_place(line, &tenure.request));
        lines.forget_if_idle(&tenure.request);
        Ended::Left(Leaving {
            tenure: Arc::clone(tenure),
            mode,
            place,
        })
    }

    /// The grant of a line is lost. A member that has not taken its turn yet comes back, as the
    /// first of the line. Returns how the grant is released, and another place for those that wait. It
    /// is registered, and to be sent before that release, as that of [`Leaving`].
    pub(super) fn on_tenure_lost(
        &self,
        request: &Request,
        token: Token,
        reason: LossReason,
    ) -> (Mode, Option<Arc<WaiterEntry>>) {
        // Dropped after the mutex is free: it may be the last owner of an `on_lost`.
        let _unneeded;
        let mut lines = self.lock();
        let Some(line) = lines.line_of_tenure(request, token) else {
            return (Mode::Unused, None);
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
            let is_back = state.take_back(&lease);
            let is_taken = state.is_taken();
            drop(state);
            if is_taken {
                mode = Mode::Lost;
                lost = Some(lease);
            } else {
                // Its caller has left, or waits for the next turn.
                lease.close();
                if is_back {
                    member.note_held_here();
                    let _ = line.join(number, Arc::clone(&member));
                }
                _unneeded = (member, lease);
            }
        }
        let waits = line.has_members();
        let place = waits.then(|| self.register_place(line, request));
        lines.forget_if_idle(request);
        drop(lines);
        if let Some(turn) = lost {
            let loss = turn.loss().unwrap_or_else(|| turn.loss_for(reason));
            self.acquiring.report_loss(&turn, &loss);
        }
        (mode, place)
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
        let turn = Arc::new(Lease::lent(tenure, request, fence_offset, previous, now));
        if member.state.lock().give(&turn) {
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

/// The release of a grant failed, and its last turn was this one.
fn for_turn(error: Error, turn: &Lease) -> Error {
    match error {
        Error::Lost { loss } => Error::Lost {
            loss: turn.loss_for(loss.reason),
        },
        other => other,
    }
}
