//! Hand-overs per second, from the difference between two looks.

use std::collections::HashMap;
use std::sync::Arc;

use super::seen::Seen;

/// A name, and how often it changed hands lately.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) seen: Seen,
    /// Hand-overs per second between the last two looks. `None` at the first look at a name.
    pub(super) rate: Option<f64>,
}

/// The rows of a new look.
pub(super) fn rows(earlier: &[Row], looked: Vec<Seen>) -> Vec<Row> {
    let earlier: HashMap<&Arc<str>, &Seen> = earlier
        .iter()
        .map(|row| (&row.seen.name, &row.seen))
        .collect();
    let row = |seen: Seen| Row {
        rate: earlier
            .get(&seen.name)
            .and_then(|before| rate(before, &seen)),
        seen,
    };
    looked.into_iter().map(row).collect()
}

fn rate(before: &Seen, now: &Seen) -> Option<f64> {
    let elapsed = now.at.checked_duration_since(before.at)?.as_secs_f64();
    (elapsed > 0.0).then(|| handed_over(before, now) as f64 / elapsed)
}

/// How many holders came between two looks, as far as one can tell.
///
/// The number of the ticket served last rises by one with each hand-over. It says nothing of locks
/// that were taken while nobody waited, and begins again when the queue was gone. Then another
/// fence means another holder: at least one. Fences are dates, so their difference is no count.
fn handed_over(before: &Seen, now: &Seen) -> u64 {
    match now.served.checked_sub(before.served) {
        Some(served @ 1..) => served,
        Some(0) | None => u64::from(now.fence != before.fence),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::command::top::samples::seen;

    #[test]
    fn rates_come_from_two_looks() {
        let first = Seen {
            served: 10,
            ..seen("a")
        };
        let later = |served, fence| Seen {
            served,
            fence,
            at: first.at + Duration::from_secs(2),
            ..first.clone()
        };
        let rate_of = |now: Seen| {
            let earlier = rows(&[], vec![first.clone()]);
            assert_eq!(earlier[0].rate, None, "a first look");
            rows(&earlier, vec![now])[0].rate
        };
        assert_eq!(rate_of(later(10, first.fence)), Some(0.0), "nothing");
        assert_eq!(rate_of(later(16, first.fence + 9)), Some(3.0), "tickets");
        assert_eq!(rate_of(later(10, first.fence + 9)), Some(0.5), "no queue");
        assert_eq!(rate_of(later(2, first.fence + 9)), Some(0.5), "new queue");
    }
}
