//! A lane: one connection that many callers share.
//!
//! ```text
//!   callers ──append──> buffer ──write (one thread at a time)──> server
//!                       queue  <─read (one thread at a time)──── replies, in the same order
//! ```
//!
//! A caller appends its bytes to the buffer and an entry to the queue. If nobody writes, it writes
//! what is in the buffer, also what others append meanwhile. Then it waits for its reply. If nobody
//! reads, it reads: each reply belongs to the first entry of the queue. When its own reply has come,
//! the next caller that waits becomes the reader. So a lane has no thread of its own, and a lone
//! caller writes and reads by itself.
//!
//! A caller may leave before its reply comes, once its request is written. Its entry then says what
//! to do with the reply, and whoever reads the reply does it.
//!
//! If the server closes the connection, all entries are answered with that fault. If a reply is late
//! or malformed, only its own entry is: those behind it are told that the connection was closed, so
//! that their callers send them again on the next one. Entries that were left and may be sent again
//! get no answer: they wait for the next connection, and are the first on it.
//!
//! Order of mutexes: the lane's first, then a slot's. Neither is held over I/O or a callback.

#[cfg(all(test, fairlock_loom))]
mod models;
mod slot;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};

use super::connection::fault;
use super::socket::{Patience, SocketReader, SocketWriter};
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex, MutexGuard, yield_now};
pub(super) use slot::Reply;
use slot::{Slot, Woken};

/// The half of a connection that requests go out through.
pub(super) trait Writer: Send {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The half of a connection that replies come in through.
pub(super) trait Reader: Send {
    /// Waits for `timeout` at most, if it waits at all.
    fn receive(&mut self, patience: Patience, timeout: Duration) -> RedisResult<Value>;
}

/// What a lane keeps while its connection is open. Dropping it closes the connection, also for
/// threads that use its halves.
pub(super) trait Connected: Send {
    type Writer: Writer;
    type Reader: Reader;

    /// The peer has closed the connection. Called before any caller learns of it.
    fn note_closed(&self);
}

/// A request that its caller has left.
pub(super) trait Unread: Send {
    /// Whether the server refused the form of the request alone. Then it takes the other form.
    fn change_form(&mut self, refused: &Value) -> bool;

    /// Whether it may be sent again after its connection was closed.
    fn may_resend(&mut self) -> bool;

    /// Appends the request's bytes.
    fn write(&mut self, bytes: &mut Vec<u8>);

    /// Called once, with no mutex held.
    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>);
}

/// How often a caller that wants to leave lets the thread run that is to write its request.
const YIELDS_TO_WRITER: u32 = 100;

pub(super) struct Lane<C: Connected> {
    state: Mutex<LaneState<C>>,
    /// Signals that an attempt to open a connection is over.
    opened: Condvar,
    clock: Clock,
    /// T: a reply that takes longer ends the connection.
    command_timeout: Duration,
}

pub(super) struct LaneState<C: Connected> {
    open: Option<OpenLane<C>>,
    is_opening: bool,
    /// The number of the connection that is open, or was the last.
    epoch: u64,
    /// Requests that their callers have left and that are to be sent on the next connection.
    resends: Vec<Resend>,
}

/// A lane with a connection.
pub(super) struct OpenLane<C: Connected> {
    pub(super) connected: C,
    /// Bytes that are still to be written.
    buffer: Vec<u8>,
    /// The requests without a reply, in the order in which they were appended.
    queue: VecDeque<Entry>,
    /// The number of the first of them.
    first: u64,
    /// The number of the first request that is not written yet.
    written: u64,
    /// How many of them nobody waits for.
    unread: usize,
    /// `None` while a thread writes.
    writer: Option<C::Writer>,
    /// `None` while a thread reads.
    reader: Option<C::Reader>,
    last_reply: Time,
}

/// A request without a reply.
struct Entry {
    slot: Arc<Slot>,
    /// When it was appended.
    sent: Time,
    /// The name that the request is about. 0: none.
    name: u64,
    has_left: bool,
    /// What to do with the reply once the caller has left. `None`: nothing.
    unread: Option<Box<dyn Unread>>,
    is_void: bool,
}

