//! The one place where events become numbers: those of [`Stats`], and those that the feature
//! `metrics` emits. Each instrument here does both, so they cannot differ.
//!
//! A recorder is foreign code, so no mutex of this crate may be held where one of these methods is
//! called. A store counts under its mutexes. So it keeps plain numbers ([`Traffic`]), and
//! [`Meter::publish`] emits what they have grown by.
//!
//! docs/METRICS.md has all names.

use std::ops::{Add, AddAssign};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Stats;
use super::count::{Count, ROWS};
use super::facade;
use super::metric::{self, Metric};
use crate::loss::LossReason;

/// The instruments of one manager.
pub(crate) struct Meter {
    held: Gauge,
    pub(crate) waiting: Gauge,
    /// In the order of [`ROWS`].
    counters: [Counter; Count::ALL],
    wait: Durations,
    hold: Durations,
    pub(crate) renewal_lateness: Durations,
    published: PublishedTraffic,
}

impl Meter {
    /// Whether [`Meter::publish`] does anything.
    pub(crate) const PUBLISHES: bool = facade::EMITS;

    pub(crate) fn new() -> Meter {
        Meter {
            held: Gauge::new(metric::HELD),
            waiting: Gauge::new(metric::WAITING),
            counters: ROWS.map(|row| Counter::new(row.metric)),
            wait: Durations::new(metric::WAIT),
            hold: Durations::new(metric::HOLD),
            renewal_lateness: Durations::new(metric::RENEWAL_LATENESS),
            published: PublishedTraffic::new(),
        }
    }

    /// It happened once more.
    pub(crate) fn count(&self, count: Count) {
        self.add(count, 1);
    }

    pub(crate) fn add(&self, count: Count, n: u64) {
        self.counters[count as usize].add(n);
    }

    /// A caller gets a guard. `wait` is the time since it asked.
    pub(crate) fn on_granted(&self, wait: Duration, had_to_wait: bool) {
        self.held.add(1);
        self.count(if had_to_wait {
            Count::AfterWait
        } else {
            Count::AtOnce
        });
        self.wait.record(wait);
    }

    /// A guard is about to exist. A shutdown waits for it. To be followed by [`Meter::on_lent`]; this runs
    /// nothing of a recorder, so the caller may hold a mutex.
    pub(crate) fn count_guard(&self) {
        self.held.count(1);
    }

    /// The guard of a kept lock exists, and was counted before.
    pub(crate) fn on_lent(&self) {
        self.held.emit(1);
        self.count(Count::KeptTurns);
        self.count(Count::AtOnce);
        self.wait.record(Duration::ZERO);
    }

    /// A guard's lock is released. `hold` is the time since its grant.
    pub(crate) fn on_released(&self, hold: Duration) {
        self.hold.record(hold);
    }

    /// A guard's lock is lost. `hold` is the time since its grant.
    pub(crate) fn on_lost(&self, reason: LossReason, hold: Duration) {
        self.count(Count::of_loss(reason));
        self.hold.record(hold);
    }

    /// The reply to the release of a guard's lock shows that it was lost before. How long it was
    /// held was counted when the release began.
    pub(crate) fn on_found_lost(&self, reason: LossReason) {
        self.count(Count::of_loss(reason));
    }

    pub(crate) fn on_guard_dropped(&self) {
        self.held.sub(1);
    }

    /// Guards that are alive now.
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    /// Callers and waiters that do not have their guard yet.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// All numbers, with those of the store.
    pub(crate) fn read(&self, traffic: Traffic) -> Stats {
        let mut stats = Stats {
            held: self.held.get(),
            waiting: self.waiting.get(),
            connection_waits: traffic.connection_waits,
            connection_wait_time: traffic.connection_wait_time,
            longest_wait: self.wait.longest(),
            longest_hold: self.hold.longest(),
            latest_renewal: self.renewal_lateness.longest(),
            ..Stats::default()
        };
        for (counter, row) in self.counters.iter().zip(&ROWS) {
            *(row.field)(&mut stats) = counter.get();
        }
        stats.retries += traffic.retries;
        stats.connects = traffic.connects;
        stats.requests = traffic.requests;
        stats
    }

    /// Emits what the store's numbers have grown by, if they are to be emitted. Call it now and
    /// then: it costs nothing in a build without the feature `metrics`.
    pub(crate) fn publish(&self, traffic: impl FnOnce() -> Option<Traffic>) {
        if Meter::PUBLISHES {
            self.published.publish(traffic, &self.counters);
        }
    }
}

/// A number that only grows.
struct Counter {
    count: AtomicU64,
    emitted: facade::EmittedCounter,
}

impl Counter {
    fn new(metric: Metric) -> Counter {
        Counter {
            count: AtomicU64::new(0),
            emitted: facade::EmittedCounter::new(metric),
        }
    }

    fn add(&self, n: u64) {
        self.count.fetch_add(n, Ordering::Relaxed);
        self.emitted.add(n);
    }

    fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls.
pub(crate) struct Gauge {
    count: AtomicU64,
    emitted: facade::EmittedGauge,
}

impl Gauge {
    fn new(metric: Metric) -> Gauge {
        Gauge {
            count: AtomicU64::new(0),
            emitted: facade::EmittedGauge::new(metric),
        }
    }

    pub(crate) fn add(&self, n: u64) {
        self.count(n);
        self.emit(n);
    }

    /// The first half of [`Gauge::add`]. It runs nothing of a recorder, so a caller may hold a mutex.
    fn count(&self, n: u64) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    fn emit(&self, n: u64) {
        self.emitted.add(n);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.count.fetch_sub(n, Ordering::Relaxed);
        self.emitted.sub(n);
    }

    fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// How long something takes.
pub(crate) struct Durations {
    /// In µs, which the form of the feature `serde` has.
    longest: AtomicU64,
    emitted: facade::EmittedHistogram,
}

impl Durations {
    fn new(metric: Metric) -> Durations {
        Durations {
            longest: AtomicU64::new(0),
            emitted: facade::EmittedHistogram::new(metric),
        }
    }

    pub(crate) fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if us > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(us, Ordering::Relaxed);
        }
        self.emitted.record(time);
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }
}

/// The part of a store's traffic that was emitted.
struct PublishedTraffic {
    connection_wait: facade::EmittedHistogram,
    /// A thread publishes. This is no mutex, since nobody waits for it: another thread goes on, and
    /// leaves it to the next call.
    is_publishing: AtomicBool,
    /// The traffic of the last time: connects, requests, retries, connection waits, their time in
    /// ns.
    last: [AtomicU64; 5],
}

impl PublishedTraffic {
    fn new() -> PublishedTraffic {
        PublishedTraffic {
            connection_wait: facade::EmittedHistogram::new(metric::CONNECTION_WAIT),
            is_publishing: AtomicBool::new(false),
            last: [const { AtomicU64::new(0) }; 5],
        }
    }

    fn publish(&self, traffic: impl FnOnce() -> Option<Traffic>, counters: &[Counter]) {
        if self.is_publishing.swap(true, Ordering::Acquire) {
            return;
        }
        // A recorder may panic.
        let _publishing = Publishing(&self.is_publishing);
        let Some(now) = traffic() else { return };
        let numbers = [
            now.connects,
            now.requests,
            now.retries,
            now.connection_waits,
            now.connection_wait_time.as_nanos() as u64,
        ];
        let grown = |at: usize| {
            // While a node is replaced, a sum over all nodes may fall for a moment.
            let last = self.last[at].fetch_max(numbers[at], Ordering::Relaxed);
            numbers[at].saturating_sub(last)
        };
        let [connects, requests, resent, waits] = [0, 1, 2, 3].map(grown);
        // A store counts the time of a wait just before the wait. So a time without a wait stays for
        // the next call.
        let wait_ns = if waits > 0 { grown(4) } else { 0 };
        for (count, grown) in [
            (Count::Connects, connects),
            (Count::Requests, requests),
            (Count::Retries, resent),
        ] {
            if grown > 0 {
                counters[count as usize].emitted.add(grown);
            }
        }
        if let Some(mean_ns) = wait_ns.checked_div(waits) {
            let mean = Duration::from_nanos(mean_ns);
            self.connection_wait.record_many(mean, waits);
        }
    }
}

struct Publishing<'a>(&'a AtomicBool);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::super::sums::Sums;
    use super::*;

    #[test]
    fn time_of_a_connection_wait_is_emitted_with_its_wait() {
        let recorder = Sums::default();
        let meter = metrics::with_local_recorder(&recorder, Meter::new);
        // Read in the middle of a count: the time is there, and the wait is not.
        for connection_waits in [0, 1, 1] {
            let traffic = Traffic {
                connection_waits,
                connection_wait_time: Duration::from_secs(5),
                ..Traffic::default()
            };
            meter.publish(|| Some(traffic));
        }
        assert_eq!(recorder.sum("fairlock_connection_wait_seconds"), 5.0);
        assert_eq!(recorder.count("fairlock_connection_wait_seconds"), 1);
    }

    /// A recorder that panics must not end publication for good, and a sum that falls for a moment
    /// must not be counted twice.
    #[test]
    fn traffic_is_emitted_once_though_it_falls_for_a_moment() {
        let recorder = Sums::default();
        let meter = metrics::with_local_recorder(&recorder, Meter::new);
        for requests in [5, 3, 5, 8] {
            let traffic = Traffic {
                requests,
                retries: requests,
                connection_waits: requests,
                connection_wait_time: Duration::from_secs(requests),
                ..Traffic::default()
            };
            meter.publish(|| Some(traffic));
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            meter.publish(|| panic!("a store may panic"));
        }));
        assert!(panicked.is_err());
        let traffic = Traffic {
            requests: 9,
            ..Traffic::default()
        };
        meter.publish(|| Some(traffic));
        meter.count(Count::Retries);
        assert_eq!(recorder.sum("fairlock_requests_total"), 9.0);
        assert_eq!(recorder.sum("fairlock_retries_total"), 9.0);
        assert_eq!(recorder.sum("fairlock_connection_wait_seconds"), 8.0);
        assert_eq!(recorder.count("fairlock_connection_wait_seconds"), 8);
    }
}

/// The work of a manager's store since it was opened, over all its nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Connections that were opened.
    pub(crate) connects: u64,
    /// Commands that were sent, without those that scripts run.
    pub(crate) requests: u64,
    /// Calls that were sent again, since the connection was closed or the reply void.
    pub(crate) retries: u64,
    /// Calls that had to wait until their lane was open, and for how long, all together.
    pub(crate) connection_waits: u64,
    pub(crate) connection_wait_time: Duration,
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            connects: self.connects + other.connects,
            requests: self.requests + other.requests,
            retries: self.retries + other.retries,
            connection_waits: self.connection_waits + other.connection_waits,
            connection_wait_time: self.connection_wait_time + other.connection_wait_time,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Traffic>>(all: I) -> Traffic {
        all.fold(Traffic::default(), Add::add)
    }
}
