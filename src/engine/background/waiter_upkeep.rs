//! How the renewal thread keeps waiters in their queues, and finds grants whose messages were lost.

use std::sync::Arc;
use std::time::Duration;

use super::schedule::{Answered, PIPELINE, Tasks};
use crate::engine::base::Base;
use crate::engine::upkeep::Task;
use crate::engine::waiter::{GrantNotice, TokenOwner, WaiterEntry, refusal};
use crate::engine::waiting::EnqueueOutcome;
use crate::logging::Logger;
use crate::script::{Call, Family, LOOKUP_LIMIT, Outcome, Token, Verb, Wait};
use crate::stats::Count;
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

/// The requests about the waiters of the manager that no caller sends.
pub(super) struct WaiterUpkeep {
    base: Base,
    lookups: Vec<Call>,
    /// When calls were last collected. They were sent at once.
    collected_at: Time,
}

impl WaiterUpkeep {
    pub(super) fn new(base: &Base) -> WaiterUpkeep {
        WaiterUpkeep {
            base: base.clone(),
            lookups: Vec::new(),
            collected_at: Time::from_nanos(0),
        }
    }

    /// The syncs that are due, and lookups, each at most an eighth of a pipeline.
    pub(super) fn collect(&mut self, now: Time) -> impl Iterator<Item = (Task, Call)> {
        self.collected_at = now;
        // If a sync is not answered, the next one is due a period later at the latest.
        let reschedule = now + self.base.client.config().check_period;
        let syncs = self.base.registry.take_due(now, reschedule, PIPELINE / 8);
        let syncs = syncs.into_iter().map(|call| (Task::Sync, call));
        let most = self.lookups.len().min(PIPELINE / 8);
        let lookups = self.lookups.drain(..most);
        let lookups = lookups.map(|call| (Task::Lookup, call));
        syncs.chain(lookups)
    }

    /// Makes the call of a task about a waiter. One that is to be enqueued again gets another token
    /// first. `None` if no call is needed any more: the waiter may have been cancelled since the last
    /// attempt.
    pub(super) fn prepare_call(&self, task: &Task, now: Time) -> Option<Call> {
        match task {
            // R12 (doubtful grants): the renewal asks whether the grant still holds.
            Task::Confirm(waiter) => {
                let state = waiter.state.lock();
                let is_confirming = state.is_confirming();
                is_confirming.then(|| waiter.request.renew(state.token, 0))
            }
            Task::Requeue(waiter) => self.prepare_requeue(waiter, now),
            Task::Vacate(waiter, family) => {
                let is_asking = waiter.state.lock().is_asking();
                is_asking.then(|| waiter.request.call(Verb::Vacate).vacate(*family))
            }
            _ => None,
        }
    }

    pub(super) fn on_confirm_reply(
        &self,
        waiter: Arc<WaiterEntry>,
        call: &Call,
        result: Answered,
        tasks: &mut Tasks,
    ) {
        let answer = match result.and_then(Answer::in_time) {
            Ok(answer) => answer,
            // R18 (replica acks): the waiter's token is released.
            Err(fault @ StoreFault::NotReplicated { .. }) => {
                self.base.waiting.note_reply(&waiter);
                let error = refusal(&fault, &waiter, self.base.client.now());
                return self.base.waiting.fail(&waiter, error);
            }
            Err(fault) => {
                self.note_no_reply(&waiter, &fault);
                return tasks.retry(Task::Confirm(waiter), &fault);
            }
        };
        let action = match (answer.reply.outcome, &call.verb) {
            (
                Outcome::Renewed {
                    left,
                    fence,
                    waiting,
                },
                _,
            ) => {
                let mut state = waiter.state.lock();
                state.on_confirmed(answer.sent, left, fence, waiting, &waiter.request)
            }
            (_, Verb::Renew { token, .. }) => waiter.state.lock().on_absent(*token, answer.sent),
            _ => return,
        };
        self.base.waiting.note_reply(&waiter);
        self.base.grants.apply(&waiter, action);
    }

    /// R4 (lost places): replaces the waiter's token, and makes the acquire that enqueues it again. The
    /// old token is abandoned if a request of it had no reply.
    fn prepare_requeue(&self, waiter: &Arc<WaiterEntry>, now: Time) -> Option<Call> {
        // A retry of this acquire goes on with its token.
        let is_retry = waiter.state.lock().is_asking();
        if !is_retry {
            let action = waiter.state.lock().abandon_if_in_doubt();
            self.base.grants.apply(waiter, action);
            self.base.registry.replace_token(waiter);
        }
        let token = self.base.waiting.token_to_send(waiter, now)?;
        Some(waiter.request.acquire(token, Wait::Yes))
    }

