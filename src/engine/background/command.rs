//! The commands that other threads send to the renewal thread, and the tasks that it schedules.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::token_release::TokenRelease;
use crate::engine::lease::Lease;
use crate::engine::waiter::WaiterEntry;
use crate::script::{Call, Family};
use crate::store::clock::Time;

/// A command from another thread to the renewal thread. New leases have a channel of their own.
pub(crate) enum Command {
    /// The lease of a guard is lost, and nobody has reported it yet.
    ReportLoss(Arc<Lease>),
    Abandon(TokenRelease),
    Confirm(Arc<WaiterEntry>),
    Requeue(Arc<WaiterEntry>),
    /// The subscription is confirmed, and messages may have been missed before. Every name with
    /// waiters is synced at once, and every token is looked up.
    Subscribed,
    /// Shutdown: end all leases, and send the names of the guards that lost theirs.
    EndAll(Sender<Vec<Arc<str>>>),
    /// Drop this sender when nothing is due any more. Its receiver waits for that.
    DropWhenIdle(Sender<Infallible>),
    Stop,
}

/// A lease, and when it is renewed next.
pub(crate) struct ScheduledLease {
    pub(crate) lease: Arc<Lease>,
    pub(crate) renew_at: Time,
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
}
