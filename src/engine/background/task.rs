//! The tasks that the renewal thread schedules for itself.

use std::sync::Arc;

use crate::engine::lease::Lease;
use crate::engine::upkeep::{EndAll, LongWait, ScheduledLease, ShutdownReport, TokenRelease};
use crate::engine::waiter::WaiterEntry;
use crate::script::{Call, Family};

/// A shutdown that waits for the answers to releases.
pub(crate) struct OpenShutdown {
    pub(crate) report: ShutdownReport,
    pub(crate) command: EndAll,
}

/// A task of the renewal thread. Each task is one call in a pipeline, and handles its reply.
pub(crate) enum Task {
    Renew(ScheduledLease),
    /// Release a token, until a reply shows that it is gone for good.
    ReleaseToken(TokenRelease),
    /// R12 (doubtful grants): ask by a renewal whether a waiter's grant still holds.
    Confirm(Arc<WaiterEntry>),
    /// R4 (lost places): enqueue a waiter again, under a new token.
    Requeue(Arc<WaiterEntry>),
    /// A waiter is to be enqueued again, and its name is a kind of this family by now. Vacate the
    /// name first.
    Vacate(Arc<WaiterEntry>, Family),
    /// Ask for a name's owner and served time.
    Sync(Call),
    /// Ask which of a name's tokens Redis knows.
    Lookup(Call),
    /// A thread has waited for long: ask who holds the lock, for the log.
    AskHolder(LongWait),
}

impl Task {
    /// The lease that the task renews.
    pub(crate) fn into_lease(self) -> Option<Arc<Lease>> {
        match self {
            Task::Renew(scheduled) => Some(scheduled.lease),
            _ => None,
        }
    }
}
