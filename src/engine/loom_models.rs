//! Loom models of the state that the engine's threads share: leases, waiters and their registry.
//! Loom runs each model in every order in which its threads can take turns. `.ci/loom` runs them.
//!
//! The models send nothing, never sleep, and use no channel. Otherwise each model thread does what
//! the engine's thread of the same name does.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::config::{Config, Settings};
use crate::engine::Engine;
use crate::engine::background::RenewalThread;
use crate::engine::lease::{HeldLease, LeaseState};
use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::{TakeGrant, WaiterAction, WaiterState};
use crate::engine::waiter::{TokenOwner, WaiterEntry, WaiterRegistry};
use crate::key::Key;
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::options::LockOptions;
use crate::script::{Call, CallerId, Grant, LockSpec, Token};
use crate::stats::Traffic;
use crate::store::clock::{Clock, Time};
use crate::store::{Anchor, CallResult, Deadlines, Link, Store, StoreFault};
use crate::sync::Mutex;

const EARLY: Time = at(50);
const DEADLINE: Time = at(100);
const LATER: Time = at(10_000_000_000);

const fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

/// Runs a model in every order. At most three times, a thread that could go on loses its turn.
fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn release_renewal_and_loss_at_once_leave_one_end() {
    in_every_order(|| {
        let state = Arc::new(LeaseState::held_until(DEADLINE));
        let renewal = thread::spawn({
            let state = Arc::clone(&state);
            move || state.extend(EARLY, LATER)
        });
        let loss = thread::spawn({
            let state = Arc::clone(&state);
            move || state.lose(LossReason::NotOwner)
        });
        let released = state.release(EARLY);
        let _ = renewal.join().unwrap();
        let lost = loss.join().unwrap();
        assert_ne!(released.is_ok(), lost, "exactly one of the two ends it");
        assert_eq!(state.lost(), lost.then_some(LossReason::NotOwner));
        assert_eq!(state.is_released(), !lost);
        assert!(!state.is_held(EARLY));
    });
}

#[test]
fn renewal_does_not_revive_a_lease_seen_past_its_deadline() {
    in_every_order(|| {
        let state = Arc::new(LeaseState::held_until(DEADLINE));
        let renewal = thread::spawn({
            let state = Arc::clone(&state);
            move || state.extend(EARLY, LATER)
        });
        let seen_held = state.is_held(DEADLINE);
        let held_later = state.is_held(EARLY);
        assert!(seen_held || !held_later, "it was lost, and is held again");
        let extended = renewal.join().unwrap();
        assert_eq!(state.is_held(EARLY), extended && seen_held);
    });
}

#[test]
fn loss_that_two_threads_find_is_reported_once() {
    in_every_order(|| {
        let lease = Arc::new(lease());
        let find = |reason| {
            let lease = Arc::clone(&lease);
            move || {
                lease.lose(reason);
                assert!(lease.loss().is_some());
                lease.report_loss().is_some()
            }
        };
        let renewal = thread::spawn(find(LossReason::NotOwner));
        let caller = thread::spawn(find(LossReason::Expired));
        let reported = [renewal.join().unwrap(), caller.join().unwrap()];
        let times = reported.iter().filter(|reported| **reported).count();
        assert_eq!(times, 1, "{reported:?}");
    });
}

#[test]
fn released_lease_reports_no_loss() {
    in_every_order(|| {
        let lease = Arc::new(lease());
        let renewal = thread::spawn({
            let lease = Arc::clone(&lease);
            move || {
                lease.lose(LossReason::NotOwner);
                lease.loss().is_some() && lease.report_loss().is_some()
            }
        });
        let released: Result<(), Loss> = lease.release(EARLY);
        assert_ne!(released.is_ok(), renewal.join().unwrap());
    });
}

#[test]
fn grant_at_the_timeout_is_a_guards_or_abandoned() {
    in_every_order(|| grant_meets_timeout(GuardMarked::BeforeWaiterIsForgotten));
}

#[test]
#[should_panic = "the guard's lock is abandoned"]
fn model_finds_a_waiter_forgotten_before_its_guard_is_marked() {
    in_every_order(|| grant_meets_timeout(GuardMarked::AfterWaiterIsForgotten));
}

/// When a waiter that has taken its grant marks the token as a guard's.
#[derive(Clone, Copy, PartialEq)]
enum GuardMarked {
    BeforeWaiterIsForgotten,
    /// A mistake: in between, the registry does not know the token, and a notice of its grant leads
    /// to its release.
    AfterWaiterIsForgotten,
}

/// The notice of a grant comes twice, while its waiter looks for the grant for the last time.
fn grant_meets_timeout(marked: GuardMarked) {
    let waiters = Arc::new(WaiterRegistry::new());
    let request = request();
    let waiter = waiters.register(
        Arc::clone(&request),
        WaiterState::new(Token::new()),
        None,
        EARLY,
    );
    let token = {
        let mut state = waiter.state.lock();
        let WaiterAction::Nothing = state.on_queued(EARLY, 1, 1, 1, &request) else {
            panic!("it is queued")
        };
        state.token
    };
    let listener = thread::spawn({
        let waiters = Arc::clone(&waiters);
        let request = Arc::clone(&request);
        // The engine's handling of a notice, but for the sending. True: it abandons the token.
        let deliver = move || match waiters.owner_of(token) {
            TokenOwner::Waiter(waiter) => {
                let mut state = waiter.state.lock();
                let action = state.on_notice(notice(token), EARLY, &request);
                matches!(action, WaiterAction::Abandon { .. })
            }
            TokenOwner::Guard => false,
            TokenOwner::Unknown => true,
        };
        move || [deliver(), deliver()]
    });
    let taken = match waiter.state.lock().take_grant(EARLY, &request) {
        TakeGrant::Taken(_) => true,
        TakeGrant::NotYet => false,
        _ => panic!("it is granted or not"),
    };
    let mut waiter_abandons = false;
    if taken && marked == GuardMarked::BeforeWaiterIsForgotten {
        waiters.mark_guarded(token);
    } else if !taken {
        waiter_abandons = matches!(waiter.state.lock().cancel(), WaiterAction::Abandon { .. });
    }
    waiters.forget(&waiter);
    if taken && marked == GuardMarked::AfterWaiterIsForgotten {
        waiters.mark_guarded(token);
    }
    let listener_abandons = listener.join().unwrap().contains(&true);
    assert!(
        !taken || !(waiter_abandons || listener_abandons),
        "the guard's lock is abandoned"
    );
    assert!(
        taken || waiter_abandons,
        "nobody owns or abandons the grant"
    );
}