/// What a reader got from the connection at once.
struct Arrived {
    values: Vec<Value>,
    /// Why no more will come.
    error: Option<RedisError>,
}

/// A request that is to be sent again on the next connection.
struct Resend {
    name: u64,
    unread: Box<dyn Unread>,
}

/// A caller's request on a lane.
pub(super) struct Ticket {
    epoch: u64,
    number: u64,
    slot: Arc<Slot>,
    /// When it was appended.
    pub(super) sent: Time,
    /// No reply was left unread in front of it without a reader, and a reply came lately.
    pub(super) may_leave: bool,
}

/// The lane's mutex, locked while a connection is open.
pub(super) struct OpenGuard<'a, C: Connected> {
    lane: &'a Lane<C>,
    state: MutexGuard<'a, LaneState<C>>,
}

impl<C: Connected> Lane<C> {
    pub(super) fn new(clock: Clock, command_timeout: Duration) -> Lane<C> {
        Lane {
            state: Mutex::new(LaneState {
                open: None,
                is_opening: false,
                epoch: 0,
                resends: Vec::new(),
            }),
            opened: Condvar::new(),
            clock,
            command_timeout,
        }
    }

    /// The lane with its connection, if it has one.
    pub(super) fn if_open(&self) -> Option<OpenGuard<'_, C>> {
        let state = self.state.lock();
        state
            .open
            .is_some()
            .then_some(OpenGuard { lane: self, state })
    }

    /// The lane with its connection. Opens one by `connect` if there is none; one thread does so,
    /// and others wait for it until `until`. `None` if it is `until`.
    pub(super) fn open(
        &self,
        until: Time,
        connect: impl Fn() -> Result<(C, C::Writer, C::Reader), StoreFault>,
    ) -> Result<Option<OpenGuard<'_, C>>, StoreFault> {
        let mut state = self.state.lock();
        loop {
            if state.open.is_some() {
                return Ok(Some(OpenGuard { lane: self, state }));
            }
            if !state.is_opening {
                break;
            }
            if self.clock.now() >= until {
                return Ok(None);
            }
            self.clock.wait(&self.opened, &mut state, until);
        }
        state.is_opening = true;
        drop(state);
        let opening = Opening(self);
        let (connected, writer, reader) = connect()?;
        let mut state = self.state.lock();
        state.install(connected, writer, reader, self.clock.now());
        let mut guard = OpenGuard { lane: self, state };
        guard.send_again();
        // Under the mutex: a thread that is woken finds the connection.
        std::mem::forget(opening);
        guard.state.is_opening = false;
        self.opened.notify_all();
        Ok(Some(guard))
    }

    /// Waits for the reply to a request until `until`, and reads for others meanwhile. A reply that
    /// is later than the command timeout ends the connection.
    pub(super) fn wait(&self, ticket: &Ticket, until: Time) -> Reply {
        ticket.slot.begin_wait();
        loop {
            if let Some(reader) = self.reader_for(ticket) {
                self.read(reader, ticket, until);
            }
            match ticket.slot.sleep(&self.clock, until) {
                Woken::ToRead => {}
                Woken::Answered(reply) => return reply,
                Woken::TimedOut => break,
            }
        }
        Reply {
            outcome: Err(self.give_up(ticket)),
            received: self.clock.now(),
            is_void: false,
        }
    }

    /// A caller stops waiting. If its reply is later than the command timeout, the connection ends.
    fn give_up(&self, ticket: &Ticket) -> StoreFault {
        let late = StoreFault::timed_out(Step::Reply);
        let mut state = self.state.lock();
        if self.clock.now() < ticket.sent + self.command_timeout {
            self.forget(state, ticket);
            return late;
        }
        let own = ticket.number;
        let is_first = state.with_entry(ticket).map(|open| open.first == own);
        match is_first {
            None => late,
            Some(true) => {
                self.close(state, &late);
                late
            }
            // An earlier reply is just as late, and its caller has not noticed yet. This request may
            // do better on another connection.
            Some(false) => {
                self.close(state, &late);
                closed(BEHIND_ANOTHER)
            }
        }
    }

    /// Gives the thread that is to write a request a moment to do so, so that its caller can leave.
    pub(super) fn yield_to_writer(&self, ticket: &Ticket) {
        for _ in 0..YIELDS_TO_WRITER {
            let mut state = self.state.lock();
            match state.with_entry(ticket) {
                Some(open) if ticket.number >= open.written => {}
                _ => return,
            }
            drop(state);
            yield_now();
        }
    }

    /// Leaves a request: `unread` gets its reply, whichever thread reads it.
    ///
    /// Returns `unread` if the caller must wait: its request was answered, or its connection has
    /// ended, or another thread is still to write it, which a process that exits now never does.
    pub(super) fn leave<U: Unread + 'static>(&self, ticket: &Ticket, unread: U) -> Option<U> {
        let mut state = self.state.lock();
        let is_written = |open: &&mut OpenLane<C>| ticket.number < open.written;
        let Some(open) = state.with_entry(ticket).filter(is_written) else {
            return Some(unread);
        };
        let entry = open.entry(ticket.number);
        entry.has_left = true;
        entry.unread = Some(Box::new(unread));
        open.unread += 1;
        // The caller may have been asked to read.
        open.ask_next_to_read();
        None
    }

    /// Lets a caller look at what the lane keeps of the connection that its request went over, if
    /// that is still open.
    pub(super) fn with_connected(&self, ticket: &Ticket, look: impl FnOnce(&mut C)) {
        let mut state = self.state.lock();
        if state.epoch == ticket.epoch
            && let Some(open) = &mut state.open
        {
            look(&mut open.connected);
        }
    }

    /// Nobody waits for the reply any more, and nobody wants it.
    fn forget(&self, mut state: MutexGuard<'_, LaneState<C>>, ticket: &Ticket) {
        if let Some(open) = state.with_entry(ticket) {
            open.entry(ticket.number).has_left = true;
            open.unread += 1;
            open.ask_next_to_read();
        }
    }

    /// Ends the connection that a request went over: its reply had no sense.
    pub(super) fn end(&self, ticket: &Ticket) {
        self.close_epoch(
            ticket.epoch,
            &closed("a reply before this one was malformed"),
        );
    }

    /// Reads the replies that have arrived, if nobody reads. Never waits.
    pub(super) fn read_arrived(&self) {
        let mut state = self.state.lock();
        let epoch = state.epoch;
        let Some(open) = &mut state.open else { return };
        if open.queue.is_empty() {
            return;
        }
        let Some(reader) = open.reader.take() else {
            return;
        };
        drop(state);
        self.read_rest(reader, epoch);
    }

    /// When [`Lane::end_overdue`] is to be called: if some caller has left, a command timeout after
    /// the oldest request without a reply.
    pub(super) fn unread_due(&self) -> Time {
        let state = self.state.lock();
        match &state.open {
            Some(open) if open.unread > 0 => open
                .queue
                .front()
                .map_or(Time::NEVER, |entry| entry.sent + self.command_timeout),
            None if !state.resends.is_empty() && !state.is_opening => Time::from_nanos(0),
            _ => Time::NEVER,
        }
    }

    /// Closes the connection if a caller has left and the oldest reply is overdue.
    pub(super) fn end_overdue(&self) {
        let state = self.state.lock();
        let now = self.clock.now();
        let is_overdue = state.open.as_ref().is_some_and(|open| {
            let oldest = open.queue.front();
            open.unread > 0 && oldest.is_some_and(|entry| entry.sent + self.command_timeout <= now)
        });
        if is_overdue {
            self.close(state, &StoreFault::timed_out(Step::Reply));
        }
    }

    /// Fails the requests that their callers have left and that wait for the next connection, if
    /// nobody opens one.
    pub(super) fn fail_resends(&self) {
        let mut state = self.state.lock();
        if state.open.is_some() || state.is_opening || state.resends.is_empty() {
            return;
        }
        let resends = std::mem::take(&mut state.resends);
        drop(state);
        for Resend { unread, .. } in resends {
            unread.finish(Err(closed("the connection was closed")));
        }
    }

    /// Whether some request has no reply although its caller has left.
    pub(super) fn has_unread(&self) -> bool {
        let state = self.state.lock();
        !state.resends.is_empty() || state.open.as_ref().is_some_and(|open| open.unread > 0)
    }

    /// Takes the reader's role for a caller whose reply has not come, if it is free.
    fn reader_for(&self, ticket: &Ticket) -> Option<C::Reader> {
        self.state.lock().with_entry(ticket)?.reader.take()
    }

    /// Reads until the caller's reply has come or it is `until`.
    fn read(&self, mut reader: C::Reader, ticket: &Ticket, until: Time) {
        loop {
            let left = until - self.clock.now();
            let patience = if left.is_zero() {
                Patience::Arrived
            } else {
                Patience::Timeout
            };
            let arrived = Arrived::receive(&mut reader, patience, left);
            let is_over = arrived.values.is_empty();
            let is_done = |next| is_over || next > ticket.number;
            match self.complete(ticket.epoch, arrived, reader, is_done) {
                Some(again) => reader = again,
                None => return,
            }
        }
    }

    /// Reads the replies for which nobody needs to wait, and gives the reader's role back.
    fn read_rest(&self, mut reader: C::Reader, epoch: u64) {
        loop {
            let arrived = Arrived::receive(&mut reader, Patience::Arrived, self.command_timeout);
            let is_done = arrived.values.is_empty();
            match self.complete(epoch, arrived, reader, |_| is_done) {
                Some(again) => reader = again,
                None => return,
            }
        }
    }

    /// Replies came: they belong to the first entries. All are taken under one lock, and only then
    /// their callers are woken: these would wait for the mutex.
    ///
    /// `is_done` says whether the thread has read enough, by the number of the first entry without
    /// a reply. Returns the reader if it has not. Otherwise the reader's role is free again, or the
    /// connection has ended.
    fn complete(
        &self,
        epoch: u64,
        arrived: Arrived,
        reader: C::Reader,
        is_done: impl FnOnce(u64) -> bool,
    ) -> Option<C::Reader> {
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
            if open.change_form(&mut entry, &value, received) {
                must_write = true;
            } else {
                answered.push((entry, value));
            }
        }
        let is_free = ended_by.is_none() && is_done(open.first);
        let reader = if is_free {
            open.reader = Some(reader);
            open.ask_next_to_read();
            None
        } else {
            Some(reader)
        };
        if must_write {
            self.write(state);
        } else {
            drop(state);
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

    /// Writes what is in the buffer, unless another thread does.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, LaneState<C>>) {
        let epoch = state.epoch;
        let Some(open) = &mut state.open else { return };
        if open.buffer.is_empty() {
            return;
        }
        let Some(mut writer) = open.writer.take() else {
            return;
        };
        if open.is_shared() {
            // One read can wake many callers, and each would write and make the server read. So
            // this lets those that run append first: one write then takes all of it along.
            drop(state);
            yield_now();
            state = self.state.lock();
            if state.epoch != epoch {
                return;
            }
        }
        let Some(open) = &mut state.open else { return };
        let mut bytes = std::mem::take(&mut open.buffer);
        let mut next = open.next();
        loop {
            drop(state);
            let sent = writer.send(&bytes);
            state = self.state.lock();
            if state.epoch != epoch {
                return;
            }
            if let Err(error) = sent {
                return self.close(state, &fault(error, Step::Send));
            }
            let Some(open) = &mut state.open else { return };
            open.written = next;
            next = open.next();
            bytes.clear();
            std::mem::swap(&mut bytes, &mut open.buffer);
            if bytes.is_empty() {
                open.writer = Some(writer);
                return;
            }
        }
    }

    fn close_epoch(&self, epoch: u64, fault: &StoreFault) {
        let state = self.state.lock();
        if state.epoch == epoch {
            self.close(state, fault);
        }
    }

    /// Ends the connection. If the fault is not that it was closed, the first entry has that fault,
    /// whose reply was due, and the others learn that the connection was closed. Requests that were
    /// left are sent again on the next connection if they may.
    fn close(&self, mut state: MutexGuard<'_, LaneState<C>>, fault: &StoreFault) {
        let Some(mut open) = state.open.take() else {
            return;
        };
        state.epoch += 1;
        let mut outcome = Err(fault.clone());
        let for_others = if fault.is_closed() {
            // Before any caller tries another connection.
            open.connected.note_closed();
            fault.clone()
        } else {
            closed(BEHIND_ANOTHER)
        };
        let mut ended = Vec::with_capacity(open.queue.len());
        for entry in open.queue.drain(..) {
            let fault = std::mem::replace(&mut outcome, Err(for_others.clone()));
            let is_closed = fault.as_ref().is_err_and(StoreFault::is_closed);
            match entry
                .unread
                .map(|mut unread| (is_closed && unread.may_resend(), unread))
            {
                None => ended.push((entry.slot, None, fault)),
                Some((false, unread)) => ended.push((entry.slot, Some(unread), fault)),
                Some((true, unread)) => state.resends.push(Resend {
                    name: entry.name,
                    unread,
                }),
            }
        }
        // The pool has room for the next connection from here on.
        drop(open);
        drop(state);
        let received = self.clock.now();
        for (slot, unread, outcome) in ended {
            match unread {
                Some(unread) => unread.finish(outcome),
                None => slot.answer(Reply {
                    outcome,
                    received,
                    is_void: false,
                }),
            }
        }
    }
}

