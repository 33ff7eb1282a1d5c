//! A name as a look saw it, and the order of the rows.
//!
//! Ages are by the server's clock alone, as of the look. Later they grow by this process's
//! monotonic clock. The two clocks are never compared.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fairlock::inspect::{LockInfo, LockState, Party};

use crate::parties::is_taken;
use crate::times;

/// A name at one look.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) info: LockInfo,
    /// When the look saw it, by this process's clock.
    at: Instant,
    /// Hand-overs per second since the look before. `None` at the first look at a name.
    pub(super) rate: Option<f64>,
}

impl Row {
    pub(super) fn new(info: LockInfo, at: Instant) -> Row {
        let rate = None;
        Row { info, at, rate }
    }

    /// Sets the rate, by an earlier look at the same name.
    ///
    /// The number of the place served last rises by one with each hand-over. It says nothing of
    /// locks that were taken while nobody waited, and begins again when the queue was gone. Then
    /// another fence means another holder: at least one. Fences are dates, so their difference is
    /// no count.
    pub(super) fn count_since(&mut self, before: &Row) {
        let handed_over = match self.info.served.checked_sub(before.info.served) {
            Some(served @ 1..) => served,
            _ => u64::from(self.info.fence != before.info.fence),
        };
        let elapsed = self.at.saturating_duration_since(before.at).as_secs_f64();
        self.rate = (elapsed > 0.0).then(|| handed_over as f64 / elapsed);
    }

    /// How long this holder has held the lock by now, or this waiter has waited.
    pub(super) fn age(&self, party: &Party, now: Instant) -> Duration {
        times::waited(&self.info, party) + now.saturating_duration_since(self.at)
    }

    /// The time that is left by now, if others have to wait for it.
    pub(super) fn time_left(&self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.at);
        is_taken(self.info.state).then(|| self.info.time_left.saturating_sub(elapsed))
    }

    /// The one that has waited for the longest time, perhaps not the first of the queue.
    pub(super) fn oldest(&self) -> Option<&Party> {
        self.info.queue.iter().min_by_key(|waiter| waiter.since)
    }

    pub(super) fn holder(&self) -> Option<&Party> {
        let holder = self.info.holder.as_ref();
        holder.filter(|_| self.info.state == LockState::Held)
    }

    /// `web-1:4711 nightly +2`, of the holder or the last one.
    pub(super) fn holder_text(&self) -> Option<String> {
        let Party {
            host, pid, label, ..
        } = self.info.holder.as_ref()?;
        let when = match self.info.state {
            LockState::Held | LockState::Cooling => "",
            LockState::Detached => "by: ",
            _ => "last: ",
        };
        let others = match self.info.holders.len() {
            0 | 1 => String::new(),
            many => format!("+{}", many - 1),
        };
        let text = format!("{when}{host}:{pid} {label} {others}");
        Some(text.trim_end().to_owned())
    }

    /// Whether this text is in its name or its holder. Upper and lower case are the same.
    pub(super) fn matches(&self, text: &str) -> bool {
        let has = |field: &str| field.to_lowercase().contains(&text.to_lowercase());
        has(&self.info.name) || self.holder_text().is_some_and(|holder| has(&holder))
    }
}

/// A column of the table, which the rows can be in the order of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// Hand-overs per second, then the length of the queue
    #[default]
    Busy,
    /// The length of the queue
    Waiting,
    /// The time that the oldest waiter has waited
    Oldest,
    /// The time that the holder has held the lock
    Held,
    /// The holder's host, process and label
    Holder,
    /// The name
    Name,
    /// The time that is left
    Left,
}

impl Column {
    /// The column so many places behind this one.
    pub(super) fn step(self, by: usize) -> Column {
        let all = Column::value_variants();
        all[(self as usize + by) % all.len()]
    }

    /// Numbers: the largest first. Texts: by the alphabet, and rows without one last.
    pub(super) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let waited = |row: &Row, party: Option<&Party>| party.map(|p| times::waited(&row.info, p));
        let waiters = b.info.waiters.cmp(&a.info.waiters);
        let text = |row: &Row| (row.info.holder.is_none(), row.holder_text());
        match self {
            Column::Busy => {
                let rate = |row: &Row| row.rate.unwrap_or_default();
                rate(b).total_cmp(&rate(a)).then(waiters)
            }
            Column::Waiting => waiters,
            Column::Oldest => waited(b, b.oldest()).cmp(&waited(a, a.oldest())),
            Column::Held => waited(b, b.holder()).cmp(&waited(a, a.holder())),
            Column::Holder => text(a).cmp(&text(b)),
            Column::Name => a.info.name.cmp(&b.info.name),
            Column::Left => b.info.time_left.cmp(&a.info.time_left),
        }
    }
}
