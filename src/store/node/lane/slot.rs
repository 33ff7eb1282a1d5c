//! A caller's place in a lane: where it sleeps, and where its reply comes to.

use redis::Value;

use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex};

/// The place of one request. Its caller sleeps here while another caller reads.
pub(super) struct Slot {
    turn: Mutex<Turn>,
    changed: Condvar,
}

/// | state    | when                                          | becomes                             |
/// |----------|-----------------------------------------------|-------------------------------------|
/// | Appended | the request was appended, and its caller does something else | Waiting, when the caller waits; Answered |
/// | Waiting  | the caller waits                              | Reading, Answered or Over           |
/// | Reading  | nobody reads the lane, so this caller is to   | Waiting, when the caller has seen it |
/// | Answered | the reply came, or never will                 | Over, when the caller has taken it  |
/// | Over     | nobody waits here any more                    |                                     |
enum Turn {
    Appended,
    Waiting,
    Reading,
    Answered(Reply),
    Over,
}

/// A reply as it came, or why none will.
pub(in crate::store::node) struct Reply {
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
    Answered(Reply),
    TimedOut,
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            turn: Mutex::new(Turn::Appended),
            changed: Condvar::new(),
        }
    }

    /// The caller waits from now on, so it can be asked to read. One that waits for another lane's
    /// reply first could not do it.
    pub(super) fn begin_wait(&self) {
        let mut turn = self.turn.lock();
        if matches!(*turn, Turn::Appended) {
            *turn = Turn::Waiting;
        }
    }

    /// Sleeps until there is a reply, or the lane needs a reader, or it is `until`.
    pub(super) fn sleep(&self, clock: &Clock, until: Time) -> Woken {
        let mut turn = self.turn.lock();
        loop {
            match *turn {
                Turn::Waiting if clock.now() < until => {
                    clock.wait(&self.changed, &mut turn, until);
                }
                Turn::Reading if clock.now() < until => {
                    *turn = Turn::Waiting;
                    return Woken::ToRead;
                }
                // P8 (every call ends): a caller whose time is over reads no more, although it is
                // asked to as the first that waits.
                Turn::Appended | Turn::Waiting | Turn::Reading | Turn::Over => {
                    return Woken::TimedOut;
                }
                Turn::Answered(_) => {
                    if let Turn::Answered(reply) = std::mem::replace(&mut *turn, Turn::Over) {
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
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Answered(reply) => Some(Woken::Answered(reply)),
            Turn::Reading => {
                *turn = Turn::Reading;
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
    pub(super) fn end(&self) -> Option<Reply> {
        match std::mem::replace(&mut *self.turn.lock(), Turn::Over) {
            Turn::Answered(reply) => Some(reply),
            _ => None,
        }
    }

    pub(super) fn answer(&self, reply: Reply) {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Over => {}
            _ => {
                *turn = Turn::Answered(reply);
                drop(turn);
                self.changed.notify_one();
            }
        }
    }

    /// Asks the caller to read, once it is woken. False if it does not wait any more.
    pub(super) fn ask_to_read(&self) -> bool {
        let mut turn = self.turn.lock();
        let is_waiting = matches!(*turn, Turn::Waiting | Turn::Reading);
        if is_waiting {
            *turn = Turn::Reading;
        }
        is_waiting
    }

    /// Wakes the caller, which was asked to read.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }
}