impl Entry {
    /// Gives the reply to the caller, or to the handler that it left. Called with no mutex held.
    fn end(self, outcome: Result<Value, StoreFault>, received: Time) {
        match self.unread {
            Some(unread) => unread.finish(outcome),
            None => self.slot.answer(Reply {
                outcome,
                received,
                is_void: self.is_void,
            }),
        }
    }
}

impl Arrived {
    /// Waits for one reply as `patience` says, and takes what came along with it.
    fn receive(reader: &mut impl Reader, patience: Patience, timeout: Duration) -> Arrived {
        let mut values = Vec::new();
        let mut patience = patience;
        loop {
            match reader.receive(patience, timeout) {
                Ok(value) => values.push(value),
                Err(error) => {
                    let error = (!error.is_timeout()).then_some(error);
                    return Arrived { values, error };
                }
            }
            patience = Patience::Buffered;
        }
    }
}

impl<C: Connected> LaneState<C> {
    /// The open connection, if the request of this ticket is in its queue.
    fn with_entry(&mut self, ticket: &Ticket) -> Option<&mut OpenLane<C>> {
        let is_same = self.epoch == ticket.epoch;
        let open = self.open.as_mut().filter(|_| is_same)?;
        (ticket.number >= open.first).then_some(open)
    }

    fn install(&mut self, connected: C, writer: C::Writer, reader: C::Reader, now: Time) {
        self.epoch += 1;
        self.open = Some(OpenLane {
            connected,
            buffer: Vec::new(),
            queue: VecDeque::new(),
            first: 0,
            written: 0,
            unread: 0,
            writer: Some(writer),
            reader: Some(reader),
            last_reply: now,
        });
    }
}

