//! What can happen in a world, and how it can go wrong.

use std::fmt;

use super::client::Due;

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) act: Act,
    pub(super) fate: Fate,
    pub(super) message: Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Start(u8),
    Due(u8, Due),
    Unlock(u8),
    Downgrade(u8),
    Leave(u8),
    Withdraw(u8),
    Crash(u8),
    /// What was under way arrives: a request at the server, or a reply.
    Arrive(u8, usize),
    Hear(usize),
    Tick,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    RequestLost,
    ReplyLost,
    SentTwice,
    RequestDelayed,
    RequestCutOff,
    ReplyDelayed,
}

/// What becomes of the news of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Heard,
    Lost,
    Delayed,
}

impl Event {
    pub(super) fn fine(act: Act) -> Event {
        Event {
            act,
            fate: Fate::Fine,
            message: Message::Heard,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.act {
            Act::Tick => f.write_str("a tick goes by")?,
            Act::Hear(at) => write!(f, "message {at} arrives")?,
            Act::Start(_) => f.write_str("asks for the lock")?,
            Act::Due(_, Due::Ask) => f.write_str("asks again")?,
            Act::Due(_, Due::Requeue) => f.write_str("asks again under a new token")?,
            Act::Due(_, Due::Sync) => f.write_str("syncs")?,
            Act::Due(_, Due::LookUp) => f.write_str("looks whether it has its place")?,
            Act::Due(_, Due::Confirm) => f.write_str("confirms its grant")?,
            Act::Due(_, Due::Renew) => f.write_str("renews")?,
            Act::Due(_, Due::Job(_)) => f.write_str("gives a token back in the background")?,
            Act::Unlock(_) => f.write_str("releases")?,
            Act::Downgrade(_) => f.write_str("keeps one permit")?,
            Act::Leave(_) => f.write_str("gives up")?,
            Act::Withdraw(_) => f.write_str("leaves at its deadline")?,
            Act::Crash(_) => f.write_str("crashes")?,
            Act::Arrive(..) => f.write_str("what was under way arrives")?,
        }
        f.write_str(match self.fate {
            Fate::Fine => "",
            Fate::RequestLost => ", and the request is lost",
            Fate::ReplyLost => ", and the reply is lost",
            Fate::SentTwice => ", and the request arrives twice",
            Fate::RequestDelayed => ", and the request is delayed",
            Fate::RequestCutOff => ", and the connection is closed before the request arrives",
            Fate::ReplyDelayed => ", and the reply is delayed",
        })?;
        f.write_str(match self.message {
            Message::Heard => "",
            Message::Lost => "; the message is lost",
            Message::Delayed => "; the message is delayed",
        })
    }
}

impl Act {
    pub(super) fn client(self) -> Option<u8> {
        match self {
            Act::Start(c) | Act::Due(c, _) | Act::Unlock(c) | Act::Downgrade(c) => Some(c),
            Act::Leave(c) | Act::Withdraw(c) | Act::Crash(c) | Act::Arrive(c, _) => Some(c),
            Act::Hear(_) | Act::Tick => None,
        }
    }
}
