//! How a caller acquires locks. [`Acquiring::acquire`] is the main loop. Its steps follow in the order
//! in which it takes them: enter, send the acquire, and wait. `queued` is the wait, and `cancel` ends
//! it. `group` takes several locks, and `owned` serves a layer above whose callers share a grant. An
//! acquire that may not wait is an attempt, of `trying`; `soon` is the moment that such a caller waits.

mod cancel;
mod group;
mod owned;
mod queued;
mod soon;
mod wait_log;

use std::slice;
use std::sync::Arc;

use crate::engine::base::Base;
use crate::engine::client::{Client, single_result};
use crate::engine::grants::Grants;
use crate::engine::holding::Holding;
use crate::engine::lease::HeldLease;
use crate::engine::life::Life;
use crate::engine::names::Names;
use crate::engine::releasing::Releasing;
use crate::engine::request::Request;
use crate::engine::subscription::Subscription;
use crate::engine::trying::Trying;
use crate::engine::upkeep::Upkeep;
use crate::engine::waiter::{
    Askers, TakeGrant, WaiterAction, WaiterEntry, WaiterRegistry, WaiterState,
};
use crate::engine::waiting::{EnqueueOutcome, Waiting};
use crate::error::{Error, Result, Step, TLS, passes_by_itself};
use crate::script::{Token, Wait};
use crate::stats::Count;
use crate::store::StoreFault;
use crate::store::clock::Time;

use group::{check_group_held, earliest_deadline};

pub(crate) use queued::{AtDeadline, QueuedWaiter};

/// The caller's plan once it has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// It waits, for as long as its deadline lets it.
    Waits,
    /// It waits later, so it has no deadline. P8 (every call ends): it does not await a slot's move.
    Enqueues,
}

/// How a caller enters: with the lock, or with a place in its queue.
pub(crate) enum Entered {
    Granted(Arc<HeldLease>),
    /// Where the store has no queue, a waiter that asks while its caller waits.
    Queued(QueuedWaiter),
    /// With neither, since the time is up: the lock is taken, or Redis still passes over dead
    /// waiters in front of it.
    NotYet,
}

/// The callers of one manager that take locks, and wait for them.
pub(crate) struct Acquiring {
    life: Arc<Life>,
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    holding: Arc<Holding>,
    registry: Arc<WaiterRegistry>,
    askers: Arc<Askers>,
    grants: Arc<Grants>,
    waiting: Arc<Waiting>,
    names: Arc<Names>,
    releasing: Arc<Releasing>,
    trying: Arc<Trying>,
    subscription: Arc<Subscription>,
}

impl Acquiring {
    pub(super) fn new(
        base: &Base,
        names: &Arc<Names>,
        releasing: &Arc<Releasing>,
        trying: &Arc<Trying>,
        subscription: &Arc<Subscription>,
    ) -> Acquiring {
        Acquiring {
            life: Arc::clone(&base.life),
            client: Arc::clone(&base.client),
            upkeep: Arc::clone(&base.upkeep),
            holding: Arc::clone(&base.holding),
            registry: Arc::clone(&base.registry),
            askers: Arc::clone(&base.askers),
            grants: Arc::clone(&base.grants),
            waiting: Arc::clone(&base.waiting),
            names: Arc::clone(names),
            releasing: Arc::clone(releasing),
            trying: Arc::clone(trying),
            subscription: Arc::clone(subscription),
        }
    }

