//! The renewal thread with a link that a test plays.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::config::{Config, Settings};
use crate::engine::upkeep::Timer;
use crate::engine::{Engine, HeldLease, Request};
use crate::key::Key;
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{CallerId, LockSpec};
use crate::stats::Traffic;
use crate::store::clock::Clock;
use crate::store::memory::Session;
use crate::store::{Anchor, Deadlines, Link, Store, StoreFault, Troubles};

/// A store whose link may go to another server by now, as after a failover, and is always due for a
/// check.
#[derive(Clone)]
struct Played {
    session: Session,
    has_moved: Arc<AtomicBool>,
    checks: Arc<AtomicU32>,
}

impl Store for Played {
    fn clock(&self) -> Clock {
        self.session.clock()
    }

    fn troubles(&self) -> Arc<Troubles> {
        self.session.troubles()
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        self.session.run(calls, deadlines)
    }

    fn link(&self, _: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(self.clone())
    }

    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        self.session.scan(cursor, pattern)
    }

    fn anchor(&self, key: &Key) -> Option<Anchor> {
        self.session.anchor(key)
    }

    fn traffic(&self) -> Traffic {
        self.session.traffic()
    }
}

impl Link for Played {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        Link::run(&mut self.session, calls)
    }

    fn has_moved(&mut self) -> bool {
        self.has_moved.swap(false, Ordering::SeqCst)
    }

    fn check_due(&self) -> Time {
        Time::from_nanos(0)
    }

    fn check(&mut self) {
        self.checks.fetch_add(1, Ordering::SeqCst);
    }
}

/// An engine on it, whose renewal thread the test runs.
fn engine() -> (Arc<Engine>, RenewalThread, Played) {
    let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
    let step = config.check_period + config.command_timeout;
    let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
    let timeout = config.command_timeout;
    let session = Session::open(&Memory::new(), timeout, Arc::clone(&caller_id));
    let played = Played {
        session: session.expect("it is up"),
        has_moved: Arc::default(),
        checks: Arc::default(),
    };
    let store = Box::new(played.clone());
    let (engine, thread) = Engine::new(config, store, caller_id);
    (engine, thread, played)
}

fn take(engine: &Engine) -> Arc<HeldLease> {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let taken = engine.try_acquire(&request);
    taken.expect("it answers").expect("it is free")
}

/// The renewals that follow are answered by the new server.
#[test]
fn move_to_another_server_is_trouble_until_the_next_renewal() {
    let (engine, mut thread, mut played) = engine();
    let lease = take(&engine);
    let is_confirmed = || lease.is_confirmed(engine.hearing().troubles());
    thread.take_in();
    assert!(is_confirmed() && thread.collect().is_empty());
    played.has_moved.store(true, Ordering::SeqCst);
    thread.take_in();
    assert!(!is_confirmed());
    let (tasks, calls): (Vec<_>, Vec<_>) = thread.collect().into_iter().unzip();
    assert_eq!(calls.len(), 1, "it is renewed at once");
    let results = Link::run(&mut played, &calls);
    for ((task, call), result) in tasks.into_iter().zip(&calls).zip(results) {
        thread.on_reply(task, call, result);
    }
    assert!(is_confirmed());
}

struct Never;

impl Timer for Never {
    fn on_time(&self, _: Time) -> Option<Time> {
        panic!("it is early")
    }
}

#[test]
fn timer_alone_keeps_no_manager_busy() {
    let (engine, mut thread, played) = engine();
    let at = engine.now() + Duration::from_secs(3600);
    engine.acquiring().call_at(at, Arc::new(Never));
    thread.take_in();
    assert_eq!(thread.next_due(), at, "nothing else is due");
    assert!(thread.has_nothing_to_show());
    assert_eq!(played.checks.load(Ordering::SeqCst), 0, "nobody needs it");
    let _lease = take(&engine);
    thread.take_in();
    thread.take_in();
    assert!(thread.next_due() < at && !thread.has_nothing_to_show());
    assert!(played.checks.load(Ordering::SeqCst) > 0);
}
