//! Where a caller sleeps until its reply comes, while another caller works for both. One that works
//! for all reads a lane, or sends renewals that replicas must acknowledge. When it is done, it asks
//! the next caller that still waits. So neither needs a thread of its own.

use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex};

/// The place of one caller.
pub(super) struct Slot<T> {
    turn: Mutex<CallTurn<T>>,
    changed: Condvar,
}

/// | state    | when                                          | becomes                             |
/// |----------|-----------------------------------------------|-------------------------------------|
/// | Appended | the request was appended, and its caller does something else | Waiting, when the caller waits; Answered |
/// | Waiting  | the caller waits                              | Asked, Answered or Over             |
/// | Asked    | nobody works for all, so this caller is to    | Waiting, when the caller has seen it |
/// | Answered | the reply came, or never will                 | Over, when the caller has taken it  |
/// | Over     | nobody waits here any more                    |                                     |
enum CallTurn<T> {
    Appended,
    Waiting,
    Asked,
    Answered(T),
    Over,
}

/// Why a caller stopped sleeping.
pub(super) enum Woken<T> {
    /// It is to work for all.
    Asked,
    Answered(T),
    TimedOut,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Slot<T> {
        Slot {
            turn: Mutex::new(CallTurn::Appended),
            changed: Condvar::new(),
        }
    }

    /// The caller waits from now on, so it can be asked. One that waits for another lane's reply
    /// first could not do the work.
    pub(super) fn begin_wait(&self) {
        let mut turn = self.turn.lock();
        if matches!(*turn, CallTurn::Appended) {
            *turn = CallTurn::Waiting;
        }
    }

    /// Sleeps until there is a reply, or the caller is asked, or it is `until`.
    pub(super) fn sleep(&self, clock: &Clock, until: Time) -> Woken<T> {
        let mut turn = self.turn.lock();
        loop {
            match *turn {
                CallTurn::Waiting if clock.now() < until => {
                    clock.wait(&self.changed, &mut turn, until);
                }
                CallTurn::Asked if clock.now() < until => {
                    *turn = CallTurn::Waiting;
                    return Woken::Asked;
                }
                // P8 (every call ends): a caller whose time is over works no more, although it is
                // asked to as the first that waits.
                CallTurn::Appended | CallTurn::Waiting | CallTurn::Asked | CallTurn::Over => {
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
    pub(super) fn look(&self) -> Option<Woken<T>> {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, CallTurn::Over) {
            CallTurn::Answered(reply) => Some(Woken::Answered(reply)),
            CallTurn::Asked => {
                *turn = CallTurn::Asked;
                Some(Woken::Asked)
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
    pub(super) fn end(&self) -> Option<T> {
        match std::mem::replace(&mut *self.turn.lock(), CallTurn::Over) {
            CallTurn::Answered(reply) => Some(reply),
            _ => None,
        }
    }

    pub(super) fn answer(&self, reply: T) {
        let mut turn = self.turn.lock();
        if !matches!(*turn, CallTurn::Over) {
            *turn = CallTurn::Answered(reply);
            drop(turn);
            self.changed.notify_one();
        }
    }

    /// Asks the caller to work for all, once it is woken. False if it does not wait any more.
    pub(super) fn ask(&self) -> bool {
        let mut turn = self.turn.lock();
        let is_waiting = matches!(*turn, CallTurn::Waiting | CallTurn::Asked);
        if is_waiting {
            *turn = CallTurn::Asked;
        }
        is_waiting
    }

    /// Wakes the caller, which was asked.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }
}
