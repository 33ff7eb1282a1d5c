//! Taking a lock: at once, or by standing in its queue.

use std::sync::Arc;

use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::QueuedWaiter;
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiter::{TakeGrant, WaiterAction, WaiterState};
use crate::engine::{Engine, Lease};
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Call, Mode, Outcome, Token, Verb};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault, passes_by_itself};

/// What an attempt to enter came to.
pub(crate) enum Entered {
    Granted(Arc<Lease>),
    Queued(QueuedWaiter),
}

impl Engine {
    /// Takes the lock if it is free and nobody waits for it. Blocks for at most two command timeouts.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
    ) -> Result<Option<Arc<Lease>>> {
        self.check(request)?;
        let token = Token::new();
        match self.attempt(request, token, Time::NEVER)? {
            Some(lease) => Ok(Some(lease)),
            None => {
                self.counters.missed.add(1);
                Ok(None)
            }
        }
    }

    /// Takes the lock, or waits for it in the queue until `until`. Blocks for at most one command timeout
    /// longer.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        self.acquire_beside(&[], request, until)
    }

    /// Takes the lock or a place in its queue. While Redis does not answer this is tried again, until
    /// `until` or for as long as the outage limit.
    pub(crate) fn enter(self: &Arc<Self>, request: &Arc<Request>, until: Time) -> Result<Entered> {
        let started = self.now();
        // The step that failed knows only how long it took itself.
        self.enter_until(request, until)
            .map_err(|error| error.after(self.now() - started))
    }

    fn enter_until(self: &Arc<Self>, request: &Arc<Request>, until: Time) -> Result<Entered> {
        self.check(request)?;
        let limit = until.min(self.now() + self.config.outage_limit);
        if !self.subscription.is_started() {
            let mut failed = None;
            match self.attempt(request, Token::new(), until) {
                Ok(Some(lease)) => return Ok(Entered::Granted(lease)),
                Ok(None) => {}
                // What may pass by itself is tried again below, for as long as the outage limit.
                Err(error) if is_transient(&error) && self.now() < limit => failed = Some(error),
                // Granted, and lapsed on the way: what comes by the queue is confirmed before it is given out.
                Err(Error::Lost { .. }) if self.now() < until => {}
                Err(error) => return Err(error),
            }
            self.await_subscription(limit)
                .map_err(|e| for_lock(e, request))?;
            if let Some(error) = failed.filter(|_| self.now() >= limit) {
                return Err(error);
            }
        }
        let waiter = self.waiters.register(
            Arc::clone(request),
            WaiterState::new(Token::new()),
            self.now(),
        );
        let queued = QueuedWaiter {
            engine: Arc::clone(self),
            waiter,
        };
        self.counters.waiting.add(1);
        // A shutdown that did not see the place is seen here.
        self.check_open()?;
        self.enqueue(&queued.waiter, until, limit)?;
        let claim = queued.waiter.state.lock().take_grant(self.now(), request);
        match claim {
            TakeGrant::Taken(lease) => self.hand_out(lease).map(Entered::Granted),
            TakeGrant::Failed(error) => Err(error),
            TakeGrant::Confirm => {
                self.apply(&queued.waiter, WaiterAction::Confirm);
                Ok(Entered::Queued(queued))
            }
            TakeGrant::NotYet => Ok(Entered::Queued(queued)),
        }
    }

    /// A place whose lock was granted before anybody had to stand.
    pub(crate) fn queue_granted(self: &Arc<Self>, lease: Arc<Lease>) -> Result<QueuedWaiter> {
        let (request, was_queued, token) =
            (Arc::clone(&lease.request), lease.was_queued, lease.token);
        let waiter = self
            .waiters
            .register(request, WaiterState::granted(lease), self.now());
        let queued = QueuedWaiter {
            engine: Arc::clone(self),
            waiter,
        };
        self.counters.waiting.add(1);
        if was_queued {
            self.waiters.forget_guarded(token);
        }
        self.check_open()?;
        // If the grant is lost before it is claimed, the place is one in the queue (R4).
        self.start_subscription()?;
        Ok(queued)
    }

    pub(super) fn check(&self, request: &Request) -> Result<()> {
        self.check_open()?;
        if request.on_lost.is_some() {
            self.start_callbacks()
        } else {
            Ok(())
        }
    }

    /// To be called before the place is dropped.
    pub(super) fn hand_out(&self, lease: Arc<Lease>) -> Result<Arc<Lease>> {
        if lease.was_queued {
            self.waiters.mark_guarded(lease.token);
        }
        self.checked(lease)
    }

    /// A shutdown may have come while the lock was on its way.
    fn checked(&self, lease: Arc<Lease>) -> Result<Arc<Lease>> {
        if let Err(error) = self.check_open() {
            self.abandon_lease(&lease);
            return Err(error);
        }
        Ok(lease)
    }

    /// One try without a place in the queue.
    fn attempt(
        self: &Arc<Self>,
        request: &Arc<Request>,
        token: Token,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        let started = self.now();
        let deadlines = self.deadlines(started, until);
        let call = acquire_call(request, token, Wait::No);
        let mut refused = None;
        let mut doubt = Doubt::default();
        loop {
            let result = self.run_one(&call, deadlines);
            let fault = match self.on_try_reply(request, token, &call, &mut doubt, result)? {
                TryOutcome::Done(lease) => return Ok(lease),
                TryOutcome::Again(fault) => fault,
                TryOutcome::Failed(fault @ StoreFault::Server { .. })
                    if fault.is_transient() && !fault.is_ambiguous() =>
                {
                    self.clock
                        .sleep_until(self.now() + self.config.back_off / 10);
                    refused = Some(fault.repeat());
                    fault
                }
                TryOutcome::Failed(fault) => {
                    // What the server said last tells more than that there is no connection to ask it again.
                    let passes = fault.is_transient() && !fault.is_ambiguous();
                    let fault = refused.filter(|_| passes).unwrap_or(fault);
                    return Err(fault.into_error(Some(&call.key), self.now() - started));
                }
            };
            if self.now() >= started + self.config.command_timeout {
                if doubt.in_doubt {
                    self.abandon_in_background(&call, token, doubt.not_after, request.longest());
                }
                return Err(fault.into_error(Some(&call.key), self.now() - started));
            }
        }
    }

    /// What the answer to such a try means.
    pub(super) fn on_try_reply(
        &self,
        request: &Arc<Request>,
        token: Token,
        call: &Call,
        doubt: &mut Doubt,
        result: CallResult,
    ) -> Result<TryOutcome> {
        doubt.not_after = doubt.not_after.max(result.not_after);
        let not_after = doubt.not_after;
        let abandon = || self.abandon_in_background(call, token, not_after, request.longest());
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => {
                if fault.is_ambiguous() {
                    abandon();
                }
                return Ok(TryOutcome::Failed(fault));
            }
        };
        doubt.in_doubt |= answer.resent;
        self.deliver_all(call, &answer);
        match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let not_after = if doubt.in_doubt { not_after } else { 0 };
                let lease = self.take(
                    request,
                    GrantNotice::from_reply(grant, answer.sent),
                    not_after,
                )?;
                Ok(TryOutcome::Done(Some(lease)))
            }
            Outcome::Busy { .. } => {
                if doubt.in_doubt {
                    // The first copy may still be on its way (R7).
                    abandon();
                }
                Ok(TryOutcome::Done(None))
            }
            // R5: the connection has a new anchor now. More: there are dead waiters to pass over.
            Outcome::Late | Outcome::More => Ok(TryOutcome::Again(StoreFault::unavailable(
                Step::Reply,
                "no time left to ask again",
            ))),
            outcome => Err(self.unexpected_reply(call, &outcome)),
        }
    }

    fn take(
        &self,
        request: &Arc<Request>,
        notice: GrantNotice,
        not_after: u64,
    ) -> Result<Arc<Lease>> {
        let deadline = notice.deadline.unwrap_or(Time::from_nanos(0));
        let lease = Lease::new(Arc::clone(request), &notice.grant, notice.granted, deadline)
            .with_not_after(not_after);
        let lease = Arc::new(lease);
        if !lease.is_held(self.now()) {
            // A lease that is shorter than the way of the reply.
            self.abandon_lease(&lease);
            return Err(Error::Lost {
                loss: lease.loss_for(LossReason::Expired),
            });
        }
        self.keep_renewed(&lease);
        self.checked(lease)
    }

    /// A lease that nobody will have (R13).
    fn abandon_lease(&self, lease: &Lease) {
        lease.close();
        if lease.was_queued {
            self.waiters.forget_guarded(lease.token);
        }
        let about = lease.request.call(Verb::Renew { token: lease.token });
        self.abandon_in_background(
            &about,
            lease.token,
            lease.not_after,
            lease.request.longest(),
        );
    }

    /// Sends the acquire of a place until it stands in the queue or is granted. The place is in the
    /// registry, so a grant is noted whichever way it comes (R1, R8). Past `limit` it is not sent again; after
    /// an error it is to be dropped.
    fn enqueue(
        self: &Arc<Self>,
        waiter: &Arc<WaiterEntry>,
        until: Time,
        limit: Time,
    ) -> Result<()> {
        let request = &waiter.request;
        let started = self.now();
        let mut refused = None;
        loop {
            let now = self.now();
            let token = match self.token_to_send(waiter, now) {
                Some(token) => token,
                // It failed meanwhile: the manager was closed.
                None => return Ok(()),
            };
            let call = acquire_call(request, token, Wait::Yes);
            let result = self.run_one(&call, self.deadlines(now, until));
            let fault = match self.on_acquire_reply(waiter, &call, result) {
                EnqueueOutcome::Done => return Ok(()),
                EnqueueOutcome::Again if self.now() < limit => continue,
                EnqueueOutcome::Again => {
                    StoreFault::unavailable(Step::Reply, "the server's clock leaves no time to ask")
                }
                EnqueueOutcome::Refused(error) => return Err(error),
                EnqueueOutcome::Failed(fault) => fault,
            };
            let now = self.now();
            if matches!(fault, StoreFault::Server { .. }) {
                refused = Some(fault.repeat());
            }
            if now >= limit {
                // If there is no connection any more, what the server said last tells more.
                let fault = refused.filter(|_| !fault.is_ambiguous()).unwrap_or(fault);
                return Err(fault.into_error(Some(&request.key), now - started));
            }
            self.clock
                .sleep_until((now + self.config.back_off / 4).min(limit));
        }
    }

    /// R6: no token is sent in an acquire later than one ttl after it was first sent.
    pub(super) fn token_to_send(&self, waiter: &Arc<WaiterEntry>, now: Time) -> Option<Token> {
        let too_old = {
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
        self.apply(waiter, too_old);
        let token = self.waiters.replace_token(waiter)?;
        waiter.state.lock().first_sent = Some(now);
        Some(token)
    }

    /// What the answer to a place's acquire means for it.
    pub(super) fn on_acquire_reply(
        &self,
        waiter: &Arc<WaiterEntry>,
        call: &Call,
        result: CallResult,
    ) -> EnqueueOutcome {
        let request = &waiter.request;
        let now = self.now();
        let not_after = result.not_after;
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => {
                let not_after = if fault.is_ambiguous() { not_after } else { 0 };
                let action = waiter.state.lock().on_no_reply(not_after, now, request);
                if !matches!(action, WaiterAction::Nothing) {
                    self.apply(waiter, action);
                    self.stand(waiter, now);
                    return EnqueueOutcome::Done;
                }
                return if fault.is_transient() {
                    EnqueueOutcome::Failed(fault)
                } else {
                    EnqueueOutcome::Refused(
                        fault.into_error(Some(&request.key), now - waiter.last_reply_at()),
                    )
                };
            }
        };
        waiter.on_reply(now);
        if answer.resent {
            waiter.state.lock().note_resent(not_after);
        }
        self.deliver_all(call, &answer);
        let (action, due) = match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let notice = GrantNotice::from_reply(grant, answer.sent);
                (waiter.state.lock().on_granted(notice, now, request), None)
            }
            Outcome::Waiting {
                ticket,
                position,
                left,
                since,
            } => {
                let due = now
                    + self
                        .config
                        .check_period
                        .min(left + std::time::Duration::from_millis(1));
                (
                    waiter
                        .state
                        .lock()
                        .on_queued(now, ticket, position, since, request),
                    Some(due),
                )
            }
            Outcome::Late | Outcome::More => return EnqueueOutcome::Again,
            outcome => return EnqueueOutcome::Refused(self.unexpected_reply(call, &outcome)),
        };
        self.apply(waiter, action);
        if let Some(due) = due {
            self.stand(waiter, due);
        }
        EnqueueOutcome::Done
    }

    /// The place's name is looked after from now on.
    fn stand(&self, waiter: &Arc<WaiterEntry>, due: Time) {
        self.waker
            .wake_if_late_for(self.waiters.enqueue(waiter, due));
    }

    pub(super) fn cancel(&self, waiter: &Arc<WaiterEntry>) {
        let action = waiter.state.lock().cancel();
        let WaiterAction::Abandon { token, not_after } = action else {
            return;
        };
        let call = waiter.request.call(Verb::Release {
            token,
            fence: 0,
            mode: Mode::Unused,
        });
        // At once if a connection is free and one release will do; else the renewal thread's (R7).
        if not_after == 0 {
            let started = self.now();
            match self.run_one(&call, self.at_once(started)).answer {
                Ok(answer) => {
                    self.note_release_answered();
                    self.deliver_all(&call, &answer);
                    if !answer.reply.more {
                        return;
                    }
                }
                Err(StoreFault::NotReady) => {}
                Err(fault) => self.note_release_fault(started, &fault),
            }
        }
        self.cancel_in_background(&waiter.request, token, not_after);
    }
}

