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
//! to do with the reply, and the thread that reads the reply does it.
//!
//! If the server closes the connection, all entries are answered with that fault. If a reply is late
//! or not RESP, only its own entry is: those behind it learn that the connection was closed, so
//! that their callers send them again on the next one. A late reply is sent again as well, once:
//! the connection may have died in silence. A caller with little time ends a connection on which
//! nothing comes before any reply is late. Entries that were left and may be sent again
//! get no answer: they wait for the next connection, and are the first on it.
//!
//! Order of mutexes: the lane's first, then a slot's. Neither is held over I/O or a callback.

mod left;
#[cfg(all(test, fairlock_loom))]
mod models;
mod open;
mod read;

use std::io;
use std::time::Duration;

use redis::{RedisResult, Value};

use super::connection::fault;
use super::slot::Woken;
use super::socket::SocketWriter;
use super::stream::ReadMode;
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex, MutexGuard, yield_now};
use open::OpenLane;
pub(super) use open::Ticket;

/// The half of a connection that requests go out through.
pub(super) trait Writer: Send {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The half of a connection that replies come in through.
pub(super) trait Reader: Send {
    /// Waits for `timeout` at most, if it waits at all.
    fn receive(&mut self, mode: ReadMode, timeout: Duration) -> RedisResult<Value>;
}

/// The rest of a lane's connection, kept while it is open. Dropping it closes the connection, also for
/// threads that use its halves.
pub(super) trait Connected: Send {
    type Writer: Writer;
    type Reader: Reader;

    /// The peer has closed the connection. Called before any caller learns of it.
    fn note_closed(&self);

    /// How long the last reply took.
    fn round_trip(&self) -> Duration;
}

/// A request that its caller has left.
pub(super) trait Unread: Send {
    /// Whether the server refused the request for a reason that another form of it does not have, or
    /// that may have passed. Then it is sent again at once.
    fn is_to_resend(&mut self, refused: &Value) -> bool {
        let _ = refused;
        false
    }

    /// Whether ASKING goes in front of it.
    fn is_asking(&self) -> bool {
        false
    }

    /// Whether it may be sent again after its connection was closed.
    fn may_resend(&mut self) -> bool {
        false
    }

    /// Appends the request's bytes.
    fn write(&mut self, bytes: &mut Vec<u8>);

    /// Called once, with no mutex held.
    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>);
}

pub(super) struct Lane<C: Connected> {
    state: Mutex<LaneState<C>>,
    /// Signals that an attempt to open a connection is over.
    opened: Condvar,
    clock: Clock,
    /// T: a reply that takes longer ends the connection.
    command_timeout: Duration,
}

struct LaneState<C: Connected> {
    open: Option<OpenLane<C>>,
    is_opening: bool,
    /// The number of the connection that is open, or was the last.
    epoch: u64,
    /// Requests that their callers have left and that are to be sent on the next connection.
    resends: Vec<Resend>,
}

/// A request that is to be sent again on the next connection.
struct Resend {
    name: u64,
    unread: Box<dyn Unread>,
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq)]
enum EndedBy {
    Peer,
    Us,
    /// A reply did not come in time. The connection may be dead, and the server not.
    Silence,
}

/// A reply as it came, or why none will.
pub(super) struct LaneReply {
    pub(super) outcome: Result<Value, StoreFault>,
    pub(super) received: Time,
    /// A request for the same name that was sent before was refused for its form, and is sent again
    /// behind this one. So this reply came too early, and its request must be sent again.
    pub(super) is_void: bool,
    /// There is none, since a reply on the connection did not come in time. Another connection may
    /// do better.
    pub(super) is_late: bool,
}

/// The lane's mutex, locked while a connection is open.
pub(super) struct OpenGuard<'a, C: Connected> {
    lane: &'a Lane<C>,
    state: MutexGuard<'a, LaneState<C>>,
}

impl<C: Connected> LaneState<C> {
    /// The open connection, if the request of this ticket is in its queue.
    fn with_entry(&mut self, ticket: &Ticket) -> Option<&mut OpenLane<C>> {
        let is_same = self.epoch == ticket.epoch;
        let open = self.open.as_mut().filter(|_| is_same)?;
        open.has(ticket).then_some(open)
    }
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
        state.epoch += 1;
        state.open = Some(OpenLane::new(connected, writer, reader, self.clock.now()));
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
    pub(super) fn wait(&self, ticket: &Ticket, until: Time) -> LaneReply {
        self.await_reply(ticket, until, self.command_timeout / 4)
            .unwrap_or_else(|| self.stop_waiting(ticket))
    }

