//! How long something took, counted in buckets.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time_text::three_digits;

/// How many bits of a time choose its bucket, after the first one: 8 buckets for each power of two.
const BITS: u32 = 3;
const PER_POWER: usize = 1 << BITS;
/// The first bucket has everything below 2^13 ns, which is 8.192 µs.
const FIRST_POWER: u32 = 13;
/// The last bucket has everything from 2^45 ns on, which is 9 hours and 46 minutes.
const END_POWER: u32 = 45;
const BUCKETS: usize = (END_POWER - FIRST_POWER) as usize * PER_POWER + 2;

/// How long something took, each time: a snapshot, from [`LockManager::stats`].
///
/// The times are counted in 258 buckets with fixed bounds. Eight buckets cover each power of two
/// from 8.192 µs to 9 hours and 46 minutes. So the upper bound of a bucket is at most 12.5 % above
/// any time in it. One more bucket has the shorter times, and one the longer ones.
///
/// The numbers are read one after the other, without a mutex, while other threads count. So a time
/// that was just counted may be in [`sum`](Histogram::sum) and not yet in
/// [`count`](Histogram::count), or the other way round. No number ever falls, and
/// [`buckets`](Histogram::buckets) always add up to the count.
///
/// With the feature `serde` it is
/// `{"count": 3, "sum": 0.75, "max": 0.5, "buckets": [{"below": 0.134217728, "count": 3}]}`: times in
/// seconds, and only the buckets that are not empty, each with its own count. The last bucket has no
/// bound: `null`.
///
/// [`LockManager::stats`]: crate::LockManager::stats
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    sum: Duration,
    max: Duration,
}

impl Histogram {
    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All times together. Exact.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest time. Exact. Zero if there is none.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The mean time. Zero if there is none.
    pub fn mean(&self) -> Duration {
        match self.count() {
            0 => Duration::ZERO,
            count => Duration::from_nanos((self.sum.as_nanos() / u128::from(count)) as u64),
        }
    }

    /// The time below which this share of the times lies: 0.5 for the median, 0.99 for the time
    /// that one in a hundred exceeds. Zero if there is none.
    ///
    /// It is the upper bound of a bucket, so at most 12.5 % too long, and never longer than
    /// [`max`](Histogram::max). Below 8.192 µs it is 8.192 µs or the longest time. A share below 0
    /// counts as 0, one above 1 as 1.
    pub fn quantile(&self, share: f64) -> Duration {
        let count = self.count();
        // Not a number: the least.
        let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let found = self.buckets().find(|(_, up_to_here)| *up_to_here >= rank);
        found.map_or(Duration::ZERO, |(bound, _)| bound.min(self.max))
    }

    /// The buckets: the upper bound of each, and how many times are below it, those of the buckets
    /// before included.
    ///
    /// The bounds are the same for all histograms, and rise. The last is [`Duration::MAX`], and its
    /// count is [`count`](Histogram::count).
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut up_to_here = 0;
        self.counts.iter().enumerate().map(move |(index, count)| {
            up_to_here += count;
            (upper_bound(index), up_to_here)
        })
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            sum: Duration::ZERO,
            max: Duration::ZERO,
        }
    }
}

/// `p50 1.5ms p99 40ms max 41ms`, or `none`.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count() == 0 {
            return f.write_str("none");
        }
        let [half, most, max] =
            [self.quantile(0.5), self.quantile(0.99), self.max].map(three_digits);
        write!(f, "p50 {half:?} p99 {most:?} max {max:?}")
    }
}

/// Without the buckets: there are hundreds.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({} times, {self})", self.count())
    }
}

/// The histogram that threads count into. A count takes no mutex and allocates nothing.
pub(super) struct LiveHistogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl LiveHistogram {
    pub(super) fn new() -> LiveHistogram {
        LiveHistogram {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn count(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        // Before the bucket: nobody sees a time above the longest one.
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Release);
    }

    pub(super) fn read(&self) -> Histogram {
        let mut histogram = Histogram::default();
        for (read, live) in histogram.counts.iter_mut().zip(&self.counts) {
            *read = live.load(Ordering::Acquire);
        }
        histogram.sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed));
        histogram.max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        histogram
    }
}

