//! The engine without its threads, for the simulator. The simulator says when each thread runs, and
//! which replies it gets. This file decides nothing: each method is what a thread does before or
//! after a request.

use std::sync::Arc;

use crate::config::Config;
#[cfg(test)]
use crate::config::Settings;
use crate::engine::background::RenewalThread;
use crate::engine::releasing::{ReleaseOutcome, WantResult, release_call};
#[cfg(test)]
use crate::engine::trying::GroupOutcome;
use crate::engine::trying::{Attempted, Doubt, Tried, TryAcquire};
use crate::engine::upkeep::{Command, Task};
use crate::engine::waiter::{TakeGrant, TokenOwner, WaiterAction, WaiterEntry, WaiterState};
use crate::engine::waiting::EnqueueOutcome;
use crate::engine::{Engine, HeldLease, QueuedWaiter, Request};
use crate::error::Error;
#[cfg(test)]
use crate::memory::Memory;
use crate::script::{Call, CallerId, Mode, Token, Wait};
use crate::store::clock::Time;
#[cfg(test)]
use crate::store::memory::Session;
use crate::store::{CallResult, OnResult, Store};

type Answered = CallResult;

/// An engine, and the state of its renewal thread.
pub(crate) struct SteppedEngine {
    engine: Arc<Engine>,
    renewal: RenewalThread,
}

/// The tasks that the replies to a pipeline belong to.
pub(crate) struct Tasks(Vec<Task>);

/// A caller's next step after the reply to its acquire.
pub(crate) enum Next {
    Wait,
    AskAgain,
    AskLater,
    Fail(Error),
}

#[cfg(test)]
impl Engine {
    /// An engine on a store in memory, and the renewal thread that a test plays.
    pub(super) fn without_threads(memory: &Memory) -> (Arc<Engine>, RenewalThread) {
        let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
        let step = config.check_period + config.command_timeout;
        let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
        let session = Session::open(memory, config.command_timeout, Arc::clone(&caller_id));
        Engine::new(config, Box::new(session.expect("it is up")), caller_id)
    }

    /// The number of tokens in the registry.
    pub(crate) fn waiters(&self) -> usize {
        self.base.registry.all().len()
    }

    /// The renewal thread is to report that this lease is lost.
    pub(crate) fn report_loss(&self, lost: Arc<HeldLease>) {
        self.base.upkeep.send(Command::ReportLoss(lost));
    }
}

