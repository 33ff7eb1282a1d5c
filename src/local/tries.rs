//! Tries: a caller asks for the lock without waiting for it. Its grant becomes the tenure of its line.

use std::sync::Arc;

use super::lines::{LineKey, Lines};
use super::state::Turn;
use crate::engine::{HeldLease, LeaseOwner, Request};
use crate::error::{Error, Result};
use crate::loss::{LossReason, PreviousHolder};
use crate::stats::Count;
use crate::store::clock::Time;

/// The state in which a try finds its line.
pub(super) enum Found {
    /// A kept grant, lent to it.
    Turn(Arc<HeldLease>),
    /// Nothing: Redis is to be asked, by a request of the line. [`Lines::end_try`] follows.
    Nothing,
    /// Callers of this manager that have the lock, or wait for it.
    Others,
    /// Another caller that tries, or a grant that is lost.
    NoAnswer,
}

impl Lines {
    /// Takes the lock if no one has it or waits for it. A kept grant is lent, without Redis. If a caller
    /// of this line has the lock or waits, there is no request either. Else `attempt` asks Redis. Blocks
    /// as that, and as the drop of a guard if a kept grant of another line is to be released first.
    pub(super) fn try_acquire(
        &self,
        request: &Arc<Request>,
        attempt: impl FnOnce(&Arc<Request>) -> Result<Option<Arc<HeldLease>>>,
    ) -> Result<Option<Arc<HeldLease>>> {
        let client = self.acquiring.client();
        if request.hears {
            let limit = client.now() + client.config().command_timeout;
            self.acquiring.begin(request, limit)?;
        }
        match self.begin_try(request) {
            Found::Others => {
                request.note_taken();
                Ok(None)
            }
            // That says nothing about the lock. So this one asks for itself.
            Found::NoAnswer => self.try_alone(request, attempt),
            Found::Turn(turn) => Ok(Some(turn)),
            Found::Nothing => self.try_in_line(request, attempt),
        }
    }

    /// R17 (subscription): a free lock needs no subscription, so a caller that waits tries first while
    /// there is none. Callers of its line come before it.
    pub(super) fn try_first(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        match self.begin_try(request) {
            Found::Others | Found::NoAnswer => Ok(None),
            Found::Turn(turn) => Ok(Some(turn)),
            Found::Nothing => {
                let attempt = |owned: &Arc<Request>| self.acquiring.attempt(owned, until);
                self.try_in_line(request, attempt)
            }
        }
    }

    /// The same as a try of a caller that has a line of its own, so that others can tell it all the same.
    pub(super) fn try_alone(
        &self,
        request: &Request,
        attempt: impl FnOnce(&Arc<Request>) -> Result<Option<Arc<HeldLease>>>,
    ) -> Result<Option<Arc<HeldLease>>> {
        let request = Arc::new(request.sharing_as(self.own_line()));
        match self.begin_try(&request) {
            Found::Nothing => self.try_in_line(&request, attempt),
            _ => unreachable!("nobody else has this line"),
        }
    }

    /// Asks Redis by a request of the line, which is idle.
    fn try_in_line(
        &self,
        request: &Arc<Request>,
        attempt: impl FnOnce(&Arc<Request>) -> Result<Option<Arc<HeldLease>>>,
    ) -> Result<Option<Arc<HeldLease>>> {
        let owned = Arc::new(self.request_of_line(request));
        // A panic of a logger must not leave the line in this stage.
        let unwinding = TryEnd(self, request);
        let tried = attempt(&owned);
        std::mem::forget(unwinding);
        if owned.was_taken() {
            request.note_taken();
        }
        self.end_try(request, tried)
    }

    /// A try looks into its line. A kept grant of another line is released first.
    pub(super) fn begin_try(&self, request: &Arc<Request>) -> Found {
        let client = self.acquiring.client();
        let now = client.now();
        let mut ended = Vec::new();
        let mut _kept = None;
        let found = self.with_slot(&request.key.name, |slot| {
            ended = self.end_kept(slot, Some(LineKey::of(request)), now);
            let line = slot.line(request);
            if line.begin_try() {
                return Found::Nothing;
            }
            if line.is_tried() {
                return Found::NoAnswer;
            }
            let Some((tenure, _)) = line.kept() else {
                return Found::Others;
            };
            if !tenure.lease.is_held(now) {
                return Found::NoAnswer;
            }
            let lease = Arc::clone(&tenure.lease);
            _kept = line.lend_kept();
            let turn = HeldLease::lent(lease, Arc::clone(request), PreviousHolder::Released, now);
            let turn = Arc::new(turn);
            line.set_turn(Turn {
                member: None,
                lease: Arc::clone(&turn),
            });
            Found::Turn(turn)
        });
        self.send_releases(ended, now);
        if let Found::Turn(turn) = &found {
            client.meter().count(Count::KeptTurns);
            self.acquiring.note_lent(turn);
        }
        found
    }

    /// The request by which a line tries to get a grant.
    pub(super) fn request_of_line(&self, request: &Request) -> Request {
        request.once_for_owner(Arc::clone(&self.owner) as Arc<dyn LeaseOwner>)
    }

    /// The try has ended. Members that came meanwhile wait behind it, or get a place of their own.
    pub(super) fn end_try(
        &self,
        request: &Arc<Request>,
        tried: Result<Option<Arc<HeldLease>>>,
    ) -> Result<Option<Arc<HeldLease>>> {
        let now = self.acquiring.client().now();
        let (mut place, mut turn) = (None, None);
        self.with_slot(&request.key.name, |slot| {
            let granted = tried.as_ref().ok().and_then(Option::as_ref);
            // If it is lost by now, its loss may have come before the line had it.
            let granted = granted.filter(|lease| lease.is_held(now));
            let is_wanted = granted.is_some_and(|lease| slot.is_wanted(lease));
            let line = slot.line(request);
            let Some(lease) = granted else {
                place = line.end_try().then(|| self.register_place(line, request));
                return;
            };
            line.begin_tenure(Arc::clone(lease), request.hears, is_wanted);
            self.on_tenure_begun(lease);
            line.members().for_each(|member| member.note_held_here());
            let lent = HeldLease::lent(Arc::clone(lease), Arc::clone(request), lease.previous, now);
            let lent = Arc::new(lent);
            if is_wanted || line.has_members() {
                lent.note_wanted();
            }
            line.set_turn(Turn {
                member: None,
                lease: Arc::clone(&lent),
            });
            turn = Some(lent);
        });
        if let Some(place) = place {
            self.acquiring.send_in_background(&place);
        }
        let Some(lease) = tried? else {
            return Ok(None);
        };
        let Some(turn) = turn else {
            let loss = lease.loss_at(now);
            let loss = loss.unwrap_or_else(|| lease.loss_for(LossReason::Expired));
            return Err(Error::Lost { loss });
        };
        self.acquiring.note_lent(&turn);
        self.watch_kept(&lease, now);
        Ok(Some(turn))
    }
}

/// Ends a try that unwinds.
struct TryEnd<'a>(&'a Lines, &'a Arc<Request>);

impl Drop for TryEnd<'_> {
    fn drop(&mut self) {
        let _ = self.0.end_try(self.1, Ok(None));
    }
}
