//! What the engine does for an owner: a layer above it, whose callers wait for one grant together and
//! have it one after the other. The owner decides.

use std::sync::Arc;

use super::{Acquiring, QueuedWaiter, for_lock};
use crate::engine::client::Client;
use crate::engine::lease::{HeldLease, note_taken};
use crate::engine::request::Request;
use crate::engine::upkeep::{Task, Timer};
use crate::engine::waiter::{TakeGrant, WaiterAction, WaiterEntry, WaiterOwner, WaiterState};
use crate::error::Result;
use crate::key::Key;
use crate::loss::Loss;
use crate::script::Token;
use crate::store::clock::Time;

impl Acquiring {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.life.is_forked()
    }

    /// From now on the manager gives out no locks, and every wait ends.
    pub(crate) fn close(&self) {
        self.grants.close();
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.life.check_open()
    }

    /// To be called before anything is registered or sent for a caller.
    ///
    /// R17 (subscription): it is started, also if the lock is free. Blocks until it is up, for at most
    /// one command timeout and until `limit` at most.
    pub(crate) fn begin(&self, request: &Request, limit: Time) -> Result<()> {
        self.holding.prepare(request)?;
        if self.subscription.is_started() {
            return Ok(());
        }
        let up = self.subscription.await_up(limit);
        up.map_err(|error| for_lock(error, request))
    }

    pub(crate) fn has_subscription(&self) -> bool {
        self.subscription.is_started()
    }

    /// One acquire that may not wait, of a caller that waits until then if the lock is taken.
    pub(crate) fn attempt(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        self.holding.prepare(request)?;
        self.trying.attempt(request, until)
    }

    /// R17 (subscription): starts it if it is not started, and does not wait for it. Where the store has
    /// no queue, there is none.
    pub(crate) fn start_subscription(&self) {
        if self.client.has_queue() {
            self.subscription.start_first();
        }
    }

    /// R17 (subscription): has it proven alive for a while, for a caller that asks for this name next. Waits
    /// for no reply.
    pub(crate) fn ask_for_proof(&self, key: &Key, now: Time) {
        self.subscription.ask_for_proof(key, now);
    }

    /// The renewal thread calls the timer at that time, or soon after it.
    pub(crate) fn call_at(&self, at: Time, timer: Arc<dyn Timer>) {
        self.upkeep.call_at(at, timer);
    }

    /// The waiter of a caller. It asks Redis for nothing: its owner gives it a lease.
    pub(crate) fn register_caller(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: Arc<dyn WaiterOwner>,
    ) -> QueuedWaiter {
        QueuedWaiter::register(self, request, WaiterState::unasked(), Some(owner))
    }

    /// R1 (registered before sent): the waiter that asks Redis, for its owner. Nothing is sent yet.
    pub(crate) fn register_asking(
        &self,
        request: Request,
        owner: Arc<dyn WaiterOwner>,
    ) -> Arc<WaiterEntry> {
        let state = WaiterState::new(Token::new());
        let (request, now) = (Arc::new(request), self.client.now());
        self.registry.register(request, state, Some(owner), now)
    }

    /// The renewal thread sends the waiter's acquire until Redis has answered.
    pub(crate) fn send_in_background(&self, asking: &Arc<WaiterEntry>) {
        self.upkeep.ask(Task::Requeue(Arc::clone(asking)));
    }

    /// Takes the grant of the waiter that asks, and forgets that. The renewal thread keeps the grant
    /// renewed.
    pub(crate) fn take_grant(&self, asking: &WaiterEntry) -> TakeGrant {
        let mut state = asking.state.lock();
        let taken = state.take_grant(self.client.now(), &asking.request);
        drop(state);
        if let TakeGrant::Taken(lease) = &taken {
            if lease.was_queued {
                self.registry.mark_guarded(lease.token);
            }
            self.registry.forget(asking);
        }
        taken
    }

    /// R12 (doubtful grants): a renewal confirms the grant first.
    pub(crate) fn confirm(&self, asking: &Arc<WaiterEntry>) {
        self.grants.apply(asking, WaiterAction::Confirm);
    }

    /// Cancels a waiter that asks, in the background, and forgets it.
    pub(crate) fn cancel(&self, asking: &Arc<WaiterEntry>) {
        let action = asking.state.lock().cancel();
        self.grants.apply(asking, action);
        self.registry.forget(asking);
    }

    /// Wakes a caller that was given this lease. From now on `max_hold` ends it.
    pub(crate) fn wake_for(&self, caller: &Arc<WaiterEntry>, given: &Arc<HeldLease>) {
        if given.request.max_hold.is_some() {
            self.holding.keep_renewed(given);
        }
        caller.wake();
    }

    /// This thread has a lease that was lent to it without a wait. From now on `max_hold` ends it.
    pub(crate) fn note_lent(&self, given: &Arc<HeldLease>) {
        if given.request.max_hold.is_some() {
            self.holding.keep_renewed(given);
        }
        note_taken(self.client.id(), given);
    }

    /// R13 (unwanted grants): abandons a grant that no caller wants.
    pub(crate) fn abandon(&self, lease: &Arc<HeldLease>) {
        self.grants.abandon_lease(lease);
    }

    /// The guard of a lease that was lent has lost it: all that watch it learn so, once.
    pub(crate) fn report_loss(&self, lent: &HeldLease, loss: &Loss) {
        if let Some(watcher) = lent.report_loss() {
            self.holding.announce_loss(lent, loss, watcher);
        }
    }
}