    pub(super) fn on_requeue_reply(
        &self,
        waiter: Arc<WaiterEntry>,
        call: &Call,
        mut result: CallResult,
        tasks: &mut Tasks,
    ) {
        // R18 (replica acks): the link does not wait until a grant is acknowledged. Without any time
        // left, the grant is confirmed by a renewal: R12 (doubtful grants).
        if self.base.client.store().confirms_grants()
            && let Ok(answer) = &mut result.answer
            && let Outcome::Granted(grant) = &mut answer.reply.outcome
        {
            grant.left = Duration::ZERO;
        }
        if let Ok(answer) = &result.answer
            && let Some(family) = answer.reply.outcome.other_family(call.spec.family)
        {
            self.base.grants.deliver_all(call, answer);
            self.base.waiting.note_reply(&waiter);
            if answer.resent {
                waiter.state.lock().note_unanswered(result.not_after);
            }
            return tasks.put_now(Task::Vacate(waiter, family));
        }
        let is_again = {
            let state = waiter.state.lock();
            state.was_queued() || state.was_forgotten()
        };
        match self.base.waiting.on_acquire_reply(&waiter, call, result) {
            // A waiter that was cancelled by now was not queued again. One that has taken its grant
            // was.
            EnqueueOutcome::Done if waiter.state.lock().is_cancelled() => {}
            // The waiter of an owner may be sent first by this thread.
            EnqueueOutcome::Done if !is_again => {}
            EnqueueOutcome::Done => {
                self.base.client.meter().count(Count::Requeues);
                log::info!(
                    logger: Logger,
                    "queued for {:?} again: redis no longer knew this waiter",
                    waiter.request.key.name
                );
            }
            EnqueueOutcome::More | EnqueueOutcome::Again => tasks.put_now(Task::Requeue(waiter)),
            EnqueueOutcome::Rejected(error) => self.base.waiting.fail(&waiter, error),
            EnqueueOutcome::RetryLater(fault) => {
                self.note_no_reply(&waiter, &fault);
                tasks.retry(Task::Requeue(waiter), &fault);
            }
        }
    }

