//! The figures of a round of turns.

use std::collections::HashMap;
use std::ops::Range;

use crate::support::median;
use crate::turns::Turn;

/// The result of one round of one layout.
pub(crate) struct Seen {
    /// From one holder to the next, of another manager if there are two.
    pub(crate) handoff: u64,
    /// The call of the release.
    pub(crate) release: u64,
    /// The longest wait, as a part of what an orderly queue takes.
    pub(crate) longest: f64,
    /// The smallest share of a thread by the largest.
    pub(crate) equality: f64,
    /// The turns of the thread with the fewest, and of the thread with the most.
    pub(crate) turns: (usize, usize),
}

/// `None` if so little was done that nothing can be said.
pub(crate) fn evaluate(mut turns: Vec<Turn>, threads: usize) -> Option<Seen> {
    // One holds the lock at a time, so this is the order of the turns.
    turns.sort_unstable_by_key(|turn| turn.granted);
    // At first the threads come one by one, and at last they leave so.
    let window = 2 * threads..turns.len().saturating_sub(threads);
    let middle = turns.get(window.clone()).unwrap_or_default();
    if middle.len() <= threads {
        eprintln!(
            "only {} turns in a round of {threads} threads: too few to evaluate",
            turns.len()
        );
        return None;
    }
    let several = middle.iter().any(|turn| turn.manager != middle[0].manager);
    let handoffs = middle
        .windows(2)
        // A thread that asked only after the release was not handed the lock.
        .filter(|pair| pair[1].asked < pair[0].released)
        .filter(|pair| !several || pair[0].manager != pair[1].manager)
        .map(|pair| pair[1].granted.saturating_sub(pair[0].released));
    let handoff = median(handoffs);
    let hold = median(middle.iter().map(|turn| turn.released - turn.granted));
    let longest = middle
        .iter()
        .map(|turn| turn.granted - turn.asked)
        .max()
        .unwrap_or(0);
    let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
    for turn in middle {
        *counts.entry((turn.manager, turn.thread)).or_default() += 1;
    }
    let fewest = if counts.len() < threads {
        0
    } else {
        counts.values().copied().min().unwrap_or(0)
    };
    Some(Seen {
        handoff,
        release: median(middle.iter().map(|turn| turn.given - turn.released)),
        longest: longest as f64 / ((threads - 1) as f64 * (hold + handoff) as f64),
        equality: equality(&turns, window, threads),
        turns: (fewest, counts.values().copied().max().unwrap_or(0)),
    })
}

/// The smallest share by the largest, measured by the whole turns that began in the window.
fn equality(turns: &[Turn], window: Range<usize>, threads: usize) -> f64 {
    let mut grants: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    for (at, turn) in turns.iter().enumerate().skip(window.start) {
        grants
            .entry((turn.manager, turn.thread))
            .or_default()
            .push(at);
    }
    let shares = grants.values().map(|grants| {
        let within = grants.partition_point(|at| *at < window.end);
        let behind = grants.get(within).copied().unwrap_or(turns.len());
        if within == 0 {
            0.0
        } else {
            within as f64 / (behind - grants[0]) as f64
        }
    });
    let (smallest, largest) = shares.fold((f64::MAX, 0.0), |(least, most), share| {
        (share.min(least), share.max(most))
    });
    if grants.len() < threads {
        0.0
    } else {
        smallest / largest
    }
}
