//! A recorder that adds up what it gets, for the unit tests of `stats`.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;

/// The metrics by name, whatever their labels.
#[derive(Default)]
pub(super) struct Sums(Mutex<BTreeMap<String, Arc<Sum>>>);

/// How often a metric changed, and the sum of its changes.
#[derive(Default)]
struct Sum(Mutex<(u64, f64)>);

impl Sums {
    fn of(&self, name: &str) -> Arc<Sum> {
        Arc::clone(self.0.lock().entry(name.to_owned()).or_default())
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        self.of(name).0.lock().0
    }

    pub(super) fn sum(&self, name: &str) -> f64 {
        self.of(name).0.lock().1
    }
}

impl Sum {
    fn change(&self, by: f64) {
        let (count, sum) = &mut *self.0.lock();
        *count += 1;
        *sum += by;
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key.name()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key.name()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.of(key.name()))
    }
}

impl CounterFn for Sum {
    fn increment(&self, by: u64) {
        self.change(by as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("`facade` sets no value");
    }
}

impl GaugeFn for Sum {
    fn increment(&self, by: f64) {
        self.change(by);
    }

    fn decrement(&self, by: f64) {
        self.change(-by);
    }

    fn set(&self, _: f64) {
        unreachable!("`facade` sets no value");
    }
}

impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        self.change(value);
    }
}