#[test]
fn waiter_cancelled_while_its_token_changes_leaves_no_token() {
    in_every_order(|| {
        let waiters = Arc::new(WaiterRegistry::new());
        let request = request();
        let waiter: Arc<WaiterEntry> = waiters.register(
            Arc::clone(&request),
            WaiterState::new(Token::new()),
            None,
            EARLY,
        );
        let renewal = thread::spawn({
            let waiters = Arc::clone(&waiters);
            let waiter = Arc::clone(&waiter);
            move || {
                waiters.replace_token(&waiter);
            }
        });
        let _ = waiter.state.lock().cancel();
        assert!(waiters.has_waiter("k"));
        waiters.forget(&waiter);
        assert!(!waiters.has_waiter("k"));
        renewal.join().unwrap();
        assert!(waiters.all().is_empty(), "a token has no waiter any more");
    });
}

#[test]
fn waiter_is_seen_by_a_drop_or_sends_behind_its_release() {
    in_every_order(|| drop_meets_waiter(LookForWaiters::AfterTheWrite));
}

#[test]
#[should_panic = "nobody reads the grant"]
fn waiter_is_missed_by_a_drop_that_looks_before_it_writes() {
    in_every_order(|| drop_meets_waiter(LookForWaiters::BeforeTheWrite));
}

#[derive(Clone, Copy, PartialEq)]
enum LookForWaiters {
    AfterTheWrite,
    /// A mistake: a waiter that comes in between is in the queue when the release runs, and its
    /// grant comes with the reply.
    BeforeTheWrite,
}

/// A guard is dropped while a waiter of the same manager comes, on the lane of their name.
fn drop_meets_waiter(look: LookForWaiters) {
    let waiters = Arc::new(WaiterRegistry::new());
    let lane = Arc::new(Mutex::new(Vec::new()));
    let caller = thread::spawn({
        let waiters = Arc::clone(&waiters);
        let lane = Arc::clone(&lane);
        move || {
            let waiter = waiters.register(request(), WaiterState::new(Token::new()), None, EARLY);
            lane.lock().push("acquire");
            waiter
        }
    });
    let found_before = waiters.has_waiter("k");
    lane.lock().push("release");
    let found = match look {
        LookForWaiters::AfterTheWrite => waiters.has_waiter("k"),
        LookForWaiters::BeforeTheWrite => found_before,
    };
    let waiter = caller.join().unwrap();
    assert!(
        found || lane.lock()[0] == "release",
        "nobody reads the grant"
    );
    assert!(waiters.has_waiter("k"));
    waiters.forget(&waiter);
    assert!(!waiters.has_waiter("k"));
}

fn request() -> Arc<Request> {
    let key = Key::new("fairlock", "k").expect("a valid name");
    Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1))
}

fn grant(token: Token) -> Grant {
    Grant {
        token,
        fence: 1,
        granted_at: 1,
        left: Duration::from_secs(10),
        previous: PreviousHolder::Unknown,
        waiting: None,
    }
}

fn notice(token: Token) -> GrantNotice {
    GrantNotice::from_reply(grant(token), EARLY)
}

fn lease() -> HeldLease {
    HeldLease::new(request(), &grant(Token::new()), EARLY, DEADLINE)
}

/// A renewal thread that a model plays.
pub(crate) struct RenewalModel(RenewalThread);

impl RenewalModel {
    /// An engine without threads and without servers, whose subscription is alive.
    pub(crate) fn of_an_engine_that_hears() -> (Arc<Engine>, RenewalModel) {
        let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
        let step = config.check_period + config.command_timeout;
        let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
        let (engine, renewal) = Engine::new(config, Box::new(NoStore), caller_id);
        engine.hearing().note_proof(engine.now());
        (engine, RenewalModel(renewal))
    }

    /// Its next requests.
    pub(crate) fn calls(&mut self) -> Vec<Call> {
        self.0.take_in();
        self.0.collect().into_iter().map(|(_, call)| call).collect()
    }
}

/// No connection is open.
struct NoStore;

impl Store for NoStore {
    fn clock(&self) -> Clock {
        Clock::default()
    }

    fn run(&self, calls: &[Call], _: Deadlines) -> Vec<CallResult> {
        let not_sent = |_: &Call| CallResult::not_sent(StoreFault::NotReady);
        calls.iter().map(not_sent).collect()
    }

    fn link(&self, _: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(NoStore)
    }

    fn scan(&self, _: u64, _: &str) -> Result<(u64, Vec<String>), StoreFault> {
        Err(StoreFault::NotReady)
    }

    fn anchor(&self, _: &Key) -> Option<Anchor> {
        None
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

impl Link for NoStore {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        Store::run(self, calls, Deadlines::at_once(EARLY))
    }
}