impl<C: Connected> OpenLane<C> {
    /// The number of the next request.
    fn next(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    fn entry(&mut self, number: u64) -> &mut Entry {
        &mut self.queue[(number - self.first) as usize]
    }

    /// Asks the first caller that waits to read, if nobody reads.
    fn ask_next_to_read(&self) {
        if self.reader.is_some() {
            let mut waiting = self.queue.iter().filter(|entry| !entry.has_left);
            waiting.find(|entry| entry.slot.ask_to_read());
        }
    }

    /// Whether several callers wait, or one waits for several replies.
    fn is_shared(&self) -> bool {
        self.queue.len() - self.unread > 1
    }

    /// Takes the first entry out of the queue: its reply has come.
    fn take_first(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        self.first += 1;
        self.unread -= usize::from(entry.has_left);
        Some(entry)
    }

    /// If this reply refuses only the form of a request that its caller has left, appends the
    /// request in its other form.
    fn change_form(&mut self, entry: &mut Entry, reply: &Value, now: Time) -> bool {
        let mut refused = entry.unread.take();
        let is_refused = refused
            .as_mut()
            .is_some_and(|unread| unread.change_form(reply));
        if !is_refused {
            entry.unread = refused;
        } else if let Some(unread) = refused {
            self.void_answers_about(entry.name);
            self.append_unread(entry.name, unread, now);
        }
        is_refused
    }

    fn void_answers_about(&mut self, name: u64) {
        let about = self.queue.iter_mut().filter(|entry| entry.name == name);
        about.for_each(|entry| entry.is_void = true);
    }

    fn append_unread(&mut self, name: u64, mut unread: Box<dyn Unread>, sent: Time) {
        unread.write(&mut self.buffer);
        self.unread += 1;
        self.queue.push_back(Entry {
            slot: Arc::new(Slot::new()),
            sent,
            name,
            has_left: true,
            unread: Some(unread),
            is_void: false,
        });
    }
}

impl<C: Connected> OpenGuard<'_, C> {
    pub(super) fn connected(&mut self) -> &mut C {
        &mut self.open_lane().connected
    }

