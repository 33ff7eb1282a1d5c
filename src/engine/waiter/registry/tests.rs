//! When long waits are reported, and who needs the mutex.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::engine::WantResult;
use crate::manager::LockManager;
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{LockSpec, Mode};

#[test]
fn report_of_a_wait_silences_no_waiter_that_outlasts_it() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let waiters = &manager.engine().base.registry;
    let key = manager.key("k").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let register = || {
        let state = WaiterState::new(Token::new());
        waiters.register(Arc::clone(&request), state, None, Time::from_nanos(0))
    };
    let [first, second] = [register(), register()];
    let begins = |waiter: &WaiterEntry, at: u64, waited: u64| {
        let now = Time::from_nanos(0) + Duration::from_secs(at);
        waiters.begin_report(waiter, now, Duration::from_secs(waited))
    };
    assert_eq!(begins(&first, 1000, 640), Ok(()), "it has waited for long");
    let overdue_at = Time::from_nanos(0) + Duration::from_secs(2280);
    assert_eq!(
        begins(&second, 1001, 20),
        Err(overdue_at),
        "the first speaks for it"
    );
    assert_eq!(begins(&first, 1640, 1280), Ok(()), "it has doubled");
    waiters.forget(&first);
    assert_eq!(begins(&second, 1641, 660), Ok(()), "the first has gone");
}

#[test]
fn uncontended_release_does_not_take_the_registrys_mutex() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let engine = manager.engine();
    // Without a subscription a free lock is tried for, and no waiter is registered.
    engine.subscription.start();
    let key = manager.key("k").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let lease = engine.acquiring.acquire(&request, &[], Time::NEVER);
    let lease = lease.expect("it answers").expect("it is free");
    let (sender, released) = mpsc::channel();
    let tables = engine.base.registry.hold();
    thread::scope(|scope| {
        scope.spawn(move || {
            let may_leave = engine.releasing.may_leave(&lease, WantResult::No);
            let ended = engine.release(&lease, Mode::Used, WantResult::No);
            sender.send((may_leave, ended.is_ok()))
        });
        let found = released.recv_timeout(Duration::from_secs(3));
        drop(tables);
        assert_eq!(found, Ok((true, true)), "it waits for the mutex");
    });
}
