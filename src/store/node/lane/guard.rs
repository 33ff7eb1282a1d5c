//! The lane with its connection: how it is opened, and how requests are appended.

use std::time::Duration;

use super::open::OpenLane;
use super::{Connected, EndedBy, Lane, LaneState, Resend, Ticket, Unread};
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::sync::MutexGuard;

/// The lane's mutex, locked while a connection is open.
pub(in crate::store::node) struct OpenGuard<'a, C: Connected> {
    lane: &'a Lane<C>,
    state: MutexGuard<'a, LaneState<C>>,
}

impl<C: Connected> Lane<C> {
    /// The lane with its connection, if it has one.
    pub(in crate::store::node) fn if_open(&self) -> Option<OpenGuard<'_, C>> {
        let state = self.state.lock();
        state
            .open
            .is_some()
            .then_some(OpenGuard { lane: self, state })
    }

    /// The lane with its connection. Opens one by `connect` if there is none; one thread does so,
    /// and others wait for it until `until`. `None` if it is `until`.
    pub(in crate::store::node) fn open(
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
}

impl<C: Connected> OpenGuard<'_, C> {
    /// The number of the connection, from 1.
    pub(in crate::store::node) fn epoch(&self) -> u64 {
        self.state.epoch
    }

    pub(in crate::store::node) fn connected(&mut self) -> &mut C {
        &mut self.open_lane().connected
    }

    fn open_lane(&mut self) -> &mut OpenLane<C> {
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
        let epoch = self.state.epoch;
        self.open_lane()
            .append(epoch, (name, now), quiet_limit, encode)
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