fn bucket_of(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0);
    if power < FIRST_POWER {
        return 0;
    }
    if power >= END_POWER {
        return BUCKETS - 1;
    }
    let part = (ns >> (power - BITS)) as usize - PER_POWER;
    1 + (power - FIRST_POWER) as usize * PER_POWER + part
}

/// The time before which a bucket ends.
fn upper_bound(index: usize) -> Duration {
    let Some(after_first) = index.checked_sub(1) else {
        return Duration::from_nanos(1 << FIRST_POWER);
    };
    if index == BUCKETS - 1 {
        return Duration::MAX;
    }
    let power = FIRST_POWER + (after_first / PER_POWER) as u32;
    let end = (PER_POWER + after_first % PER_POWER + 1) as u64;
    Duration::from_nanos(end << (power - BITS))
}

#[cfg(feature = "serde")]
mod saved {
    //! A histogram as data: the times in seconds, and the buckets that are not empty.

    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use super::{BUCKETS, Histogram, upper_bound};

    #[derive(Serialize, Deserialize)]
    struct Saved {
        count: u64,
        sum: f64,
        max: f64,
        buckets: Vec<Bucket>,
    }

    #[derive(Serialize, Deserialize)]
    struct Bucket {
        /// The upper bound. `None` for the last bucket, which has none.
        below: Option<f64>,
        /// How many times are in this bucket alone.
        count: u64,
    }

    impl Serialize for Histogram {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let all = self.counts.iter().enumerate();
            let buckets = all.filter(|(_, count)| **count > 0);
            let saved = Saved {
                count: self.count(),
                sum: self.sum.as_secs_f64(),
                max: self.max.as_secs_f64(),
                buckets: buckets
                    .map(|(index, count)| Bucket {
                        below: (index < BUCKETS - 1).then(|| upper_bound(index).as_secs_f64()),
                        count: *count,
                    })
                    .collect(),
            };
            saved.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Histogram {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
            let saved = Saved::deserialize(deserializer)?;
            let mut histogram = Histogram {
                sum: seconds(saved.sum)?,
                max: seconds(saved.max)?,
                ..Histogram::default()
            };
            let mut total = 0_u64;
            for Bucket { below, count } in saved.buckets {
                let many = || de::Error::custom("the counts are too large");
                total = total.checked_add(count).ok_or_else(many)?;
                let bound = below.map_or(Ok(Duration::MAX), seconds)?;
                let index = (0..BUCKETS).find(|index| upper_bound(*index) == bound);
                let unknown = || de::Error::custom("no bucket has this upper bound");
                histogram.counts[index.ok_or_else(unknown)?] = count;
            }
            Ok(histogram)
        }
    }

    fn seconds<E: de::Error>(seconds: f64) -> Result<Duration, E> {
        Duration::try_from_secs_f64(seconds).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[Duration]) -> Histogram {
        let live = LiveHistogram::new();
        times.iter().for_each(|time| live.count(*time));
        live.read()
    }

