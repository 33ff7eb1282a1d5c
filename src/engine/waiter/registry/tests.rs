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
fn report_of_an_old_wait_silences_no_newer_one() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let _held = manager.lock("k").expect("it is free");
    let _waiter = manager.enqueue("k").expect("it is there");
    let begins = |at: u64, waited: u64| {
        let now = Time::from_nanos(0) + Duration::from_secs(at);
        let waiters = &manager.engine().base.registry;
        waiters.begin_report("k", now, Duration::from_secs(waited))
    };
    assert!(begins(1000, 640), "it has waited for long");
    assert!(!begins(1001, 641), "not until it has doubled");
    // The first one has gone. The next one came when the first was reported.
    assert!(begins(1010, 10));
    assert!(!begins(1015, 15));
    assert!(begins(1020, 20));
    assert!(begins(1040, 40));
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
