//! The events that can happen in a world, and their faults.

use std::fmt;

use super::client::DueAction;

/// Something that happens, and what becomes of its request and of the messages that it causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SmallEvent {
    pub(super) action: SmallAction,
    pub(super) request: RequestFate,
    pub(super) message: MessageFate,
}

/// Something that a client does, or that happens by itself. The first number is the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SmallAction {
    Start(u8),
    Due(u8, DueAction),
    /// A local hand-over: the next guard of the same grant has the lock.
    TakeTurn(u8),
    /// The guard is dropped, and the process keeps the lock.
    Keep(u8),
    /// The next guard has the kept lock.
    Relock(u8),
    /// A kept lock was unused for long enough, and is released.
    LetGo(u8),
    Unlock(u8),
    /// The lock is released by force. The fence is this far behind the last one that was granted.
    Force(u8, u8),
    Downgrade(u8),
    DropWaiter(u8),
    Cancel(u8),
    Crash(u8),
    /// A delayed request arrives at the server, or a delayed answer at the client.
    Arrive(u8, usize),
    /// A delayed message arrives.
    Deliver(usize),
    /// A delayed message that others wait arrives.
    DeliverWanted(usize),
    LoseQueue,
    Tick,
}

/// The fate of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFate {
    Answered,
    RequestLost,
    ReplyLost,
    SentTwice,
    RequestDelayed,
    /// The connection is closed before the request arrives. It can still arrive.
    RequestCutOff,
    ReplyDelayed,
}

/// The fate of the message of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageFate {
    Delivered,
    Lost,
    Delayed,
    /// It arrives now, and once more later.
    Doubled,
}

impl SmallEvent {
    /// The action without any fault.
    pub(super) fn without_fault(action: SmallAction) -> SmallEvent {
        SmallEvent {
            action,
            request: RequestFate::Answered,
            message: MessageFate::Delivered,
        }
    }
}

impl fmt::Display for SmallEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SmallAction as Action;
        match self.action {
            Action::Tick => f.write_str("a tick passes")?,
            Action::LoseQueue => f.write_str("the queue is lost")?,
            Action::Deliver(at) => write!(f, "message {at} arrives")?,
            Action::DeliverWanted(at) => write!(f, "message {at} that others wait arrives")?,
            Action::Keep(_) => f.write_str("keeps the lock")?,
            Action::Relock(_) => f.write_str("locks what it keeps")?,
            Action::LetGo(_) => f.write_str("releases the lock that it kept")?,
            Action::Due(_, DueAction::LetGo) => f.write_str("releases what others want")?,
            Action::Start(_) => f.write_str("requests the lock")?,
            Action::Due(_, DueAction::Acquire) => f.write_str("sends its acquire again")?,
            Action::Due(_, DueAction::Requeue) => f.write_str("acquires again with a new token")?,
            Action::Due(_, DueAction::Sync) => f.write_str("syncs")?,
            Action::Due(_, DueAction::LookUp) => f.write_str("looks up its place")?,
            Action::Due(_, DueAction::Confirm) => f.write_str("confirms its grant")?,
            Action::Due(_, DueAction::Renew) => f.write_str("renews")?,
            Action::Due(_, DueAction::Release(_)) => {
                f.write_str("releases a token in the background")?
            }
            Action::TakeTurn(_) => f.write_str("hands the lock over within itself")?,
            Action::Force(_, behind) => write!(f, "releases the lock by force by fence +{behind}")?,
            Action::Unlock(_) => f.write_str("releases")?,
            Action::Downgrade(_) => f.write_str("keeps one permit")?,
            Action::DropWaiter(_) => f.write_str("drops its waiter")?,
            Action::Cancel(_) => f.write_str("cancels at its deadline")?,
            Action::Crash(_) => f.write_str("crashes")?,
            Action::Arrive(..) => f.write_str("a delayed request or answer arrives")?,
        }
        f.write_str(match self.request {
            RequestFate::Answered => "",
            RequestFate::RequestLost => ", and the request is lost",
            RequestFate::ReplyLost => ", and the reply is lost",
            RequestFate::SentTwice => ", and the request arrives twice",
            RequestFate::RequestDelayed => ", and the request is delayed",
            RequestFate::RequestCutOff => {
                ", and the connection is closed before the request arrives"
            }
            RequestFate::ReplyDelayed => ", and the reply is delayed",
        })?;
        f.write_str(match self.message {
            MessageFate::Delivered => "",
            MessageFate::Lost => "; the message is lost",
            MessageFate::Delayed => "; the message is delayed",
            MessageFate::Doubled => "; the message comes twice",
        })
    }
}

impl SmallAction {
    pub(super) fn client(self) -> Option<u8> {
        match self {
            SmallAction::Start(c)
            | SmallAction::Due(c, _)
            | SmallAction::TakeTurn(c)
            | SmallAction::Keep(c)
            | SmallAction::Relock(c)
            | SmallAction::LetGo(c)
            | SmallAction::Unlock(c)
            | SmallAction::Force(c, _)
            | SmallAction::Downgrade(c)
            | SmallAction::DropWaiter(c)
            | SmallAction::Cancel(c)
            | SmallAction::Crash(c)
            | SmallAction::Arrive(c, _) => Some(c),
            SmallAction::Deliver(_)
            | SmallAction::DeliverWanted(_)
            | SmallAction::LoseQueue
            | SmallAction::Tick => None,
        }
    }

    /// Whether the client sends a request now.
    pub(super) fn sends_request(self) -> bool {
        !matches!(
            self,
            SmallAction::TakeTurn(_)
                | SmallAction::Keep(_)
                | SmallAction::Relock(_)
                | SmallAction::DeliverWanted(_)
                | SmallAction::Crash(_)
                | SmallAction::Arrive(..)
                | SmallAction::Deliver(_)
                | SmallAction::LoseQueue
                | SmallAction::Tick
        )
    }

    /// Whether that request is an acquire.
    pub(super) fn sends_acquire(self) -> bool {
        matches!(
            self,
            SmallAction::Start(_) | SmallAction::Due(_, DueAction::Acquire | DueAction::Requeue)
        )
    }
}