    /// If nobody uses the name, the waiter is enqueued again. Otherwise it fails.
    pub(super) fn on_vacate_reply(
        &self,
        waiter: Arc<WaiterEntry>,
        family: Family,
        result: Answered,
        tasks: &mut Tasks,
    ) {
        let now = self.base.client.now();
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) if fault.is_transient() => {
                self.note_no_reply(&waiter, &fault);
                return tasks.retry(Task::Vacate(waiter, family), &fault);
            }
            // A refusal that will not pass fails the waiter, as that of an acquire does.
            Err(fault) => {
                let error = refusal(&fault, &waiter, now);
                return self.base.waiting.fail(&waiter, error);
            }
        };
        self.base.waiting.note_reply(&waiter);
        match answer.reply.outcome {
            Outcome::Vacated => tasks.put(now, Task::Requeue(waiter)),
            _ if answer.reply.more => tasks.put(now, Task::Vacate(waiter, family)),
            outcome => {
                let call = waiter.request.call(Verb::Vacate);
                let error = self.base.client.unexpected_reply(&call, &outcome);
                self.base.waiting.fail(&waiter, error);
            }
        }
    }

    /// Notes that Redis did not answer a call about this waiter's name, with two exceptions. If
    /// this process slept in between, Redis may have answered in time. If the connection was
    /// closed, the next connection shows whether Redis answers.
    fn note_no_reply(&self, waiter: &WaiterEntry, fault: &StoreFault) {
        let now = self.base.client.now();
        let config = self.base.client.config();
        if now - self.collected_at > config.command_timeout * 2 {
            return;
        }
        let is_silent = !fault.is_no_outage();
        // A caller that waits by a channel is sent to look once the outage limit is over. If only
        // connections were closed until then, that look asks once more: see `QueuedWaiter::wait`.
        let extra = if is_silent {
            Duration::ZERO
        } else {
            config.command_timeout * 2
        };
        let limit = config.outage_limit.saturating_add(extra);
        let note = |waiter: &WaiterEntry| {
            if is_silent {
                waiter.on_no_reply(now);
            }
            if now - waiter.last_reply_at() >= limit {
                waiter.send_ready();
            }
        };
        note(waiter);
        waiter.callers().iter().for_each(|caller| note(caller));
    }

    pub(super) fn on_sync_reply(&mut self, call: &Call, result: Answered, tasks: &Tasks) {
        let now = self.base.client.now();
        let name = &call.key.name;
        let waiters = self.base.registry.waiters_of(name);
        let callers = waiters.iter().flat_map(|waiter| waiter.callers());
        let all: Vec<Arc<WaiterEntry>> = waiters.iter().cloned().chain(callers).collect();
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) => return self.on_sync_fault(name, &all, &fault, tasks),
        };
        all.iter().for_each(|waiter| waiter.on_reply(now));
        match &answer.reply.outcome {
            Outcome::Synced { .. } => self.on_synced(call, &waiters, &answer),
            Outcome::Absent => self.on_record_absent(call, &waiters, answer.sent),
            Outcome::Late => self.base.registry.reschedule(name, now),
            // Nobody was queued when the name became that kind, so these lost their places before.
            outcome if outcome.other_family(call.spec.family).is_some() => {
                self.requeue_all(&waiters, answer.sent);
            }
            outcome => self.fail_all(call, &waiters, outcome),
        }
    }

    fn on_sync_fault(
        &self,
        name: &Arc<str>,
        waiters: &[Arc<WaiterEntry>],
        fault: &StoreFault,
        tasks: &Tasks,
    ) {
        let now = self.base.client.now();
        for waiter in waiters {
            if matches!(fault, StoreFault::Server { .. }) {
                waiter.note_refusal(refusal(fault, waiter, now));
            }
            self.note_no_reply(waiter, fault);
        }
        let next = tasks
            .retry_at(fault)
            .min(now + self.base.client.config().check_period);
        self.base.registry.reschedule(name, next);
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
        let now = self.base.client.now();
        let next = if answer.reply.more {
            now
        } else {
            // The sync after the owner's lapse comes 1 ms late, so that it does not come too early.
            now + (left + Duration::from_millis(1)).min(self.base.client.config().check_period)
        };
        self.base.registry.reschedule(&call.key.name, next);
        // The registry does not keep the token of a lock that was taken at once, without the queue.
        // It must not be taken for a grant that nobody wants (R13).
        if let Some(grant) = owner {
            let notice = GrantNotice::from_reply(grant, answer.sent);
            if owner_waited_here {
                self.base.grants.deliver(call, notice);
            } else {
                self.base.grants.deliver_if_awaited(notice);
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
            let next = self.base.client.now() + self.base.client.config().check_period;
            self.base.registry.reschedule(&call.key.name, next);
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
            self.base.grants.apply(waiter, action);
        }
    }

    fn fail_all(&self, call: &Call, waiters: &[Arc<WaiterEntry>], outcome: &Outcome) {
        let error = self.base.client.unexpected_reply(call, outcome);
        log::warn!(logger: Logger, "waiting for {:?}: {error}", call.key.name);
        for waiter in waiters {
            self.base.waiting.fail(waiter, error.clone());
        }
    }

    /// R17 (subscription): messages may have been missed while there was no subscription.
    pub(super) fn on_subscribed(&mut self, now: Time) {
        self.base.registry.all_due(now);
        for (about, tokens) in self.base.registry.all_tokens() {
            self.look_up(&about, &tokens);
        }
    }

    fn look_up(&mut self, about: &Call, tokens: &[Token]) {
        for tokens in tokens.chunks(LOOKUP_LIMIT) {
            let verb = Verb::Lookup {
                tokens: tokens.to_vec(),
            };
            self.lookups.push(about.with(verb));
        }
    }

    pub(super) fn on_lookup_reply(&self, call: &Call, result: Answered) {
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
            let TokenOwner::Waiter(waiter) = self.base.registry.owner_of(*token) else {
                continue;
            };
            if known {
                waiter.state.lock().on_present(*token, since);
            } else if owner == Some(*token) {
                // The waiter has the lock, and missed the message. A sync brings the fence.
                if waiter.state.lock().is_queued() {
                    let now = self.base.client.now();
                    self.base.registry.reschedule(&call.key.name, now);
                }
            } else {
                let action = waiter.state.lock().on_absent(*token, sent);
                self.base.grants.apply(&waiter, action);
            }
        }
    }
}