impl SteppedEngine {
    pub(crate) fn new(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> SteppedEngine {
        let (engine, renewal) = Engine::new(config, store, caller_id);
        SteppedEngine { engine, renewal }
    }

    #[cfg(test)]
    pub(crate) fn on_memory(memory: &Memory) -> SteppedEngine {
        let (engine, renewal) = Engine::without_threads(memory);
        SteppedEngine { engine, renewal }
    }

    /// The renewal thread's next pipeline. It is empty if nothing is due.
    pub(crate) fn collect(&mut self) -> (Tasks, Vec<Call>) {
        self.renewal.take_in();
        let (tasks, calls) = self.renewal.collect().into_iter().unzip();
        (Tasks(tasks), calls)
    }

    pub(crate) fn on_replies(&mut self, tasks: Tasks, calls: &[Call], results: Vec<Answered>) {
        for ((task, call), result) in tasks.0.into_iter().zip(calls).zip(results) {
            self.renewal.on_reply(task, call, result);
        }
    }

    /// When [`SteppedEngine::collect`] has something next, unless a command comes first.
    pub(crate) fn next_due(&self) -> Time {
        self.renewal.next_due()
    }

    /// A message arrives.
    pub(crate) fn on_message(&self, message: &str) {
        self.engine.subscription.on_message(message);
    }

    /// A message arrives and counts at once, also while a request is in flight: the defect that R8
    /// rules out.
    pub(crate) fn on_message_at_once(&self, message: &str) {
        self.on_message(message);
        for waiter in self.engine.base.registry.all() {
            let action = {
                let mut state = waiter.state.lock();
                if state.is_asking() {
                    state.on_no_reply(0, self.engine.now(), &waiter.request)
                } else {
                    WaiterAction::Nothing
                }
            };
            self.engine.base.grants.apply(&waiter, action);
        }
    }

    /// The subscription is confirmed, for the first time or again.
    pub(crate) fn on_subscribed(&self) {
        self.engine.base.upkeep.send(Command::Subscribed);
    }

    /// The subscription was alive at that moment.
    pub(crate) fn note_proof(&self, alive_at: Time) {
        self.engine.hearing().note_proof(alive_at);
    }

    /// The subscription has ended, and this process knows that.
    pub(crate) fn note_subscription_end(&self) {
        self.engine.hearing().note_end();
    }

    /// Whether a PING is to prove that the subscription is alive.
    pub(crate) fn needs_proof(&self) -> bool {
        self.engine.hearing().needs_proof(self.engine.now())
    }

    /// What is done with the reply to a release whose caller waits for it no more, and does the rest
    /// without it.
    pub(crate) fn on_late_release_reply(&self, call: Call) -> OnResult {
        let grants = Arc::downgrade(&self.engine.base.grants);
        Box::new(move |result| {
            if let (Some(grants), Ok(answer)) = (grants.upgrade(), result.answer) {
                grants.deliver_all(&call, &answer);
            }
        })
    }

    /// The number of tokens in the registry.
    pub(crate) fn waiters(&self) -> usize {
        self.engine.base.registry.all().len()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// A waiter whose acquire was not sent yet.
    pub(crate) fn register(&self, request: &Arc<Request>) -> QueuedWaiter {
        let state = WaiterState::new(Token::new());
        QueuedWaiter::register(&self.engine.acquiring, request, state, None)
    }

    /// Whether the waiter is queued by this token: its own, or that of the one that asks for it.
    pub(crate) fn waits_by(&self, queued: &QueuedWaiter, token: Token) -> bool {
        let waiter = &queued.waiter;
        if !waiter.is_unasked() {
            return queued.token() == token;
        }
        let asking = match self.engine.base.registry.owner_of(token) {
            TokenOwner::Waiter(asking) => asking,
            _ => return false,
        };
        let callers = asking.callers();
        callers.iter().any(|caller| Arc::ptr_eq(caller, waiter))
    }

    /// Whether the waiter is queued, as far as it knows.
    pub(crate) fn is_queued(&self, queued: &QueuedWaiter) -> bool {
        queued.waiter.state.lock().is_queued()
    }

    /// Forgets when the token was first sent, so it is never replaced: the defect that R6 rules
    /// out.
    pub(crate) fn keep_token(&self, queued: &QueuedWaiter) {
        queued.waiter.state.lock().first_sent = None;
    }

    /// The acquire that the waiter sends now. `None` if it needs none.
    pub(crate) fn begin_acquire(&self, waiter: &Arc<WaiterEntry>, now: Time) -> Option<Call> {
        let token = self.engine.base.waiting.token_to_send(waiter, now)?;
        Some(waiter.request.acquire(token, Wait::Yes))
    }

    pub(crate) fn on_acquire_reply(
        &self,
        waiter: &Arc<WaiterEntry>,
        call: &Call,
        answer: Answered,
    ) -> Next {
        let waiting = &self.engine.base.waiting;
        match waiting.on_acquire_reply(waiter, call, answer) {
            EnqueueOutcome::Done => Next::Wait,
            EnqueueOutcome::More | EnqueueOutcome::Again => Next::AskAgain,
            EnqueueOutcome::RetryLater(_) => Next::AskLater,
            EnqueueOutcome::Rejected(error) => Next::Fail(error),
        }
    }

    /// The waiter fails for good.
    pub(crate) fn fail(&self, waiter: &Arc<WaiterEntry>, error: Error) {
        self.engine.base.waiting.fail(waiter, error);
    }

    /// The caller wakes and looks.
    pub(crate) fn take_grant(&self, queued: &QueuedWaiter) -> Option<Arc<HeldLease>> {
        let found = queued
            .waiter
            .state
            .lock()
            .take_grant(self.engine.now(), &queued.waiter.request);
        match found {
            TakeGrant::Taken(lease) => {
                let grants = &self.engine.base.grants;
                grants.give_to_waiter(&queued.waiter, lease).ok()
            }
            TakeGrant::Confirm => {
                self.engine
                    .base
                    .grants
                    .apply(&queued.waiter, WaiterAction::Confirm);
                None
            }
            TakeGrant::Failed(_) | TakeGrant::NotYet => None,
        }
    }

    /// The caller's deadline: the call that leaves the queue, if one is needed.
    pub(crate) fn begin_cancel(&self, queued: &QueuedWaiter) -> Option<Call> {
        queued.begin_cancel()
    }

    /// Applies the reply to that call, and takes a last look at the waiter. `None`: no call was
    /// needed.
    pub(crate) fn on_cancel_reply(
        &self,
        queued: &QueuedWaiter,
        answered: Option<(&Call, Answered)>,
    ) -> Option<Arc<HeldLease>> {
        if let Some((call, answer)) = answered {
            queued.on_cancel_reply(call, answer.answer).ok()?;
        }
        queued.take_grant_or_cancel().ok().flatten()
    }

    /// The acquire of a try.
    pub(crate) fn begin_try(&self, request: &Request, token: Token, wait: Wait) -> Call {
        request.acquire(token, wait)
    }

    /// `None`: the acquire must be sent again.
    pub(crate) fn on_try_reply(
        &self,
        request: &Arc<Request>,
        token: Token,
        call: &Call,
        doubt: &mut Doubt,
        answer: Answered,
    ) -> Option<Attempted> {
        let mut attempt = TryAcquire {
            request,
            token,
            call,
            doubt: *doubt,
        };
        let outcome = self.engine.trying.on_try_reply(&mut attempt, answer);
        *doubt = attempt.doubt;
        match outcome {
            Ok(Tried::Done(attempted)) => Some(attempted),
            Ok(Tried::More | Tried::Again(..)) => None,
            Ok(Tried::Failed(..) | Tried::Refused(..)) | Err(_) => Some(Attempted::Taken),
        }
    }

    /// Applies the reply to a try for a group that has one member. Whether it was granted.
    #[cfg(test)]
    pub(crate) fn on_group_try_reply(
        &self,
        request: &Arc<Request>,
        token: Token,
        call: &Call,
        answer: Answered,
    ) -> bool {
        let attempt = TryAcquire {
            request,
            token,
            call,
            doubt: Doubt::default(),
        };
        let replies = std::iter::once((attempt, answer));
        let requests = std::slice::from_ref(request);
        let outcome = self.engine.trying.on_try_replies(requests, replies);
        matches!(outcome, Ok(Tried::Done(GroupOutcome::Granted(_))))
    }

    /// No time is left to send the acquire again.
    pub(crate) fn stop_trying(&self, request: &Request, token: Token, call: &Call, doubt: Doubt) {
        if doubt.in_doubt {
            self.engine
                .base
                .upkeep
                .abandon_token(call, token, doubt.not_after, request.longest());
        }
    }

    /// The owner of a guard renews it: the call to send, unless the lease is lost.
    pub(crate) fn begin_renew(&self, lease: &Arc<HeldLease>) -> Option<Call> {
        let renewed = lease.renewed_lease();
        let is_held = lease.is_held(self.engine.now());
        is_held.then(|| renewed.request.renew(renewed.token, renewed.fence()))
    }

    pub(crate) fn on_renew_reply(&self, lease: &Arc<HeldLease>, answer: Answered) {
        if let Ok(answer) = answer.answer {
            let _ = self.engine.base.holding.on_renew_reply(lease, &answer);
        }
    }

    /// A writer becomes a reader: the call to send, unless the lease is lost.
    pub(crate) fn begin_downgrade(&self, lease: &HeldLease) -> Option<Call> {
        self.engine
            .releasing
            .begin_reduce(lease, 1, self.engine.now())
            .ok()
    }

    /// Whether the caller keeps a guard.
    pub(crate) fn on_downgrade_reply(
        &self,
        lease: &Arc<HeldLease>,
        call: &Call,
        started: Time,
        answer: Answered,
    ) -> bool {
        self.engine
            .releasing
            .on_reduce_reply(lease, call, started, answer.answer)
            .is_ok()
    }

    /// A guard is dropped: what to send, unless the lease is lost.
    pub(crate) fn begin_release(&self, lease: &Arc<HeldLease>, mode: Mode) -> Option<Call> {
        let (releasing, now) = (&self.engine.releasing, self.engine.now());
        releasing.begin_release(lease, mode, now).ok()
    }

    /// The release of a lease that has ended here.
    pub(crate) fn release_call(&self, lease: &HeldLease, mode: Mode) -> Call {
        release_call(lease, mode)
    }

    /// After the release of a dropped guard is written: what is to be done with its reply if the
    /// caller leaves. `None`: the caller must wait for it.
    pub(crate) fn leave(
        &self,
        lease: &Arc<HeldLease>,
        call: &Call,
        started: Time,
    ) -> Option<OnResult> {
        let may_leave = self.engine.releasing.may_leave(lease, WantResult::No);
        may_leave.then(|| self.leave_anyway(lease, call, started))
    }

    /// Leaves although a caller waits for the lock: the defect that the look at the registry rules
    /// out.
    pub(crate) fn leave_anyway(
        &self,
        lease: &Arc<HeldLease>,
        call: &Call,
        started: Time,
    ) -> OnResult {
        let timeout = self.engine.config().command_timeout;
        self.engine.releasing.note_left(started + timeout);
        self.engine.releasing.on_unread(lease, call, started)
    }

    pub(crate) fn on_release_reply(
        &self,
        lease: &HeldLease,
        call: &Call,
        started: Time,
        answer: Answered,
    ) {
        let outcome = self
            .engine
            .releasing
            .on_release_reply(lease, call, started, answer.answer);
        if let ReleaseOutcome::Open(open) = outcome {
            self.engine.base.upkeep.abandon(open.release);
        }
    }
}
