//! Releases for an owner that has ended a lease here: with an acquire in front of them, in one write,
//! so that it queues for the next lease first; in the background; and written once more, so that what it
//! sends next comes behind them.

use std::slice;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use super::{Releasing, WantResult, release_call};
use crate::engine::client::single_result;
use crate::engine::lease::HeldLease;
use crate::engine::upkeep::{ReportTo, Task, TokenRelease};
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiting::EnqueueOutcome;
use crate::error::Result;
use crate::loss::LossReason;
use crate::script::{Call, Mode, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, OnResult, StoreFault};

impl Releasing {
    /// Sends the release of a lease that has ended here at `started` (R14). If there is a waiter, its
    /// acquire goes out in the same write before the release. Blocks as [`Releasing::release`].
    pub(crate) fn release_behind(
        self: &Arc<Self>,
        waiter: Option<&Arc<WaiterEntry>>,
        lease: &Arc<HeldLease>,
        mode: Mode,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
        self.release_doubtful_pass(lease);
        let release = release_call(lease, mode);
        let result = match waiter {
            Some(waiter) => Some(self.send_both(waiter, &release, started)),
            None => self
                .send_releases(&[lease], slice::from_ref(&release), started, want)
                .pop()
                .flatten(),
        };
        let Some(result) = result else {
            return Ok(());
        };
        self.finish_release(lease, &release, started, result.answer, want)()
    }

    /// Sends the release of a lease that has ended here in the background. Blocks nobody.
    pub(crate) fn abandon_ended(&self, lease: &HeldLease, mode: Mode, now: Time) {
        self.release_doubtful_pass(lease);
        self.upkeep
            .release(TokenRelease::of_lease(lease, mode, now));
    }

    /// The same, for an owner that wants to know how the lease ended. The receiver gets that once Redis
    /// has answered, and is disconnected if Redis never does. `None` is a clean release.
    ///
    /// The release counts as sent twice, since [`Releasing::repeat_release`] may send it again at any
    /// time: that it was released before is then no loss.
    pub(crate) fn release_ended_in_background(
        &self,
        lease: &HeldLease,
        mode: Mode,
        now: Time,
    ) -> Receiver<Option<LossReason>> {
        self.release_doubtful_pass(lease);
        let (sender, receiver) = bounded(1);
        self.upkeep.release(TokenRelease {
            resent: true,
            report_to: ReportTo::UntilReply(sender),
            ..TokenRelease::of_lease(lease, mode, now)
        });
        receiver
    }

    /// Writes the release of a lease once more, whose first copy the renewal thread sends by
    /// [`Releasing::release_ended_in_background`]. Leaves the reply to others, as a drop does; the result of
    /// the first copy counts. Returns whether it was written: then the next call of this thread for the
    /// name comes behind it. If no connection is open, it was not.
    ///
    /// Does not wait for a reply where a drop would not, and else for one command timeout from
    /// `started`, which is now.
    pub(crate) fn repeat_release(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        mode: Mode,
        started: Time,
    ) -> bool {
        let call = release_call(lease, mode);
        let leave = |_| {
            self.may_leave(lease, WantResult::No)
                .then(|| self.on_repeated(lease, mode))
        };
        let timeout = self.client.config().command_timeout;
        let calls = slice::from_ref(&call);
        let result = self.client.store().send(calls, started + timeout, &leave);
        match result.into_iter().next().flatten() {
            None => {
                self.note_left(started + timeout);
                true
            }
            Some(result) => {
                let is_answered = result.answer.is_ok();
                self.on_repeated_result(&call, result);
                is_answered
            }
        }
    }

    /// The handler of the reply to a second copy. As [`Releasing::on_unread`], it keeps nothing of the
    /// engine.
    fn on_repeated(self: &Arc<Self>, lease: &Arc<HeldLease>, mode: Mode) -> OnResult {
        let releasing = Arc::downgrade(self);
        let lease = Arc::clone(lease);
        Box::new(move |result| {
            if let Some(releasing) = releasing.upgrade() {
                releasing.on_repeated_result(&release_call(&lease, mode), result);
            }
        })
    }

    /// Whichever copy came first: both replies say how the lease ended, so that of the first copy is
    /// enough. But a reply can carry the grants of waiters of this process.
    fn on_repeated_result(&self, call: &Call, result: CallResult) {
        if let Ok(answer) = result.answer {
            self.note_release_answered();
            self.on_released(call, &answer);
        }
    }

    /// Sends both in one write, in this order, and waits for both replies. So waiters that were
    /// queued before come first, and no try can come between. There is one exception: if the server
    /// has forgotten the script of the acquire, but knows that of the release, the acquire comes
    /// behind. Then the waiter only loses its order. To send the source each time would cost more
    /// than that.
    fn send_both(&self, waiter: &Arc<WaiterEntry>, release: &Call, started: Time) -> CallResult {
        let deadlines = self.client.at_once(started);
        // Without a token, nobody waits by it any more.
        let Some(token) = self.waiting.token_to_send(waiter, started) else {
            return single_result(self.client.store().run(slice::from_ref(release), deadlines));
        };
        let acquire = waiter.request.acquire(token, Wait::Yes);
        let calls = [acquire, release.clone()];
        let mut results = self.names.acquire_or_vacate(&calls, deadlines);
        let released = results.pop();
        let queued = single_result(results);
        match self.waiting.on_acquire_reply(waiter, &calls[0], queued) {
            EnqueueOutcome::Done => {}
            EnqueueOutcome::More | EnqueueOutcome::Again | EnqueueOutcome::RetryLater(_) => {
                self.upkeep.ask(Task::Requeue(Arc::clone(waiter)));
            }
            EnqueueOutcome::Rejected(error) => {
                self.waiting.fail(waiter, error);
            }
        }
        released.unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
