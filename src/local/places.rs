//! The place of a line in Redis's queue: who needs one, and what the members learn from it.

use std::sync::Arc;

use super::lines::{Line, LineKey, Lines};
use super::state::Joined;
use super::turns::give_turn;
use crate::engine::{Caller, Entered, LeaseOwner, QueuedWaiter, Request, WaiterEntry, WaiterOwner};
use crate::error::{Error, Result};
use crate::loss::PreviousHolder;
use crate::stats::Count;
use crate::store::clock::Time;

impl Lines {
    /// A caller becomes a member of its line, and waits in it. If the line has no place in Redis's
    /// queue, this thread takes one for it. In an outage it tries until `until`, or for as long as the
    /// outage limit.
    pub(super) fn enter(
        &self,
        request: &Arc<Request>,
        until: Time,
        caller: Caller,
    ) -> Result<Entered> {
        let client = self.acquiring.client();
        let limit = until.min(client.now() + client.config().outage_limit);
        self.acquiring.begin(request, limit)?;
        let (member, place) = self.join(request);
        // A shutdown before the member was registered has not failed it.
        self.acquiring.check_open()?;
        let Some(place) = place else {
            return Ok(Entered::Queued(member));
        };
        let sent = self
            .acquiring
            .send_until_queued(&place, until, limit, caller);
        if matches!(sent, Ok(true)) {
            return Ok(Entered::Queued(member));
        }
        // Only this member fails. The renewal thread goes on for the others.
        drop(member);
        match sent {
            Ok(_) => {
                self.acquiring.send_in_background(&place);
                Ok(Entered::NotYet)
            }
            Err(error) => {
                self.replace_place(&place);
                Err(error)
            }
        }
    }

    /// A new member of its line, and the line's place if that is to be sent now. If the line has a kept
    /// grant, the member has the lock. A kept grant that is not for this request is released first.
    pub(super) fn join(&self, request: &Arc<Request>) -> (QueuedWaiter, Option<Arc<WaiterEntry>>) {
        let queued = self.acquiring.register_caller(request, self.waiter_owner());
        let member = &queued.waiter;
        let now = self.acquiring.client().now();
        let (mut ended, mut place, mut given, mut turn) = (Vec::new(), None, None, None);
        let mut _kept = None;
        self.with_slot(&request.key.name, |slot| {
            // A shutdown has failed it, and found it in no line.
            if !member.state.lock().awaits_grant() {
                return;
            }
            ended = self.end_kept(slot, Some(LineKey::of(request)), now);
            let line = slot.line(request);
            match line.join(member.order(), Arc::clone(member)) {
                Joined::NeedsPlace => place = Some(self.register_place(line, request)),
                Joined::Waits => {
                    if let Some(tenure) = line.tenure() {
                        member.note_held_here();
                        turn = tenure.turn().map(|turn| Arc::clone(&turn.lease));
                    }
                }
                // Its loss is reported soon, and gives its members a place.
                Joined::FindsKept if !is_held(line, now) => {}
                Joined::FindsKept => {
                    _kept = line.lend_kept();
                    if let Some(tenure) = line.tenure() {
                        let lease = Arc::clone(&tenure.lease);
                        given = give_turn(line, &lease, PreviousHolder::Released, false, now);
                    }
                }
            }
        });
        self.send_releases(ended, now);
        if let Some(turn) = turn {
            turn.note_wanted();
        }
        if let Some((member, turn)) = given {
            self.acquiring.client().meter().count(Count::KeptTurns);
            self.acquiring.wake_for(&member, &turn);
        }
        (queued, place)
    }

    fn waiter_owner(&self) -> Arc<dyn WaiterOwner> {
        Arc::clone(&self.owner) as _
    }

    /// R1 (registered before sent): the line has a place, and nothing of it is sent yet.
    ///
    /// The place shows the label and the thread of the first member, since that gets the first turn.
    /// `earlier` is a request of the same line, for a line without members.
    pub(super) fn register_place(&self, line: &mut Line, earlier: &Request) -> Arc<WaiterEntry> {
        let now = self.acquiring.client().now();
        let first = line.members().next();
        let first = first.map_or(earlier, |member| &member.request);
        let owner: Arc<dyn LeaseOwner> = Arc::clone(&self.owner) as _;
        let request = first.for_owner(owner);
        let place = self.acquiring.register_asking(request, self.waiter_owner());
        line.set_place(place.order(), Arc::clone(&place));
        for member in line.members() {
            member.note_owner_asks(now);
        }
        place
    }

    /// A waiter is no member of its line any more. If it was the last one, the line's place is
    /// cancelled in the background.
    pub(super) fn leave(&self, member: &WaiterEntry) {
        let place = self.with_known_slot(&member.request.key.name, |slot| {
            let line = slot.known(&member.request)?;
            line.leave(member.order())
        });
        if let Some(place) = place.flatten() {
            self.acquiring.cancel(&place);
        }
    }

    /// The place was refused for good. The line's first member fails, and the others get another
    /// place.
    pub(super) fn on_place_failed(&self, place: &Arc<WaiterEntry>, error: &Error) {
        // A shutdown fails each member by itself.
        if self.acquiring.check_open().is_err() {
            return;
        }
        if let Some(first) = self.take_first_member(place) {
            // Its caller finds the error. Nothing of it was sent.
            let _ = first.state.lock().fail(error.clone());
            first.wake();
            // The last one takes the place along, unless another has come since.
            self.leave(&first);
        }
        self.replace_place(place);
    }

    /// Takes the first member out of the line whose place this is.
    fn take_first_member(&self, place: &WaiterEntry) -> Option<Arc<WaiterEntry>> {
        self.with_known_slot(&place.request.key.name, |slot| {
            let (_, first) = slot.line_of_place(place)?.next_member()?;
            Some(first)
        })?
    }

    /// Gives a line another place, which the renewal thread sends. Nothing happens if this one is no
    /// line's place any more.
    pub(super) fn replace_place(&self, place: &Arc<WaiterEntry>) {
        let new = self.with_known_slot(&place.request.key.name, |slot| {
            let line = slot.line_of_place(place)?;
            Some(self.register_place(line, &place.request))
        });
        let Some(new) = new.flatten() else {
            return;
        };
        self.acquiring.cancel(place);
        self.acquiring.send_in_background(&new);
    }

    /// The members of the line that this waiter is a member of, or the place of.
    pub(super) fn members_with(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        let members = self.with_known_slot(&waiter.request.key.name, |slot| {
            let line = if waiter.is_unasked() {
                slot.known(&waiter.request)
            } else {
                slot.line_of_place(waiter)
            };
            line.map(|line| line.members().cloned().collect())
        });
        members.flatten().unwrap_or_default()
    }

    /// The position of a member: that of its line's place, and one more for each member before it.
    pub(super) fn position_of(&self, member: &WaiterEntry) -> Option<u64> {
        self.with_known_slot(&member.request.key.name, |slot| {
            let line = slot.known(&member.request)?;
            let before = line.members_before(member.order())? as u64;
            let first = match line.place() {
                Some((_, place)) => place.state.lock().position()?,
                // A member has the lock.
                None => 1,
            };
            Some(first + before)
        })?
    }
}

fn is_held(line: &Line, now: Time) -> bool {
    line.tenure()
        .is_some_and(|tenure| tenure.lease.is_held(now))
}
