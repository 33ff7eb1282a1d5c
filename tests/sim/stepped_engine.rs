//! The engine without its threads, for the simulator: whoever has it says when each of them gets to run, and with what
//! answers. Nothing is decided here; each method is one half of what a thread does around a request.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::acquire::{Doubt, Settled, Tried, Wait, acquire_call};
use crate::engine::background::Command;
use crate::engine::background::{Renewal, Task};
use crate::engine::release::Ended;
use crate::engine::waiter::{Action, Claim, WaiterState};
use crate::engine::{Engine, Lease, QueuedWaiter, Request, subscription};
use crate::script::{Call, CallerId, Mode, Token, Verb};
use crate::store::clock::Time;
use crate::store::{CallResult, Store};

type Answered = CallResult;

/// An engine, and what its threads would carry out.
pub(crate) struct ByHand {
    engine: Arc<Engine>,
    renewal: Renewal,
}

/// Whom the answers to a pipeline are for.
pub(crate) struct Tasks(Vec<Task>);

/// What a caller does after an answer to its acquire.
pub(crate) enum Next {
    Wait,
    AskAgain,
    AskLater,
    Fail,
}

impl ByHand {
    pub(crate) fn new(config: Config, store: Box<dyn Store>, caller_id: Arc<CallerId>) -> ByHand {
        let (engine, renewal) = Engine::new(config, store, caller_id);
        ByHand { engine, renewal }
    }

    /// The renewal thread's next pipeline; empty if nothing is due.
    pub(crate) fn collect(&mut self) -> (Tasks, Vec<Call>) {
        self.renewal.take_in();
        let (tasks, calls) = self.renewal.collect().into_iter().unzip();
        self.renewal.asked = self.engine.now();
        (Tasks(tasks), calls)
    }

    pub(crate) fn settle(&mut self, tasks: Tasks, calls: &[Call], results: Vec<Answered>) {
        self.renewal.settle(tasks.0, calls, results);
    }

    /// When [`ByHand::collect`] has something next, if nothing comes meanwhile.
    pub(crate) fn next_due(&self) -> Time {
        self.renewal.next_due()
    }

    /// A message came.
    pub(crate) fn hear(&self, message: &str) {
        subscription::hear(&self.engine, message);
    }

    /// A message came, and counts whatever is in flight: what R8 rules out.
    pub(crate) fn hear_at_once(&self, message: &str) {
        self.hear(message);
        for waiting in self.engine.places.all() {
            let action = {
                let mut place = waiting.place.lock();
                if place.is_asking() {
                    place.unanswered(0, self.engine.now(), &waiting.request)
                } else {
                    Action::Nothing
                }
            };
            self.engine.act(&waiting, action);
        }
    }

    /// The subscription stands, again or for the first time.
    pub(crate) fn subscribed(&self) {
        self.engine.hand_to_renewal(Command::Resync);
    }

    /// How many tokens the registry has.
    pub(crate) fn places(&self) -> usize {
        self.engine.places.all().len()
    }

    /// A place that nothing was sent for yet.
    pub(crate) fn stand(&self, request: Arc<Request>) -> QueuedWaiter {
        let waiting =
            self.engine
                .places
                .register(request, WaiterState::new(Token::new()), self.engine.now());
        self.engine.counters.waiting.add(1);
        QueuedWaiter {
            engine: Arc::clone(&self.engine),
            waiting,
        }
    }

    /// Whether it stands in the queue, as far as it knows.
    pub(crate) fn stands(&self, place: &QueuedWaiter) -> bool {
        place.waiting.place.lock().is_queued()
    }

    /// As if the place's token had never been sent: what R6 rules out.
    pub(crate) fn keep_token(&self, place: &QueuedWaiter) {
        place.waiting.place.lock().first_sent = None;
    }

    /// The acquire that a place is to send now, unless it has something already.
    pub(crate) fn ask(&self, place: &QueuedWaiter, now: Time) -> Option<Call> {
        let token = self.engine.token_to_send(&place.waiting, now)?;
        Some(acquire_call(&place.waiting.request, token, Wait::Yes))
    }

