//! The state of a lane with a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{
    Connected, EndedBy, Entry, LaneReply, LaneState, OpenGuard, OpenLane, Resend, Ticket, Unread,
};
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::store::node::slot::Slot;

/// The most callers that a lane serves without a yield. Measured with 8 and with 32 threads.
const MANY: usize = 4;

impl<C: Connected> LaneState<C> {
    /// The open connection, if the request of this ticket is in its queue.
    pub(super) fn with_entry(&mut self, ticket: &Ticket) -> Option<&mut OpenLane<C>> {
        let is_same = self.epoch == ticket.epoch;
        let open = self.open.as_mut().filter(|_| is_same)?;
        (ticket.number >= open.first).then_some(open)
    }

    pub(super) fn install(
        &mut self,
        connected: C,
        writer: C::Writer,
        reader: C::Reader,
        now: Time,
    ) {
        self.epoch += 1;
        let quickest = connected.round_trip();
        self.open = Some(OpenLane {
            connected,
            buffer: Vec::new(),
            queue: VecDeque::new(),
            first: 0,
            written: 0,
            unread: 0,
            writer: Some(writer),
            reader: Some(reader),
            is_awaited: false,
            last_reply: now,
            quickest,
        });
    }
}

impl<C: Connected> OpenLane<C> {
    /// The number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    pub(super) fn entry(&mut self, number: u64) -> &mut Entry {
        &mut self.queue[(number - self.first) as usize]
    }

    /// Whether a caller that waits for its own reply reads.
    pub(super) fn is_read_by_caller(&self) -> bool {
        self.reader.is_none() && self.is_awaited
    }

    /// Asks the first caller that waits to read, if nobody reads. It must be woken once the lane's
    /// mutex is free: earlier, it would only wait for that.
    #[must_use]
    pub(super) fn ask_next_to_read(&self) -> Option<Arc<Slot<LaneReply>>> {
        self.reader.as_ref()?;
        let waiting = self.queue.iter().filter(|entry| !entry.has_left);
        let mut slots = waiting.map(|entry| &entry.slot);
        slots.find(|slot| slot.ask()).cloned()
    }

    /// Whether so many callers wait that one write for all is worth a yield of its writer. With few
    /// callers a yield costs throughput; without it, with many, a writer is kept by the others.
    pub(super) fn is_shared(&self) -> bool {
        self.queue.len() - self.unread > MANY
    }

    /// Takes the first entry out of the queue: its reply has come.
    pub(super) fn take_first(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        self.first += 1;
        self.unread -= usize::from(entry.has_left);
        Some(entry)
    }

    /// If this reply refuses only the form of a request that its caller has left, appends the
    /// request in its other form.
    pub(super) fn change_form(&mut self, entry: &mut Entry, reply: &Value, now: Time) -> bool {
        let mut refused = entry.unread.take();
        let is_refused = refused
            .as_mut()
            .is_some_and(|unread| unread.is_to_resend(reply));
        if !is_refused {
            entry.unread = refused;
        } else if let Some(unread) = refused {
            self.void_answers_about(entry.name);
            self.append_unread(entry.name, unread, now);
        }
        is_refused
    }

    pub(super) fn void_answers_about(&mut self, name: u64) {
        let about = self.queue.iter_mut().filter(|entry| entry.name == name);
        about.for_each(|entry| entry.is_void = true);
    }

    /// Appends ASKING, which lets the next request alone reach a slot that the node imports. Nobody
    /// wants its reply.
    fn append_asking(&mut self, sent: Time) {
        redis::cmd("ASKING").write_packed_command(&mut self.buffer);
        self.unread += 1;
        self.queue.push_back(Entry {
            slot: Arc::new(Slot::new()),
            sent,
            name: 0,
            has_left: true,
            unread: None,
            is_void: false,
        });
    }

    pub(super) fn append_unread(&mut self, name: u64, mut unread: Box<dyn Unread>, sent: Time) {
        if unread.is_asking() {
            self.append_asking(sent);
        }
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
    /// The number of the connection, from 1.
    pub(in crate::store::node) fn epoch(&self) -> u64 {
        self.state.epoch
    }

    pub(in crate::store::node) fn connected(&mut self) -> &mut C {
        &mut self.open_lane().connected
    }

    pub(super) fn open_lane(&mut self) -> &mut OpenLane<C> {
        let open = self.state.open.as_mut();
        open.unwrap_or_else(|| unreachable!("the guard exists while the lane is open"))
    }

    /// Closes the connection, which must not be used any more.
    pub(in crate::store::node) fn retire(self) {
        let OpenGuard { lane, state } = self;
        lane.close(
            state,
            &StoreFault::connection_ended("the connection was retired"),
            EndedBy::Us,
        );
    }

    /// Appends ASKING. The request that it is for must be appended under the same guard.
    pub(in crate::store::node) fn append_asking(&mut self) {
        let now = self.lane.clock.now();
        self.open_lane().append_asking(now);
    }

    /// Appends a request about a name (0: none). [`OpenGuard::write`] has it written.
    pub(in crate::store::node) fn append(
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
            may_leave: (open.queue.is_empty() || open.is_read_by_caller())
                && now < open.last_reply + quiet_limit,
            round_trip: open.connected.round_trip(),
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

    /// Appends a request whose caller does not wait on this lane.
    pub(in crate::store::node) fn post(&mut self, name: u64, unread: Box<dyn Unread>) {
        let now = self.lane.clock.now();
        self.open_lane().append_unread(name, unread, now);
    }

    /// Writes what was appended, unless another thread writes just now: then that thread does.
    /// Blocks for as long as a write may, a command timeout at most.
    pub(in crate::store::node) fn write(self) {
        self.lane.write(self.state);
    }

    /// Appends the requests that were left on the connections before. The next request writes them.
    pub(super) fn send_again(&mut self) {
        let now = self.lane.clock.now();
        let resends = std::mem::take(&mut self.state.resends);
        let open = self.open_lane();
        for Resend { name, unread } in resends {
            open.append_unread(name, unread, now);
        }
    }
}
