//! Which grants count as handed over, and whom they wake.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;

use super::*;
use crate::engine::request::Request;
use crate::engine::waiter::WaiterState;
use crate::engine::{AtDeadline, Engine, QueuedWaiter};
use crate::error::Step;
use crate::loss::PreviousHolder;
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{Grant, LockSpec, Outcome, ScriptReply, Token, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// A waiter whose acquire is in flight, and the grant of its token.
fn asking(manager: &LockManager) -> (QueuedWaiter, Call, Grant) {
    asking_engine(manager.engine())
}

fn asking_engine(engine: &Arc<Engine>) -> (QueuedWaiter, Call, Grant) {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let state = WaiterState::new(Token::new());
    let queued = QueuedWaiter::register(&engine.acquiring, &request, state, None);
    let token = engine
        .base
        .waiting
        .token_to_send(&queued.waiter, engine.now());
    let token = token.expect("it has none yet");
    let grant = Grant {
        token,
        fence: 1,
        granted_at: 1,
        left: request.ttl,
        previous: PreviousHolder::Released,
        waiting: None,
    };
    (queued, request.acquire(token, Wait::Yes), grant)
}

fn reply(manager: &LockManager, outcome: Outcome) -> CallResult {
    let reply = ScriptReply::of(outcome, None);
    CallResult {
        answer: Ok(Answer {
            reply,
            sent: manager.engine().now(),
            resent: false,
        }),
        not_after: 0,
    }
}

fn waiting(grant: &Grant) -> Outcome {
    Outcome::Waiting {
        ticket: 1,
        position: 1,
        left: grant.left,
        since: 1,
    }
}

/// R8 (grant during a request): the message comes first, and counts with the reply.
#[test]
fn grant_noticed_during_its_acquire_counts_as_handed_over() {
    let manager = LockManager::connect(&Memory::new()).expect("it is there");
    let engine = manager.engine();
    let no_reply = || CallResult::not_sent(StoreFault::unavailable(Step::Reply, "lost"));
    let mut counted = 0;
    let mut ends_with = |end: &dyn Fn(&Grant) -> CallResult| {
        let (queued, call, grant) = asking(&manager);
        engine
            .base
            .grants
            .deliver(&call, GrantNotice::from_reply(grant, engine.now()));
        assert_eq!(engine.client().stats().handovers, counted, "it may be over");
        let _ = engine
            .base
            .waiting
            .on_acquire_reply(&queued.waiter, &call, end(&grant));
        counted += 1;
        assert_eq!(engine.client().stats().handovers, counted);
    };
    ends_with(&|grant| reply(&manager, waiting(grant)));
    ends_with(&|_| no_reply());
    // The connection was closed after the first copy. The second copy finds the grant.
    ends_with(&|grant| reply(&manager, Outcome::Granted(*grant)));
    // A lock that is free is not handed over.
    let (queued, call, grant) = asking(&manager);
    let granted = reply(&manager, Outcome::Granted(grant));
    let _ = engine
        .base
        .waiting
        .on_acquire_reply(&queued.waiter, &call, granted);
    assert_eq!(engine.client().stats().handovers, counted);
}

#[test]
fn grant_found_by_a_cancel_counts_as_handed_over() {
    let manager = LockManager::connect(&Memory::new()).expect("it is there");
    let engine = manager.engine();
    let (queued, call, grant) = asking(&manager);
    let queue = reply(&manager, waiting(&grant));
    let _ = engine
        .base
        .waiting
        .on_acquire_reply(&queued.waiter, &call, queue);
    let cancel = queued.begin_cancel().expect("it is queued");
    let granted = reply(&manager, Outcome::Granted(grant)).answer;
    queued.on_cancel_reply(&cancel, granted).expect("a reply");
    assert_eq!(engine.client().stats().handovers, 1);
    let (queued, call, grant) = asking(&manager);
    let queue = reply(&manager, waiting(&grant));
    let _ = engine
        .base
        .waiting
        .on_acquire_reply(&queued.waiter, &call, queue);
    let cancel = queued.begin_cancel().expect("it is queued");
    // The message comes instead of the reply.
    engine
        .base
        .grants
        .deliver(&call, GrantNotice::from_reply(grant, engine.now()));
    let fault = StoreFault::unavailable(Step::Reply, "lost");
    queued
        .on_cancel_reply(&cancel, Err(fault))
        .expect("a grant");
    assert_eq!(engine.client().stats().handovers, 2);
}

/// The caller asks Redis, which has been silent, and has no mutex then.
#[test]
fn grant_that_comes_while_a_caller_asks_wakes_it() {
    let memory = Memory::new();
    let silence = Duration::from_secs(20);
    let manager = LockManager::builder(&memory)
        .options(LockOptions::new().ttl(Duration::from_secs(60)))
        .command_timeout(Duration::from_secs(5))
        .horizon(Duration::from_secs(20))
        .outage_limit(silence)
        .build()
        .expect("a manager");
    let engine = manager.engine();
    let (queued, _, grant) = asking(&manager);
    let (queued, waiter) = (&queued, &queued.waiter);
    memory.advance(silence);
    thread::scope(|scope| {
        let (sender, ended) = bounded(1);
        let tables = engine.base.registry.hold();
        scope.spawn(move || sender.send(queued.wait(Time::NEVER, AtDeadline::Keep)));
        let until = Instant::now() + Duration::from_secs(3);
        while !waiter.awaits_reply() {
            assert!(Instant::now() < until, "it does not ask");
            thread::yield_now();
        }
        let now = engine.now();
        let notice = GrantNotice::from_reply(grant, now);
        let action = waiter.state.lock().on_granted(notice, now, &waiter.request);
        engine.base.grants.apply(waiter, action);
        drop(tables);
        let found = ended.recv_timeout(Duration::from_secs(3));
        assert!(matches!(found, Ok(Ok(Some(_)))), "it sleeps on");
    });
}

/// The caller asks for a confirmation, and has no mutex then. Not each round meets that moment.
#[test]
fn grant_that_is_confirmed_before_its_caller_sleeps_wakes_it() {
    let memory = Memory::new();
    let (engine, _renewal) = Engine::without_threads(&memory);
    for _ in 0..50 {
        let (queued, _, grant) = asking_engine(&engine);
        let (queued, waiter) = (&queued, &queued.waiter);
        let now = engine.now();
        let notice = GrantNotice::from_reply(grant, now);
        let action = waiter.state.lock().on_granted(notice, now, &waiter.request);
        assert!(matches!(action, WaiterAction::Keep(_)));
        // Less than half of the ttl is left.
        memory.advance(waiter.request.ttl * 3 / 5);
        let until = engine.now() + Duration::from_secs(8);
        thread::scope(|scope| {
            let (sender, ended) = bounded(1);
            scope.spawn(move || sender.send(queued.wait(until, AtDeadline::Keep)));
            engine
                .base
                .grants
                .apply(waiter, confirmed(waiter, engine.now()));
            let found = ended.recv_timeout(Duration::from_secs(3));
            assert!(matches!(found, Ok(Ok(Some(_)))), "it sleeps on");
        });
    }
}

/// Confirms the waiter's grant as soon as it is in doubt.
fn confirmed(waiter: &WaiterEntry, now: Time) -> WaiterAction {
    loop {
        if let Some(mut state) = waiter.state.try_lock()
            && state.is_confirming()
        {
            return state.on_confirmed(now, waiter.request.ttl, 1, false, &waiter.request);
        }
        std::hint::spin_loop();
    }
}
