//! The place of a line in Redis's queue: how it is sent, lost and cancelled, and what its members
//! learn from it. `turns.rs` carries out what happens once it is granted.

use std::slice;
use std::sync::Arc;

use crate::engine::acquire::{Caller, Entered, for_lock};
use crate::engine::background::Command;
use crate::engine::line::Line;
use crate::engine::request::Request;
use crate::engine::waiter::{EnqueueOutcome, QueuedWaiter, WaiterEntry, WaiterState};
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result};
use crate::script::{Call, Token, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

impl Engine {
    /// Takes a place in the line of a request. If the line has none in Redis's queue, this thread
    /// takes one for it.
    ///
    /// R17 (subscription): the subscription comes first, also if the lock is free.
    pub(super) fn enter_line(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
        caller: Caller,
    ) -> Result<Entered> {
        let limit = until.min(self.now() + self.config.outage_limit);
        if !self.subscription.is_started() {
            self.await_subscription(limit)
                .map_err(|error| for_lock(error, request))?;
        }
        let (queued, place) = self.join_line(request);
        // A shutdown fails every waiter that is registered when it runs. If it ran before this
        // registration, this check finds it.
        self.check_open()?;
        let Some(place) = place else {
            return Ok(Entered::Queued(queued));
        };
        let sent = self.send_until_queued(&place, until, limit, caller);
        if matches!(sent, Ok(true)) {
            return Ok(Entered::Queued(queued));
        }
        // Only this member fails. The renewal thread goes on for the others.
        drop(queued);
        match sent {
            Ok(_) => {
                self.send_place_in_background(&place);
                Ok(Entered::NotYet)
            }
            Err(error) => {
                self.replace_place(&place);
                Err(error)
            }
        }
    }

    /// A new member of its line, and the line's place if that is to be sent now.
    pub(super) fn join_line(
        self: &Arc<Self>,
        request: &Arc<Request>,
    ) -> (QueuedWaiter, Option<Arc<WaiterEntry>>) {
        let queued = QueuedWaiter::register(self, request, WaiterState::in_line());
        let member = &queued.waiter;
        let mut lines = self.lines.lock();
        // A shutdown has failed it, and found it in no line.
        if !member.state.lock().awaits_grant() {
            return (queued, None);
        }
        let line = lines.line(request);
        if line.join(member.order(), Arc::clone(member)) {
            let place = self.register_place(line, request);
            return (queued, Some(place));
        }
        if line.tenure().is_some() {
            member.note_turn();
        }
        (queued, None)
    }

    /// R1 (registered before sent): the line has a place, and nothing of it is sent yet.
    ///
    /// The place shows the label and the thread of the first member, since that gets the first turn.
    /// `earlier` is a request of the same line, for a line without members.
    pub(super) fn register_place(&self, line: &mut Line, earlier: &Request) -> Arc<WaiterEntry> {
        let now = self.now();
        let state = WaiterState::new(Token::new());
        let first = line.members().next();
        let request = first.map_or(earlier, |member| &member.request).for_place();
        let place = self.waiters.register(Arc::new(request), state, now);
        line.set_place(place.order(), Arc::clone(&place));
        for member in line.members() {
            member.note_line_asks(now);
        }
        place
    }

    /// A waiter is no member of its line any more. If it was the last one, the line's place is
    /// cancelled in the background.
    pub(super) fn leave_line(&self, member: &WaiterEntry) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.known(&member.request) else {
            return;
        };
        let place = line.leave(member.order());
        lines.forget_if_idle(&member.request);
        drop(lines);
        if let Some(place) = place {
            self.cancel_place(&place);
        }
    }

    fn cancel_place(&self, place: &Arc<WaiterEntry>) {
        let action = place.state.lock().cancel();
        self.apply(place, action);
        self.waiters.forget(place);
    }

    /// The place was refused for good. If its line has other members, it gets another place, which
    /// the renewal thread sends.
    pub(super) fn replace_place(&self, place: &Arc<WaiterEntry>) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.line_of_place(place) else {
            return;
        };
        let new = self.register_place(line, &place.request);
        drop(lines);
        self.cancel_place(place);
        self.send_place_in_background(&new);
    }

    /// A waiter failed. If it is the place of a line, so does the line's first member, and the others
    /// get another place.
    pub(super) fn on_waiter_failed(&self, waiter: &Arc<WaiterEntry>, error: &Error) {
        if !waiter.request.is_place {
            return;
        }
        let mut lines = self.lines.lock();
        let Some(line) = lines.line_of_place(waiter) else {
            return;
        };
        let first = line.next_member();
        drop(lines);
        if let Some((_, first)) = first {
            // Its caller finds the error. Nothing of it was sent.
            let _ = first.state.lock().fail(error.clone());
            first.changed.notify_one();
            // The last one takes the place along, unless another has come since.
            self.leave_line(&first);
        }
        self.replace_place(waiter);
    }

    pub(super) fn send_place_in_background(&self, place: &Arc<WaiterEntry>) {
        self.send_to_background(Command::Requeue(Arc::clone(place)));
    }

    /// Sends both in one write, in this order, and waits for both replies. So waiters that were
    /// queued before come first, and no try can come between. There is one exception: if the server
    /// has forgotten the script of the acquire, but knows that of the release, the acquire comes
    /// behind. Then the line only loses its order. To send the source each time would cost more
    /// than that.
    pub(super) fn send_place_and_release(
        &self,
        place: &Arc<WaiterEntry>,
        release: &Call,
        started: Time,
    ) -> CallResult {
        let deadlines = self.at_once(started);
        // Without a token, nobody wants the place any more.
        let Some(token) = self.token_to_send(place, started) else {
            return single_result(self.store.run(slice::from_ref(release), deadlines));
        };
        let acquire = place.request.acquire(token, Wait::Yes);
        let calls = [acquire, release.clone()];
        let mut results = self.acquire_or_vacate(&calls, deadlines);
        let released = results.pop();
        let queued = single_result(results);
        match self.on_acquire_reply(place, &calls[0], queued) {
            EnqueueOutcome::Done => {}
            EnqueueOutcome::More | EnqueueOutcome::Again | EnqueueOutcome::RetryLater(_) => {
                self.send_place_in_background(place);
            }
            EnqueueOutcome::Rejected(error) => {
                self.on_waiter_failed(place, &error);
            }
        }
        released.unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
    }

    /// The members of the line whose place this waiter is. None for any other waiter.
    pub(super) fn members_of(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        if !waiter.request.is_place {
            return Vec::new();
        }
        let mut lines = self.lines.lock();
        let line = lines.line_of_place(waiter);
        line.map_or_else(Vec::new, |line| line.members().cloned().collect())
    }

    /// The members of the line that this waiter is in, itself included.
    pub(super) fn line_of(&self, member: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        let mut lines = self.lines.lock();
        let line = lines.known(&member.request);
        line.map_or_else(Vec::new, |line| line.members().cloned().collect())
    }

    /// Redis answered about this waiter's name, and so about the members whose place it is.
    pub(super) fn note_reply(&self, waiter: &WaiterEntry, now: Time) {
        waiter.on_reply(now);
        for member in self.members_of(waiter) {
            member.on_reply(now);
        }
    }

    /// How many others of this manager wait for the name of this waiter.
    pub(super) fn other_waiters(&self, waiter: &WaiterEntry) -> usize {
        let mut lines = self.lines.lock();
        let place = lines.known(&waiter.request).and_then(|line| line.place());
        // The place of a line is registered, and nobody waits for it but the members.
        let not_others = 1 + usize::from(place.is_some());
        drop(lines);
        let registered = self.waiters.count(&waiter.request.key.name);
        registered.saturating_sub(not_others)
    }

    /// The position of a waiter. That of a member is the one of its line's place, and one more for
    /// each member before it.
    pub(super) fn position_of(&self, waiter: &WaiterEntry) -> Option<u64> {
        if !waiter.request.is_member() {
            return waiter.state.lock().position();
        }
        let mut lines = self.lines.lock();
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
