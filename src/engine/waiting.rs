//! How a waiter takes its place in Redis's queue: the token that it sends, and what the replies to
//! its acquires mean. Callers send them, and so does the renewal thread.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::grants::Grants;
use crate::engine::upkeep::Upkeep;
use crate::engine::waiter::{GrantNotice, WaiterAction, WaiterEntry, WaiterRegistry};
use crate::error::Error;
use crate::script::{Call, Outcome, Token};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// The result of a waiter's acquire.
pub(crate) enum EnqueueOutcome {
    /// The waiter is queued, granted or cancelled: its state says which.
    Done,
    /// Send it again at once, to pass over more dead waiters.
    More,
    /// Send it again at once.
    Again,
    /// It will not succeed.
    Rejected(Error),
    /// It may succeed later.
    RetryLater(StoreFault),
}

/// The waiters of one manager, on their way into the queues and in them.
pub(crate) struct Waiting {
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    registry: Arc<WaiterRegistry>,
    grants: Arc<Grants>,
}

impl Waiting {
    pub(super) fn new(
        client: &Arc<Client>,
        upkeep: &Arc<Upkeep>,
        registry: &Arc<WaiterRegistry>,
        grants: &Arc<Grants>,
    ) -> Waiting {
        Waiting {
            client: Arc::clone(client),
            upkeep: Arc::clone(upkeep),
            registry: Arc::clone(registry),
            grants: Arc::clone(grants),
        }
    }

    /// The token for the waiter's next acquire. `None` if the waiter needs none any more.
    ///
    /// R6 (token lifetime): an acquire carries a token for at most one ttl after the token was
    /// first sent.
    pub(super) fn token_to_send(&self, waiter: &Arc<WaiterEntry>, now: Time) -> Option<Token> {
        let abandon_old = {
            let mut state = waiter.state.lock();
            if !state.is_asking() {
                return None;
            }
            let first = *state.first_sent.get_or_insert(now);
            if now < first + waiter.request.ttl {
                return Some(state.token);
            }
            state.abandon_token()
        };
        self.grants.apply(waiter, abandon_old);
        let token = self.registry.replace_token(waiter)?;
        waiter.state.lock().first_sent = Some(now);
        Some(token)
    }

    /// Applies the reply to a waiter's acquire.
    pub(super) fn on_acquire_reply(
        &self,
        waiter: &Arc<WaiterEntry>,
        call: &Call,
        result: CallResult,
    ) -> EnqueueOutcome {
        let now = self.client.now();
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => return self.on_acquire_fault(waiter, fault, result.not_after),
        };
        self.note_reply(waiter);
        if answer.resent {
            waiter.state.lock().note_unanswered(result.not_after);
        }
        self.grants.deliver_all(call, &answer);
        match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let notice = GrantNotice::from_reply(grant, answer.sent);
                let mut state = waiter.state.lock();
                // An earlier copy of the acquire was queued, and the lock was handed over to it.
                let is_handed_over = state.has_pending_notice();
                let action = state.on_granted(notice, now, &waiter.request);
                drop(state);
                if is_handed_over {
                    self.grants.apply_hand_over(waiter, action);
                } else {
                    self.grants.apply(waiter, action);
                }
                EnqueueOutcome::Done
            }
            Outcome::Waiting {
                ticket,
                position,
                left,
                since,
            } => {
                waiter.request.note_taken();
                let mut state = waiter.state.lock();
                let action = state.on_queued(now, ticket, position, since, &waiter.request);
                drop(state);
                self.grants.apply_hand_over(waiter, action);
                // The holder's lease may end before the next check period does.
                let holder_ends = left + Duration::from_millis(1);
                self.start_syncing(
                    waiter,
                    now + self.client.config().check_period.min(holder_ends),
                );
                EnqueueOutcome::Done
            }
            Outcome::More => EnqueueOutcome::More,
            // R5 (dated requests): the connection has a new anchor now.
            Outcome::Late => EnqueueOutcome::Again,
            outcome => EnqueueOutcome::Rejected(self.client.unexpected_reply(call, &outcome)),
        }
    }

    /// A waiter's acquire had no reply.
    fn on_acquire_fault(
        &self,
        waiter: &Arc<WaiterEntry>,
        fault: StoreFault,
        not_after: u64,
    ) -> EnqueueOutcome {
        let now = self.client.now();
        // R11 (missing keys): a node answered. The callers of an owner learn of it here alone.
        if fault.is_undecided() {
            self.note_reply(waiter);
        }
        let mut state = waiter.state.lock();
        // R7 (late copies): no copy can be on its way if the request was certainly never delivered.
        if fault.is_ambiguous() {
            state.note_unanswered(not_after);
        }
        let action = state.on_no_reply(0, now, &waiter.request);
        drop(state);
        if !matches!(action, WaiterAction::Nothing) {
            // A notice of the grant has come instead, or the waiter was cancelled.
            self.grants.apply_hand_over(waiter, action);
            self.start_syncing(waiter, now);
            EnqueueOutcome::Done
        } else if fault.is_transient() {
            EnqueueOutcome::RetryLater(fault)
        } else {
            let waited = now - waiter.last_reply_at();
            EnqueueOutcome::Rejected(self.client.error(fault, Some(&waiter.request.key), waited))
        }
    }

    /// From now on the renewal thread syncs the waiter's name, first at `due`.
    fn start_syncing(&self, waiter: &Arc<WaiterEntry>, due: Time) {
        self.upkeep
            .wake_if_late_for(self.registry.enqueue(waiter, due));
    }

    /// Redis answered about this waiter's name, and so to the callers that wait for its grant.
    pub(super) fn note_reply(&self, waiter: &WaiterEntry) {
        let now = self.client.now();
        waiter.on_reply(now);
        for caller in waiter.callers() {
            caller.on_reply(now);
        }
    }

    /// A waiter fails for good, with this error.
    pub(super) fn fail(&self, waiter: &Arc<WaiterEntry>, error: Error) {
        let action = waiter.state.lock().fail(error);
        self.grants.apply(waiter, action);
        waiter.wake();
    }
}