    #[test]
    fn every_time_is_below_the_bound_of_its_bucket_and_close_to_it() {
        let mut ns: u64 = 1;
        while ns < 1 << 50 {
            for time in [ns - 1, ns, ns + 1] {
                let index = bucket_of(time);
                let bound = upper_bound(index);
                assert!(Duration::from_nanos(time) < bound, "{time} ns");
                if index > 0 {
                    assert!(
                        Duration::from_nanos(time) >= upper_bound(index - 1),
                        "{time} ns"
                    );
                }
                if (1..BUCKETS - 1).contains(&index) {
                    assert!(bound.as_nanos() as f64 <= time as f64 * 1.125, "{time} ns");
                }
            }
            ns += ns / 17 + 1;
        }
        assert!(upper_bound(BUCKETS - 2) > Duration::from_secs(9 * 3600));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_long() {
        let times: Vec<Duration> = (1..=1000).map(Duration::from_millis).collect();
        let histogram = of(&times);
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.sum(), times.iter().sum());
        assert_eq!(histogram.max(), Duration::from_secs(1));
        assert_eq!(histogram.mean(), Duration::from_micros(500_500));
        for (share, exact) in [(0.001, 1), (0.5, 500), (0.9, 900), (0.99, 990)] {
            let found = histogram.quantile(share);
            let exact = Duration::from_millis(exact);
            assert!(
                exact <= found && found <= exact.mul_f64(1.125),
                "{share}: {found:?}"
            );
        }
        assert_eq!(histogram.quantile(1.0), Duration::from_secs(1));
        assert_eq!(histogram.quantile(7.0), Duration::from_secs(1));
        assert_eq!(histogram.quantile(-1.0), histogram.quantile(0.0));
        assert_eq!(histogram.quantile(f64::NAN), histogram.quantile(0.0));
    }

    #[test]
    fn extremes_are_counted_and_empty_histograms_say_zero() {
        let hours = Duration::from_secs(100 * 3600);
        let histogram = of(&[Duration::ZERO, hours]);
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets.first(), Some(&(Duration::from_nanos(8192), 1)));
        assert_eq!(buckets.last(), Some(&(Duration::MAX, 2)));
        assert!(buckets.is_sorted());
        assert_eq!(histogram.quantile(0.99), hours);
        let none = Histogram::default();
        assert_eq!(
            (none.count(), none.quantile(0.5), none.mean()),
            Default::default()
        );
        assert_eq!(none.to_string(), "none");
    }

    #[test]
    fn threads_count_every_time_once() {
        let live = LiveHistogram::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let live = &live;
                scope.spawn(move || {
                    for n in 0..10_000 {
                        live.count(Duration::from_nanos(n * (thread + 1)));
                    }
                });
            }
        });
        let read = live.read();
        let sum: u64 = (0..10_000).sum::<u64>() * 36;
        assert_eq!(
            (read.count(), read.sum()),
            (80_000, Duration::from_nanos(sum))
        );
        assert_eq!(read.max(), Duration::from_nanos(9_999 * 8));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn saved_histogram_is_read_back() {
        let times = [0, 1, 20_000, 20_001, 5_000_000_000, 1 << 60];
        let histogram = of(&times.map(Duration::from_nanos));
        let saved = serde_json::to_string(&histogram).expect("it can be saved");
        assert!(saved.starts_with(r#"{"count":6,"sum":"#), "{saved}");
        let read: Histogram = serde_json::from_str(&saved).expect("it can be read");
        assert_eq!(read.counts, histogram.counts);
        for (read, was) in [(read.sum, histogram.sum), (read.max, histogram.max)] {
            assert!(read.abs_diff(was) < Duration::from_micros(1));
        }
        let wrong = r#"{"count":1,"sum":1,"max":1,"buckets":[{"below":0.123,"count":1}]}"#;
        assert!(serde_json::from_str::<Histogram>(wrong).is_err());
    }

    /// The count is the sum of all buckets, and nothing that was read may make it overflow.
    #[cfg(feature = "serde")]
    #[test]
    fn counts_without_a_sum_are_refused() {
        let bounds = [upper_bound(0), upper_bound(1)].map(|bound| bound.as_secs_f64());
        let read = |counts: [u64; 2]| {
            let buckets: Vec<String> = bounds
                .iter()
                .zip(counts)
                .map(|(below, count)| format!(r#"{{"below":{below},"count":{count}}}"#))
                .collect();
            let buckets = buckets.join(",");
            let saved = format!(r#"{{"count":1,"sum":1,"max":1,"buckets":[{buckets}]}}"#);
            serde_json::from_str::<Histogram>(&saved)
        };
        let most = read([u64::MAX - 1, 1]).expect("the sum fits");
        assert_eq!(most.count(), u64::MAX);
        let error = read([u64::MAX, 1]).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("too large")));
    }
}
