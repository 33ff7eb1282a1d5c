//! How callers read a lane: one at a time, and for all.

use std::time::Duration;

use redis::{RedisError, RedisResult, Value};

use super::open::{OpenLane, ReaderRole};
use super::{Connected, Lane, Reader, Ticket};
use crate::error::Step;
use crate::logging;
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
        let open = state.open.as_mut().filter(|open| open.oldest().is_some());
        let Some(open) = open else { return };
        let Some(role) = open.take_reader(false) else {
            return;
        };
        let last = open.next();
        drop(state);
        self.read_rest(role, epoch, |open| open.first() >= last);
    }

    /// Takes the reader's role for a caller whose reply has not come, if it is free.
    pub(super) fn reader_for(&self, ticket: &Ticket) -> Option<ReaderRole<C::Reader>> {
        let mut state = self.state.lock();
        state.with_entry(ticket)?.take_reader(true)
    }

    /// Reads until the caller's reply has come or it is `until`.
    pub(super) fn read(&self, role: ReaderRole<C::Reader>, ticket: &Ticket, until: Time) {
        let how = || match until - self.clock.now() {
            Duration::ZERO => (ReadMode::Arrived, Duration::ZERO),
            left => (ReadMode::Wait, left),
        };
        self.read_until(role, ticket.epoch, how, |open| !open.has(ticket));
    }

    /// Reads what has arrived, until nothing is left of that or `is_done`.
    fn read_rest(
        &self,
        role: ReaderRole<C::Reader>,
        epoch: u64,
        is_done: impl Fn(&OpenLane<C>) -> bool,
    ) {
        let how = || (ReadMode::Arrived, self.command_timeout);
        self.read_until(role, epoch, how, is_done);
    }

    /// Reads until nothing comes or `is_done`, and gives the reader's role back.
    fn read_until(
        &self,
        mut role: ReaderRole<C::Reader>,
        epoch: u64,
        how: impl Fn() -> (ReadMode, Duration),
        is_done: impl Fn(&OpenLane<C>) -> bool,
    ) {
        loop {
            let (mode, timeout) = how();
            let arrived = role.receive(mode, timeout);
            let is_over = arrived.values.is_empty();
            let is_done = |open: &OpenLane<C>| is_over || is_done(open);
            match self.complete(epoch, arrived, role.reader, is_done) {
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
        let Some(role) = open.take_reader(false) else {
            return false;
        };
        drop(state);
        self.read_rest(role, epoch, |open| open.oldest().is_none());
        true
    }

    /// Replies came: they belong to the first entries. All are taken under one lock, and only then
    /// their callers are woken: these would wait for the mutex.
    ///
    /// `is_done` says whether the thread has read enough. Returns the reader if it has not. Otherwise
    /// the reader's role is free again, or the connection has ended.
    fn complete(
        &self,
        epoch: u64,
        arrived: Arrived,
        reader: C::Reader,
        is_done: impl FnOnce(&OpenLane<C>) -> bool,
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
            match open.take_reply(value, received) {
                Ok(Some(answer)) => answered.push(answer),
                Ok(None) => must_write = true,
                Err(fault) => {
                    ended_by = Some(fault);
                    break;
                }
            }
        }
        let is_free = ended_by.is_none() && is_done(open);
        let (reader, next) = match is_free {
            true => (None, open.return_reader(reader)),
            false => (Some(open.role(reader)), None),
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
        // Others may wait for this thread to read on.
        let _queues = logging::queue_here();
        for (entry, value) in answered {
            entry.end(Ok(value), received, false);
        }
        if let Some(fault) = ended_by {
            self.close_epoch(epoch, &fault);
            return None;
        }
        reader
    }
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

impl Reader for SocketReader {
    fn receive(&mut self, mode: ReadMode, timeout: Duration) -> RedisResult<Value> {
        if mode == ReadMode::Wait {
            self.limit(timeout)?;
        }
        SocketReader::receive(self, mode)
    }
}