    /// Acquires a lock, and waits for it. Returns `None` if others had it until `until`. P8 (every call ends): it blocks for at
    /// most one command timeout longer.
    ///
    /// `group_so_far` are the leases of the same group that the caller already holds, see
    /// [`Acquiring::acquire_all`]. If one is lost, the group is lost, and the acquire returns that loss.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        group_so_far: &[Arc<HeldLease>],
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        let enter = |until| self.enter(request, until, Caller::Waits);
        self.acquire_by(enter, group_so_far, until)
    }

    /// THE MAIN LOOP of a caller: try, enqueue, wait, cancel. It is that of [`Acquiring::acquire`], for a
    /// caller that enters in its own way.
    pub(crate) fn acquire_by(
        &self,
        enter: impl Fn(Time) -> Result<Entered>,
        group_so_far: &[Arc<HeldLease>],
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        let limit = until.min(self.client.now() + self.client.config().outage_limit);
        // Try, and enqueue. In an outage, stop when the earliest of these leases would expire, to
        // check them.
        let queued = loop {
            let now = self.client.now();
            let recheck_at = until.min(earliest_deadline(group_so_far, now));
            match enter(recheck_at) {
                Ok(Entered::Granted(lease)) => return Ok(Some(lease)),
                Ok(Entered::Queued(queued)) => break queued,
                Ok(Entered::NotYet) => {
                    check_group_held(group_so_far, self.client.now())?;
                    if recheck_at == until {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    check_group_held(group_so_far, self.client.now())?;
                    if recheck_at == until || self.client.now() >= limit || !is_transient(&error) {
                        return Err(error.after(self.client.now() - now));
                    }
                    self.client.meter().count(Count::Retries);
                }
            }
        };
        // Wait. Once per check period, check that the group's earlier leases are still held.
        queued.begin_wait();
        loop {
            check_group_held(group_so_far, self.client.now())?;
            let mut recheck_at = until;
            if !group_so_far.is_empty() {
                recheck_at = until.min(self.client.now() + self.client.config().check_period);
            }
            let at_deadline = if recheck_at == until {
                AtDeadline::Cancel
            } else {
                AtDeadline::Keep
            };
            match queued.wait_on(recheck_at, at_deadline) {
                Ok(Some(lease)) => return Ok(Some(lease)),
                // Cancel, at the deadline. A grant may still come first.
                Ok(None) if at_deadline == AtDeadline::Cancel => return queued.cancel(until),
                Ok(None) => {}
                Err(error) => {
                    // P8 (every call ends): the time is up. A silent Redis would not answer a
                    // release either, so the renewal thread sends it.
                    queued.cancel_in_background();
                    check_group_held(group_so_far, self.client.now())?;
                    return Err(error);
                }
            }
        }
    }

    /// See [`Trying::attach`].
    pub(crate) fn attach(&self, request: &Arc<Request>) -> Result<Arc<HeldLease>> {
        self.trying.attach(request)
    }

    /// Enqueues a waiter, which may be granted at once. The caller waits for it later.
    pub(crate) fn enqueue(self: &Arc<Self>, request: &Arc<Request>) -> Result<QueuedWaiter> {
        let started = self.client.now();
        let entered = self
            .enter(request, Time::NEVER, Caller::Enqueues)
            .map_err(|error| error.after(self.client.now() - started))?;
        let lease = match entered {
            Entered::Queued(queued) => return Ok(queued),
            Entered::Granted(lease) => lease,
            Entered::NotYet => unreachable!("an enqueue has no deadline"),
        };
        let granted = WaiterState::granted(Arc::clone(&lease));
        let queued = QueuedWaiter::register(self, &lease.request, granted, None);
        if lease.was_queued {
            self.registry.forget_guarded(lease.token);
        }
        self.life.check_open()?;
        // R4 (lost places), R17 (subscription): if the grant is lost before the caller takes it,
        // the waiter is enqueued again, and needs the subscription.
        if self.client.has_queue() {
            self.subscription.start();
        }
        Ok(queued)
    }

    /// Takes the lock, or a place in its queue. In an outage it tries again until `until`, or for
    /// as long as the outage limit. While Redis passes over dead waiters it goes on until `until`.
    fn enter(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
        caller: Caller,
    ) -> Result<Entered> {
        self.holding.prepare(request)?;
        if !self.client.has_queue() {
            return self.enter_without_queue(request, until);
        }
        let limit = until.min(self.client.now() + self.client.config().outage_limit);
        // R17 (subscription): a waiter must not be enqueued before the subscription. So a manager
        // that has none tries first: a free lock needs no subscription.
        if !self.subscription.is_started() {
            let mut failed = None;
            match self.trying.attempt(request, until) {
                Ok(Some(lease)) => return Ok(Entered::Granted(lease)),
                // A place in the queue is of no use any more.
                Ok(None) if self.client.now() >= until => return Ok(Entered::NotYet),
                Ok(None) => {}
                // A transient failure is retried below, up to the outage limit.
                Err(error) if is_transient(&error) && self.client.now() < limit => {
                    failed = Some(error)
                }
                // The lock was granted, but the lease expired before the reply arrived. Queue for
                // it instead: R12 (doubtful grants) confirms a late grant from the queue before it
                // is used.
                Err(Error::Lost { .. }) if self.client.now() < until => {}
                Err(error) => return Err(error),
            }
            self.subscription
                .await_up(limit)
                .map_err(|e| for_lock(e, request))?;
            match failed {
                Some(error) if self.client.now() >= limit => return Err(error),
                Some(_) => self.client.meter().count(Count::Retries),
                None => {}
            }
        }
        let state = WaiterState::new(Token::new());
        let queued = QueuedWaiter::register(self, request, state, None);
        // A shutdown fails every waiter that is registered when it runs. If it ran before this
        // registration, this check finds it.
        self.life.check_open()?;
        if !self.send_until_queued(&queued.waiter, until, limit, caller)? {
            return Ok(Entered::NotYet);
        }
        let found = queued
            .waiter
            .state
            .lock()
            .take_grant(self.client.now(), request);
        match found {
            TakeGrant::Taken(lease) => {
                let given = self.grants.give_to_waiter(&queued.waiter, lease);
                given.map(Entered::Granted)
            }
            TakeGrant::Failed(error) => Err(error),
            TakeGrant::Confirm => {
                self.grants.apply(&queued.waiter, WaiterAction::Confirm);
                Ok(Entered::Queued(queued))
            }
            TakeGrant::NotYet => Ok(Entered::Queued(queued)),
        }
    }

    /// Sends a waiter's acquire until Redis has queued or granted it. The waiter is registered, so
    /// a grant reaches it whichever way it comes. Past `limit` the acquire is not sent again,
    /// unless Redis passes over dead waiters: that is an answer, and only `until` limits it. False:
    /// Redis passed over dead waiters until then. After that or an error the caller must drop the
    /// waiter.
    pub(crate) fn send_until_queued(
        &self,
        waiter: &Arc<WaiterEntry>,
        until: Time,
        mut limit: Time,
        caller: Caller,
    ) -> Result<bool> {
        let started = self.client.now();
        let mut refused = None;
        loop {
            let now = self.client.now();
            let Some(token) = self.waiting.token_to_send(waiter, now) else {
                // The manager was closed, and the waiter's state has that error.
                return Ok(true);
            };
            let call = waiter.request.acquire(token, Wait::Yes);
            let deadlines = self.client.deadlines(now, until);
            let result = single_result(self.names.send_acquires(slice::from_ref(&call), deadlines));
            let fault = match self.waiting.on_acquire_reply(waiter, &call, result) {
                EnqueueOutcome::Done => return Ok(true),
                EnqueueOutcome::More if self.client.now() >= until => return Ok(false),
                EnqueueOutcome::More => {
                    limit = until.min(self.client.now() + self.client.config().outage_limit);
                    continue;
                }
                EnqueueOutcome::Again if self.client.now() < limit => {
                    self.client.meter().count(Count::Retries);
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
                    if self.client.now() >= until {
                        return Ok(false);
                    }
                    if caller == Caller::Waits {
                        limit = until.min(self.client.now() + self.client.config().outage_limit);
                    }
                    fault
                }
                EnqueueOutcome::RetryLater(fault) => fault,
            };
            let now = self.client.now();
            if matches!(fault, StoreFault::Server { .. }) {
                refused = Some(fault.clone());
            }
            if now >= limit {
                // The server's last refusal explains more than the lack of a connection.
                let fault = refused.filter(|_| !fault.is_ambiguous()).unwrap_or(fault);
                return Err(self
                    .client
                    .error(fault, Some(&waiter.request.key), now - started));
            }
            self.client
                .clock()
                .sleep_until((now + self.client.config().back_off / 4).min(limit));
            self.client.meter().count(Count::Retries);
        }
    }

    /// Takes the lock if it is free. Otherwise the caller gets a waiter, which asks while the caller
    /// waits. Blocks for at most two command timeouts.
    pub(super) fn enter_without_queue(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Entered> {
        // Threads of this manager that wait already come first: the release of their lock wakes
        // them, and this request would overtake them.
        if !self.askers.are_any(&request.key.name) {
            match self.trying.attempt(request, until) {
                Ok(Some(lease)) => return Ok(Entered::Granted(lease)),
                Ok(None) if self.client.now() >= until => return Ok(Entered::NotYet),
                Ok(None) => {}
                // The waiter outlasts an outage, and a lease that was over when its reply came.
                Err(error) if is_passing(&error) && self.client.now() < until => {}
                Err(error) => return Err(error),
            }
        }
        let state = WaiterState::new(Token::never_sent());
        let queued = QueuedWaiter::register(self, request, state, None);
        // For a shutdown before this, see `enter`.
        self.life.check_open()?;
        let mut state = queued.waiter.state.lock();
        state.begin_pause(self.client.now(), self.client.config().back_off);
        drop(state);
        Ok(Entered::Queued(queued))
    }
}

/// Whether a retry may succeed.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error {
        // Acknowledgements that are missing are an answer.
        Error::Unavailable { step, .. } => *step != Step::Replicas,
        Error::Refused { code, message, .. } => code == TLS || passes_by_itself(code, message),
        _ => false,
    }
}

pub(super) fn for_lock(error: Error, request: &Request) -> Error {
    match error {
        Error::Refused {
            server,
            code,
            message,
            ..
        } => Error::Refused {
            lock: Some(Arc::clone(&request.key.name)),
            server,
            code,
            message,
        },
        other => other,
    }
}

/// Whether a retry may succeed, a retry for a lease that was over when its reply came included.
pub(crate) fn is_passing(error: &Error) -> bool {
    is_transient(error) || matches!(error, Error::Lost { .. })
}

#[cfg(all(test, feature = "memory"))]
mod tests;
