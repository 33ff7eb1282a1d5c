//! Emits numbers through the `metrics` facade.
//!
//! The recorder is looked up once, when the manager is built: an event then costs one call of the
//! recorder's own handle, and a branch if there is no recorder. It also lets a program give each
//! manager a recorder of its own.
//!
//! Several managers may share a recorder. Its counters and gauges are then sums over the managers,
//! since nothing here ever sets a value.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, Unit, with_recorder};

use super::metric::Metric;

pub(super) const EMITS: bool = true;

const METADATA: Metadata<'static> = Metadata::new("fairlock", Level::INFO, Some("fairlock"));

/// Which recorder is in use here: its address.
pub(super) type RecorderId = usize;

pub(super) fn recorder_id() -> RecorderId {
    with_recorder(|recorder| std::ptr::from_ref(recorder).cast::<()>().addr())
}

pub(super) struct EmittedCounter(metrics::Counter);

pub(super) struct EmittedGauge(metrics::Gauge);

pub(super) struct TimeGauge(metrics::Gauge);

pub(super) struct EmittedHistogram(metrics::Histogram);

impl EmittedCounter {
    pub(super) fn new(metric: Metric) -> EmittedCounter {
        with_recorder(|recorder| {
            recorder.describe_counter(metric.name.into(), Some(Unit::Count), metric.about.into());
            EmittedCounter(recorder.register_counter(&key_of(metric), &METADATA))
        })
    }

    pub(super) fn add(&self, count: u64) {
        emit(|| self.0.increment(count));
    }
}

impl EmittedGauge {
    pub(super) fn new(metric: Metric) -> EmittedGauge {
        with_recorder(|recorder| {
            recorder.describe_gauge(metric.name.into(), Some(Unit::Count), metric.about.into());
            EmittedGauge(recorder.register_gauge(&key_of(metric), &METADATA))
        })
    }

    pub(super) fn add(&self, count: u64) {
        emit(|| self.0.increment(count as f64));
    }

    pub(super) fn sub(&self, count: u64) {
        emit(|| self.0.decrement(count as f64));
    }
}

/// A time in seconds that rises and falls.
impl TimeGauge {
    /// Of this length, sums of ticks are exact in a recorder's floating point numbers. So a gauge
    /// that fell to 0 shows 0.
    const TICKS_PER_SECOND: u64 = 1024;

    pub(super) fn new(metric: Metric) -> TimeGauge {
        with_recorder(|recorder| {
            recorder.describe_gauge(metric.name.into(), Some(Unit::Seconds), metric.about.into());
            TimeGauge(recorder.register_gauge(&key_of(metric), &METADATA))
        })
    }

    pub(super) fn ticks(time: Duration) -> u64 {
        (time.as_secs_f64() * Self::TICKS_PER_SECOND as f64) as u64
    }

    pub(super) fn change(&self, from: u64, to: u64) {
        let seconds = |ticks| ticks as f64 / Self::TICKS_PER_SECOND as f64;
        emit(|| self.0.increment(seconds(to) - seconds(from)));
    }
}

/// Times in seconds.
impl EmittedHistogram {
    pub(super) fn new(metric: Metric) -> EmittedHistogram {
        with_recorder(|recorder| {
            recorder.describe_histogram(
                metric.name.into(),
                Some(Unit::Seconds),
                metric.about.into(),
            );
            EmittedHistogram(recorder.register_histogram(&key_of(metric), &METADATA))
        })
    }

    pub(super) fn record(&self, time: Duration) {
        emit(|| self.0.record(time.as_secs_f64()));
    }

    /// Records the same time `count` times.
    pub(super) fn record_many(&self, time: Duration, count: u64) {
        emit(|| self.0.record_many(time.as_secs_f64(), count as usize));
    }
}

/// A recorder is foreign code. An event happens in the middle of a release or a loss, and in `drop`:
/// if the recorder panics, its number is missing, and nothing else.
fn emit(emission: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(emission));
}

fn key_of(metric: Metric) -> Key {
    let labels = metric.label.into_iter();
    let labels: Vec<Label> = labels
        .map(|(label, value)| Label::from_static_parts(label, value))
        .collect();
    Key::from_parts(metric.name, labels)
}
