//! The metrics of the facade. Those of the counts are in [`count`](super::count).

/// A metric of the facade, with at most one label.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "without the feature, nobody reads the names")
)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) label: Option<(&'static str, &'static str)>,
    pub(super) about: &'static str,
}

impl Metric {
    pub(super) const fn new(name: &'static str, about: &'static str) -> Metric {
        Metric {
            name,
            label: None,
            about,
        }
    }

    pub(super) const fn with(self, label: &'static str, value: &'static str) -> Metric {
        Metric {
            label: Some((label, value)),
            ..self
        }
    }

    /// The field of [`Stats`](super::Stats) with this count.
    pub(super) fn field(&self) -> String {
        let name = self.name.trim_start_matches("fairlock_");
        let name = name.trim_end_matches("_total");
        match self.label {
            Some((_, value)) => format!("{name}_{value}"),
            None => name.to_owned(),
        }
    }
}

pub(super) const HELD: Metric = Metric::new("fairlock_held", "Guards that are alive now.");
pub(super) const WAITING: Metric = Metric::new(
    "fairlock_waiting",
    "Callers and waiters without their guard now.",
);
pub(super) const OLDEST_WAIT: Metric = Metric::new(
    "fairlock_oldest_wait_seconds",
    "How long the oldest wait that has not ended has lasted.",
);
pub(super) const OLDEST_HOLD: Metric = Metric::new(
    "fairlock_oldest_hold_seconds",
    "How long the oldest guard that is alive has held its lock.",
);
pub(super) const WAIT: Metric = Metric::new(
    "fairlock_wait_seconds",
    "From the call to the grant, for requests that got the lock.",
);
pub(super) const HOLD: Metric = Metric::new(
    "fairlock_hold_seconds",
    "From the grant to the release or the loss, for each guard.",
);
pub(super) const RENEWAL_LATENESS: Metric = Metric::new(
    "fairlock_renewal_lateness_seconds",
    "How much later than due a renewal was confirmed.",
);
pub(super) const CONNECTION_WAIT: Metric = Metric::new(
    "fairlock_connection_wait_seconds",
    "How long a call waited because no connection was open.",
);

/// Stands for the facade in a build without the feature `metrics`: nothing is emitted.
#[cfg(not(feature = "metrics"))]
pub(super) mod not_emitted {
    use std::time::Duration;

    use super::Metric;

    pub(in crate::stats) const EMITS: bool = false;

    pub(in crate::stats) type RecorderId = ();

    pub(in crate::stats) fn recorder_id() {}

    pub(in crate::stats) type EmittedCounter = NotEmitted;
    pub(in crate::stats) type EmittedGauge = NotEmitted;
    pub(in crate::stats) type TimeGauge = NotEmitted;
    pub(in crate::stats) type EmittedHistogram = NotEmitted;

    /// Has the methods of all four.
    pub(in crate::stats) struct NotEmitted;

    impl NotEmitted {
        pub(in crate::stats) fn new(_: Metric) -> NotEmitted {
            NotEmitted
        }

        pub(in crate::stats) fn add(&self, _: u64) {}

        pub(in crate::stats) fn sub(&self, _: u64) {}

        pub(in crate::stats) fn ticks(_: Duration) -> u64 {
            0
        }

        pub(in crate::stats) fn change(&self, _: u64, _: u64) {}

        pub(in crate::stats) fn record(&self, _: Duration) {}

        pub(in crate::stats) fn record_many(&self, _: Duration, _: u64) {}
    }
}
