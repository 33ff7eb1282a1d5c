//! The place of a line in Redis's queue: who needs one, and what the members learn from it.

use std::sync::Arc;

use super::{Line, Lines};
use crate::engine::request::Request;
use crate::engine::waiter::{WaiterEntry, WaiterState};
use crate::script::Token;
use crate::store::clock::Time;

impl Lines {
    /// A waiter becomes a member of its line. Returns the line's place if that is to be sent now.
    pub(crate) fn join(&self, member: &Arc<WaiterEntry>, now: Time) -> Option<Arc<WaiterEntry>> {
        let mut lines = self.lock();
        // A shutdown has failed it, and found it in no line.
        if !member.state.lock().awaits_grant() {
            return None;
        }
        let line = lines.line(&member.request);
        if line.join(member.order(), Arc::clone(member)) {
            return Some(self.register_place(line, &member.request, now));
        }
        if line.tenure().is_some() {
            member.note_turn();
        }
        None
    }

    /// R1 (registered before sent): the line has a place, and nothing of it is sent yet.
    ///
    /// The place shows the label and the thread of the first member, since that gets the first turn.
    /// `earlier` is a request of the same line, for a line without members.
    pub(super) fn register_place(
        &self,
        line: &mut Line,
        earlier: &Request,
        now: Time,
    ) -> Arc<WaiterEntry> {
        let state = WaiterState::new(Token::new());
        let first = line.members().next();
        let request = first.map_or(earlier, |member| &member.request).for_place();
        let place = self.registry.register(Arc::new(request), state, now);
        line.set_place(place.order(), Arc::clone(&place));
        for member in line.members() {
            member.note_line_asks(now);
        }
        place
    }

    /// A waiter is no member of its line any more. If it was the last one, the result is the line's
    /// place, which is to be cancelled.
    #[must_use]
    pub(crate) fn leave(&self, member: &WaiterEntry) -> Option<Arc<WaiterEntry>> {
        let mut lines = self.lock();
        let place = lines.known(&member.request)?.leave(member.order());
        lines.forget_if_idle(&member.request);
        place
    }

    /// Gives a line another place. `None`: this one is no line's place any more.
    #[must_use]
    pub(crate) fn replace_place(&self, place: &WaiterEntry, now: Time) -> Option<Arc<WaiterEntry>> {
        let mut lines = self.lock();
        let line = lines.line_of_place(place)?;
        Some(self.register_place(line, &place.request, now))
    }

    /// Takes the first member out of the line whose place this is.
    pub(crate) fn take_first_member(&self, place: &WaiterEntry) -> Option<Arc<WaiterEntry>> {
        let mut lines = self.lock();
        let (_, first) = lines.line_of_place(place)?.next_member()?;
        Some(first)
    }

    /// The members of the line whose place this waiter is. None for any other waiter.
    pub(crate) fn members_of(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        if !waiter.request.is_place {
            return Vec::new();
        }
        let mut lines = self.lock();
        let line = lines.line_of_place(waiter);
        line.map_or_else(Vec::new, |line| line.members().cloned().collect())
    }

    /// The members of the line that this waiter is in, itself included.
    pub(crate) fn line_of(&self, member: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        let mut lines = self.lock();
        let line = lines.known(&member.request);
        line.map_or_else(Vec::new, |line| line.members().cloned().collect())
    }

    /// How many others of this manager wait for the name of this waiter.
    pub(crate) fn other_waiters(&self, waiter: &WaiterEntry) -> usize {
        let mut lines = self.lock();
        let place = lines.known(&waiter.request).and_then(|line| line.place());
        // The place of a line is registered, and nobody waits for it but the members.
        let not_others = 1 + usize::from(place.is_some());
        drop(lines);
        let registered = self.registry.count(&waiter.request.key.name);
        registered.saturating_sub(not_others)
    }

    /// The position of a waiter. That of a member is the one of its line's place, and one more for
    /// each member before it.
    pub(crate) fn position_of(&self, waiter: &WaiterEntry) -> Option<u64> {
        if !waiter.request.is_member() {
            return waiter.state.lock().position();
        }
        let mut lines = self.lock();
        let line = lines.known(&waiter.request)?;
        let before = line.members_before(waiter.order())? as u64;
        let first = match line.place() {
            Some((_, place)) => place.state.lock().position()?,
            // A member has the lock.
            None => 1,
        };
        Some(first + before)
    }
}
