//! How a caller acquires one lock. [`Engine::acquire`] is the main loop. Its steps follow in the
//! order in which it takes them: enter, send the acquire, read its reply, hand the lease out. The
//! step `attempt`, one acquire that may not wait, has a file of its own.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::lease::{Lease, first_lost, note_taken};
use crate::engine::request::Request;
use crate::engine::waiter::{
    AtDeadline, EnqueueOutcome, GrantNotice, QueuedWaiter, TakeGrant, WaiterAction, WaiterEntry,
    WaiterState,
};
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result, Step, passes_by_itself};
use crate::script::{Call, Outcome, Token, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// What a caller does once it has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// It waits, for as long as its deadline lets it.
    Waits,
    /// It waits later, so it has no deadline. P8 (every call ends): it does not await a slot's move.
    Enqueues,
}

/// How a caller enters: with the lock, or with a place in its queue.
pub(super) enum Entered {
    Granted(Arc<Lease>),
    /// Where the store has no queue, a waiter that asks while its caller waits.
    Queued(QueuedWaiter),
    /// With neither, since the time is up: the lock is taken, or Redis still passes over dead
    /// waiters in front of it.
    NotYet,
}

impl Engine {
    /// THE MAIN LOOP of a caller: try, enqueue, wait, cancel.
    ///
    /// Returns `None` if others had the lock until `until`. P8 (every call ends): it blocks for at
    /// most one command timeout longer.
    ///
    /// `group_so_far` are the leases of the same group that the caller already holds, see
    /// [`Engine::acquire_all`]. If one is lost, the group is lost, and the acquire returns that loss.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        group_so_far: &[Arc<Lease>],
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        let limit = until.min(self.now() + self.config.outage_limit);
        // Try, and enqueue. In an outage, stop when the earliest of these leases would expire, to
        // check them.
        let queued = loop {
            let now = self.now();
            let recheck_at = until.min(earliest_deadline(group_so_far, now));
            match self.enter(request, recheck_at, Caller::Waits) {
                Ok(Entered::Granted(lease)) => return Ok(Some(lease)),
                Ok(Entered::Queued(queued)) => break queued,
                Ok(Entered::NotYet) => {
                    check_group_held(group_so_far, self.now())?;
                    if recheck_at == until {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    check_group_held(group_so_far, self.now())?;
                    if recheck_at == until || self.now() >= limit || !is_transient(&error) {
                        return Err(error.after(self.now() - now));
                    }
                    self.meter.retries.add(1);
                }
            }
        };
        // Wait. Once per check period, check that the group's earlier leases are still held.
        let waits = queued.begin_wait(until);
        loop {
            check_group_held(group_so_far, self.now())?;
            let mut recheck_at = until;
            if !group_so_far.is_empty() {
                recheck_at = until.min(self.now() + self.config.check_period);
            }
            let at_deadline = if recheck_at == until {
                AtDeadline::Cancel
            } else {
                AtDeadline::Keep
            };
            match queued.wait_on(recheck_at, at_deadline) {
                Ok(Some(lease)) => return Ok(Some(lease)),
                // Cancel, at the deadline. A grant may still come first.
                Ok(None) if at_deadline == AtDeadline::Cancel => {
                    drop(waits);
                    return queued.cancel(until);
                }
                Ok(None) => {}
                Err(error) => {
                    // P8 (every call ends): the time is up. A silent Redis would not answer a
                    // release either, so the renewal thread sends it.
                    queued.cancel_in_background();
                    check_group_held(group_so_far, self.now())?;
                    return Err(error);
                }
            }
        }
    }

    /// Enqueues a waiter, which may be granted at once. The caller waits for it later.
    pub(crate) fn enqueue(self: &Arc<Self>, request: &Arc<Request>) -> Result<QueuedWaiter> {
        let started = self.now();
        let entered = self
            .enter(request, Time::NEVER, Caller::Enqueues)
            .map_err(|error| error.after(self.now() - started))?;
        let lease = match entered {
            Entered::Queued(queued) => return Ok(queued),
            Entered::Granted(lease) => lease,
            Entered::NotYet => unreachable!("an enqueue has no deadline"),
        };
        let granted = WaiterState::granted(Arc::clone(&lease));
        let queued = QueuedWaiter::register(self, &lease.request, granted);
        if lease.was_queued {
            self.waiters.forget_guarded(lease.token);
        }
        self.check_open()?;
        // R4 (lost places), R17 (subscription): if the grant is lost before the caller takes it,
        // the waiter is enqueued again, and needs the subscription.
        if self.service.has_queue {
            self.start_subscription()?;
        }
        Ok(queued)
    }

    /// Call this before sending a request. It fails if the manager is closed, and starts the
    /// callback thread if the request has `on_lost`.
    pub(super) fn prepare(&self, request: &Request) -> Result<()> {
        self.check_open()?;
        if request.on_lost.is_some() {
            self.start_callbacks()
        } else {
            Ok(())
        }
    }

