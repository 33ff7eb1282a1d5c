//! The state of a lane with a connection, without a mutex and without I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{Connected, LaneReply, Resend, Unread};
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::store::node::slot::Slot;

/// The most callers that a lane serves without a yield. Measured with 8 and with 32 threads.
const MANY: usize = 4;

/// A lane with a connection.
pub(super) struct OpenLane<C: Connected> {
    pub(super) connected: C,
    /// Bytes that are still to be written.
    buffer: Vec<u8>,
    /// The requests without a reply, in the order in which they were appended.
    queue: VecDeque<Entry>,
    /// The number of the first of them.
    first: u64,
    /// The number of the first request that is not written yet, and of the one behind those that are
    /// being written.
    written: u64,
    taken: u64,
    /// How many of them nobody waits for.
    unread: usize,
    /// `None` while a thread writes.
    writer: Option<C::Writer>,
    /// `None` while a thread reads.
    reader: Option<C::Reader>,
    /// The thread that read last, or reads now, waits for its own reply.
    is_awaited: bool,
    last_reply: Time,
    /// How long the quickest reply took.
    quickest: Duration,
}

/// A request without a reply.
pub(super) struct Entry {
    slot: Arc<Slot<LaneReply>>,
    /// When it was appended.
    sent: Time,
    /// The name that the request is about. 0: none.
    name: u64,
    has_left: bool,
    /// It gets the reply once the caller has left. `None`: nobody does.
    unread: Option<Box<dyn Unread>>,
    is_void: bool,
}

/// A caller's request on a lane.
pub(in crate::store::node) struct Ticket {
    pub(super) epoch: u64,
    number: u64,
    pub(super) slot: Arc<Slot<LaneReply>>,
    /// When it was appended.
    pub(in crate::store::node) sent: Time,
    /// No reply was left unread in front of it without a reader, and a reply came lately.
    pub(in crate::store::node) may_leave: bool,
    /// How long the last reply before it took.
    pub(in crate::store::node) round_trip: Duration,
}

/// The reader's role.
pub(super) struct ReaderRole<R> {
    pub(super) reader: R,
    /// How many replies were due when the role was taken. More may come.
    pub(super) expected: usize,
}

impl<C: Connected> OpenLane<C> {
    pub(super) fn new(
        connected: C,
        writer: C::Writer,
        reader: C::Reader,
        now: Time,
    ) -> OpenLane<C> {
        let quickest = connected.round_trip();
        OpenLane {
            connected,
            buffer: Vec::new(),
            queue: VecDeque::new(),
            first: 0,
            written: 0,
            taken: 0,
            unread: 0,
            writer: Some(writer),
            reader: Some(reader),
            is_awaited: false,
            last_reply: now,
            quickest,
        }
    }

    /// The number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// The number of the first request without a reply.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Whether a request has no reply.
    pub(super) fn has(&self, ticket: &Ticket) -> bool {
        ticket.number >= self.first
    }

    /// Whether the next reply is to this request.
    pub(super) fn is_next(&self, ticket: &Ticket) -> bool {
        ticket.number == self.first
    }

    pub(super) fn is_written(&self, ticket: &Ticket) -> bool {
        ticket.number < self.written
    }

    /// Whether no reply has come since this moment.
    pub(super) fn is_silent_since(&self, sent: Time) -> bool {
        self.last_reply < sent
    }

