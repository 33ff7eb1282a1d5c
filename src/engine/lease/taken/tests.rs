//! What a thread keeps of the leases that it took, on the store in memory.

use super::*;
use crate::manager::LockManager;
use crate::memory::Memory;

/// How many leases this thread's list keeps the memory of.
fn kept() -> usize {
    TAKEN.with(|taken| taken.borrow().leases.len())
}

fn waits_for_nothing() {
    assert!(first_wait_for_own(EngineId(0), &"x".into(), Time::NEVER, |_| true).is_none());
}

#[test]
fn list_of_a_thread_keeps_few_ended_leases() {
    let manager = LockManager::connect(&Memory::new()).expect("it is there");
    let lock = |n: usize| manager.lock(n.to_string()).expect("it is free");
    for n in 0..10 * LEAST_ROOM {
        lock(n).unlock().expect("it is held");
        assert!(kept() <= LEAST_ROOM, "{} after {n}", kept());
    }
    let held: Vec<_> = (0..10 * LEAST_ROOM).map(lock).collect();
    waits_for_nothing();
    assert_eq!(kept(), held.len());
    assert!(kept() <= 2 * held.len());
    drop(held);
    waits_for_nothing();
    assert_eq!(kept(), 0, "a wait forgets them");
}
