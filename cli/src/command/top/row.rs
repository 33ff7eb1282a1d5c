//! A name as a look saw it, and the order of the rows.
//!
//! Ages are by the server's clock alone, as of the look. Later they grow by this process's
//! monotonic clock. The two clocks are never compared.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use fairlock::inspect::LockInfo;

use crate::parties::live_holders;
use crate::times;

/// A name at one look.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) info: LockInfo,
    /// Hand-overs per second since the look before. `None` at the first look at a name.
    pub(super) rate: Option<f64>,
}

impl Row {
    /// How long the holder has held the lock, if there is one.
    pub(super) fn held(&self) -> Option<Duration> {
        let holder = live_holders(&self.info).next();
        holder.map(|holder| times::held(&self.info, holder))
    }

    /// `web-1:4711 nightly +2`, of the holder or the last one.
    pub(super) fn holder_text(&self) -> Option<String> {
        let holder = self.info.holder.as_ref()?;
        let mut text = format!("{}:{} {}", holder.host, holder.pid, holder.label);
        if let others @ 1.. = self.info.holders.len().saturating_sub(1) {
            text += &format!(" +{others}");
        }
        Some(text.trim_end().to_owned())
    }

    /// Whether this text is in its name or its holder. Upper and lower case are the same.
    pub(super) fn matches(&self, text: &str) -> bool {
        let has = |field: &str| field.to_lowercase().contains(&text.to_lowercase());
        text.is_empty()
            || has(&self.info.name)
            || self.holder_text().is_some_and(|holder| has(&holder))
    }
}

/// Hand-overs per second between two looks at a name.
///
/// The number of the place served last rises by one with each hand-over. It says nothing of locks
/// that were taken while nobody waited, and begins again when the queue was gone. Then another
/// fence means another holder: at least one. Fences are dates, so their difference is no count.
pub(super) fn rate(before: &LockInfo, after: &LockInfo) -> Option<f64> {
    let handed_over = match after.served.checked_sub(before.served) {
        Some(served @ 1..) => served,
        _ => u64::from(after.fence != before.fence),
    };
    let elapsed = after.seen_at.duration_since(before.seen_at).ok()?;
    (!elapsed.is_zero()).then(|| handed_over as f64 / elapsed.as_secs_f64())
}

/// A column of the table, which the rows can be in the order of. From left to right.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// The name
    Name,
    /// Hand-overs per second, then the length of the queue
    #[default]
    Busy,
    /// The length of the queue
    Waiting,
    /// The time that the oldest waiter has waited
    Oldest,
    /// The time that the holder has held the lock
    Held,
    /// The time that is left
    Left,
    /// The holder's host, process and label
    Holder,
}

impl Column {
    /// As `--sort` has it.
    pub(super) fn title(self) -> String {
        format!("{self:?}").to_uppercase()
    }

    /// The column so many places behind this one.
    pub(super) fn step(self, by: usize) -> Column {
        let all = Column::value_variants();
        all[(self as usize + by) % all.len()]
    }

    /// Numbers: the largest first. Texts: by the alphabet, and rows without one last. Equal rows
    /// are in the order of their names, so that they stay in place.
    pub(super) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let waiters = b.info.waiters.cmp(&a.info.waiters);
        let rate = |row: &Row| row.rate.unwrap_or_default();
        let holder = |row: &Row| (row.info.holder.is_none(), row.holder_text());
        let order = match self {
            Column::Name => Ordering::Equal,
            Column::Busy => rate(b).total_cmp(&rate(a)).then(waiters),
            Column::Waiting => waiters,
            Column::Oldest => times::oldest_wait(&b.info).cmp(&times::oldest_wait(&a.info)),
            Column::Held => b.held().cmp(&a.held()),
            Column::Left => b.info.time_left.cmp(&a.info.time_left),
            Column::Holder => holder(a).cmp(&holder(b)),
        };
        order.then_with(|| a.info.name.cmp(&b.info.name))
    }
}
