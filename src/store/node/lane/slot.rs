//! A caller's place in a lane: where it sleeps, and where its reply comes to.

use redis::Value;

use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex};

/// The place of one request. Its caller sleeps here while another caller reads.
pub(super) struct Slot {
    turn: Mutex<CallTurn>,
    changed: Condvar,
}

/// | state    | when                                          | becomes                             |
/// |----------|-----------------------------------------------|-------------------------------------|
/// | Appended | the request was appended, and its caller does something else | Waiting, when the caller waits; Answered |
/// | Waiting  | the caller waits                              | Reading, Answered or Over           |
/// | Reading  | nobody reads the lane, so this caller is to   | Waiting, when the caller has seen it |
/// | Answered | the reply came, or never will                 | Over, when the caller has taken it  |
/// | Over     | nobody waits here any more                    |                                     |
enum CallTurn {
    Appended,
    Waiting,
    Reading,
    Answered(LaneReply),
    Over,
}

/// A reply as it came, or why none will.
pub(in crate::store::node) struct LaneReply {
    pub(in crate::store::node) outcome: Result<Value, StoreFault>,
    pub(in crate::store::node) received: Time,
    /// A request for the same name that was sent before was refused for its form, and is sent again
    /// behind this one. So this reply came too early, and its request must be sent again.
    pub(in crate::store::node) is_void: bool,
    /// There is none, since a reply on the connection did not come in time. Another connection may
    /// do better.
    pub(in crate::store::node) is_late: bool,
}

/// Why a caller stopped sleeping.
pub(super) enum Woken {
    ToRead,
    Answered(LaneReply),
    TimedOut,
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            turn: Mutex::new(CallTurn::Appended),
            changed: Condvar::new(),
        }
    }

    /// The caller waits from now on, so it can be asked to read. One that waits for another lane's
    /// reply first could not do it.
    pub(super) fn begin_wait(&self) {
        let mut turn = self.turn.lock();
        if matches!(*turn, CallTurn::Appended) {
            *turn = CallTurn::Waiting;
        }
    }

    /// Sleeps until there is a reply, or the lane needs a reader, or it is `until`.
    pub(super) fn sleep(&self, clock: &Clock, until: Time) -> Woken {
        let mut turn = self.turn.lock();
        loop {
            match *turn {
                CallTurn::Waiting if clock.now() < until => {
                    clock.wait(&self.changed, &mut turn, until);
                }
                CallTurn::Reading if clock.now() < until => {
                    *turn = CallTurn::Waiting;
                    return Woken::ToRead;
                }
                // P8 (every call ends): a caller whose time is over reads no more, although it is
                // asked to as the first that waits.
                CallTurn::Appended | CallTurn::Waiting | CallTurn::Reading | CallTurn::Over => {
                    return Woken::TimedOut;
                }
                CallTurn::Answered(_) => {
                    if let CallTurn::Answered(reply) = std::mem::replace(&mut *turn, CallTurn::Over)
                    {
                        return Woken::Answered(reply);
                    }
                }
            }
        }
    }

    /// The event that would wake a sleeping caller now.
    #[cfg(all(test, fairlock_loom))]
    pub(super) fn look(&self) -> Option<Woken> {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, CallTurn::Over) {
            CallTurn::Answered(reply) => Some(Woken::Answered(reply)),
            CallTurn::Reading => {
                *turn = CallTurn::Reading;
                Some(Woken::ToRead)
            }
            other => {
                *turn = other;
                None
            }
        }
    }

    /// Whether a sleeping caller would have been woken.
    #[cfg(all(test, fairlock_loom))]
    pub(super) fn was_woken(&self) -> bool {
        self.changed.was_notified()
    }

    /// The reply, if it has come. After this, nobody waits here any more.
    pub(super) fn end(&self) -> Option<LaneReply> {
        match std::mem::replace(&mut *self.turn.lock(), CallTurn::Over) {
            CallTurn::Answered(reply) => Some(reply),
            _ => None,
        }
    }

    pub(super) fn answer(&self, reply: LaneReply) {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, CallTurn::Over) {
            CallTurn::Over => {}
            _ => {
                *turn = CallTurn::Answered(reply);
                drop(turn);
                self.changed.notify_one();
            }
        }
    }

    /// Asks the caller to read, once it is woken. False if it does not wait any more.
    pub(super) fn ask_to_read(&self) -> bool {
        let mut turn = self.turn.lock();
        let is_waiting = matches!(*turn, CallTurn::Waiting | CallTurn::Reading);
        if is_waiting {
            *turn = CallTurn::Reading;
        }
        is_waiting
    }

    /// Wakes the caller, which was asked to read.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }
}