    /// Waits like [`Lane::wait`] until `until`; `None` if the reply does not come. If no reply at all
    /// has come since the request was sent, the connection may be dead, and can be ended.
    pub(super) fn wait_first(
        &self,
        ticket: &Ticket,
        until: Time,
        ends_if_silent: bool,
    ) -> Option<LaneReply> {
        // A caller that comes late has waited for another lane, and was not stopped.
        let moment = match self.clock.now() < until {
            true => self.command_timeout / 4,
            false => Duration::MAX,
        };
        let reply = self.await_reply(ticket, until, moment);
        if reply.is_some() || !ends_if_silent {
            return reply;
        }
        let mut state = self.state.lock();
        if !state.with_entry(ticket)?.is_silent_since(ticket.sent) {
            return None;
        }
        let silent = StoreFault::connection_ended(SILENT);
        self.close(state, &silent, EndedBy::Silence);
        // It was answered just now.
        ticket.slot.end()
    }

    /// The reply, if it comes before `until`. A caller that wakes later than that by a moment gets
    /// another moment.
    fn await_reply(&self, ticket: &Ticket, until: Time, moment: Duration) -> Option<LaneReply> {
        ticket.slot.begin_wait();
        let mut until = until;
        let mut was_stopped = false;
        loop {
            if let Some(reader) = self.reader_for(ticket) {
                self.read(reader, ticket, until);
            }
            match ticket.slot.sleep(&self.clock, until) {
                Woken::Asked => {}
                Woken::Answered(reply) => return Some(reply),
                Woken::TimedOut => {
                    let now = self.clock.now();
                    if was_stopped || now < until + moment {
                        return None;
                    }
                    // This process was stopped, or is starved. The reply may have arrived, and the
                    // thread that reads may need a moment to come to it.
                    was_stopped = true;
                    until = now + moment;
                }
            }
        }
    }

    /// A caller stops waiting. If its reply is later than the command timeout, the connection ends.
    fn stop_waiting(&self, ticket: &Ticket) -> LaneReply {
        if let Some(reply) = ticket.slot.end() {
            return reply;
        }
        LaneReply {
            outcome: Err(self.end_late(ticket)),
            received: self.clock.now(),
            is_void: false,
            is_late: true,
        }
    }

    /// Why a request has no reply. A reply that is later than the command timeout ends the
    /// connection.
    fn end_late(&self, ticket: &Ticket) -> StoreFault {
        let late = StoreFault::timed_out(Step::Reply);
        let mut state = self.state.lock();
        if self.clock.now() < ticket.sent + self.command_timeout {
            self.forget(state, ticket);
            return late;
        }
        let is_next = state.with_entry(ticket).map(|open| open.is_next(ticket));
        match is_next {
            None => late,
            Some(true) => {
                self.close(state, &late, EndedBy::Silence);
                late
            }
            // An earlier reply is just as late, and its caller has not noticed yet. This request may
            // do better on another connection.
            Some(false) => {
                self.close(state, &late, EndedBy::Silence);
                StoreFault::connection_ended(BEHIND_ANOTHER)
            }
        }
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

    /// Writes what is in the buffer, unless another thread does.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, LaneState<C>>) {
        let epoch = state.epoch;
        let Some(open) = &mut state.open else { return };
        let Some(mut writer) = open.take_writer() else {
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
        let mut bytes = Vec::new();
        loop {
            let Some(open) = &mut state.open else { return };
            if !open.take_bytes(&mut bytes) {
                return open.return_writer(writer);
            }
            drop(state);
            let sent = writer.send(&bytes);
            state = self.state.lock();
            if state.epoch != epoch {
                return;
            }
            if let Err(error) = sent {
                return self.close(state, &fault(error, Step::Send), EndedBy::Peer);
            }
        }
    }
}

impl<C: Connected> OpenGuard<'_, C> {
    /// The number of the connection, from 1.
    pub(super) fn epoch(&self) -> u64 {
        self.state.epoch
    }

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
        lane.close(
            state,
            &StoreFault::connection_ended("the connection was retired"),
            EndedBy::Us,
        );
    }

    /// Appends ASKING. The request that it is for must be appended under the same guard.
    pub(super) fn append_asking(&mut self) {
        let now = self.lane.clock.now();
        self.open_lane().append_asking(now);
    }

    /// Appends a request about a name (0: none). [`OpenGuard::write`] has it written.
    pub(super) fn append(
        &mut self,
        name: u64,
        quiet_limit: Duration,
        encode: impl FnOnce(&C, &mut Vec<u8>),
    ) -> Ticket {
        let now = self.lane.clock.now();
        let epoch = self.state.epoch;
        self.open_lane()
            .append(epoch, (name, now), quiet_limit, encode)
    }

    /// Appends a request whose caller does not wait on this lane.
    pub(super) fn post(&mut self, name: u64, unread: Box<dyn Unread>) {
        let now = self.lane.clock.now();
        self.open_lane().append_unread(name, unread, now);
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

/// The duty to wake the others once an attempt to open a connection is over.
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

/// Why a connection ended on which nothing came.
pub(super) const SILENT: &str = "nothing has come on the connection for too long";
const BEHIND_ANOTHER: &str = "another reply on the connection was late or broken";
