//! The state that threads share, alone, in every order in which they can take their turns: under loom, with
//! `.ci/loom`. What sends, sleeps or has a channel is left out; each thread does what its like in the engine does.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::engine::lease::{Lease, LeaseState};
use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::engine::waiter::{TakeGrant, WaiterAction, WaiterState};
use crate::engine::waiter::{TokenOwner, WaiterEntry, WaiterRegistry};
use crate::key::Key;
use crate::loss::{Loss, LossReason, PreviousHolder};
use crate::options::LockOptions;
use crate::script::{Grant, LockSpec, Token};
use crate::store::clock::Time;

const EARLY: Time = at(50);
const DEADLINE: Time = at(100);
const LATER: Time = at(10_000_000_000);

const fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

/// Runs a model in every order, with at most three turns taken away from a thread that could have gone on.
fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_release_a_renewal_and_a_loss_that_meet_come_to_one_end() {
    in_every_order(|| {
        let word = Arc::new(LeaseState::held_until(DEADLINE));
        let renewal = thread::spawn({
            let word = Arc::clone(&word);
            move || word.extend(EARLY, LATER)
        });
        let loss = thread::spawn({
            let word = Arc::clone(&word);
            move || word.lose(LossReason::Taken)
        });
        let released = word.release(EARLY);
        let _ = renewal.join().unwrap();
        let lost = loss.join().unwrap();
        assert_ne!(released.is_ok(), lost, "one of the two ends it");
        assert_eq!(word.lost(), lost.then_some(LossReason::Taken));
        assert_eq!(word.is_released(), !lost);
        assert!(!word.is_held(EARLY));
    });
}

#[test]
fn a_lease_that_was_seen_past_its_deadline_is_held_by_no_renewal_again() {
    in_every_order(|| {
        let word = Arc::new(LeaseState::held_until(DEADLINE));
        let renewal = thread::spawn({
            let word = Arc::clone(&word);
            move || word.extend(EARLY, LATER)
        });
        let seen = word.is_held(DEADLINE);
        let again = word.is_held(EARLY);
        assert!(seen || !again, "it was lost, and is held");
        let extended = renewal.join().unwrap();
        assert_eq!(word.is_held(EARLY), extended && seen);
    });
}

#[test]
fn a_loss_that_two_threads_find_is_told_once() {
    in_every_order(|| {
        let lease = Arc::new(lease());
        let find = |reason| {
            let lease = Arc::clone(&lease);
            move || {
                lease.lose(reason);
                lease.tell(&lease.loss().expect("it is lost"))
            }
        };
        let renewal = thread::spawn(find(LossReason::Taken));
        let caller = thread::spawn(find(LossReason::Expired));
        let told = [renewal.join().unwrap(), caller.join().unwrap()];
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
    });
}

#[test]
fn a_loss_is_told_of_no_lease_that_was_released() {
    in_every_order(|| {
        let lease = Arc::new(lease());
        let renewal = thread::spawn({
            let lease = Arc::clone(&lease);
            move || lease.lose(LossReason::Taken) && lease.tell(&lease.loss_for(LossReason::Taken))
        });
        let released: Result<(), Loss> = lease.release(EARLY);
        assert_ne!(released.is_ok(), renewal.join().unwrap());
    });
}

#[test]
fn a_grant_that_meets_a_timeout_is_a_guard_or_given_back() {
    in_every_order(|| grant_meets_timeout(Keep::KnownUntilForgotten));
}

#[test]
#[should_panic = "the guard's lock is given back"]
fn a_registry_that_forgets_a_waiter_before_its_guard_is_known_is_found() {
    in_every_order(|| grant_meets_timeout(Keep::ForgottenFirst));
}

/// In which order one who has his lock tells the registry.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    KnownUntilForgotten,
    /// A mistake: in between, news of the grant are nobody's.
    ForgottenFirst,
}

/// The news of a grant comes, and comes again, while its waiter looks for it for the last time.
fn grant_meets_timeout(keep: Keep) {
    let (waiters, request) = (Arc::new(WaiterRegistry::new()), request());
    let waiter = waiters.register(Arc::clone(&request), WaiterState::new(Token::new()), EARLY);
    let token = {
        let mut state = waiter.state.lock();
        let WaiterAction::Nothing = state.queued(EARLY, 1, 1, 1, &request) else {
            panic!("it stands in the queue")
        };
        state.token
    };
    let listener = thread::spawn({
        let (waiters, request) = (Arc::clone(&waiters), Arc::clone(&request));
        // What the engine does with news, but for the sending: whether the token is given back.
        let deliver = move || match waiters.find(token) {
            TokenOwner::Waiting(waiter) => {
                matches!(
                    waiter.state.lock().heard(notice(token), EARLY, &request),
                    WaiterAction::Abandon { .. }
                )
            }
            TokenOwner::Claimed => false,
            TokenOwner::Unknown => true,
        };
        move || [deliver(), deliver()]
    });
    let taken = match waiter.state.lock().claim(EARLY, &request) {
        TakeGrant::Taken(_) => true,
        TakeGrant::NotYet => false,
        _ => panic!("it is granted or not"),
    };
    let mut given_back = false;
    if taken && keep == Keep::KnownUntilForgotten {
        waiters.claim(token);
    } else if !taken {
        given_back = matches!(waiter.state.lock().give_up(), WaiterAction::Abandon { .. });
    }
    waiters.forget(&waiter);
    if taken && keep == Keep::ForgottenFirst {
        waiters.claim(token);
    }
    let news_given_back = listener.join().unwrap().contains(&true);
    assert!(
        !taken || !(given_back || news_given_back),
        "the guard's lock is given back"
    );
    assert!(taken || given_back, "the grant is nobody's");
}

#[test]
fn a_waiter_that_ends_while_it_is_renamed_leaves_no_token_behind() {
    in_every_order(|| {
        let (waiters, request) = (Arc::new(WaiterRegistry::new()), request());
        let waiter: Arc<WaiterEntry> =
            waiters.register(Arc::clone(&request), WaiterState::new(Token::new()), EARLY);
        let renewal = thread::spawn({
            let (waiters, waiter) = (Arc::clone(&waiters), Arc::clone(&waiter));
            move || {
                waiters.replace_token(&waiter);
            }
        });
        let _ = waiter.state.lock().give_up();
        waiters.forget(&waiter);
        renewal.join().unwrap();
        assert!(waiters.all().is_empty(), "a token has no waiter any more");
    });
}

fn request() -> Arc<Request> {
    let key = Key::new("fairlock", "k").expect("a name");
    Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new()))
}

fn grant(token: Token) -> Grant {
    let left = Duration::from_secs(10);
    Grant {
        token,
        fence: 1,
        granted_at: 1,
        left,
        previous: PreviousHolder::Unknown,
    }
}

fn notice(token: Token) -> GrantNotice {
    GrantNotice::from_reply(grant(token), EARLY)
}

fn lease() -> Lease {
    Lease::new(request(), &grant(Token::new()), EARLY, DEADLINE)
}
