//! The state of a lane of a process, and of what is on its way there. `run::lane` says what happens
//! on it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::script::{Call, ScriptReply, Token};
use crate::store::clock::Time;
use crate::store::memory::keyspace;
use crate::store::{Anchor, OnResult, StoreFault};

/// Times are in ns of the run, unless they are of the type [`Time`]: those are by the clock of the
/// process.
pub(super) struct SimLane {
    /// `None`: there was none yet, or the last one has ended.
    pub(super) connection: Option<LaneConnection>,
    /// The calls without a result, in the order in which they were sent. Without a connection, they
    /// are releases that nobody waits for, and that are sent first on the next connection.
    pub(super) slots: VecDeque<LaneSlot>,
    /// When the process last read a reply, the handshake's included.
    pub(super) last_reply_at: Time,
    /// When the process last wrote a request.
    pub(super) last_sent_at: Time,
}

pub(super) struct LaneConnection {
    /// It tells this connection from those before it.
    pub(super) number: u64,
    pub(super) peer: SimConnection,
    /// When the last request arrives. Those behind it arrive later.
    pub(super) last_arrival: u64,
    /// When the last reply arrives. Those behind it arrive later.
    pub(super) last_reply: u64,
    /// From here on, no request arrives.
    pub(super) requests_lost: bool,
    /// From here on, no reply arrives.
    pub(super) replies_lost: bool,
    /// The server has closed it, and the process finds that out when it next reads.
    pub(super) is_closed: bool,
}

/// A call on the lane.
pub(super) struct LaneSlot {
    pub(super) number: u64,
    pub(super) owner: SlotOwner,
    pub(super) calls: Arc<Vec<Call>>,
    pub(super) sent: Time,
    /// When its caller stops waiting, and does not send it again.
    pub(super) reply_by: Time,
    /// R7 (late copies): the largest bound that was sent with the call.
    pub(super) not_after: u64,
    pub(super) resent: Resent,
    /// It has arrived, and nobody has read it yet.
    pub(super) reply: Option<ReplyInFlight>,
    /// A release before it was refused. So its answer says nothing, and it is sent again.
    pub(super) is_void: bool,
}

pub(super) enum SlotOwner {
    /// This caller waits for the reply.
    Caller(u64),
    /// The caller has dropped its guard and left.
    Left(LeftRelease),
    /// The caller has no time left, and nobody wants the reply.
    Nobody,
}

/// A release that nobody waits for.
pub(super) struct LeftRelease {
    pub(super) on_result: OnResult,
    pub(super) token: Token,
    /// When it was written first.
    pub(super) written_at: u64,
    /// No caller waited for a reply on the lane then.
    pub(super) was_alone: bool,
}

/// Why a connection is not used any more.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LaneEnd {
    Closed,
    /// The reply to this slot is late.
    Late(u64),
}

impl LaneSlot {
    pub(super) fn left(&self) -> Option<&LeftRelease> {
        match &self.owner {
            SlotOwner::Left(left) => Some(left),
            SlotOwner::Caller(_) | SlotOwner::Nobody => None,
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.owner, SlotOwner::Caller(_))
    }

    /// The fault that its owner learns if it ends with this one. An earlier copy may have run.
    pub(super) fn fault(&self, fault: StoreFault) -> StoreFault {
        if self.resent.has_copies && (fault.is_closed() || !fault.is_ambiguous()) {
            StoreFault::InDoubt(Box::new(fault))
        } else {
            fault
        }
    }
}

impl SimLane {
    pub(super) fn new() -> SimLane {
        SimLane {
            connection: None,
            slots: VecDeque::new(),
            last_reply_at: Time::from_nanos(0),
            last_sent_at: Time::from_nanos(0),
        }
    }

    /// Whether a caller waits for a reply: it also reads the replies before its own.
    pub(super) fn has_reader(&self) -> bool {
        self.slots.iter().any(LaneSlot::is_awaited)
    }

    /// Whether a release can be written at once.
    pub(super) fn is_open(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| !connection.is_closed)
    }

    /// The releases that nobody waits for: their tokens, and when they were written.
    pub(super) fn left(&self) -> impl Iterator<Item = (Token, u64)> {
        let left = self.slots.iter().filter_map(LaneSlot::left);
        left.map(|left| (left.token, left.written_at))
    }

    pub(super) fn connection_number(&self) -> Option<u64> {
        self.connection.as_ref().map(|connection| connection.number)
    }

    pub(super) fn slot(&mut self, number: u64) -> Option<&mut LaneSlot> {
        self.slots.iter_mut().find(|slot| slot.number == number)
    }

    /// The connection of this number, if it has not ended since.
    pub(super) fn connection(&mut self, number: u64) -> Option<&mut LaneConnection> {
        let connection = self.connection.as_mut();
        connection.filter(|connection| connection.number == number)
    }
}

/// A connection to the server of this epoch.
pub(super) struct SimConnection {
    pub(super) epoch: u64,
    pub(super) anchor: Anchor,
    pub(super) clock_steps: u32,
}

/// How a call was sent before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Resent {
    /// How many connections ended under it.
    pub(super) times: u32,
    pub(super) not_after: u64,
    /// When its caller stops waiting, and does not send it again. `None`: it was not sent yet.
    pub(super) reply_by: Option<Time>,
    /// It may run more than once.
    pub(super) has_copies: bool,
    /// The server did not know its script.
    pub(super) by_source: bool,
    /// The number of the first slot that it had. `None`: it was not sent yet.
    pub(super) first: Option<u64>,
}

/// A reply on its way to the process.
pub(super) struct ReplyInFlight {
    pub(super) process: u64,
    /// The flight, or the slot of the lane.
    pub(super) flight: u64,
    pub(super) index: usize,
    pub(super) epoch: u64,
    /// The lane's connection. `None`: the link.
    pub(super) lane: Option<u64>,
    /// It orders two replies that arrive at the same time.
    pub(super) order: u64,
    /// When the server answered.
    pub(super) ran_at: u64,
    /// How many steps the server's clock had made then.
    pub(super) clock_steps: u32,
    /// The holders of its process before the request ran.
    pub(super) own_holders: Vec<Token>,
    /// NOSCRIPT: the request did not run.
    pub(super) is_unknown_script: bool,
    pub(super) value: keyspace::CommandResult,
}

impl ReplyInFlight {
    pub(super) fn parse(&self, call: &Call) -> ScriptReply {
        let value = self.value.as_ref().ok();
        let parsed = value.and_then(|value| ScriptReply::parse(call, value).ok());
        parsed.expect("the server's answer was parsed when it was sent")
    }
}
