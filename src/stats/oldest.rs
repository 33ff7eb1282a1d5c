//! The gauges of the oldest wait and the oldest hold.
//!
//! A recorder adds up the gauges of managers that share it, and a maximum is no sum. So of these
//! managers, the one with the oldest time shows it, and the others show 0.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, const_mutex};

use super::facade;
use super::metric::{self, Metric};

/// When the oldest wait, or the oldest hold, of each manager of this process began, in ns on this
/// host's clock.
type Table = Mutex<BTreeMap<ManagerId, u64>>;

/// A manager: its recorder, and a number of its own.
type ManagerId = (facade::RecorderId, u64);

static WAITS: Table = const_mutex(BTreeMap::new());
static HOLDS: Table = const_mutex(BTreeMap::new());
static MANAGERS: AtomicU64 = AtomicU64::new(0);

/// The two gauges of one manager.
pub(crate) struct OldestTimes {
    wait: OldestGauge,
    hold: OldestGauge,
}

impl OldestTimes {
    pub(crate) fn new() -> OldestTimes {
        let number = MANAGERS.fetch_add(1, Ordering::Relaxed);
        let manager = (facade::recorder_id(), number);
        OldestTimes {
            wait: OldestGauge::new(manager, &WAITS, metric::OLDEST_WAIT),
            hold: OldestGauge::new(manager, &HOLDS, metric::OLDEST_HOLD),
        }
    }

    /// When the manager's oldest wait and its oldest hold began, in ns on this host's clock. `None`:
    /// there is none.
    pub(crate) fn show(&mut self, wait: Option<u64>, hold: Option<u64>, now: u64) {
        self.wait.show(wait, now);
        self.hold.show(hold, now);
    }
}

/// A manager that stops shows nothing any more.
impl Drop for OldestTimes {
    fn drop(&mut self) {
        self.show(None, None, 0);
    }
}

struct OldestGauge {
    manager: ManagerId,
    table: &'static Table,
    /// The value that was emitted last, in ticks.
    shown: u64,
    emitted: facade::TimeGauge,
}

impl OldestGauge {
    fn new(manager: ManagerId, table: &'static Table, metric: Metric) -> OldestGauge {
        OldestGauge {
            manager,
            table,
            shown: 0,
            emitted: facade::TimeGauge::new(metric),
        }
    }

    fn show(&mut self, since: Option<u64>, now: u64) {
        let is_oldest = self.is_oldest(since);
        let age = since
            .filter(|_| is_oldest)
            .map_or(0, |since| now.saturating_sub(since));
        let ticks = facade::TimeGauge::ticks(Duration::from_nanos(age));
        if ticks != self.shown {
            self.emitted.change(self.shown, ticks);
            self.shown = ticks;
        }
    }

    /// Writes down when the manager's own oldest time began, and compares it with the others of the
    /// same recorder.
    fn is_oldest(&self, since: Option<u64>) -> bool {
        let mut table = self.table.lock();
        match since {
            Some(since) => table.insert(self.manager, since),
            None => table.remove(&self.manager),
        };
        let (recorder, _) = self.manager;
        let sharing = table.range((recorder, 0)..=(recorder, u64::MAX));
        let oldest = sharing.min_by_key(|(_, since)| **since);
        oldest.is_some_and(|(manager, _)| *manager == self.manager)
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::super::sums::Sums;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_000 * SECOND;

    fn hold(manager: &mut OldestTimes, seconds: u64) {
        manager.show(None, Some(NOW - seconds * SECOND), NOW);
    }

    fn manager(recorder: &Sums) -> OldestTimes {
        metrics::with_local_recorder(recorder, OldestTimes::new)
    }

    fn shown(recorder: &Sums) -> f64 {
        recorder.sum("fairlock_oldest_hold_seconds")
    }

    #[test]
    fn managers_that_share_a_recorder_show_the_oldest_time() {
        let recorder = Sums::default();
        let [mut a, mut b] = [(); 2].map(|()| manager(&recorder));
        hold(&mut a, 5);
        hold(&mut b, 9);
        hold(&mut a, 5);
        assert_eq!(shown(&recorder), 9.0);
        drop(b);
        hold(&mut a, 6);
        assert_eq!(shown(&recorder), 6.0);
        a.show(None, None, NOW);
        assert_eq!(shown(&recorder), 0.0);
    }

    #[test]
    fn managers_of_other_recorders_hide_no_time() {
        let recorders = [(); 2].map(|()| Sums::default());
        let mut managers = recorders.each_ref().map(manager);
        let mut silent = OldestTimes::new();
        hold(&mut silent, 100);
        for (manager, seconds) in managers.iter_mut().zip([5, 9]) {
            hold(manager, seconds);
        }
        assert_eq!(recorders.each_ref().map(shown), [5.0, 9.0]);
    }
}
