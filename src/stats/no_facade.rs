//! In a build without the feature `metrics`, nothing is emitted. See facade.rs.

use std::time::Duration;

use super::metric::Metric;

pub(super) const EMITS: bool = false;

pub(super) type RecorderId = ();

pub(super) fn recorder_id() {}

pub(super) type EmittedCounter = NotEmitted;
pub(super) type EmittedGauge = NotEmitted;
pub(super) type TimeGauge = NotEmitted;
pub(super) type EmittedHistogram = NotEmitted;

/// Has the methods of all four.
pub(super) struct NotEmitted;

impl NotEmitted {
    pub(super) fn new(_: Metric) -> NotEmitted {
        NotEmitted
    }

    pub(super) fn add(&self, _: u64) {}

    pub(super) fn sub(&self, _: u64) {}

    pub(super) fn ticks(_: Duration) -> u64 {
        0
    }

    pub(super) fn change(&self, _: u64, _: u64) {}

    pub(super) fn record(&self, _: Duration) {}

    pub(super) fn record_many(&self, _: Duration, _: u64) {}
}
