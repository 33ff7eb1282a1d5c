//! When long waits are reported.

use super::*;
use crate::manager::LockManager;
use crate::memory::Memory;

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
