//! The turns of a line: its members have the lock one after the other, until its grant ends.

use std::sync::Arc;
use std::time::Duration;

use super::kept::log_loss;
use super::lines::{KeptBy, Line, LineTenure, Lines, NameSlot, SlotState};
use super::state::{AfterTurn, Turn, TurnEnd};
use crate::engine::{HeldLease, Request, TakeGrant, WaiterEntry, WantResult};
use crate::error::{Error, Result};
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::{Mode, Token};
use crate::stats::Count;
use crate::store::clock::Time;

/// The lock's state after a turn.
#[must_use]
pub(super) enum Ended {
    /// This member has it now, and is to be woken.
    PassedTo(Arc<WaiterEntry>, Arc<HeldLease>),
    /// Nobody waits here or elsewhere, and the next caller gets it.
    Kept,
    /// The grant has ended here, and is to be released.
    Left(Leaving),
    /// The grant was lost while the turn ended, so the guard has lost the lock after all.
    Lost(LossReason),
}

/// A line has ended its tenure.
pub(super) struct Leaving {
    pub(crate) tenure: Arc<HeldLease>,
    /// How the grant is released.
    pub(crate) mode: Mode,
    /// The place of the members that still wait. It is registered, and to be sent before the
    /// release, so that no waiter behind it is served first.
    pub(crate) place: Option<Arc<WaiterEntry>>,
    /// Dropped without a mutex: it may have what is a user's.
    _ended: Option<LineTenure>,
}

/// The end of a line's place.
enum PlaceEnd {
    Begun {
        given: Option<GivenTurn>,
        lease: Arc<HeldLease>,
        /// As in [`Leaving`].
        _ended: Option<LineTenure>,
    },
    Found(TakeGrant),
    /// It was cancelled. The thread that did that abandons the grant.
    Cancelled,
}

/// A member has this turn, and is to be woken.
pub(super) type GivenTurn = (Arc<WaiterEntry>, Arc<HeldLease>);

impl Lines {
    /// Redis has granted the place of a line, and the renewal thread keeps that grant: its first
    /// member gets a turn. Or the place has failed.
    pub(super) fn on_place_changed(&self, place: &Arc<WaiterEntry>) {
        let now = self.acquiring.client().now();
        let end = self.with_known_slot(&place.request.key.name, |slot| {
            if slot.line_of_place(place).is_none() {
                return PlaceEnd::Cancelled;
            }
            match self.acquiring.take_grant(place) {
                TakeGrant::Taken(lease) => {
                    let (given, _ended) = self.begin_tenure(slot, &place.request, &lease, now);
                    PlaceEnd::Begun {
                        given,
                        lease,
                        _ended,
                    }
                }
                other => PlaceEnd::Found(other),
            }
        });
        match end.unwrap_or(PlaceEnd::Cancelled) {
            PlaceEnd::Begun {
                given: Some((member, turn)),
                lease,
                ..
            } => {
                self.acquiring.wake_for(&member, &turn);
                self.watch_kept(&lease, now);
            }
            // No member waits any more.
            PlaceEnd::Begun {
                given: None, lease, ..
            } => self.acquiring.abandon(&lease),
            PlaceEnd::Found(TakeGrant::Confirm) => self.acquiring.confirm(place),
            PlaceEnd::Found(TakeGrant::Failed(error)) => self.on_place_failed(place, &error),
            PlaceEnd::Found(_) | PlaceEnd::Cancelled => {}
        }
    }

    /// The line of this request has a grant. Its first member gets a turn. Without one the tenure ends,
    /// and is returned.
    fn begin_tenure(
        &self,
        slot: &mut SlotState,
        request: &Request,
        lease: &Arc<HeldLease>,
        now: Time,
    ) -> (Option<GivenTurn>, Option<LineTenure>) {
        let is_wanted = slot.is_wanted(lease);
        let line = slot.line(request);
        line.begin_tenure(Arc::clone(lease), request.hears, is_wanted);
        let given = give_turn(line, lease, lease.previous, lease.request.was_taken(), now);
        if given.is_none() {
            return (None, line.end_tenure());
        }
        self.on_tenure_begun(lease);
        line.members().for_each(|member| member.note_held_here());
        (given, None)
    }

    /// Ends the turn of a guard. Passes the lock on if it may, without any I/O. Else it is released,
    /// and the line's new place goes out in the same write before the release. Blocks as
    /// [`Engine::release`](crate::engine::Engine::release).
    pub(super) fn release(
        &self,
        turn: &Arc<HeldLease>,
        slot: Option<&Arc<NameSlot>>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        let client = self.acquiring.client();
        let started = client.now();
        let may_keep = want == WantResult::No && turn.request.keep.is_some();
        let ended = self.end_turn(turn, slot, mode, may_keep, started)?;
        if mode != Mode::Unused {
            client.meter().on_released(turn.held_for(started));
        }
        self.finish_turn(turn, ended, started, want)
    }