    fn open_lane(&mut self) -> &mut OpenLane<C> {
        let open = self.state.open.as_mut();
        open.unwrap_or_else(|| unreachable!("the guard exists while the lane is open"))
    }

    /// Closes the connection, which must not be used any more.
    pub(super) fn retire(self) {
        let OpenGuard { lane, state } = self;
        lane.close(state, &closed("the connection was retired"));
    }

    /// Appends a request about a name (0: none). [`OpenGuard::write`] has it written.
    pub(super) fn append(
        &mut self,
        name: u64,
        quiet_limit: Duration,
        encode: impl FnOnce(&C, &mut Vec<u8>),
    ) -> Ticket {
        let now = self.lane.clock.now();
        let slot = Arc::new(Slot::new());
        let epoch = self.state.epoch;
        let open = self.open_lane();
        encode(&open.connected, &mut open.buffer);
        let ticket = Ticket {
            epoch,
            number: open.next(),
            slot: Arc::clone(&slot),
            sent: now,
            may_leave: (open.queue.is_empty() || open.reader.is_none())
                && now < open.last_reply + quiet_limit,
        };
        open.queue.push_back(Entry {
            slot,
            sent: now,
            name,
            has_left: false,
            unread: None,
            is_void: false,
        });
        ticket
    }

    /// Writes what was appended, unless another thread writes just now: then that thread does.
    /// Blocks for as long as a write may, a command timeout at most.
    pub(super) fn write(self) {
        self.lane.write(self.state);
    }

