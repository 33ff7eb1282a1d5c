//! A held lock, as a state that is told what happens and what time it is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::config::margin;
use crate::engine::request::Request;
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::script::{Grant, Token};
use crate::store::clock::Time;
use crate::sync::{AtomicU64, Mutex};

/// A lock that was granted to this process.
pub(crate) struct Lease {
    pub(crate) request: Arc<Request>,
    pub(crate) token: Token,
    pub(crate) fence: u64,
    pub(crate) previous: PreviousHolder,
    /// Where `max_hold` ends it.
    pub(crate) ends_at: Time,
    /// It was waited for, so its token is in the registry until it ends.
    pub(crate) was_queued: bool,
    /// The last server time up to which a copy of its acquire that is still under way may take the token (R7).
    pub(crate) not_after: u64,
    word: LeaseState,
    signal: LostSignal,
}

impl Lease {
    /// `granted` is a local moment no later than the grant.
    pub(crate) fn new(
        request: Arc<Request>,
        grant: &Grant,
        granted: Time,
        deadline: Time,
    ) -> Lease {
        Lease {
            ends_at: request
                .max_hold
                .map_or(Time::NEVER, |limit| granted + limit),
            request,
            token: grant.token,
            fence: grant.fence,
            previous: grant.previous,
            was_queued: false,
            not_after: 0,
            word: LeaseState::held_until(deadline),
            signal: LostSignal::default(),
        }
    }

    /// The same, after waiting in the queue.
    pub(crate) fn after_waiting(self) -> Lease {
        Lease {
            was_queued: true,
            ..self
        }
    }

    /// The same, if a copy of its acquire may still be under way.
    pub(crate) fn not_after(self, server: u64) -> Lease {
        Lease {
            not_after: server,
            ..self
        }
    }

    pub(crate) fn is_held(&self, now: Time) -> bool {
        self.word.is_held(now)
    }

    pub(crate) fn remaining(&self, now: Time) -> Duration {
        self.word
            .deadline()
            .map_or(Duration::ZERO, |deadline| deadline - now)
    }

    /// The loss, if it is lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.word.lost().map(|reason| self.loss_for(reason))
    }

    pub(crate) fn loss_for(&self, reason: LossReason) -> Loss {
        Loss {
            name: self.request.key.name.clone(),
            fence: self.fence,
            reason,
        }
    }

    /// A renewal was confirmed. False if the lease had ended before.
    pub(crate) fn extend(&self, now: Time, deadline: Time) -> bool {
        self.word.extend(now, deadline)
    }

    /// Whether this call is the one that lost it.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        self.word.lose(reason)
    }

    /// Ends the lease before its release is sent (R14); refused if it is lost.
    pub(crate) fn release(&self, now: Time) -> Result<(), Loss> {
        self.word
            .release(now)
            .map_err(|reason| self.loss_for(reason))?;
        self.signal.close();
        Ok(())
    }

    /// Nobody has it or will have it as this lease: it is over without a word, lost or not.
    pub(crate) fn disown(&self) {
        self.word.disown();
        self.signal.close();
    }

    /// Whether this call is the one that tells.
    pub(crate) fn tell(&self, loss: &Loss) -> bool {
        self.signal.tell(loss)
    }

    /// Whether the loss was told.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn is_told(&self) -> bool {
        matches!(&*self.signal.outcome.lock(), Outcome::Lost(_))
    }

    pub(crate) fn lost(&self) -> &Receiver<Loss> {
        self.signal.receiver()
    }

    /// What the renewal thread has to do about the lease at a moment, when it is to be renewed at
    /// `renew_at`.
    pub(crate) fn due(&self, now: Time, renew_at: Time) -> Due {
        if self.word.is_released() {
            return Due::Drop;
        }
        if now >= self.ends_at && self.word.is_held(now) {
            return Due::Lose(LossReason::MaxHold);
        }
        if !self.word.is_held(now) {
            return self.word.lost().map_or(Due::Drop, Due::Lose);
        }
        if now >= renew_at {
            Due::Renew
        } else {
            Due::Nothing
        }
    }

    /// When [`Lease::due`] has the next thing to say.
    pub(crate) fn next_due(&self, renew_at: Time) -> Time {
        let deadline = self.word.deadline().unwrap_or(Time::from_nanos(0));
        renew_at.min(deadline).min(self.ends_at)
    }
}

/// What is to be done about a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It is over; nobody needs to know.
    Drop,
    Nothing,
    Renew,
    Lose(LossReason),
}

/// R12: the local deadline of a lease whose time left was told in the reply to a request.
pub(crate) fn deadline_from_reply(sent: Time, left: Duration) -> Time {
    sent + left.saturating_sub(margin(left, Duration::ZERO))
}

/// The state of a lease in one word, so that it is read and changed without a lock.
///
/// | word                | state    | becomes                                                          |
/// |---------------------|----------|------------------------------------------------------------------|
/// | a deadline          | held     | held longer (`extend`), released, lost; lost also by being read past the deadline |
/// | [`RELEASED`]        | released | –                                                                |
/// | a loss reason's code | lost    | released, if no guard ever had it                                 |
///
/// Whoever reads it past the deadline writes the loss before answering, so nobody can see it held
/// again, whatever a renewal on its way brings (P6).
#[derive(Debug)]
pub(crate) struct LeaseState(AtomicU64);

const RELEASED: u64 = 1;
const REASONS: [LossReason; 5] = [
    LossReason::Expired,
    LossReason::Taken,
    LossReason::MaxHold,
    LossReason::Forced,
    LossReason::Shutdown,
];
const FIRST_REASON: u64 = 2;
/// No deadline is that close to the start of the clock.
const FIRST_DEADLINE: u64 = 16;

