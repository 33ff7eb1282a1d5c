//! A name as a look saw it, without the library's types: so that tests can write it down, and a
//! thousand waiters of a thousand names need no memory.
//!
//! Ages are by the server's clock alone, as of the look. Later they grow by this process's
//! monotonic clock. The two clocks are never compared.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock::{
    PreviousHolder,
    inspect::{LockInfo, LockState, Party},
};

use crate::age;
use crate::parties::{all_holders, is_first_guard, is_taken};
use crate::times;

/// A name at one look, as a row of the table shows it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: Arc<str>,
    pub(super) kind: String,
    pub(super) state: LockState,
    pub(super) fence: u64,
    /// The number of the ticket served last.
    pub(super) served: u64,
    /// One of the holders, or the last one.
    pub(super) holder: Option<Owner>,
    pub(super) holders: usize,
    pub(super) waiters: u64,
    /// Whether one of them may be alive.
    pub(super) is_awaited: bool,
    /// How long the oldest waiter has waited.
    pub(super) oldest_wait: Option<Duration>,
    pub(super) time_left: Duration,
    /// When the look saw it, by this process's clock.
    pub(super) at: Instant,
}

/// A holder or a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) label: String,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) thread: String,
    /// `owner`, `reader`, `2 permits` …
    pub(super) access: String,
    /// How long it has held or waited, as of the look.
    pub(super) age: Duration,
    pub(super) fence: Option<u64>,
    pub(super) lapsed_for: Option<Duration>,
    /// If it is a waiter of which nobody hears any more: since when, as of the look.
    pub(super) silent: Option<String>,
    /// It does not renew, so it does not notice that it lost the lock.
    pub(super) has_fixed_lease: bool,
    /// Its process keeps the lock after a guard.
    pub(super) keeps: bool,
    /// Its thread and label are those of its first guard.
    pub(super) is_first_guard: bool,
}

/// A name that is open: its holders, those that lapsed too, and its queue.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) seen: Seen,
    /// How the holder before ended.
    pub(super) previous: PreviousHolder,
    pub(super) holders: Vec<Owner>,
    pub(super) queue: Vec<Owner>,
}

impl Seen {
    pub(super) fn new(info: &LockInfo, at: Instant) -> Seen {
        Seen {
            name: Arc::clone(&info.name),
            kind: info.kind.to_string(),
            state: info.state,
            fence: info.fence,
            served: info.served,
            holder: info.holder.as_ref().map(|holder| Owner::new(info, holder)),
            holders: info.holders.len(),
            waiters: info.waiters,
            is_awaited: times::is_awaited(info),
            oldest_wait: times::oldest_wait(info),
            time_left: info.time_left,
            at,
        }
    }

    /// How long the holder has held it.
    pub(super) fn held_for(&self) -> Option<Duration> {
        let holder = self.holder.as_ref().filter(|_| is_taken(self.state));
        holder.map(|holder| holder.age)
    }
}

impl Opened {
    pub(super) fn new(info: &LockInfo, at: Instant) -> Opened {
        let holder = |party| Owner::new(info, party);
        let waiter = |party| Owner {
            silent: times::is_silent(party).then(|| not_heard_of(party)),
            ..Owner::new(info, party)
        };
        Opened {
            seen: Seen::new(info, at),
            previous: info.previous_holder,
            holders: all_holders(info).map(holder).collect(),
            queue: info.queue.iter().map(waiter).collect(),
        }
    }
}

/// Since when nobody has heard of a silent waiter.
fn not_heard_of(waiter: &Party) -> String {
    match waiter.last_heard {
        Some(ago) => format!("last heard {} ago", age::short(ago)),
        None => "not heard of".to_owned(),
    }
}

impl Owner {
    fn new(info: &LockInfo, party: &Party) -> Owner {
        Owner {
            label: party.label.clone(),
            host: party.host.clone(),
            pid: party.pid,
            thread: party.thread.clone(),
            access: party.access.to_string(),
            age: times::waited(info, party),
            fence: party.fence,
            lapsed_for: party.lapsed_for,
            silent: None,
            has_fixed_lease: party.fixed_lease,
            keeps: party.keeps,
            is_first_guard: is_first_guard(party),
        }
    }
}

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