    /// Appends the requests that were left on the connections before. The next request writes them.
    fn send_again(&mut self) {
        let now = self.lane.clock.now();
        let resends = std::mem::take(&mut self.state.resends);
        let open = self.open_lane();
        for Resend { name, unread } in resends {
            open.append_unread(name, unread, now);
        }
    }
}

/// The duty to tell the others that an attempt to open a connection is over.
struct Opening<'a, C: Connected>(&'a Lane<C>);

impl<C: Connected> Drop for Opening<'_, C> {
    fn drop(&mut self) {
        self.0.state.lock().is_opening = false;
        self.0.opened.notify_all();
    }
}

impl Writer for SocketWriter {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        SocketWriter::send(self, bytes)
    }
}

impl Reader for SocketReader {
    fn receive(&mut self, patience: Patience, timeout: Duration) -> RedisResult<Value> {
        if patience == Patience::Timeout {
            self.limit(timeout)?;
        }
        SocketReader::receive(self, patience)
    }
}

const BEHIND_ANOTHER: &str = "another reply on the connection was late or malformed";

/// The fault of a request whose connection ended for another reason than this request.
fn closed(why: &'static str) -> StoreFault {
    StoreFault::unavailable(
        Step::Reply,
        io::Error::new(io::ErrorKind::ConnectionAborted, why),
    )
}