    /// Takes the lock, or a place in its queue. In an outage it tries again until `until`, or for
    /// as long as the outage limit. While Redis passes over dead waiters it goes on until `until`.
    fn enter(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
        caller: Caller,
    ) -> Result<Entered> {
        self.prepare(request)?;
        if !self.service.has_queue {
            return self.enter_without_queue(request, until);
        }
        if request.is_member() {
            return self.enter_line(request, until, caller);
        }
        let limit = until.min(self.now() + self.config.outage_limit);
        // R17 (subscription): a waiter must not be enqueued before the subscription. So a manager
        // that has none tries first: a free lock needs no subscription.
        if !self.subscription.is_started() {
            let mut failed = None;
            match self.attempt(request, until) {
                Ok(Some(lease)) => return Ok(Entered::Granted(lease)),
                // A place in the queue is of no use any more.
                Ok(None) if self.now() >= until => return Ok(Entered::NotYet),
                Ok(None) => {}
                // A transient failure is retried below, up to the outage limit.
                Err(error) if is_transient(&error) && self.now() < limit => failed = Some(error),
                // The lock was granted, but the lease expired before the reply arrived. Queue for
                // it instead: R12 (doubtful grants) confirms a late grant from the queue before it
                // is used.
                Err(Error::Lost { .. }) if self.now() < until => {}
                Err(error) => return Err(error),
            }
            self.await_subscription(limit)
                .map_err(|e| for_lock(e, request))?;
            match failed {
                Some(error) if self.now() >= limit => return Err(error),
                Some(_) => self.meter.retries.add(1),
                None => {}
            }
        }
        let queued = QueuedWaiter::register(self, request, WaiterState::new(Token::new()));
        // A shutdown fails every waiter that is registered when it runs. If it ran before this
        // registration, this check finds it.
        self.check_open()?;
        if !self.send_until_queued(&queued.waiter, until, limit, caller)? {
            return Ok(Entered::NotYet);
        }
        let found = queued.waiter.state.lock().take_grant(self.now(), request);
        match found {
            TakeGrant::Taken(lease) => self.give_to_caller(lease).map(Entered::Granted),
            TakeGrant::Failed(error) => Err(error),
            TakeGrant::Confirm => {
                self.apply(&queued.waiter, WaiterAction::Confirm);
                Ok(Entered::Queued(queued))
            }
            TakeGrant::NotYet => Ok(Entered::Queued(queued)),
        }
    }

    /// The lease becomes the caller's. Call this while its waiter, if any, is still registered: see
    /// [`WaiterRegistry::mark_guarded`](crate::engine::waiter::WaiterRegistry::mark_guarded).
    pub(super) fn give_to_caller(&self, lease: Arc<Lease>) -> Result<Arc<Lease>> {
        if lease.was_queued {
            self.waiters.mark_guarded(lease.token);
        }
        // A shutdown may have come while the grant was under way.
        if let Err(error) = self.check_open() {
            self.abandon_lease(&lease);
            return Err(error);
        }
        note_taken(self.id(), &lease);
        Ok(lease)
    }

