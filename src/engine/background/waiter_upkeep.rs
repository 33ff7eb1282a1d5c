//! How the renewal thread keeps waiters in their queues, and finds grants whose messages were lost.

use std::sync::Arc;
use std::time::Duration;

use super::task::Task;
use super::thread::{PIPELINE, RenewalThread};
use crate::engine::waiter::{GrantNotice, TokenOwner, WaiterEntry, refusal};
use crate::engine::waiting::EnqueueOutcome;
use crate::script::{Call, Family, LOOKUP_LIMIT, Outcome, Token, Verb, Wait};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

impl RenewalThread {
    /// The renewal that asks whether a doubtful grant still holds (R12).
    pub(super) fn confirm_call(&self, waiter: &WaiterEntry) -> Option<Call> {
        let state = waiter.state.lock();
        let token = state.token;
        state
            .is_confirming()
            .then(|| waiter.request.renew(token, 0))
    }

    pub(super) fn on_confirm_reply(
        &mut self,
        waiter: Arc<WaiterEntry>,
        call: &Call,
        result: Result<Answer, StoreFault>,
    ) {
        let answer = match result {
            Ok(answer) => answer,
            // R18 (replica acks): the waiter's token is released.
            Err(fault @ StoreFault::NotReplicated { .. }) => {
                let now = self.client.now();
                self.waiting.note_reply(&waiter, now);
                let error = refusal(&fault, &waiter, now);
                return self.waiting.fail(&waiter, error);
            }
            Err(fault) => {
                self.note_no_reply(&waiter, &fault);
                let next = self.retry_at(&fault);
                return self.tasks.put(next, Task::Confirm(waiter));
            }
        };
        let action = match (answer.reply.outcome, &call.verb) {
            (Outcome::Renewed { left, fence }, _) => {
                let mut state = waiter.state.lock();
                state.on_confirmed(answer.sent, left, fence, &waiter.request)
            }
            (_, Verb::Renew { token, .. }) => waiter.state.lock().on_absent(*token, answer.sent),
            _ => return,
        };
        self.waiting.note_reply(&waiter, self.client.now());
        self.grants.apply(&waiter, action);
    }

    /// R4 (lost places): the acquire that enqueues a waiter again, under a new token. The old token
    /// is abandoned if a request of it had no reply.
    pub(super) fn requeue_call(&self, waiter: &Arc<WaiterEntry>, now: Time) -> Option<Call> {
        // A retry of this acquire goes on with its token.
        let is_retry = waiter.state.lock().is_asking();
        if !is_retry {
            let action = waiter.state.lock().abandon_if_in_doubt();
            self.grants.apply(waiter, action);
            self.registry.replace_token(waiter);
        }
        let token = self.waiting.token_to_send(waiter, now)?;
        Some(waiter.request.acquire(token, Wait::Yes))
    }

    pub(super) fn on_requeue_reply(
        &mut self,
        waiter: Arc<WaiterEntry>,
        call: &Call,
        mut result: CallResult,
    ) {
        // R18 (replica acks): the link does not wait until a grant is acknowledged. Without any time
        // left, the grant is confirmed by a renewal: R12 (doubtful grants).
        if self.client.store().confirms_grants()
            && let Ok(answer) = &mut result.answer
            && let Outcome::Granted(grant) = &mut answer.reply.outcome
        {
            grant.left = Duration::ZERO;
        }
        if let Ok(answer) = &result.answer
            && let Some(family) = answer.reply.outcome.other_family(call.spec.family)
        {
            self.grants.deliver_all(call, answer);
            self.waiting.note_reply(&waiter, self.client.now());
            if answer.resent {
                waiter.state.lock().note_unanswered(result.not_after);
            }
            let task = Task::Vacate(waiter, family);
            return self.tasks.put(self.client.now(), task);
        }
        let is_again = waiter.state.lock().was_queued() || !waiter.request.is_place;
        match self.waiting.on_acquire_reply(&waiter, call, result) {
            // A waiter that was cancelled by now was not queued again. One that has taken its grant
            // was.
            EnqueueOutcome::Done if waiter.state.lock().is_cancelled() => {}
            // The place of a line may be sent first by this thread.
            EnqueueOutcome::Done if !is_again => {}
            EnqueueOutcome::Done => {
                self.client.meter().requeued.add(1);
                log::info!(
                    "queued for {:?} again: redis no longer knew this waiter",
                    waiter.request.key.name
                );
            }
            EnqueueOutcome::More | EnqueueOutcome::Again => {
                self.tasks.put(self.client.now(), Task::Requeue(waiter))
            }
            EnqueueOutcome::Rejected(error) => self.waiting.fail(&waiter, error),
            EnqueueOutcome::RetryLater(fault) => {
                self.note_no_reply(&waiter, &fault);
                let next = self.retry_at(&fault);
                self.tasks.put(next, Task::Requeue(waiter));
            }
        }
    }

