//! How a caller leaves the queue: at its deadline, in the background, or when its waiter is dropped.

use std::slice;
use std::sync::Arc;

use super::QueuedWaiter;
use crate::engine::client::single_result;
use crate::engine::lease::HeldLease;
use crate::engine::waiter::{GrantNotice, TakeGrant, WaiterAction};
use crate::error::Result;
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

impl QueuedWaiter {
    /// Leaves the queue at a deadline, but keeps a grant that came first.
    pub(crate) fn cancel(self, until: Time) -> Result<Option<Arc<HeldLease>>> {
        let acquiring = &self.acquiring;
        if let Some(call) = self.begin_cancel() {
            let started = acquiring.client.now();
            let deadlines = acquiring.client.deadlines(started, until);
            let result = single_result(
                acquiring
                    .client
                    .store()
                    .run(slice::from_ref(&call), deadlines),
            );
            if let Err(fault) = self.on_cancel_reply(&call, result.answer) {
                let is_answer = matches!(fault, StoreFault::NotReplicated { .. });
                if !is_answer && self.redis_answered_lately(until) {
                    return Ok(None);
                }
                let waited = acquiring.client.now() - started;
                return Err(self.acquiring.client.error(
                    fault,
                    Some(&self.waiter.request.key),
                    waited,
                ));
            }
        }
        self.take_grant_or_cancel()
    }

    /// The call that leaves the queue. `None` if the waiter is not queued, or if a request is in
    /// flight.
    pub(crate) fn begin_cancel(&self) -> Option<Call> {
        let mut state = self.waiter.state.lock();
        let verb = Verb::Release {
            token: state.token,
            fence: 0,
            last: None,
            mode: Mode::KeepIfOwner,
        };
        state.begin_cancel().then(|| self.waiter.request.call(verb))
    }

    /// Applies the reply to that call. Without a reply the token is abandoned in the background.
    pub(crate) fn on_cancel_reply(
        &self,
        call: &Call,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> std::result::Result<(), StoreFault> {
        let acquiring = &self.acquiring;
        let waiter = &self.waiter;
        match answer {
            Ok(answer) => {
                acquiring.grants.deliver_all(call, &answer);
                if let Outcome::Granted(grant) = answer.reply.outcome {
                    let notice = GrantNotice::from_reply(grant, answer.sent);
                    let mut state = waiter.state.lock();
                    let action = state.on_granted(notice, acquiring.client.now(), &waiter.request);
                    drop(state);
                    acquiring.grants.apply_hand_over(waiter, action);
                } else if let (true, Verb::Release { token, .. }) = (answer.reply.more, &call.verb)
                {
                    acquiring
                        .upkeep
                        .abandon_token(call, *token, 0, waiter.request.longest());
                }
            }
            Err(fault) => {
                acquiring.upkeep.note_trouble();
                let mut state = waiter.state.lock();
                let action = state.on_no_reply(0, acquiring.client.now(), &waiter.request);
                if matches!(action, WaiterAction::Nothing) {
                    let action = state.abandon_token();
                    drop(state);
                    acquiring.grants.apply(waiter, action);
                    return Err(fault);
                }
                drop(state);
                acquiring.grants.apply_hand_over(waiter, action);
            }
        }
        Ok(())
    }

    /// The last look at a cancelled waiter: a grant may have come first, by any way.
    pub(crate) fn take_grant_or_cancel(&self) -> Result<Option<Arc<HeldLease>>> {
        let acquiring = &self.acquiring;
        let waiter = &self.waiter;
        let found = waiter
            .state
            .lock()
            .take_grant(acquiring.client.now(), &waiter.request);
        match found {
            TakeGrant::Taken(lease) => acquiring.grants.give_to_waiter(waiter, lease).map(Some),
            TakeGrant::Failed(error) => Err(error),
            // A doubtful grant is not worth another round trip past the deadline, for itself or its
            // release.
            TakeGrant::Confirm | TakeGrant::NotYet => {
                self.cancel_in_background();
                Ok(None)
            }
        }
    }

    /// Cancels the waiter without waiting for Redis: the renewal thread abandons the token.
    pub(crate) fn cancel_in_background(&self) {
        let action = self.waiter.state.lock().cancel();
        self.acquiring.grants.apply(&self.waiter, action);
    }

    /// Cancels the waiter when it is dropped. The release is sent at once if a connection is open
    /// and one release is enough. Else the renewal thread sends it (R7, late copies).
    fn cancel_on_drop(&self) {
        let acquiring = &self.acquiring;
        let action = self.waiter.state.lock().cancel();
        let WaiterAction::Abandon { token, not_after } = action else {
            return acquiring.grants.apply(&self.waiter, action);
        };
        let call = self.waiter.request.call(Verb::Release {
            token,
            fence: 0,
            last: None,
            mode: Mode::Unused,
        });
        if not_after == 0 {
            let started = acquiring.client.now();
            let deadlines = acquiring.client.at_once(started);
            match single_result(
                acquiring
                    .client
                    .store()
                    .run(slice::from_ref(&call), deadlines),
            )
            .answer
            {
                Ok(answer) => {
                    acquiring.releasing.note_release_answered();
                    acquiring.grants.deliver_all(&call, &answer);
                    if !answer.reply.more {
                        return;
                    }
                }
                Err(fault) => {
                    acquiring.upkeep.note_trouble();
                    if !matches!(fault, StoreFault::NotReady) {
                        acquiring.releasing.note_release_fault(started, &fault);
                    }
                }
            }
        }
        acquiring
            .upkeep
            .abandon_queued(&self.waiter.request, token, not_after);
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        self.cancel_on_drop();
        self.acquiring.registry.forget(&self.waiter);
        self.acquiring.client.meter().waiting.sub(1);
    }
}
