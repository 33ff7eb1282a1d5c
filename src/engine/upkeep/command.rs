//! The commands that other threads send to the renewal thread.

use std::convert::Infallible;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::token_release::TokenRelease;
use crate::engine::lease::HeldLease;
use crate::engine::waiter::WaiterEntry;
use crate::script::Family;
use crate::store::clock::Time;

/// A command from another thread to the renewal thread. New leases have a channel of their own.
pub(crate) enum Command {
    /// The lease of a guard is lost, and nobody has reported it yet.
    ReportLoss(Arc<HeldLease>),
    Do(Task),
    /// The subscription is confirmed, and messages may have been missed before. Every name with
    /// waiters is synced at once, and every token is looked up.
    Subscribed,
    EndAll(EndAll),
    /// Call this at that time. It alone wakes the thread only if that would wake later.
    CallAt(Time, Arc<dyn Timer>),
    /// Drop this sender when nothing is due any more. Its receiver waits for that.
    #[cfg_attr(
        not(feature = "memory"),
        allow(dead_code, reason = "only a clock that jumps asks for it")
    )]
    DropWhenIdle(Sender<Infallible>),
    Stop,
}

/// A call that the renewal thread makes at a time. No mutex is held. It sends nothing itself and does
/// not block.
pub(crate) trait Timer: Send + Sync + RefUnwindSafe {
    /// Returns when it is to be called again, if it is. It may be called later than it asked for.
    fn on_time(&self, now: Time) -> Option<Time>;
}

/// A task of the renewal thread. Each task is one call in a pipeline, and its owner handles the reply.
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
    Sync,
    /// Ask which of a name's tokens Redis knows.
    Lookup,
}

impl Task {
    pub(in crate::engine) fn into_release(self) -> Option<TokenRelease> {
        match self {
            Task::ReleaseToken(release) => Some(release),
            _ => None,
        }
    }
}

/// A shutdown's command: end all leases, and report when their releases are answered.
pub(crate) struct EndAll {
    /// The time for replies to the releases. It counts from the command, not from the moment at
    /// which the thread takes it in, so that the shutdown has a bound.
    pub(crate) report_by: Time,
    pub(crate) report_to: Sender<ShutdownReport>,
}

/// The names of the locks that a shutdown ended or could not release.
#[derive(Default)]
pub(crate) struct ShutdownReport {
    /// The locks that guards lost by the shutdown.
    pub(crate) ended: Vec<Arc<str>>,
    /// The locks whose release had no answer.
    pub(crate) unreleased: Vec<Arc<str>>,
}

impl ShutdownReport {
    /// The names that were ended, if all are released.
    pub(crate) fn into_result(self) -> Result<Vec<Arc<str>>, String> {
        if self.unreleased.is_empty() {
            return Ok(self.ended);
        }
        let mut why = format!("not confirmed as released: {}", self.unreleased.join(", "));
        if !self.ended.is_empty() {
            why += &format!("; still held at the end: {}", self.ended.join(", "));
        }
        Err(why)
    }
}

/// A lease, and when it is renewed next.
pub(crate) struct ScheduledLease {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) renew_at: Time,
    /// When it was to be renewed first. A renewal that fails is tried again later, and stays due
    /// since then.
    pub(crate) due_at: Time,
}
