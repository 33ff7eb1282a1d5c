//! The metrics of the facade: their names, and what they count. docs/METRICS.md has them for users.

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
    const fn new(name: &'static str, about: &'static str) -> Metric {
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
pub(super) const ACQUISITIONS: Metric = Metric::new(
    "fairlock_acquisitions_total",
    "Requests for a lock, by how they ended.",
);
pub(super) const LOSSES: Metric = Metric::new(
    "fairlock_losses_total",
    "Locks that were lost before their guard released them, by reason.",
);
pub(super) const HANDOVERS: Metric = Metric::new(
    "fairlock_handovers_total",
    "Grants that came by hand-over from the holder before.",
);
pub(super) const LOCAL_HANDOVERS: Metric = Metric::new(
    "fairlock_local_handovers_total",
    "Guards that got their lock from another guard of this manager, without Redis.",
);
pub(super) const KEPT_TURNS: Metric = Metric::new(
    "fairlock_kept_turns_total",
    "Guards that got a lock that this manager had kept, without Redis.",
);
pub(super) const RECALLS: Metric = Metric::new(
    "fairlock_recalls_total",
    "Locks that this manager held or kept when others said that they want them.",
);
pub(super) const COLD_NAMES: Metric = Metric::new(
    "fairlock_cold_names_total",
    "Names that were found not worth keeping, for the next 30 to 60 s.",
);
pub(super) const NOT_KEPT_FULL: Metric = Metric::new(
    "fairlock_not_kept_full_total",
    "Calls whose lock was not kept, because as many as allowed were kept.",
);
pub(super) const RENEWALS: Metric = Metric::new(
    "fairlock_renewals_total",
    "Renewals that Redis confirmed, and those that failed and were retried.",
);
pub(super) const REQUEUES: Metric = Metric::new(
    "fairlock_requeues_total",
    "Waiters that were queued again because Redis did not know them any more.",
);
pub(super) const BACKGROUND_RELEASES: Metric = Metric::new(
    "fairlock_background_releases_total",
    "Releases of locks and of places in queues that went to the background.",
);
pub(super) const DEAD_WAITERS: Metric = Metric::new(
    "fairlock_dead_waiters_total",
    "Waiters of dead processes that calls of this process passed over.",
);
pub(super) const RETRIES: Metric =
    Metric::new("fairlock_retries_total", "Calls that were sent again.");
pub(super) const CONNECTS: Metric =
    Metric::new("fairlock_connects_total", "Connections that were opened.");
pub(super) const REQUESTS: Metric =
    Metric::new("fairlock_requests_total", "Commands sent to Redis.");
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
