//! Leases that some node lacks: it was busy, late or away when the others granted. Until it has the
//! lease, one node that forgets may be enough for a second holder. So they are renewed soon.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::script::{Outcome, Token, Verb, Vote};
use crate::store::StoreFault;
use crate::store::clock::Time;

/// The tokens of such leases, and when each is renewed again.
#[derive(Default)]
pub(super) struct Gaps(Mutex<DueGaps>);

#[derive(Default)]
struct DueGaps {
    due: HashMap<Token, Time>,
    /// The first of them. `None`: there are none.
    first: Option<Time>,
    /// When somebody must read the answers that the callers have not waited for: they may show a gap.
    look: Option<Time>,
}

impl Gaps {
    /// Returns whether it is due before all others, so that the renewal thread must know of it.
    pub(super) fn add(&self, token: Token, at: Time) -> bool {
        let mut gaps = self.0.lock();
        gaps.due.insert(token, at);
        let is_first = gaps.first.is_none_or(|first| at < first);
        if is_first {
            gaps.first = Some(at);
        }
        is_first
    }

    /// Has the answers read that come after their majority. One look is for all of that time. Returns
    /// whether the renewal thread must know of it.
    pub(super) fn look_at(&self, at: Time, now: Time) -> bool {
        let mut gaps = self.0.lock();
        // An idle manager has not looked.
        let is_new = gaps.look.is_none_or(|look| look <= now);
        if is_new {
            gaps.look = Some(at);
        }
        is_new
    }

    pub(super) fn end_look(&self, now: Time) {
        self.0.lock().look.take_if(|at| *at <= now);
    }

    pub(super) fn next_due(&self) -> Time {
        let gaps = self.0.lock();
        let due = gaps.first.into_iter().chain(gaps.look).min();
        due.unwrap_or(Time::NEVER)
    }

    /// Those that are due. Most were released before.
    pub(super) fn take_due(&self, now: Time) -> Vec<Token> {
        let mut gaps = self.0.lock();
        if gaps.first.is_none_or(|first| now < first) {
            return Vec::new();
        }
        let due: Vec<_> = gaps.due.extract_if(|_, at| *at <= now).collect();
        gaps.first = gaps.due.values().min().copied();
        due.into_iter().map(|(token, _)| token).collect()
    }
}

/// When a node is asked again that may answer at once.
pub(super) fn soon(back_off: Duration) -> Duration {
    back_off / 4
}

/// How soon a node that has not granted what a majority has is asked again. `None`: the regular
/// renewal is soon enough.
pub(super) fn ask_again_in(
    verb: &Verb,
    answer: Result<&Outcome, &StoreFault>,
    back_off: Duration,
) -> Option<Duration> {
    let soon = soon(back_off);
    match (verb, answer) {
        // A caller that got no majority there releases it at once.
        (Verb::Propose { .. }, Ok(Outcome::Vote(Vote::Busy { .. }) | Outcome::Late)) => Some(soon),
        // It is back by now, or the renewal finds out that it is not.
        (Verb::Propose { .. }, Err(_)) => Some(soon),
        // That caller has died, or its release is under way.
        (
            Verb::Renew { .. },
            Ok(Outcome::Busy { left, .. } | Outcome::Vote(Vote::Busy { left, .. })),
        ) => Some((*left).clamp(soon, back_off)),
        (Verb::Renew { .. }, Ok(Outcome::Late)) => Some(soon),
        // Its connection was closed, for instance since another reply was late. The node may be well.
        (Verb::Renew { .. }, Err(fault)) if fault.is_closed() => Some(back_off),
        // It granted a larger fence, so it never has this one. Or it is away, and the link renews
        // when it is back.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_gap_is_due_first_and_once() {
        let gaps = Gaps::default();
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let (one, other) = (Token::new(), Token::new());
        assert_eq!(gaps.next_due(), Time::NEVER);
        assert!(gaps.add(one, at(20)));
        assert!(!gaps.add(other, at(30)));
        assert_eq!(gaps.take_due(at(19)), []);
        assert_eq!(gaps.take_due(at(20)), [one]);
        assert_eq!(gaps.next_due(), at(30));
        assert!(gaps.add(one, at(25)));
        assert_eq!(gaps.take_due(at(60)).len(), 2);
        assert!(gaps.look_at(at(70), at(60)) && !gaps.look_at(at(75), at(65)));
        gaps.end_look(at(69));
        assert_eq!(gaps.next_due(), at(70));
        assert!(gaps.look_at(at(80), at(70)));
        gaps.end_look(at(80));
        assert_eq!(gaps.next_due(), Time::NEVER);
    }

    #[test]
    fn node_that_was_busy_is_asked_when_it_may_be_free() {
        let back_off = Duration::from_millis(400);
        let renew = Verb::Renew {
            token: Token::new(),
            fence: 7,
            params: "".into(),
        };
        let busy = |ms| Outcome::Busy {
            left: Duration::from_millis(ms),
            told: false,
        };
        for (left, asked) in [(1, 100), (250, 250), (60_000, 400)] {
            let again = ask_again_in(&renew, Ok(&busy(left)), back_off);
            assert_eq!(again, Some(Duration::from_millis(asked)));
        }
        let away = StoreFault::NotReady;
        assert_eq!(ask_again_in(&renew, Err(&away), back_off), None);
        let closed = StoreFault::connection_ended("it was closed");
        assert_eq!(ask_again_in(&renew, Err(&closed), back_off), Some(back_off));
    }
}
