//! Local hand-overs: the waiters of a line have the lock one after the other, without Redis. `line`
//! decides, this file carries it out, and `place.rs` has the line's place in Redis's queue.
//!
//! A member of a line is a waiter like any other, but its token is never sent. The line's place is
//! one more waiter, and the only one that Redis and the renewal thread's syncs know. No thread waits
//! for the place: when it is granted, the first member gets a turn, and is woken.

use std::slice;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::background::TokenRelease;
use crate::engine::lease::Lease;
use crate::engine::line::{AfterTurn, Line, LockedLines, Turn, TurnEnd};
use crate::engine::release::{ReleaseOutcome, WantResult, loss_result, release_call};
use crate::engine::waiter::{TakeGrant, WaiterAction, WaiterEntry};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::options::LockOptions;
use crate::script::{Family, Mode};
use crate::store::clock::Time;

/// The lock's state after a turn.
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
    pub(super) tenure: Arc<Lease>,
    /// How the grant is released.
    pub(super) mode: Mode,
    /// The place of the members that still wait. It is registered, and to be sent before the
    /// release, so that no waiter behind it is served first.
    pub(super) place: Option<Arc<WaiterEntry>>,
}

/// The lost tenure of a line.
pub(super) struct LostTenure {
    /// The turn whose guard has lost the lock.
    pub(super) turn: Option<Arc<Lease>>,
    /// The place of the members that still wait.
    pub(super) place: Option<Arc<WaiterEntry>>,
    /// How the grant is released.
    pub(super) mode: Mode,
}

impl Engine {
    /// [`Error::Config`] if the options allow local hand-overs, and this kind of lock or this store
    /// has none.
    pub(crate) fn check_local_handovers(
        &self,
        family: Family,
        options: &LockOptions,
    ) -> Result<()> {
        let message = if options.most_local_handovers() == 0 {
            return Ok(());
        } else if family == Family::Permit {
            "only mutexes and re-entrant mutexes are handed over within a process; for other kinds, \
             take a handle with local_handovers(0)"
        } else if !self.service.has_queue {
            "a quorum has no queue, so it has no local hand-overs"
        } else {
            return Ok(());
        };
        Err(Error::config("local_handovers", message))
    }

    /// Redis has granted the place of a line, and the renewal thread keeps that grant: its first
    /// member gets a turn.
    pub(super) fn on_place_granted(&self, place: &Arc<WaiterEntry>) {
        let now = self.now();
        let mut lines = self.lines.lock();
        // Without a line, the place was cancelled. The thread that did that abandons the grant.
        let Some(line) = lines.line_of_place(place) else {
            return;
        };
        let taken = place.state.lock().take_grant(now, &place.request);
        let tenure = match taken {
            TakeGrant::Taken(tenure) => tenure,
            TakeGrant::Confirm => {
                drop(lines);
                return self.apply(place, WaiterAction::Confirm);
            }
            TakeGrant::Failed(_) | TakeGrant::NotYet => return,
        };
        self.waiters.mark_guarded(tenure.token);
        line.begin_tenure(Arc::clone(&tenure));
        let given = self.give_turn(line, &tenure, 0, tenure.previous, now);
        if given.is_some() {
            line.members().for_each(|member| member.note_turn());
        } else {
            line.end_tenure();
            lines.forget_if_idle(&place.request);
        }
        drop(lines);
        self.waiters.forget(place);
        match given {
            Some((member, turn)) => self.wake_for_turn(&member, &turn),
            None => self.abandon_lease(&tenure),
        }
    }

    /// Gives a turn to the first member that still waits.
    fn give_turn(
        &self,
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

    fn wake_for_turn(&self, member: &WaiterEntry, turn: &Arc<Lease>) {
        if turn.request.max_hold.is_some() {
            self.keep_renewed(turn);
        }
        member.changed.notify_one();
    }

    /// Ends a turn here. Sends nothing, and wakes no member.
    ///
    /// R14 (release first, then send): if the grant is to be released, it has ended here.
    pub(super) fn end_turn(&self, turn: &Arc<Lease>, mode: Mode, now: Time) -> Result<Ended> {
        let mut lines = self.lines.lock();
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
            if let Some((member, turn)) = self.give_turn(line, tenure, fence_offset, previous, now)
            {
                return Ok(Ended::PassedTo(member, turn));
            }
        }
        Ok(self.end_tenure(lines, tenure, end, now))
    }