    /// If nobody uses the name, the waiter is enqueued again. Otherwise it fails.
    pub(super) fn on_vacate_reply(
        &mut self,
        waiter: Arc<WaiterEntry>,
        family: Family,
        result: Result<Answer, StoreFault>,
    ) {
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) => return self.on_vacate_fault(waiter, family, &fault),
        };
        let now = self.client.now();
        self.waiting.note_reply(&waiter, now);
        match answer.reply.outcome {
            Outcome::Vacated => self.tasks.put(now, Task::Requeue(waiter)),
            _ if answer.reply.more => self.tasks.put(now, Task::Vacate(waiter, family)),
            outcome => {
                let call = waiter.request.call(Verb::Vacate);
                let error = self.client.unexpected_reply(&call, &outcome);
                self.waiting.fail(&waiter, error);
            }
        }
    }

    /// A refusal that will not pass fails the waiter, as that of an acquire does.
    fn on_vacate_fault(&mut self, waiter: Arc<WaiterEntry>, family: Family, fault: &StoreFault) {
        if !fault.is_transient() {
            let error = refusal(fault, &waiter, self.client.now());
            return self.waiting.fail(&waiter, error);
        }
        self.note_no_reply(&waiter, fault);
        let next = self.retry_at(fault);
        self.tasks.put(next, Task::Vacate(waiter, family));
    }

    /// The call that vacates the waiter's name. `None` if the waiter needs it no more: it may have
    /// been cancelled since the last attempt.
    pub(super) fn vacate_call(&self, waiter: &WaiterEntry, family: Family) -> Option<Call> {
        let is_asking = waiter.state.lock().is_asking();
        is_asking.then(|| waiter.request.call(Verb::Vacate).vacate(family))
    }

    /// Notes that Redis did not answer a call about this waiter's name, with two exceptions. If
    /// this process slept in between, Redis may have answered in time. If the connection was
    /// closed, the next connection shows whether Redis answers.
    fn note_no_reply(&self, waiter: &WaiterEntry, fault: &StoreFault) {
        let now = self.client.now();
        let slept = now - self.last_sent_at > self.client.config().command_timeout * 2;
        if !slept && !fault.is_no_outage() {
            waiter.on_no_reply(now);
            for member in self.lines.members_of(waiter) {
                member.on_no_reply(now);
            }
        }
    }

    pub(super) fn collect_syncs(&mut self, now: Time) -> Vec<(Task, Call)> {
        // If a sync is not answered, the next one is due a period later at the latest.
        let reschedule = now + self.client.config().check_period;
        self.registry
            .take_due(now, reschedule, PIPELINE / 8)
            .into_iter()
            .filter_map(|call| self.with_call(Task::Sync(call), now))
            .collect()
    }

    pub(super) fn on_sync_reply(&mut self, call: &Call, result: Result<Answer, StoreFault>) {
        let now = self.client.now();
        let name = &call.key.name;
        let waiters = self.registry.waiters_of(name);
        let members = waiters
            .iter()
            .flat_map(|waiter| self.lines.members_of(waiter));
        let all: Vec<Arc<WaiterEntry>> = waiters.iter().cloned().chain(members).collect();
        // Also while Redis does not answer: a long wait is reported all the same.
        self.reports.report_postponed_circles(&all);
        self.reports.report_if_long(&all);
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) => return self.on_sync_fault(name, &all, &fault),
        };
        all.iter().for_each(|waiter| waiter.on_reply(now));
        match &answer.reply.outcome {
            Outcome::Synced { .. } => self.on_synced(call, &waiters, &answer),
            Outcome::Absent => self.on_record_absent(call, &waiters, answer.sent),
            Outcome::Late => self.registry.reschedule(name, now),
            // Nobody was queued when the name became that kind, so these lost their places before.
            outcome if outcome.other_family(call.spec.family).is_some() => {
                self.requeue_all(&waiters, answer.sent);
            }
            outcome => self.fail_all(call, &waiters, outcome),
        }
    }

    fn on_sync_fault(&mut self, name: &Arc<str>, waiters: &[Arc<WaiterEntry>], fault: &StoreFault) {
        let now = self.client.now();
        for waiter in waiters {
            if matches!(fault, StoreFault::Server { .. }) {
                waiter.note_refusal(refusal(fault, waiter, now));
            }
            self.note_no_reply(waiter, fault);
        }
        let next = self
            .retry_at(fault)
            .min(now + self.client.config().check_period);
        self.registry.reschedule(name, next);
    }

    fn on_synced(&mut self, call: &Call, waiters: &[Arc<WaiterEntry>], answer: &Answer) {
        let Outcome::Synced {
            owner,
            owner_waited_here,
            left,
            since,
            newest_known,
            served,
        } = answer.reply.outcome
        else {
            return;
        };
        let now = self.client.now();
        let next = if answer.reply.more {
            now
        } else {
            // The sync after the owner's lapse comes 1 ms late, so that it does not come too early.
            now + (left + Duration::from_millis(1)).min(self.client.config().check_period)
        };
        self.registry.reschedule(&call.key.name, next);
        // The registry does not keep the token of a lock that was taken at once, without the queue.
        // It must not be taken for a grant that nobody wants (R13).
        if let Some(grant) = owner {
            let notice = GrantNotice::from_reply(grant, answer.sent);
            if owner_waited_here {
                self.grants.deliver(call, notice);
            } else {
                self.grants.deliver_if_awaited(notice);
            }
        }
        let mut suspects = Vec::new();
        for waiter in waiters {
            let mut state = waiter.state.lock();
            state.note_served(served);
            // A permit's waiter that was served has missed the message of its grant. For a mutex
            // the reply names the owner, so a message is not missed for long.
            let missed_grant =
                call.spec.family == Family::Permit && state.was_served(served, answer.sent);
            if !newest_known || missed_grant || state.is_suspect(since, answer.sent) {
                suspects.push(state.token);
            }
        }
        self.look_up(call, &suspects);
    }

    /// There is no record, so nobody is queued any more.
    fn on_record_absent(&mut self, call: &Call, waiters: &[Arc<WaiterEntry>], sent: Time) {
        if call.spec.family == Family::Permit {
            // Waiters that were granted permits before may still have them: look each one up.
            let next = self.client.now() + self.client.config().check_period;
            self.registry.reschedule(&call.key.name, next);
            let tokens: Vec<Token> = waiters.iter().map(|w| w.state.lock().token).collect();
            return self.look_up(call, &tokens);
        }
        self.requeue_all(waiters, sent);
    }

    fn requeue_all(&self, waiters: &[Arc<WaiterEntry>], sent: Time) {
        for waiter in waiters {
            let action = {
                let mut state = waiter.state.lock();
                let token = state.token;
                state.on_absent(token, sent)
            };
            self.grants.apply(waiter, action);
        }
    }

    fn fail_all(&self, call: &Call, waiters: &[Arc<WaiterEntry>], outcome: &Outcome) {
        let error = self.client.unexpected_reply(call, outcome);
        log::warn!("waiting for {:?}: {error}", call.key.name);
        for waiter in waiters {
            self.waiting
                .fail(waiter, self.client.unexpected_reply(call, outcome));
        }
    }

    /// R17 (subscription): messages may have been missed while there was no subscription.
    pub(super) fn on_subscribed(&mut self, now: Time) {
        self.registry.all_due(now);
        for (about, tokens) in self.registry.all_tokens() {
            self.look_up(&about, &tokens);
        }
    }

    fn look_up(&mut self, about: &Call, tokens: &[Token]) {
        for tokens in tokens.chunks(LOOKUP_LIMIT) {
            let verb = Verb::Lookup {
                tokens: tokens.to_vec(),
            };
            self.lookups.push(Call {
                spec: about.spec,
                key: about.key.clone(),
                verb,
            });
        }
    }

    pub(super) fn collect_lookups(&mut self, now: Time) -> Vec<(Task, Call)> {
        let most = self.lookups.len().min(PIPELINE / 8);
        let calls: Vec<Call> = self.lookups.drain(..most).collect();
        calls
            .into_iter()
            .filter_map(|call| self.with_call(Task::Lookup(call), now))
            .collect()
    }

    pub(super) fn on_lookup_reply(&mut self, call: &Call, result: Result<Answer, StoreFault>) {
        let Verb::Lookup { tokens } = &call.verb else {
            return;
        };
        let Ok(Answer { reply, sent, .. }) = result else {
            // The next sync finds the same suspects.
            return;
        };
        let Outcome::Present {
            owner,
            since,
            waiting: known,
        } = reply.outcome
        else {
            return;
        };
        for (token, known) in tokens.iter().zip(known) {
            let TokenOwner::Waiter(waiter) = self.registry.owner_of(*token) else {
                continue;
            };
            if known {
                waiter.state.lock().on_present(*token, since);
            } else if owner == Some(*token) {
                // The waiter has the lock, and missed the message. A sync brings the fence.
                if waiter.state.lock().is_queued() {
                    let now = self.client.now();
                    self.registry.reschedule(&call.key.name, now);
                }
            } else {
                let action = waiter.state.lock().on_absent(*token, sent);
                self.grants.apply(&waiter, action);
            }
        }
    }
}