impl LeaseState {
    pub(crate) fn held_until(deadline: Time) -> LeaseState {
        LeaseState(AtomicU64::new(deadline.as_nanos().max(FIRST_DEADLINE)))
    }

    pub(crate) fn is_held(&self, now: Time) -> bool {
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word < FIRST_DEADLINE {
                return false;
            }
            if now.as_nanos() < word {
                return true;
            }
            if self.swap(word, code(LossReason::Expired)) {
                return false;
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let word = self.0.load(Ordering::Acquire);
        (word >= FIRST_DEADLINE).then(|| Time::from_nanos(word))
    }

    pub(crate) fn is_released(&self) -> bool {
        self.0.load(Ordering::Acquire) == RELEASED
    }

    pub(crate) fn lost(&self) -> Option<LossReason> {
        let word = self.0.load(Ordering::Acquire);
        if word >= FIRST_DEADLINE {
            return None;
        }
        REASONS
            .get(word.checked_sub(FIRST_REASON)? as usize)
            .copied()
    }

    pub(crate) fn extend(&self, now: Time, deadline: Time) -> bool {
        while self.is_held(now) {
            let word = self.0.load(Ordering::Acquire);
            if word >= FIRST_DEADLINE && self.swap(word, word.max(deadline.as_nanos())) {
                return true;
            }
        }
        false
    }

    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word < FIRST_DEADLINE {
                return false;
            }
            if self.swap(word, code(reason)) {
                return true;
            }
        }
    }

    pub(crate) fn release(&self, now: Time) -> Result<(), LossReason> {
        while self.is_held(now) {
            let word = self.0.load(Ordering::Acquire);
            if word >= FIRST_DEADLINE && self.swap(word, RELEASED) {
                return Ok(());
            }
        }
        Err(self.lost().unwrap_or(LossReason::Expired))
    }

    fn disown(&self) {
        self.0.store(RELEASED, Ordering::Release);
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

fn code(reason: LossReason) -> u64 {
    let at = REASONS
        .iter()
        .position(|r| *r == reason)
        .expect("every reason is in the table");
    FIRST_REASON + at as u64
}

/// The channel of [`LockGuard::lost`](crate::LockGuard::lost), made when it is first asked for: a channel
/// costs more than all the rest of a lease.
#[derive(Default)]
struct LostSignal {
    receiver: OnceLock<Receiver<Loss>>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
enum Outcome {
    #[default]
    Open,
    Awaited(Sender<Loss>),
    Lost(Loss),
    Closed,
}

impl LostSignal {
    fn receiver(&self) -> &Receiver<Loss> {
        self.receiver.get_or_init(|| {
            let (sender, receiver) = bounded(1);
            let mut outcome = self.outcome.lock();
            match &*outcome {
                Outcome::Open | Outcome::Awaited(_) => *outcome = Outcome::Awaited(sender),
                // The channel is new and has room for one.
                Outcome::Lost(loss) => drop(sender.try_send(loss.clone())),
                Outcome::Closed => {}
            }
            receiver
        })
    }

    fn tell(&self, loss: &Loss) -> bool {
        let mut outcome = self.outcome.lock();
        let before = match &*outcome {
            Outcome::Open | Outcome::Awaited(_) => {
                std::mem::replace(&mut *outcome, Outcome::Lost(loss.clone()))
            }
            Outcome::Lost(_) | Outcome::Closed => return false,
        };
        drop(outcome);
        if let Outcome::Awaited(sender) = before {
            // The one message of this channel, which has room for it.
            let _ = sender.try_send(loss.clone());
        }
        true
    }

    fn close(&self) {
        let before = std::mem::replace(&mut *self.outcome.lock(), Outcome::Closed);
        drop(before);
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    const fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn a_lease_seen_past_its_deadline_stays_lost() {
        let word = LeaseState::held_until(at(100));
        assert!(word.is_held(at(99)));
        assert!(!word.is_held(at(100)));
        assert!(
            !word.extend(at(99), at(500)),
            "a late confirmation must not revive it"
        );
        assert!(!word.is_held(at(99)));
        assert_eq!(word.lost(), Some(LossReason::Expired));
        assert_eq!(word.release(at(99)), Err(LossReason::Expired));
    }

    #[test]
    fn a_lease_is_extended_and_never_shortened() {
        let word = LeaseState::held_until(at(100));
        assert!(word.extend(at(50), at(200)));
        assert!(word.extend(at(60), at(150)));
        assert_eq!(word.deadline(), Some(at(200)));
    }

    #[test]
    fn only_the_first_end_counts() {
        let word = LeaseState::held_until(at(100));
        assert!(word.lose(LossReason::Forced));
        assert!(!word.lose(LossReason::Taken));
        assert_eq!(word.release(at(1)), Err(LossReason::Forced));
        let word = LeaseState::held_until(at(100));
        assert_eq!(word.release(at(1)), Ok(()));
        assert!(
            !word.lose(LossReason::Taken),
            "a released lease cannot be lost (R14)"
        );
        assert_eq!(word.lost(), None);
    }

    #[test]
    fn the_signal_tells_once_and_then_is_closed() {
        let loss = Loss {
            name: "a".into(),
            fence: 1,
            reason: LossReason::Taken,
        };
        let early = LostSignal::default();
        let receiver = early.receiver().clone();
        assert!(early.tell(&loss) && !early.tell(&loss));
        assert_eq!(receiver.recv(), Ok(loss.clone()));
        assert!(receiver.recv().is_err());
        let late = LostSignal::default();
        assert!(late.tell(&loss));
        assert_eq!(late.receiver().recv(), Ok(loss));
        assert!(late.receiver().recv().is_err());
        let clean = LostSignal::default();
        let receiver = clean.receiver().clone();
        clean.close();
        assert!(receiver.recv().is_err());
    }
}