    /// Ends a tenure whose last turn has ended.
    fn end_tenure(
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

    /// Ends the turn of a guard. Passes the lock on if it may, without any I/O. Else it is released,
    /// and the line's new place goes out in the same write before the release. Blocks as
    /// [`Engine::release`].
    pub(super) fn release_turn(
        self: &Arc<Self>,
        turn: &Arc<Lease>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        let started = self.now();
        let ended = self.end_turn(turn, mode, started)?;
        if mode != Mode::Unused {
            self.meter.on_released(turn.held_for(started));
        }
        self.finish_turn(turn, ended, started, want)
    }

    /// Does what is left to do after a turn: wakes the next member, or sends the release.
    fn finish_turn(
        self: &Arc<Self>,
        turn: &Arc<Lease>,
        ended: Ended,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
        match ended {
            Ended::PassedTo(member, next) => {
                self.on_passed(&member, &next);
                Ok(())
            }
            Ended::Left(leaving) => self
                .leave(&leaving, started, want)
                .map_err(|error| for_turn(error, turn)),
            Ended::Lost(reason) => {
                // The renewal thread finds no turn with the tenure. So the loss is counted here, like
                // one that the reply to a release reports.
                self.meter.on_found_lost(reason);
                let loss = turn.loss_for(reason);
                Err(Error::Lost { loss })
            }
        }
    }

    pub(super) fn on_passed(&self, member: &WaiterEntry, turn: &Arc<Lease>) {
        self.meter.local_handovers.add(1);
        self.wake_for_turn(member, turn);
    }

    fn leave(self: &Arc<Self>, leaving: &Leaving, started: Time, want: WantResult) -> Result<()> {
        let Leaving {
            tenure,
            mode,
            place,
        } = leaving;
        let release = release_call(tenure, *mode);
        let result = match place {
            Some(place) => Some(self.send_place_and_release(place, &release, started)),
            None => self
                .send_releases(&[tenure], slice::from_ref(&release), started, want)
                .pop()
                .flatten(),
        };
        let Some(result) = result else {
            return Ok(());
        };
        match self.on_release_reply(tenure, &release, started, result.answer) {
            ReleaseOutcome::Answered(reason) => loss_result(tenure, reason),
            ReleaseOutcome::Open(open) => {
                let sent = self.release_in_background(tenure, started, *open, want);
                self.await_background_release(sent)
            }
        }
    }

    /// R13 (unwanted grants): a member was given a turn that nobody wants. Sends nothing itself: this
    /// may be the renewal thread.
    pub(super) fn pass_on(&self, turn: &Arc<Lease>) {
        let now = self.now();
        match self.end_turn(turn, Mode::Unused, now) {
            Ok(Ended::PassedTo(member, next)) => self.on_passed(&member, &next),
            Ok(Ended::Left(leaving)) => {
                if let Some(place) = &leaving.place {
                    self.send_place_in_background(place);
                }
                self.abandon(TokenRelease::of_lease(&leaving.tenure, leaving.mode, now));
            }
            // The renewal thread reports the loss to nobody.
            Ok(Ended::Lost(_)) | Err(_) => {}
        }
    }

    /// The grant of a line is lost. A member that has not taken its turn yet comes back, as the
    /// first of the line.
    pub(super) fn on_tenure_lost(&self, tenure: &Arc<Lease>) -> LostTenure {
        // Dropped after the mutex is free: it may be the last owner of an `on_lost`.
        let _unneeded;
        let mut lines = self.lines.lock();
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
        let place = waits.then(|| self.register_place(line, &tenure.request));
        lines.forget_if_idle(&tenure.request);
        LostTenure {
            turn: lost,
            place,
            mode,
        }
    }
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

#[cfg(all(test, feature = "memory"))]
mod tests;
