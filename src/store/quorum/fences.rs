//! The fences that this manager proposes, and the nodes whose clocks count.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::Anchor;
use crate::store::clock::Time;

/// P2 (rising fences): a fence is at least the largest server clock. So a majority that has
/// forgotten a fence by the time that its TTL is over still gets a larger one.
#[derive(Default)]
pub(super) struct Fences {
    /// The newest proposal that no node had to raise.
    last: AtomicU64,
}

impl Fences {
    /// A fence above `reported` and above all proposals before.
    pub(super) fn propose(&self, clock: u64, reported: u64) -> u64 {
        let last = self.last.fetch_max(clock, Ordering::AcqRel);
        let mut fence = clock;
        if last >= clock {
            fence = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        }
        fence.max(reported + 1)
    }
}

/// The latest time that a server's clock can show now.
pub(super) fn clock_at_most(anchor: &Anchor, now: Time) -> u64 {
    let age = (now - anchor.sent).as_micros() as u64;
    anchor.server + age + age / 2000
}

/// The nodes that are not refused for their clocks. P2 (rising fences) counts on clocks that differ
/// by less than `limit`: so these are the most nodes of which no two differ by more. A node whose
/// clock is not known is not refused.
pub(super) fn agreeing(clocks: &[Option<u64>], limit: u64) -> Vec<bool> {
    let mut known: Vec<u64> = clocks.iter().flatten().copied().collect();
    known.sort_unstable();
    let windows = known.iter().map(|&first| {
        let is_near = |clock: &&u64| (first..first.saturating_add(limit)).contains(*clock);
        (known.iter().filter(is_near).count(), first)
    });
    // If two are equally large, the earlier counts.
    let best = windows.max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)));
    let first = best.map_or(0, |(_, first)| first);
    let agrees = |clock: &Option<u64>| {
        clock.is_none_or(|clock| (first..first.saturating_add(limit)).contains(&clock))
    };
    clocks.iter().map(agrees).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_rise_although_the_clock_does_not() {
        let fences = Fences::default();
        assert_eq!(fences.propose(100, 0), 100);
        assert_eq!(fences.propose(100, 0), 101);
        assert_eq!(fences.propose(90, 0), 102);
        assert_eq!(fences.propose(200, 0), 200);
        // A node that is far ahead for one name does not drive up the fences of others.
        assert_eq!(fences.propose(200, 5000), 5001);
        assert!(fences.propose(210, 0) <= 210);
    }

    #[test]
    fn node_with_another_clock_is_refused() {
        let agree = |clocks: &[Option<u64>]| agreeing(clocks, 100);
        assert_eq!(agree(&[Some(0), Some(50), Some(99)]), [true, true, true]);
        assert_eq!(agree(&[Some(0), Some(50), Some(149)]), [true, true, false]);
        assert_eq!(agree(&[Some(500), Some(50), Some(60)]), [false, true, true]);
        assert_eq!(agree(&[None, Some(50), Some(500)]), [true, true, false]);
        assert_eq!(agree(&[None, None, None]), [true, true, true]);
        let spread = [Some(0), Some(60), Some(120), Some(130), Some(140)];
        assert_eq!(agree(&spread), [false, true, true, true, true]);
    }
}
