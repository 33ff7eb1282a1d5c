//! How callers read a lane: one at a time, and for all.

use std::time::Duration;

use redis::{RedisError, RedisResult, Value};

use super::{Connected, Entry, Lane, LaneReply, Reader, Ticket};
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::store::node::connection::fault;
use crate::store::node::socket::SocketReader;
use crate::store::node::stream::ReadMode;

/// The replies that a reader got from the connection at once.
struct Arrived {
    values: Vec<Value>,
    /// Why no more will come.
    error: Option<RedisError>,
}

impl<C: Connected> Lane<C> {
    /// Reads the replies that have arrived, if nobody reads. Never waits.
    pub(in crate::store::node) fn read_arrived(&self) {
        let mut state = self.state.lock();
        let epoch = state.epoch;
        let Some(open) = &mut state.open else { return };
        if open.queue.is_empty() {
            return;
        }
        let Some(reader) = open.reader.take() else {
            return;
        };
        open.is_awaited = false;
        let last = open.next();
        let expected = open.queue.len();
        drop(state);
        self.read_rest(ReaderRole { reader, expected }, epoch, last);
    }

    /// Takes the reader's role for a caller whose reply has not come, if it is free.
    pub(super) fn reader_for(&self, ticket: &Ticket) -> Option<ReaderRole<C::Reader>> {
        let mut state = self.state.lock();
        let open = state.with_entry(ticket)?;
        let reader = open.reader.take()?;
        open.is_awaited = true;
        let expected = open.queue.len();
        Some(ReaderRole { reader, expected })
    }

    /// Reads until the caller's reply has come or it is `until`.
    pub(super) fn read(&self, mut role: ReaderRole<C::Reader>, ticket: &Ticket, until: Time) {
        loop {
            let left = until - self.clock.now();
            let mode = if left.is_zero() {
                ReadMode::Arrived
            } else {
                ReadMode::Wait
            };
            let arrived = role.receive(mode, left);
            let is_over = arrived.values.is_empty();
            let is_done = |next| is_over || next > ticket.number;
            match self.complete(ticket.epoch, arrived, role.reader, |next, _| is_done(next)) {
                Some(again) => role = again,
                None => return,
            }
        }
    }

    /// Reads the replies for which nobody needs to wait, and gives the reader's role back.
    pub(super) fn read_rest(&self, mut role: ReaderRole<C::Reader>, epoch: u64, last: u64) {
        loop {
            let arrived = role.receive(ReadMode::Arrived, self.command_timeout);
            let is_done = arrived.values.is_empty();
            match self.complete(epoch, arrived, role.reader, |next, _| {
                is_done || next >= last
            }) {
                Some(again) => role = again,
                None => return,
            }
        }
    }

    /// Reads until nothing is due or nothing has arrived. So no reply stays in the reader's own
    /// buffer, where a thread that waits for the socket would not see it. Also reads while nothing is
    /// due: all that can have come then is the end of the connection. Never waits. False if another
    /// thread reads.
    pub(in crate::store::node) fn read_all(&self) -> bool {
        let mut state = self.state.lock();
        let epoch = state.epoch;
        let Some(open) = &mut state.open else {
            return true;
        };
        let Some(reader) = open.reader.take() else {
            return false;
        };
        open.is_awaited = false;
        let expected = open.queue.len();
        drop(state);
        let mut role = ReaderRole { reader, expected };
        loop {
            let arrived = role.receive(ReadMode::Arrived, self.command_timeout);
            let is_over = arrived.values.is_empty();
            let is_done = |next, end| is_over || next == end;
            match self.complete(epoch, arrived, role.reader, is_done) {
                Some(again) => role = again,
                None => return true,
            }
        }
    }

    /// Replies came: they belong to the first entries. All are taken under one lock, and only then
    /// their callers are woken: these would wait for the mutex.
    ///
    /// `is_done` says whether the thread has read enough. It gets the number of the first entry
    /// without a reply, and the number that the next entry will have. Returns the reader if it has
    /// not. Otherwise the reader's role is free again, or the connection has ended.
    fn complete(
        &self,
        epoch: u64,
        arrived: Arrived,
        reader: C::Reader,
        is_done: impl FnOnce(u64, u64) -> bool,
    ) -> Option<ReaderRole<C::Reader>> {
        let received = self.clock.now();
        let mut ended_by = arrived.error.map(|error| fault(error, Step::Reply));
        let mut answered = Vec::with_capacity(arrived.values.len());
        let mut must_write = false;
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return None;
        }
        let open = state.open.as_mut()?;
        for value in arrived.values {
            let Some(mut entry) = open.take_first() else {
                ended_by = Some(StoreFault::protocol("a reply came that nobody asked for"));
                break;
            };
            open.last_reply = received;
            open.quickest = open.quickest.min(received - entry.sent);
            if open.change_form(&mut entry, &value, received) {
                must_write = true;
            } else {
                answered.push((entry, value));
            }
        }
        let is_free = ended_by.is_none() && is_done(open.first, open.next());
        let (reader, next) = if is_free {
            open.reader = Some(reader);
            (None, open.ask_next_to_read())
        } else {
            let expected = open.queue.len();
            (Some(ReaderRole { reader, expected }), None)
        };
        let wake_next = || {
            if let Some(slot) = next {
                slot.wake();
            }
        };
        if must_write {
            // A write can block.
            wake_next();
            self.write(state);
        } else {
            drop(state);
            wake_next();
        }
        for (entry, value) in answered {
            entry.end(Ok(value), received);
        }
        if let Some(fault) = ended_by {
            self.close_epoch(epoch, &fault);
            return None;
        }
        reader
    }
}

/// The reader's role.
pub(super) struct ReaderRole<R> {
    reader: R,
    /// How many replies were due when the role was taken. More may come.
    expected: usize,
}

impl<R: Reader> ReaderRole<R> {
    /// Waits for one reply as `mode` says, and takes what came along with it.
    fn receive(&mut self, mode: ReadMode, timeout: Duration) -> Arrived {
        let mut values = Vec::with_capacity(1);
        let mut mode = mode;
        while values.len() < self.expected.max(1) {
            match self.reader.receive(mode, timeout) {
                Ok(value) => values.push(value),
                Err(error) => {
                    let error = (!error.is_timeout()).then_some(error);
                    return Arrived { values, error };
                }
            }
            mode = ReadMode::Buffered;
        }
        let error = None;
        Arrived { values, error }
    }
}

impl Entry {
    /// Gives the reply to the caller, or to the handler that it left. Called with no mutex held.
    pub(super) fn end(self, outcome: Result<Value, StoreFault>, received: Time) {
        if let Some(unread) = self.unread {
            return unread.finish(outcome);
        }
        self.slot.answer(LaneReply {
            outcome,
            received,
            is_void: self.is_void,
            is_late: false,
        });
    }
}

impl Reader for SocketReader {
    fn receive(&mut self, mode: ReadMode, timeout: Duration) -> RedisResult<Value> {
        if mode == ReadMode::Wait {
            self.limit(timeout)?;
        }
        SocketReader::receive(self, mode)
    }
}
