//! A release with an acquire in front of it, in one write: an owner that releases its lease queues for
//! the next one first.

use std::slice;
use std::sync::Arc;

use super::{Releasing, WantResult, release_call};
use crate::engine::client::single_result;
use crate::engine::lease::Lease;
use crate::engine::upkeep::{Task, TokenRelease};
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiting::EnqueueOutcome;
use crate::error::Result;
use crate::script::{Call, Mode, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

impl Releasing {
    /// Sends the release of a lease that has ended here at `started` (R14). If there is a waiter, its
    /// acquire goes out in the same write before the release. Blocks as [`Releasing::release`].
    pub(crate) fn release_behind(
        self: &Arc<Self>,
        waiter: Option<&Arc<WaiterEntry>>,
        lease: &Arc<Lease>,
        mode: Mode,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
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
    pub(crate) fn abandon_ended(&self, lease: &Lease, mode: Mode, now: Time) {
        self.upkeep
            .abandon(TokenRelease::of_lease(lease, mode, now));
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
