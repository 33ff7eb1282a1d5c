//! The state of a lease in one atomic word.

use std::sync::atomic::Ordering;

use crate::loss::LossReason;
use crate::store::clock::Time;
use crate::sync::AtomicU64;

/// The state of a lease. It is one word, so that threads read and change it without a lock.
#[derive(Debug)]
pub(crate) struct LeaseState {
    /// | value                | state    | becomes                                              |
    /// |----------------------|----------|------------------------------------------------------|
    /// | a deadline in ns     | held     | held longer, released, lost                          |
    /// | [`RELEASED`]         | released | –                                                    |
    /// | a loss reason's code | lost     | released (`close`), if no guard ever had the lease   |
    ///
    /// A thread that reads the word past the deadline first writes the loss, and then answers. So
    /// after one thread has seen the lease lost, no thread sees it held again, even if a renewal's
    /// reply arrives later (P6).
    word: AtomicU64,
}

const RELEASED: u64 = 1;
const REASONS: [LossReason; 5] = [
    LossReason::Expired,
    LossReason::NotOwner,
    LossReason::MaxHold,
    LossReason::Forced,
    LossReason::Shutdown,
];
const FIRST_REASON: u64 = 2;
/// Smaller values are codes. No deadline is this close to the start of the clock.
const FIRST_DEADLINE: u64 = 16;

impl LeaseState {
    pub(crate) fn held_until(deadline: Time) -> LeaseState {
        LeaseState {
            word: AtomicU64::new(deadline.as_nanos().max(FIRST_DEADLINE)),
        }
    }

    pub(crate) fn is_held(&self, now: Time) -> bool {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word < FIRST_DEADLINE {
                return false;
            }
            if now.as_nanos() < word {
                return true;
            }
            // P6: write the loss before answering. If the swap fails, another thread
            // extended or ended the lease just now, and this thread looks again.
            if self.swap(word, code(LossReason::Expired)) {
                return false;
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let word = self.word.load(Ordering::Acquire);
        (word >= FIRST_DEADLINE).then(|| Time::from_nanos(word))
    }

    pub(crate) fn is_released(&self) -> bool {
        self.word.load(Ordering::Acquire) == RELEASED
    }

    pub(crate) fn lost(&self) -> Option<LossReason> {
        let word = self.word.load(Ordering::Acquire);
        if word >= FIRST_DEADLINE {
            return None;
        }
        REASONS
            .get(word.checked_sub(FIRST_REASON)? as usize)
            .copied()
    }

    /// Moves the deadline, never to an earlier time. False if the lease had ended.
    pub(crate) fn extend(&self, now: Time, deadline: Time) -> bool {
        while self.is_held(now) {
            let word = self.word.load(Ordering::Acquire);
            if word >= FIRST_DEADLINE && self.swap(word, word.max(deadline.as_nanos())) {
                return true;
            }
        }
        false
    }

    /// Moves the deadline to an earlier time, if it is later.
    pub(super) fn cut(&self, deadline: Time) {
        let deadline = deadline.as_nanos().max(FIRST_DEADLINE);
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word <= deadline || self.swap(word, deadline) {
                return;
            }
        }
    }

    /// True for the one call that lost the lease.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        loop {
            let word = self.word.load(Ordering::Acquire);
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
            let word = self.word.load(Ordering::Acquire);
            if word >= FIRST_DEADLINE && self.swap(word, RELEASED) {
                return Ok(());
            }
        }
        Err(self.lost().unwrap_or(LossReason::Expired))
    }

    /// Released without looking: the lease is no guard's.
    pub(super) fn close(&self) {
        self.word.store(RELEASED, Ordering::Release);
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.word
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

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    const fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn lease_seen_past_its_deadline_stays_lost() {
        let state = LeaseState::held_until(at(100));
        assert!(state.is_held(at(99)));
        assert!(!state.is_held(at(100)));
        assert!(
            !state.extend(at(99), at(500)),
            "a late confirmation must not revive it"
        );
        assert!(!state.is_held(at(99)));
        assert_eq!(state.lost(), Some(LossReason::Expired));
        assert_eq!(state.release(at(99)), Err(LossReason::Expired));
    }

    #[test]
    fn lease_is_extended_and_never_shortened() {
        let state = LeaseState::held_until(at(100));
        assert!(state.extend(at(50), at(200)));
        assert!(state.extend(at(60), at(150)));
        assert_eq!(state.deadline(), Some(at(200)));
    }

    #[test]
    fn lease_that_is_cut_can_be_extended_again() {
        let state = LeaseState::held_until(at(200));
        state.cut(at(300));
        assert_eq!(state.deadline(), Some(at(200)));
        state.cut(at(100));
        assert!(state.is_held(at(99)) && state.extend(at(99), at(500)));
        state.cut(at(100));
        assert!(!state.is_held(at(100)), "it was cut");
        assert_eq!(state.lost(), Some(LossReason::Expired));
        state.cut(at(50));
        assert_eq!(state.lost(), Some(LossReason::Expired), "it has ended");
    }

    #[test]
    fn only_the_first_end_counts() {
        let state = LeaseState::held_until(at(100));
        assert!(state.lose(LossReason::Forced));
        assert!(!state.lose(LossReason::NotOwner));
        assert_eq!(state.release(at(1)), Err(LossReason::Forced));
        let state = LeaseState::held_until(at(100));
        assert_eq!(state.release(at(1)), Ok(()));
        assert!(
            !state.lose(LossReason::NotOwner),
            "a released lease cannot be lost (R14)"
        );
        assert_eq!(state.lost(), None);
    }
}