    /// Does what is left to do after a turn: wakes the next member, or sends the release.
    pub(super) fn finish_turn(
        &self,
        turn: &HeldLease,
        ended: Ended,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
        match ended {
            Ended::PassedTo(member, next) => {
                self.on_passed(&member, &next);
                Ok(())
            }
            Ended::Kept => Ok(()),
            Ended::Left(Leaving {
                tenure,
                mode,
                place,
                ..
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

    /// Detaches the lock of a turn. Its tenure goes to another process, and the members of its line get
    /// another place. Blocks as [`Releasing::detach`](crate::engine::Releasing::detach).
    pub(super) fn detach(
        &self,
        turn: &Arc<HeldLease>,
        to: Token,
        valid_for: Duration,
    ) -> Result<u64> {
        let tenure = turn.renewed_lease();
        let detached = self.releasing.detach(tenure, to, valid_for);
        let fence = detached.map_err(|error| for_turn(error, turn))?;
        let now = self.acquiring.client().now();
        let mut _ended = None;
        let place = self.with_known_slot(&turn.request.key.name, |slot| {
            let _ = turn.end(now);
            let line = slot.line_of_tenure(&tenure.request, tenure.token)?;
            _ended = line.end_tenure();
            if let Some(ended) = &_ended {
                self.on_tenure_ended(ended, now);
            }
            let waits = line.has_members();
            waits.then(|| self.register_place(line, &tenure.request))
        });
        turn.disconnect();
        if let Some(place) = place.flatten() {
            self.acquiring.send_in_background(&place);
        }
        Ok(fence)
    }

    pub(super) fn on_passed(&self, member: &Arc<WaiterEntry>, turn: &Arc<HeldLease>) {
        self.acquiring.client().meter().count(Count::LocalHandovers);
        self.acquiring.wake_for(member, turn);
    }

    /// R13 (unwanted grants): a member was given a turn that nobody wants. Sends nothing itself: this
    /// may be the renewal thread.
    pub(super) fn pass_on(&self, turn: &Arc<HeldLease>) {
        let now = self.acquiring.client().now();
        match self.end_turn(turn, None, Mode::Unused, false, now) {
            Ok(Ended::PassedTo(member, next)) => self.on_passed(&member, &next),
            Ok(Ended::Left(leaving)) => {
                if let Some(place) = &leaving.place {
                    self.acquiring.send_in_background(place);
                }
                self.releasing
                    .abandon_ended(&leaving.tenure, leaving.mode, now);
            }
            // The renewal thread reports the loss to nobody.
            Ok(Ended::Kept | Ended::Lost(_)) | Err(_) => {}
        }
    }

    /// Ends a turn here. Sends nothing, and wakes no member.
    ///
    /// R14 (release first, then send): if the grant is to be released, it has ended here.
    pub(super) fn end_turn(
        &self,
        turn: &Arc<HeldLease>,
        slot: Option<&Arc<NameSlot>>,
        mode: Mode,
        may_keep: bool,
        now: Time,
    ) -> Result<Ended> {
        let end = |slot: &mut SlotState| {
            turn.end(now).map_err(|loss| Error::Lost { loss })?;
            self.pass_or_leave(slot, turn, mode, may_keep, now)
        };
        let ended = match slot {
            Some(slot) => self.with(slot, end),
            None => self.with_known_slot(&turn.request.key.name, end),
        };
        turn.disconnect_lent();
        // Without a slot, the tenure was lost, and the turn with it.
        ended.unwrap_or_else(|| {
            let loss = turn.loss_at(now);
            let loss = loss.unwrap_or_else(|| turn.loss_for(LossReason::Expired));
            Err(Error::Lost { loss })
        })
    }

    /// Passes the lock on or keeps it if it may, or ends the tenure.
    fn pass_or_leave(
        &self,
        slot: &mut SlotState,
        turn: &Arc<HeldLease>,
        mode: Mode,
        may_keep: bool,
        now: Time,
    ) -> Result<Ended> {
        let tenure = turn.renewed_lease();
        let end = turn_end(mode);
        let Some(line) = slot.line_of_tenure(&tenure.request, tenure.token) else {
            let loss = turn.loss_for(LossReason::Expired);
            return Err(Error::Lost { loss });
        };
        // Only a tenure that is looked at may be kept.
        let may_keep = may_keep && tenure.request.keep.is_some();
        let is_first = line.tenure().is_some_and(|held| held.turns() == 1);
        let may_keep = may_keep && !(is_first && self.keeper.is_overfull());
        match line.end_turn(end, self.may_lend(tenure, now), may_keep) {
            AfterTurn::Pass => {
                let previous = previous_holder(line, tenure);
                if let Some((member, turn)) = give_turn(line, tenure, previous, true, now) {
                    return Ok(Ended::PassedTo(member, turn));
                }
            }
            AfterTurn::Keep => {
                let request = if turn.request.is_for_next_guard() {
                    Arc::clone(&turn.request)
                } else {
                    Arc::new(turn.request.for_next_guard())
                };
                line.keep(KeptBy { request }, now);
                return Ok(Ended::Kept);
            }
            AfterTurn::Leave => {}
        }
        Ok(self.end_tenure(slot, tenure, end, now))
    }

    /// Ends a tenure whose last turn has ended.
    pub(super) fn end_tenure(
        &self,
        slot: &mut SlotState,
        tenure: &Arc<HeldLease>,
        end: TurnEnd,
        now: Time,
    ) -> Ended {
        let line = slot.line(&tenure.request);
        if let Err(Loss { reason, .. }) = tenure.release(now) {
            // The renewal thread finds the tenure in the line, and releases it.
            if end != TurnEnd::Unused {
                line.note_lost();
            }
            return Ended::Lost(reason);
        }
        let ended = line.end_tenure();
        let mode = release_mode(ended.as_ref().and_then(LineTenure::last_end));
        if let Some(ended) = &ended {
            self.on_tenure_ended(ended, now);
        }
        let waits = line.has_members();
        let place = waits.then(|| self.register_place(line, &tenure.request));
        Ended::Left(Leaving {
            tenure: Arc::clone(tenure),
            mode,
            place,
            _ended: ended,
        })
    }

    /// The grant of a line is lost. A member that has not taken its turn yet comes back, as the
    /// first of the line. Returns how the grant is released, and another place for those that wait. It
    /// is registered, and to be sent before that release, as that of [`Leaving`].
    pub(super) fn on_tenure_lost(
        &self,
        request: &Request,
        token: Token,
        loss: &Loss,
    ) -> (Mode, Option<Arc<WaiterEntry>>) {
        let now = self.acquiring.client().now();
        // Dropped after the mutex is free: it may be the last owner of an `on_lost`.
        let mut _unneeded = None;
        let mut _kept = None;
        let mut lost = None;
        let mut lost_kept = None;
        let ended = self.with_known_slot(&request.key.name, |slot| {
            let line = slot.line_of_tenure(request, token)?;
            let is_kept = line.kept().is_some();
            let mut tenure = line.end_tenure()?;
            self.on_tenure_ended(&tenure, now);
            // If no guard has the current turn, the last one that had a turn counts.
            let mut mode = release_mode(tenure.last_end());
            if is_kept && loss.reason != LossReason::Shutdown {
                lost_kept = Some(Arc::clone(&tenure.lease));
            }
            _kept = tenure.take_kept();
            match tenure.into_turn() {
                None => {}
                Some(Turn {
                    member: None,
                    lease,
                }) => {
                    mode = Mode::Lost;
                    lost = Some(lease);
                }
                Some(Turn {
                    member: Some((number, member)),
                    lease,
                }) => {
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
                        _unneeded = Some((member, lease));
                    }
                }
            }
            let waits = line.has_members();
            let place = waits.then(|| self.register_place(line, request));
            Some((mode, place))
        });
        if let Some(turn) = lost {
            let loss = turn.loss().unwrap_or_else(|| turn.loss_for(loss.reason));
            self.acquiring.report_loss(&turn, &loss);
        }
        if let Some(lease) = lost_kept {
            self.acquiring.client().meter().on_found_lost(loss.reason);
            log_loss(&lease, loss.reason);
        }
        ended.flatten().unwrap_or((Mode::Unused, None))
    }
}

/// Gives a turn to the first member that still waits.
pub(super) fn give_turn(
    line: &mut Line,
    tenure: &Arc<HeldLease>,
    previous: PreviousHolder,
    was_taken: bool,
    now: Time,
) -> Option<GivenTurn> {
    while let Some((number, member)) = line.next_member() {
        let request = Arc::clone(&member.request);
        let turn = Arc::new(HeldLease::lent(Arc::clone(tenure), request, previous, now));
        if member.state.lock().give(&turn) {
            if was_taken {
                member.request.note_taken();
            }
            if line.tenure().is_some_and(LineTenure::is_wanted) || line.has_members() {
                turn.note_wanted();
            }
            line.set_turn(Turn {
                member: Some((number, Arc::clone(&member))),
                lease: Arc::clone(&turn),
            });
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
fn previous_holder(line: &Line, tenure: &HeldLease) -> PreviousHolder {
    match line.tenure().and_then(|held| held.last_end()) {
        Some(TurnEnd::Unfinished) => PreviousHolder::Lapsed,
        Some(_) => PreviousHolder::Released,
        None => tenure.previous,
    }
}

/// The release of a grant failed, and its last turn was this one.
fn for_turn(error: Error, turn: &HeldLease) -> Error {
    match error {
        Error::Lost { loss } => Error::Lost {
            loss: turn.loss_for(loss.reason),
        },
        other => other,
    }
}
