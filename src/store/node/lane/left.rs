//! Requests that their callers have left, and who reads their replies; the fate of all requests if
//! the connection ends.

use std::time::Duration;

use super::open::OpenLane;
use super::{BEHIND_ANOTHER, Connected, EndedBy, Lane, LaneState, Resend, SILENT, Ticket, Unread};
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::sync::{MutexGuard, yield_now};

/// How often a caller that wants to leave lets the thread run that is to write its request.
const YIELDS_TO_WRITER: u32 = 100;

impl<C: Connected> Lane<C> {
    /// Gives the thread that is to write a request a moment to do so, so that its caller can leave.
    pub(in crate::store::node) fn yield_to_writer(&self, ticket: &Ticket) {
        for _ in 0..YIELDS_TO_WRITER {
            let mut state = self.state.lock();
            match state.with_entry(ticket) {
                Some(open) if !open.is_written(ticket) => {}
                _ => return,
            }
            drop(state);
            yield_now();
        }
    }

    /// Leaves a request: `unread` gets its reply, whichever thread reads it. The caller has not begun
    /// to wait, so it is not the one that was asked to read.
    ///
    /// Returns `unread` if the caller must wait: its request was answered, or its connection has
    /// ended, or another thread is still to write it, which a process that exits now never does.
    pub(in crate::store::node) fn leave<U: Unread + 'static>(
        &self,
        ticket: &Ticket,
        unread: U,
    ) -> Option<U> {
        let mut state = self.state.lock();
        let open = state.with_entry(ticket);
        let Some(open) = open.filter(|open| open.is_written(ticket)) else {
            return Some(unread);
        };
        open.leave(ticket, Some(Box::new(unread)));
        None
    }

    /// Nobody waits for the reply any more, and nobody wants it.
    pub(super) fn forget(&self, mut state: MutexGuard<'_, LaneState<C>>, ticket: &Ticket) {
        let Some(open) = state.with_entry(ticket) else {
            return;
        };
        open.leave(ticket, None);
        let next = open.ask_next_to_read();
        drop(state);
        if let Some(slot) = next {
            slot.wake();
        }
    }

    /// Sends a request that its caller has left on another lane. It goes out now if this lane is
    /// open, else as one of the first on its next connection. Returns whether it was sent now.
    pub(in crate::store::node) fn take_over<U: Unread + 'static>(
        &self,
        name: u64,
        unread: U,
    ) -> bool {
        let mut state = self.state.lock();
        let unread = Box::new(unread);
        match &mut state.open {
            Some(open) => {
                open.append_unread(name, unread, self.clock.now());
                self.write(state);
                true
            }
            None => {
                state.resends.push(Resend { name, unread });
                false
            }
        }
    }

    /// When [`Lane::end_overdue`] is to be called: if some caller has left, a command timeout after
    /// the oldest request without a reply.
    pub(in crate::store::node) fn unread_due(&self) -> Time {
        let state = self.state.lock();
        match &state.open {
            Some(open) if open.has_unread() => {
                let due = open.oldest().map(|sent| sent + self.command_timeout);
                due.unwrap_or(Time::NEVER)
            }
            None if !state.resends.is_empty() && !state.is_opening => Time::from_nanos(0),
            _ => Time::NEVER,
        }
    }

    /// Closes the connection if a caller has left and the oldest reply is overdue. Returns whether it
    /// was.
    pub(in crate::store::node) fn end_overdue(&self) -> bool {
        let state = self.state.lock();
        let now = self.clock.now();
        let open = state.open.as_ref().filter(|open| open.has_unread());
        let oldest = open.and_then(OpenLane::oldest);
        let is_overdue = oldest.is_some_and(|sent| sent + self.command_timeout <= now);
        if is_overdue {
            self.close(state, &StoreFault::timed_out(Step::Reply), EndedBy::Silence);
        }
        is_overdue
    }

    /// Closes the connection if nothing has come on it since the oldest request was sent, for this
    /// time at least, and some reply before took no longer than `round_trip`. The last reply does not
    /// count: it may have been read late, since callers leave once a majority has answered.
    pub(in crate::store::node) fn end_silent(&self, time: Duration, round_trip: Duration) {
        let state = self.state.lock();
        let now = self.clock.now();
        let is_silent = state.open.as_ref().is_some_and(|open| {
            let is_awaited = |sent| sent + time <= now && open.is_silent_since(sent);
            open.oldest().is_some_and(is_awaited) && open.was_as_quick_as(round_trip)
        });
        if is_silent {
            let silent = StoreFault::connection_ended(SILENT);
            self.close(state, &silent, EndedBy::Silence);
        }
    }

    /// Fails the requests that their callers have left and that wait for the next connection, if
    /// nobody opens one.
    pub(in crate::store::node) fn fail_resends(&self) {
        let mut state = self.state.lock();
        if state.open.is_some() || state.is_opening || state.resends.is_empty() {
            return;
        }
        let resends = std::mem::take(&mut state.resends);
        drop(state);
        for Resend { unread, .. } in resends {
            unread.finish(Err(StoreFault::connection_ended(
                "the connection was closed",
            )));
        }
    }

    /// Waits while a caller opens a connection, until `until` at most.
    pub(in crate::store::node) fn await_opening(&self, until: Time) {
        let mut state = self.state.lock();
        while state.is_opening && self.clock.now() < until {
            self.clock.wait(&self.opened, &mut state, until);
        }
    }

    pub(super) fn close_epoch(&self, epoch: u64, fault: &StoreFault) {
        let state = self.state.lock();
        if state.epoch == epoch {
            self.close(state, fault, EndedBy::Peer);
        }
    }

    /// Ends the connection. If the fault is not that it was closed, the first entry has that fault,
    /// whose reply was due, and the others learn that the connection was closed. Requests that were
    /// left are sent again on the next connection if they may.
    pub(super) fn close(
        &self,
        mut state: MutexGuard<'_, LaneState<C>>,
        fault: &StoreFault,
        by: EndedBy,
    ) {
        let Some(mut open) = state.open.take() else {
            return;
        };
        state.epoch += 1;
        let mut outcome = Err(fault.clone());
        let for_others = if fault.is_closed() {
            if by == EndedBy::Peer {
                // Before any caller tries another connection.
                open.connected.note_closed();
            }
            fault.clone()
        } else {
            StoreFault::connection_ended(BEHIND_ANOTHER)
        };
        let entries = open.take_all();
        let mut ended = Vec::with_capacity(entries.len());
        for mut entry in entries {
            let fault = std::mem::replace(&mut outcome, Err(for_others.clone()));
            let is_closed = fault.as_ref().is_err_and(StoreFault::is_closed);
            match entry.take_resend(is_closed) {
                Some(resend) => state.resends.push(resend),
                None => ended.push((entry, fault)),
            }
        }
        // The pool has room for the next connection from here on.
        drop(open);
        drop(state);
        let received = self.clock.now();
        for (entry, outcome) in ended {
            entry.end(outcome, received, by == EndedBy::Silence);
        }
    }

    /// Whether some request has no reply although its caller has left.
    pub(in crate::store::node) fn has_unread(&self) -> bool {
        let state = self.state.lock();
        !state.resends.is_empty() || state.open.as_ref().is_some_and(OpenLane::has_unread)
    }
}
