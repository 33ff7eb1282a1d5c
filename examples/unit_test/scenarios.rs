//! The tests. Each test creates an in-memory store with two managers, which act like two processes.
//! Then it makes something go wrong, and checks what the code in `billing.rs` does. In your own
//! crate the tests are under `#[cfg(test)]`, each with a plain `#[test]`. Here `main` runs them
//! too.
//!
//! `advance` makes time pass. It returns when the managers have done what was due by then.
//! `fast_forward` runs code that waits, and makes time pass whenever it waits. So a test that
//! reaches a deadline needs no second thread, and takes milliseconds.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock::memory::{Fault, Memory};

use crate::billing::{BILLING, Billed, bill};
use crate::bills::{Bills, State};

/// The default ttl.
const TTL: Duration = Duration::from_secs(10);

const CUSTOMERS: [&str; 3] = ["ann", "bob", "cid"];

#[cfg_attr(test, test)]
pub(crate) fn bills_everybody_once() {
    let (_memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let mut printed = 0;
    assert_eq!(
        bill(&ours, &bills, &CUSTOMERS, |_| printed += 1).unwrap(),
        Billed::All
    );
    assert_eq!(
        bill(&theirs, &bills, &CUSTOMERS, |_| printed += 1).unwrap(),
        Billed::All
    );
    assert_eq!(printed, 3);
    assert_all_written(&bills);
}

#[cfg_attr(test, test)]
pub(crate) fn gives_up_while_another_process_has_the_lock() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let guard = theirs.lock(BILLING).unwrap();
    let billed = memory.fast_forward(|| bill(&ours, &bills, &CUSTOMERS, |_| {}));
    assert_eq!(billed.unwrap(), Billed::ByAnother);
    assert_eq!(bills.read(), []);
    assert!(guard.is_held(), "it was renewed while we waited");
}

#[cfg_attr(test, test)]
pub(crate) fn takes_its_turn_when_the_other_process_is_done() {
    let (_memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let guard = theirs.lock(BILLING).unwrap();
    thread::scope(|scope| {
        let billed = scope.spawn(|| bill(&ours, &bills, &CUSTOMERS, |_| {}));
        until("we are queued", || waiters(&theirs) == 1);
        guard.unlock().unwrap();
        assert_eq!(billed.join().unwrap().unwrap(), Billed::All);
    });
    assert_all_written(&bills);
}

#[cfg_attr(test, test)]
pub(crate) fn stops_when_the_lock_is_lost_during_the_work() {
    let (memory, ours, _theirs) = two_processes();
    let bills = Bills::default();
    let billed = bill(&ours, &bills, &CUSTOMERS, |customer| {
        if customer == "bob" {
            memory.lapse(BILLING);
            // A renewal is due by then, and finds that the lease has ended.
            memory.advance(TTL / 3);
        }
    });
    assert_eq!(billed.unwrap(), Billed::StoppedAt("bob".to_owned()));
    assert_eq!(states(&bills), [State::Written, State::Draft]);
}

#[cfg_attr(test, test)]
pub(crate) fn stops_when_suspended_for_longer_than_the_ttl() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let billed = bill(&ours, &bills, &CUSTOMERS, |customer| {
        if customer == "bob" {
            // The guard reads the clock, so there is nothing to wait for.
            memory.advance(TTL);
        }
    });
    assert_eq!(billed.unwrap(), Billed::StoppedAt("bob".to_owned()));
    assert_eq!(
        bill(&theirs, &bills, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
    assert_all_written(&bills);
}

#[cfg_attr(test, test)]
pub(crate) fn writes_nothing_late() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let billed = bill(&ours, &bills, &CUSTOMERS, |customer| {
        if customer == "bob" {
            // We learn of the loss only at our next renewal. Before that, another process bills
            // with a larger fence.
            memory.lapse(BILLING);
            let billed = bill(&theirs, &bills, &["ann", "bob"], |_| {});
            assert_eq!(billed.unwrap(), Billed::All);
        }
    });
    assert_eq!(billed.unwrap(), Billed::StoppedAt("bob".to_owned()));
    assert_eq!(states(&bills), [State::Written; 2]);
}

#[cfg_attr(test, test)]
pub(crate) fn clears_up_after_a_holder_that_crashed() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    let crashed = theirs.lock(BILLING).unwrap();
    assert_eq!(bills.begin(crashed.fence(), "bob"), Ok(true));
    memory.lapse(BILLING);
    assert_eq!(
        bill(&ours, &bills, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
    assert_all_written(&bills);
}

#[cfg_attr(test, test)]
pub(crate) fn reports_that_redis_is_down_and_bills_later() {
    let (memory, ours, _theirs) = two_processes();
    let bills = Bills::default();
    memory.go_down();
    let billed = memory.fast_forward(|| bill(&ours, &bills, &CUSTOMERS, |_| {}));
    assert_eq!(billed.unwrap(), Billed::RedisDown);
    memory.come_back();
    assert_eq!(
        bill(&ours, &bills, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
}

#[cfg_attr(test, test)]
pub(crate) fn continues_through_a_short_outage_of_redis() {
    let (memory, ours, _theirs) = two_processes();
    let bills = Bills::default();
    let billed = bill(&ours, &bills, &CUSTOMERS, |customer| match customer {
        "ann" => {
            memory.go_down();
            memory.advance(TTL / 2);
        }
        "cid" => memory.come_back(),
        _ => {}
    });
    assert_eq!(billed.unwrap(), Billed::All);
    assert_all_written(&bills);
}

#[cfg_attr(test, test)]
pub(crate) fn does_not_notice_a_connection_that_closes() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    memory.inject(Fault::Disconnect);
    assert_eq!(
        bill(&ours, &bills, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
    assert!(
        theirs.inspect(BILLING).unwrap().is_none(),
        "nothing is left behind"
    );
}

#[cfg_attr(test, test)]
pub(crate) fn is_not_blocked_by_its_own_lost_reply() {
    let (memory, ours, theirs) = two_processes();
    let bills = Bills::default();
    // Redis grants the lock, but we do not learn of it until the command timeout.
    memory.inject(Fault::LoseReply);
    let billed = memory.fast_forward(|| bill(&ours, &bills, &CUSTOMERS, |_| {}));
    assert_eq!(billed.unwrap(), Billed::All);
    assert!(
        theirs.inspect(BILLING).unwrap().is_none(),
        "nothing is left behind"
    );
}

fn two_processes() -> (Memory, LockManager, LockManager) {
    let memory = Memory::new();
    let [ours, theirs] =
        [(); 2].map(|()| LockManager::connect(&memory).expect("the in-memory store is up"));
    (memory, ours, theirs)
}

fn waiters(mgr: &LockManager) -> u64 {
    mgr.inspect(BILLING).unwrap().map_or(0, |info| info.waiters)
}

fn states(bills: &Bills) -> Vec<State> {
    bills.read().into_iter().map(|(_, state)| state).collect()
}

#[track_caller]
fn assert_all_written(bills: &Bills) {
    assert_eq!(
        bills.read(),
        CUSTOMERS.map(|customer| (customer.to_owned(), State::Written))
    );
}

/// Polls until other threads have done something. Panics after a time that is longer than anything
/// here takes.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "this did not happen: {what}"
        );
        thread::sleep(Duration::from_micros(100));
    }
}
