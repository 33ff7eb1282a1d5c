//! Calls that are put on the lanes of several nodes, for a caller that waits for all of them at once.
//! Nothing here waits for one node: neither for its connection nor for its reply.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use redis::Value;

use super::connection::refusal;
use super::lanes::Lanes;
use super::pipeline::Pending;
use super::pool::number_of_name;
use super::stream::Stream;
use super::unread::{PostedCommand, UnreadCall};
use crate::key::Key;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{ConnectionWait, OnResult, StoreFault};

/// Whether a call can be put on a lane now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::store) enum Readiness {
    Ready,
    /// The lane has no connection.
    Closed,
    /// The user must be known to have the rights that the call needs.
    NeedsRights,
}

/// Receives what the user may do: an error if calls that need all rights must not be sent.
pub(in crate::store) type OnRights = Box<dyn FnOnce(Result<(), StoreFault>) + Send>;

/// The socket of an open lane.
pub(in crate::store) struct Watched {
    pub(in crate::store) lane: usize,
    stream: Arc<Stream>,
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Lanes {
    /// The number of the lane of a name.
    pub(in crate::store) fn number_of(&self, key: &Key) -> usize {
        let lane = self.lane_of(key).0;
        let is_it = |other: &_| std::ptr::eq(lane, other);
        self.lanes.iter().position(is_it).unwrap_or_default()
    }

    pub(in crate::store) fn is_open(&self, lane: usize) -> bool {
        self.open_lane(&self.lanes[lane], ConnectionWait::Never)
            .is_ok()
    }

    pub(in crate::store) fn readiness(&self, lane: usize, call: &Call) -> Readiness {
        match self.open_lane(&self.lanes[lane], ConnectionWait::Never) {
            Err(_) => Readiness::Closed,
            Ok(_) if self.node.rights_question(call).is_some() => Readiness::NeedsRights,
            Ok(_) => Readiness::Ready,
        }
    }

    /// Closes a lane whose oldest reply is overdue although this reads what has arrived. Returns
    /// whether it was.
    pub(in crate::store) fn end_overdue(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        if lane.unread_due() > self.node.clock.now() {
            return false;
        }
        lane.read_all();
        lane.end_overdue()
    }

    /// Closes a lane on which nothing has come since its oldest call was sent, for a quarter of a
    /// command timeout at least, if some reply took much less before. The calls learn that it was
    /// closed.
    pub(in crate::store) fn end_silent(&self, lane: usize) {
        let patience = self.node.config.command_timeout / 4;
        self.lanes[lane].end_silent(patience, patience / 4);
    }

    /// Opens a lane, for at most one command timeout.
    pub(in crate::store) fn open_number(&self, lane: usize) -> Result<(), StoreFault> {
        let until = ConnectionWait::Until(Time::NEVER);
        let opened = self.open_lane(&self.lanes[lane], until);
        self.node.outcome(opened.map(drop))
    }

    /// R5 (dated requests): the server time after which the node refuses a call that is posted now.
    pub(in crate::store) fn date(&self, reply_by: Time) -> u64 {
        let anchor = self.node.anchor();
        anchor.map_or(0, |anchor| anchor.server_time_at_least(reply_by))
    }

    /// Appends a call to a lane, dated. [`Lanes::flush`] writes it. The handler gets the result, on
    /// the thread that reads the reply. Gives it back if the lane is closed.
    pub(in crate::store) fn post(
        &self,
        lane: usize,
        call: &Call,
        not_after: u64,
        on_result: OnResult,
    ) -> Result<(), OnResult> {
        let Ok(mut guard) = self.open_lane(&self.lanes[lane], ConnectionWait::Never) else {
            return Err(on_result);
        };
        let connection = guard.connected();
        let age = connection.age;
        let mut pending = Pending::new(call, not_after);
        // The first copy brings the source, so that no later one is refused for the lack of it.
        pending.form.by_source = true;
        pending.number = connection.scripts.number(call, &mut pending.form, 0);
        let sent = self.node.clock.now();
        let unread = UnreadCall::new(&self.node, &pending, sent, age, on_result);
        guard.post(number_of_name(&call.key), Box::new(unread.posted()));
        Ok(())
    }

    /// Appends the question for the user's rights to the lane of a call that needs them.
    pub(in crate::store) fn post_rights(
        &self,
        lane: usize,
        call: &Call,
        on_rights: OnRights,
    ) -> Result<(), OnRights> {
        let Ok(mut guard) = self.open_lane(&self.lanes[lane], ConnectionWait::Never) else {
            return Err(on_rights);
        };
        let question = self.node.rights_command(call);
        let (node, call) = (Arc::clone(&self.node), call.clone());
        let on_reply = move |outcome: Result<Value, StoreFault>| {
            let noted = node.note_rights(&call, outcome.and_then(refusal));
            on_rights(node.outcome(noted));
        };
        guard.post(0, PostedCommand::new(question, &self.node.counts, on_reply));
        Ok(())
    }

    /// Writes what was appended to a lane. Blocks while the socket's buffer is full, at most for a
    /// command timeout.
    pub(in crate::store) fn flush(&self, lane: usize) {
        if let Some(guard) = self.lanes[lane].if_open() {
            guard.write();
        }
    }

    /// Adds the sockets of all open lanes.
    pub(in crate::store) fn watch(&self, mut add: impl FnMut(Watched)) {
        for (number, lane) in self.lanes.iter().enumerate() {
            if let Some(mut guard) = lane.if_open() {
                let stream = guard.connected().stream();
                drop(guard);
                add(Watched {
                    lane: number,
                    stream,
                });
            }
        }
    }

    /// Reads what has arrived on the lane of a name, if something is due there. A process that exits
    /// closes its sockets. If one has unread bytes then, the peer gets a reset, and may lose what was
    /// written last.
    pub(in crate::store) fn read_due(&self, key: &Key) {
        let lane = self.lane_of(key).0;
        if lane.has_unread() {
            lane.read_all();
        }
    }

    /// Reads what has arrived on a lane. False if another thread reads.
    pub(in crate::store) fn read_lane(&self, lane: usize) -> bool {
        self.lanes[lane].read_all()
    }

    /// Reads what has arrived on all lanes, and closes those whose oldest reply is overdue. Returns
    /// their numbers.
    pub(in crate::store) fn read_or_end_overdue(&self) -> Vec<usize> {
        let read = |number: &usize| {
            self.lanes[*number].read_all();
            self.lanes[*number].end_overdue()
        };
        (0..self.lanes.len()).filter(read).collect()
    }
}
