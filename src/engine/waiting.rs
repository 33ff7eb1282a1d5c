//! How a waiter takes its place in Redis's queue: the token that it sends, and what the replies to
//! its acquires mean. Callers send them, and so does the renewal thread.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::grants::Grants;
use crate::engine::line::Lines;
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
    lines: Arc<Lines>,
    grants: Arc<Grants>,
}

impl Waiting {
    pub(super) fn new(
        client: &Arc<Client>,
        upkeep: &Arc<Upkeep>,
        registry: &Arc<WaiterRegistry>,
        lines: &Arc<Lines>,
        grants: &Arc<Grants>,
    ) -> Waiting {
        Waiting {
            client: Arc::clone(client),
            upkeep: Arc::clone(upkeep),
            registry: Arc::clone(registry),
            lines: Arc::clone(lines),
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
        // R11 (missing keys): a node answered. Members of a line learn of it here alone.
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

    /// Redis answered about this waiter's name, and so about the members whose place it is.
    pub(super) fn note_reply(&self, waiter: &WaiterEntry) {
        let now = self.client.now();
        waiter.on_reply(now);
        for member in self.lines.members_of(waiter) {
            member.on_reply(now);
        }
    }

    /// A waiter fails for good, with this error.
    pub(super) fn fail(&self, waiter: &Arc<WaiterEntry>, error: Error) {
        let action = waiter.state.lock().fail(error.clone());
        waiter.changed.notify_one();
        self.grants.apply(waiter, action);
        self.on_waiter_failed(waiter, &error);
    }

    /// A waiter failed. If it is the place of a line, so does the line's first member, and the others
    /// get another place.
    pub(super) fn on_waiter_failed(&self, waiter: &Arc<WaiterEntry>, error: &Error) {
        if !waiter.request.is_place {
            return;
        }
        if let Some(first) = self.lines.take_first_member(waiter) {
            // Its caller finds the error. Nothing of it was sent.
            let _ = first.state.lock().fail(error.clone());
            first.changed.notify_one();
            // The last one takes the place along, unless another has come since.
            self.grants.leave_line(&first);
        }
        self.replace_place(waiter);
    }

    /// The place was refused for good. If its line has other members, it gets another place, which
    /// the renewal thread sends.
    pub(super) fn replace_place(&self, place: &Arc<WaiterEntry>) {
        if let Some(new) = self.lines.replace_place(place, self.client.now()) {
            self.grants.cancel_place(place);
            self.grants.send_place_in_background(&new);
        }
    }
}