    /// Sends a waiter's acquire until Redis has queued or granted it. The waiter is registered, so
    /// a grant reaches it whichever way it comes. Past `limit` the acquire is not sent again,
    /// unless Redis passes over dead waiters: that is an answer, and only `until` limits it. False:
    /// Redis passed over dead waiters until then. After that or an error the caller must drop the
    /// waiter.
    pub(super) fn send_until_queued(
        &self,
        waiter: &Arc<WaiterEntry>,
        until: Time,
        mut limit: Time,
        caller: Caller,
    ) -> Result<bool> {
        let started = self.now();
        let mut refused = None;
        loop {
            let now = self.now();
            let Some(token) = self.token_to_send(waiter, now) else {
                // The manager was closed, and the waiter's state has that error.
                return Ok(true);
            };
            let call = waiter.request.acquire(token, Wait::Yes);
            let deadlines = self.deadlines(now, until);
            let result = single_result(self.send_acquires(slice::from_ref(&call), deadlines));
            let fault = match self.on_acquire_reply(waiter, &call, result) {
                EnqueueOutcome::Done => return Ok(true),
                EnqueueOutcome::More if self.now() >= until => return Ok(false),
                EnqueueOutcome::More => {
                    limit = until.min(self.now() + self.config.outage_limit);
                    continue;
                }
                EnqueueOutcome::Again if self.now() < limit => {
                    self.meter.retries.add(1);
                    continue;
                }
                EnqueueOutcome::Again => StoreFault::unavailable(
                    Step::Reply,
                    "no time is left to send the acquire again",
                ),
                EnqueueOutcome::Rejected(error) => return Err(error),
                // R11 (missing keys): a node answered. Nobody can queue for this name until its slot
                // has moved, however long that takes. P8 (every call ends): a redirect is no answer,
                // since it may lead nowhere.
                EnqueueOutcome::RetryLater(fault) if fault.is_undecided() => {
                    if self.now() >= until {
                        return Ok(false);
                    }
                    if caller == Caller::Waits {
                        limit = until.min(self.now() + self.config.outage_limit);
                    }
                    fault
                }
                EnqueueOutcome::RetryLater(fault) => fault,
            };
            let now = self.now();
            if matches!(fault, StoreFault::Server { .. }) {
                refused = Some(fault.clone());
            }
            if now >= limit {
                // The server's last refusal explains more than the lack of a connection.
                let fault = refused.filter(|_| !fault.is_ambiguous()).unwrap_or(fault);
                return Err(self.error(fault, Some(&waiter.request.key), now - started));
            }
            self.clock
                .sleep_until((now + self.config.back_off / 4).min(limit));
            self.meter.retries.add(1);
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
        self.apply(waiter, abandon_old);
        let token = self.waiters.replace_token(waiter)?;
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
        let now = self.now();
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => return self.on_acquire_fault(waiter, fault, result.not_after),
        };
        self.note_reply(waiter, now);
        if answer.resent {
            waiter.state.lock().note_resent(result.not_after);
        }
        self.deliver_all(call, &answer);
        match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let notice = GrantNotice::from_reply(grant, answer.sent);
                let mut state = waiter.state.lock();
                // An earlier copy of the acquire was queued, and the lock was handed over to it.
                let is_handed_over = state.has_pending_notice();
                let action = state.on_granted(notice, now, &waiter.request);
                drop(state);
                if is_handed_over {
                    self.apply_hand_over(waiter, action);
                } else {
                    self.apply(waiter, action);
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
                self.apply_hand_over(waiter, action);
                // The holder's lease may end before the next check period does.
                let holder_ends = left + Duration::from_millis(1);
                self.start_syncing(waiter, now + self.config.check_period.min(holder_ends));
                EnqueueOutcome::Done
            }
            Outcome::More => EnqueueOutcome::More,
            // R5 (dated requests): the connection has a new anchor now.
            Outcome::Late => EnqueueOutcome::Again,
            outcome => EnqueueOutcome::Rejected(self.unexpected_reply(call, &outcome)),
        }
    }

    /// A waiter's acquire had no reply.
    fn on_acquire_fault(
        &self,
        waiter: &Arc<WaiterEntry>,
        fault: StoreFault,
        not_after: u64,
    ) -> EnqueueOutcome {
        let now = self.now();
        // R11 (missing keys): a node answered. Members of a line learn of it here alone.
        if fault.is_undecided() {
            self.note_reply(waiter, now);
        }
        // R7 (late copies): no copy can be on its way if the request was certainly never delivered.
        let not_after = if fault.is_ambiguous() { not_after } else { 0 };
        let mut state = waiter.state.lock();
        let action = state.on_no_reply(not_after, now, &waiter.request);
        drop(state);
        if !matches!(action, WaiterAction::Nothing) {
            // A notice of the grant has come instead, or the waiter was cancelled.
            self.apply_hand_over(waiter, action);
            self.start_syncing(waiter, now);
            EnqueueOutcome::Done
        } else if fault.is_transient() {
            EnqueueOutcome::RetryLater(fault)
        } else {
            let waited = now - waiter.last_reply_at();
            EnqueueOutcome::Rejected(self.error(fault, Some(&waiter.request.key), waited))
        }
    }

    /// From now on the renewal thread syncs the waiter's name, first at `due`.
    fn start_syncing(&self, waiter: &Arc<WaiterEntry>, due: Time) {
        self.subscription.note_awaited();
        self.waker
            .wake_if_late_for(self.waiters.enqueue(waiter, due));
    }
}

/// When the first of these leases ends if none of them is renewed any more.
fn earliest_deadline(leases: &[Arc<Lease>], now: Time) -> Time {
    let ends = leases.iter().map(|lease| now + lease.remaining(now));
    ends.min().unwrap_or(Time::NEVER)
}

pub(super) fn check_group_held(leases: &[Arc<Lease>], now: Time) -> Result<()> {
    first_lost(leases, now).map_or(Ok(()), |loss| Err(Error::Lost { loss }))
}

/// Whether a retry may succeed.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unavailable { .. } | Error::Tls { .. } => true,
        Error::Server { code, message, .. } => passes_by_itself(code, message),
        _ => false,
    }
}

pub(super) fn for_lock(error: Error, request: &Request) -> Error {
    match error {
        Error::Server {
            server,
            code,
            message,
            ..
        } => Error::Server {
            lock: Some(Arc::clone(&request.key.name)),
            server,
            code,
            message,
        },
        other => other,
    }
}
