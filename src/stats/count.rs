//! The counts, each described once: its metric, and its field of [`Stats`]. The field is named as the
//! metric, without `fairlock_` and `_total`, and then as the label. docs/METRICS.md has them for users.

use super::Stats;
use super::metric::Metric;
use crate::loss::LossReason;

/// The counts of a manager. Each has a row in [`ROWS`], in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    AtOnce,
    AfterWait,
    TimedOut,
    Cancelled,
    Failed,
    Handovers,
    LocalHandovers,
    KeptTurns,
    Recalls,
    ColdNames,
    NotKeptFull,
    Expired,
    NotOwner,
    MaxHold,
    Forced,
    Shutdown,
    RenewalsConfirmed,
    RenewalsFailed,
    Requeues,
    DeadWaiters,
    BackgroundReleases,
    /// Those of the engine. Those of the store are in its [`Traffic`](super::Traffic), as the next two.
    Retries,
    Connects,
    Requests,
}

pub(super) struct Row {
    pub(super) metric: Metric,
    pub(super) field: fn(&mut Stats) -> &mut u64,
}

impl Count {
    pub(super) const ALL: usize = Count::Requests as usize + 1;

    pub(super) fn of_loss(reason: LossReason) -> Count {
        match reason {
            LossReason::Expired => Count::Expired,
            LossReason::NotOwner => Count::NotOwner,
            LossReason::MaxHold => Count::MaxHold,
            LossReason::Forced => Count::Forced,
            LossReason::Shutdown => Count::Shutdown,
        }
    }
}

const ACQUISITIONS: Metric = Metric::new(
    "fairlock_acquisitions_total",
    "Requests for a lock, by how they ended.",
);
const LOSSES: Metric = Metric::new(
    "fairlock_losses_total",
    "Locks that were lost before their guard released them, by reason.",
);
const RENEWALS: Metric = Metric::new(
    "fairlock_renewals_total",
    "Renewals that Redis confirmed, and those that failed and were retried.",
);

const fn row(metric: Metric, field: fn(&mut Stats) -> &mut u64) -> Row {
    Row { metric, field }
}

pub(super) const ROWS: [Row; Count::ALL] = [
    row(ACQUISITIONS.with("outcome", "at_once"), |stats| {
        &mut stats.acquisitions_at_once
    }),
    row(ACQUISITIONS.with("outcome", "after_wait"), |stats| {
        &mut stats.acquisitions_after_wait
    }),
    row(ACQUISITIONS.with("outcome", "timed_out"), |stats| {
        &mut stats.acquisitions_timed_out
    }),
    row(ACQUISITIONS.with("outcome", "cancelled"), |stats| {
        &mut stats.acquisitions_cancelled
    }),
    row(ACQUISITIONS.with("outcome", "failed"), |stats| {
        &mut stats.acquisitions_failed
    }),
    row(
        Metric::new(
            "fairlock_handovers_total",
            "Grants that came by hand-over from the holder before.",
        ),
        |stats| &mut stats.handovers,
    ),
    row(
        Metric::new(
            "fairlock_local_handovers_total",
            "Guards that got their lock from another guard of this manager, without Redis.",
        ),
        |stats| &mut stats.local_handovers,
    ),
    row(
        Metric::new(
            "fairlock_kept_turns_total",
            "Guards that got a lock that this manager had kept, without Redis.",
        ),
        |stats| &mut stats.kept_turns,
    ),
    row(
        Metric::new(
            "fairlock_recalls_total",
            "Locks that this manager held or kept when others said that they want them.",
        ),
        |stats| &mut stats.recalls,
    ),
    row(
        Metric::new(
            "fairlock_cold_names_total",
            "Names that were found not worth keeping, for the next 30 to 60 s.",
        ),
        |stats| &mut stats.cold_names,
    ),
    row(
        Metric::new(
            "fairlock_not_kept_full_total",
            "Calls whose lock was not kept, because as many as allowed were kept.",
        ),
        |stats| &mut stats.not_kept_full,
    ),
    row(LOSSES.with("reason", "expired"), |stats| {
        &mut stats.losses_expired
    }),
    row(LOSSES.with("reason", "not_owner"), |stats| {
        &mut stats.losses_not_owner
    }),
    row(LOSSES.with("reason", "max_hold"), |stats| {
        &mut stats.losses_max_hold
    }),
    row(LOSSES.with("reason", "forced"), |stats| {
        &mut stats.losses_forced
    }),
    row(LOSSES.with("reason", "shutdown"), |stats| {
        &mut stats.losses_shutdown
    }),
    row(RENEWALS.with("outcome", "confirmed"), |stats| {
        &mut stats.renewals_confirmed
    }),
    row(RENEWALS.with("outcome", "failed"), |stats| {
        &mut stats.renewals_failed
    }),
    row(
        Metric::new(
            "fairlock_requeues_total",
            "Waiters that were queued again because Redis did not know them any more.",
        ),
        |stats| &mut stats.requeues,
    ),
    row(
        Metric::new(
            "fairlock_dead_waiters_total",
            "Waiters of dead processes that calls of this process passed over.",
        ),
        |stats| &mut stats.dead_waiters,
    ),
    row(
        Metric::new(
            "fairlock_background_releases_total",
            "Releases of locks and of places in queues that went to the background.",
        ),
        |stats| &mut stats.background_releases,
    ),
    row(
        Metric::new("fairlock_retries_total", "Calls that were sent again."),
        |stats| &mut stats.retries,
    ),
    row(
        Metric::new("fairlock_connects_total", "Connections that were opened."),
        |stats| &mut stats.connects,
    ),
    row(
        Metric::new("fairlock_requests_total", "Commands sent to Redis."),
        |stats| &mut stats.requests,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_is_in_the_field_of_its_name() {
        for (at, row) in ROWS.iter().enumerate() {
            let mut stats = Stats::default();
            *(row.field)(&mut stats) = 1;
            let shown = format!("{stats:?}");
            let (until, _) = shown.split_once(": 1,").expect("it is the one");
            let field = until.rsplit(' ').next().expect("its name");
            assert_eq!(row.metric.field(), field, "row {at}");
        }
    }

    #[test]
    fn each_loss_has_the_row_of_its_reason() {
        for (reason, label) in [
            (LossReason::Expired, "expired"),
            (LossReason::NotOwner, "not_owner"),
            (LossReason::MaxHold, "max_hold"),
            (LossReason::Forced, "forced"),
            (LossReason::Shutdown, "shutdown"),
        ] {
            let row = &ROWS[Count::of_loss(reason) as usize];
            assert_eq!(row.metric.label, Some(("reason", label)));
        }
    }

    #[test]
    fn rows_are_in_the_order_of_the_counts() {
        let (_, counts) = include_str!("count.rs")
            .split_once("enum Count {")
            .expect("the counts");
        let (counts, _) = counts.split_once("\n}").expect("its end");
        let counts = counts
            .lines()
            .filter_map(|line| line.trim().strip_suffix(','));
        let counts: Vec<&str> = counts.collect();
        assert_eq!(counts.len(), Count::ALL, "{counts:?}");
        for (count, row) in counts.iter().zip(&ROWS) {
            let field = row.metric.field().replace('_', "");
            assert!(field.ends_with(&count.to_lowercase()), "{count}: {field}");
        }
    }
}