    pub(crate) fn asked(&self, place: &QueuedWaiter, call: &Call, answer: Answered) -> Next {
        match self.engine.settle_acquire(&place.waiting, call, answer) {
            Settled::Done => Next::Wait,
            Settled::Again => Next::AskAgain,
            Settled::StoreFault(_) => Next::AskLater,
            Settled::Refused(_) => Next::Fail,
        }
    }

    /// The waiter wakes and looks.
    pub(crate) fn claim(&self, place: &QueuedWaiter) -> Option<Arc<Lease>> {
        let claim = place
            .waiting
            .place
            .lock()
            .claim(self.engine.now(), &place.waiting.request);
        match claim {
            Claim::Taken(lease) => self.engine.claimed(lease).ok(),
            Claim::Confirm => {
                self.engine.act(&place.waiting, Action::Confirm);
                None
            }
            Claim::Failed(_) | Claim::NotYet => None,
        }
    }

    /// At its deadline: the call that leaves the queue, if one is needed.
    pub(crate) fn leave(&self, place: &QueuedWaiter) -> Option<Call> {
        place.leave()
    }

    /// What the answer to it, or no need of one, leaves of the place.
    pub(crate) fn left(
        &self,
        place: &QueuedWaiter,
        answered: Option<(&Call, Answered)>,
    ) -> Option<Arc<Lease>> {
        if let Some((call, answer)) = answered {
            place.left(call, answer.answer).ok()?;
        }
        place.claim_or_leave().ok().flatten()
    }

    /// An acquire that may not wait.
    pub(crate) fn try_lock(&self, request: &Request, token: Token) -> Call {
        acquire_call(request, token, Wait::No)
    }

    /// `None`: it is to be sent again.
    pub(crate) fn tried(
        &self,
        request: &Arc<Request>,
        token: Token,
        call: &Call,
        doubt: &mut Doubt,
        answer: Answered,
    ) -> Option<Option<Arc<Lease>>> {
        match self.engine.tried(request, token, call, doubt, answer) {
            Ok(Tried::Ended(lease)) => Some(lease),
            Ok(Tried::Again(_)) => None,
            Ok(Tried::Failed(_)) | Err(_) => Some(None),
        }
    }

    /// No time is left to send it again.
    pub(crate) fn stop_trying(&self, request: &Request, token: Token, call: &Call, doubt: Doubt) {
        if doubt.in_doubt {
            self.engine
                .abandon_in_background(call, token, doubt.not_after, request.longest());
        }
    }

    /// A guard is renewed by its owner: the call to send, unless it was lost.
    pub(crate) fn renew(&self, lease: &Lease) -> Option<Call> {
        let is_held = lease.is_held(self.engine.now());
        is_held.then(|| lease.request.call(Verb::Renew { token: lease.token }))
    }

    pub(crate) fn renewed(&self, lease: &Arc<Lease>, answer: Answered) {
        if let Ok(answer) = answer.answer {
            let _ = self.engine.renewed(lease, &answer);
        }
    }

    /// A writer is to become a reader: the call to send, unless it was lost.
    pub(crate) fn downgrade(&self, lease: &Lease) -> Option<Call> {
        self.engine.begin_downgrade(lease, self.engine.now()).ok()
    }

    /// Whether its guard is given to its owner again.
    pub(crate) fn downgraded(
        &self,
        lease: &Arc<Lease>,
        call: &Call,
        started: Time,
        answer: Answered,
    ) -> bool {
        self.engine
            .downgraded(lease, call, started, answer.answer)
            .is_ok()
    }

    /// A guard is dropped: the call to send, unless it was lost.
    pub(crate) fn end(&self, lease: &Lease) -> Option<Call> {
        self.engine.end(lease, Mode::Used, self.engine.now()).ok()
    }

    pub(crate) fn ended(&self, lease: &Lease, call: &Call, started: Time, answer: Answered) {
        if let Ended::Open(_, job) = self.engine.ended(lease, call, started, answer.answer) {
            self.engine.hand_to_renewal(Command::Background(*job));
        }
    }
}