/// R7 (late copies): what is known of the copies of an acquire that were sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Doubt {
    /// A copy may still be on its way.
    pub(crate) in_doubt: bool,
    /// The server refuses every copy from this server time on.
    pub(crate) not_after: u64,
}

/// What became of an acquire that may not wait.
pub(super) enum TryOutcome {
    Done(Option<Arc<Lease>>),
    Again(StoreFault),
    Failed(StoreFault),
}

/// What became of an acquire.
pub(super) enum EnqueueOutcome {
    Done,
    Again,
    Refused(Error),
    Failed(StoreFault),
}

#[derive(PartialEq)]
pub(super) enum Wait {
    No,
    Yes,
}

pub(super) fn acquire_call(request: &Request, token: Token, wait: Wait) -> Call {
    request.call(Verb::Acquire {
        token,
        may_wait: wait == Wait::Yes,
        params: Arc::clone(&request.params),
    })
}

pub(crate) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unavailable { .. } => true,
        Error::Server { code, message, .. } => passes_by_itself(code, message),
        _ => false,
    }
}

fn for_lock(error: Error, request: &Request) -> Error {
    match error {
        Error::Server { code, message, .. } => Error::Server {
            lock: Some(Arc::clone(&request.key.name)),
            code,
            message,
        },
        other => other,
    }
}
