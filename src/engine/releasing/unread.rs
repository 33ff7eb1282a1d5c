//! How the release of a dropped guard is sent without waiting for its reply. Somebody else of the
//! manager reads the reply: the next caller on the same lane, or the renewal thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ReleaseOutcome, Releasing, WantResult, loss_result, release_call};
use crate::engine::lease::HeldLease;
use crate::engine::upkeep::{ReportTo, TokenRelease, warn_of_drop};
use crate::error::Result;
use crate::script::{Call, Mode};
use crate::store::clock::Time;
use crate::store::{CallResult, OnResult, StoreFault};

impl Releasing {
    /// Sends the releases of these leases, which have ended here at `started`, on connections that
    /// are open. A result is `None` if its caller need not wait: another thread handles the reply.
    /// Blocks for at most one command timeout.
    pub(super) fn send_releases(
        self: &Arc<Self>,
        leases: &[&Arc<HeldLease>],
        calls: &[Call],
        started: Time,
        want: WantResult,
    ) -> Vec<Option<CallResult>> {
        let leave = |at: usize| {
            let lease = leases[at];
            self.may_leave(lease, want)
                .then(|| self.on_unread(lease, &calls[at], started))
        };
        let timeout = self.client.config().command_timeout;
        let results = self.client.store().send(calls, started + timeout, &leave);
        if results.iter().any(Option::is_none) {
            self.note_left(started + timeout);
        }
        results
    }

    /// Whether the caller of a release that was just written may leave its reply to others.
    ///
    /// P4 (no lost wake-up): the reply may carry the grant of a waiter of this process, which must
    /// not stay unread. So this look at the registry comes after the write. A waiter registers
    /// before it sends its acquire, and all calls for a name travel on one lane, in order. If the
    /// waiter is registered by now, the caller stays. If it registers later, its acquire is written
    /// behind the release: it is not in the queue yet when the release runs, and its own reply says
    /// what it gets. A waiter that is enqueued again by the renewal thread, on another connection,
    /// has been registered all the time.
    ///
    /// R7 (late copies): a lease in doubt needs a reply whose server time excludes them.
    pub(in crate::engine) fn may_leave(&self, lease: &HeldLease, want: WantResult) -> bool {
        want == WantResult::No
            && !self.client.config().wait_on_drop
            && lease.not_after == 0
            && !self.registry.has_waiter(&lease.request.key.name)
    }

    /// The handler of the reply to a release whose caller has left.
    ///
    /// It keeps nothing of the engine: it may lie in the engine's own store when the engine ends.
    pub(in crate::engine) fn on_unread(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        call: &Call,
        started: Time,
    ) -> OnResult {
        let mode = call.release_mode();
        let releasing = Arc::downgrade(self);
        let lease = Arc::clone(lease);
        Box::new(move |result| {
            if let Some(releasing) = releasing.upgrade() {
                releasing.on_unread_result(&lease, mode, started, result);
            }
        })
    }

    /// Applies the result of a release whose caller has left. Sends nothing and never blocks: the
    /// thread is anyone's, and may be about to send a call of its own.
    fn on_unread_result(&self, lease: &HeldLease, mode: Mode, started: Time, result: CallResult) {
        let call = release_call(lease, mode);
        let ended = match self.on_release_reply(lease, &call, started, result.answer) {
            ReleaseOutcome::Answered(reason) => loss_result(lease, reason),
            ReleaseOutcome::Open(open) => {
                self.upkeep.abandon(TokenRelease {
                    // It was written, whatever the fault says.
                    resent: true,
                    report_to: ReportTo::Log,
                    ..open.release
                });
                open.fault
                    .map_or(Ok(()), |fault| self.outage(lease, started, fault))
            }
        };
        if let (Err(error), true) = (ended, mode != Mode::Unused) {
            warn_of_drop(&lease.request.key.name, &error);
        }
    }

    /// The error of a release without a reply. A closed connection is no error: the
    /// renewal thread sends the release on another.
    fn outage(&self, lease: &HeldLease, started: Time, fault: StoreFault) -> Result<()> {
        if fault.is_no_outage() {
            return Ok(());
        }
        Err(self.client.error_since(started, fault, &lease.request.key))
    }

    /// Whether callers have left replies to others since this was last asked.
    pub(in crate::engine) fn take_replies_left(&self) -> bool {
        self.replies_left.swap(false, Ordering::Relaxed)
    }

    /// A reply was left unread, and the renewal thread reads it at `due` if nobody else has.
    pub(in crate::engine) fn note_left(&self, due: Time) {
        // The flag is set most of the time. Only a write takes its cache line from other threads.
        if !self.replies_left.load(Ordering::Relaxed) {
            self.replies_left.store(true, Ordering::Relaxed);
        }
        self.upkeep.wake_if_late_for(due);
    }
}