    /// When the oldest request without a reply was appended.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.queue.front().map(|entry| entry.sent)
    }

    /// Whether some request has no reply although its caller has left.
    pub(super) fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// Whether some reply took no longer than this.
    pub(super) fn was_as_quick_as(&self, round_trip: Duration) -> bool {
        self.quickest <= round_trip
    }

    /// Whether so many callers wait that one write for all is worth a yield of its writer. With few
    /// callers a yield costs throughput; without it, with many, a writer is kept by the others.
    pub(super) fn is_shared(&self) -> bool {
        self.queue.len() - self.unread > MANY
    }

    /// Appends a request that a caller waits for.
    pub(super) fn append(
        &mut self,
        epoch: u64,
        (name, sent): (u64, Time),
        quiet_limit: Duration,
        encode: impl FnOnce(&C, &mut Vec<u8>),
    ) -> Ticket {
        encode(&self.connected, &mut self.buffer);
        let is_read_by_caller = self.reader.is_none() && self.is_awaited;
        let may_leave =
            (self.queue.is_empty() || is_read_by_caller) && sent < self.last_reply + quiet_limit;
        Ticket {
            epoch,
            number: self.next(),
            slot: self.push(name, sent, false, None),
            sent,
            may_leave,
            round_trip: self.connected.round_trip(),
        }
    }

    /// Appends a request that its caller has left.
    pub(super) fn append_unread(&mut self, name: u64, mut unread: Box<dyn Unread>, sent: Time) {
        if unread.is_asking() {
            self.append_asking(sent);
        }
        unread.write(&mut self.buffer);
        self.push(name, sent, true, Some(unread));
    }

    /// Appends ASKING, which lets the next request alone reach a slot that the node imports. Nobody
    /// wants its reply.
    pub(super) fn append_asking(&mut self, sent: Time) {
        redis::cmd("ASKING").write_packed_command(&mut self.buffer);
        self.push(0, sent, true, None);
    }

    fn push(
        &mut self,
        name: u64,
        sent: Time,
        has_left: bool,
        unread: Option<Box<dyn Unread>>,
    ) -> Arc<Slot<LaneReply>> {
        let slot = Arc::new(Slot::new());
        self.unread += usize::from(has_left);
        self.queue.push_back(Entry {
            slot: Arc::clone(&slot),
            sent,
            name,
            has_left,
            unread,
            is_void: false,
        });
        slot
    }

    /// The caller of a request leaves it.
    pub(super) fn leave(&mut self, ticket: &Ticket, unread: Option<Box<dyn Unread>>) {
        let entry = &mut self.queue[(ticket.number - self.first) as usize];
        entry.has_left = true;
        entry.unread = unread;
        self.unread += 1;
    }

    /// The writer's role, if there is something to write and nobody writes.
    pub(super) fn take_writer(&mut self) -> Option<C::Writer> {
        match self.buffer.is_empty() {
            true => None,
            false => self.writer.take(),
        }
    }

    /// The bytes that the writer took before are written. Puts the next ones in their place, if there
    /// are any.
    pub(super) fn take_bytes(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.written = self.taken;
        self.taken = self.next();
        bytes.clear();
        std::mem::swap(bytes, &mut self.buffer);
        !bytes.is_empty()
    }

    pub(super) fn return_writer(&mut self, writer: C::Writer) {
        self.writer = Some(writer);
    }

    /// The reader's role, if nobody reads. `is_awaited`: the thread waits for its own reply.
    pub(super) fn take_reader(&mut self, is_awaited: bool) -> Option<ReaderRole<C::Reader>> {
        let reader = self.reader.take()?;
        self.is_awaited = is_awaited;
        Some(self.role(reader))
    }

    /// The role of a thread that reads on.
    pub(super) fn role(&self, reader: C::Reader) -> ReaderRole<C::Reader> {
        let expected = self.queue.len();
        ReaderRole { reader, expected }
    }

    /// Nobody reads from now on. Asks the first caller that waits to read. It must be woken once the
    /// lane's mutex is free: earlier, it would only wait for that.
    #[must_use]
    pub(super) fn return_reader(&mut self, reader: C::Reader) -> Option<Arc<Slot<LaneReply>>> {
        self.reader = Some(reader);
        self.ask_next_to_read()
    }

    /// The same, if nobody reads.
    #[must_use]
    pub(super) fn ask_next_to_read(&self) -> Option<Arc<Slot<LaneReply>>> {
        self.reader.as_ref()?;
        let waiting = self.queue.iter().filter(|entry| !entry.has_left);
        let mut slots = waiting.map(|entry| &entry.slot);
        slots.find(|slot| slot.ask()).cloned()
    }

    /// Takes the reply to the first request. If it refuses only the form of a request that its caller
    /// has left, appends the request in its other form, and returns `None`.
    pub(super) fn take_reply(
        &mut self,
        reply: Value,
        received: Time,
    ) -> Result<Option<(Entry, Value)>, StoreFault> {
        let Some(mut entry) = self.queue.pop_front() else {
            return Err(StoreFault::protocol("a reply came that nobody asked for"));
        };
        self.first += 1;
        self.unread -= usize::from(entry.has_left);
        self.last_reply = received;
        self.quickest = self.quickest.min(received - entry.sent);
        let is_refused = |unread: &mut Box<dyn Unread>| unread.is_to_resend(&reply);
        let Some(refused) = entry.unread.take_if(is_refused) else {
            return Ok(Some((entry, reply)));
        };
        // Those behind it about its name came too early.
        let about = self
            .queue
            .iter_mut()
            .filter(|other| other.name == entry.name);
        about.for_each(|other| other.is_void = true);
        self.append_unread(entry.name, refused, received);
        Ok(None)
    }

    /// The connection has ended: takes the requests without a reply.
    pub(super) fn take_all(&mut self) -> VecDeque<Entry> {
        std::mem::take(&mut self.queue)
    }

    /// Whether both roles are free, and nothing is due.
    #[cfg(all(test, fairlock_loom))]
    pub(super) fn is_at_rest(&self) -> bool {
        let is_empty = self.queue.is_empty() && self.buffer.is_empty() && self.unread == 0;
        is_empty && self.writer.is_some() && self.reader.is_some()
    }
}

impl Entry {
    /// The request for the next connection, if its caller has left it and it may be sent again.
    pub(super) fn take_resend(&mut self, is_closed: bool) -> Option<Resend> {
        let may_resend = |unread: &mut Box<dyn Unread>| is_closed && unread.may_resend();
        let unread = self.unread.take_if(may_resend)?;
        let name = self.name;
        Some(Resend { name, unread })
    }

    /// Gives the reply to the caller, or to the handler that it left. Called with no mutex held.
    pub(super) fn end(self, outcome: Result<Value, StoreFault>, received: Time, is_late: bool) {
        if let Some(unread) = self.unread {
            return unread.finish(outcome);
        }
        self.slot.answer(LaneReply {
            is_void: self.is_void,
            outcome,
            received,
            is_late,
        });
    }
}
