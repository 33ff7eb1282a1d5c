//! The tests. Each makes a world of its own in memory, with two managers on it that are like two processes, has
//! something go wrong in it, and looks at what the code in `billing.rs` makes of that. In a crate of your own
//! these stand below `#[cfg(test)]`, with a plain `#[test]` each; here they are run by `main` as well.
//!
//! Time passes by `advance`, which returns when the managers have done what was due by then. For threads of the
//! test's own it does not wait, so a test that needs one to have come somewhere polls for that.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::memory::{Fault, Memory};
use fairlock::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_TTL, LockManager};

use crate::billing::{BILLING, Billed, PATIENCE, bill};
use crate::books::{Books, State};

const CUSTOMERS: [&str; 3] = ["ann", "bob", "cid"];

#[cfg_attr(test, test)]
pub(crate) fn bills_everybody_once() {
    let (_memory, ours, theirs) = two_processes();
    let books = Books::default();
    let mut printed = 0;
    assert_eq!(
        bill(&ours, &books, &CUSTOMERS, |_| printed += 1).unwrap(),
        Billed::All
    );
    assert_eq!(
        bill(&theirs, &books, &CUSTOMERS, |_| printed += 1).unwrap(),
        Billed::All
    );
    assert_eq!(printed, 3);
    assert_all_written(&books);
}

#[cfg_attr(test, test)]
pub(crate) fn gives_up_while_another_process_is_at_it() {
    let (memory, ours, theirs) = two_processes();
    let books = Books::default();
    let _guard = theirs.lock(BILLING).unwrap();
    thread::scope(|scope| {
        let billed = scope.spawn(|| bill(&ours, &books, &CUSTOMERS, |_| {}));
        until("we stand in the queue", || waiters(&theirs) == 1);
        memory.advance(PATIENCE);
        assert_eq!(billed.join().unwrap().unwrap(), Billed::Elsewhere);
    });
    assert_eq!(books.read(), []);
}

#[cfg_attr(test, test)]
pub(crate) fn takes_its_turn_when_the_other_is_done() {
    let (_memory, ours, theirs) = two_processes();
    let books = Books::default();
    let guard = theirs.lock(BILLING).unwrap();
    thread::scope(|scope| {
        let billed = scope.spawn(|| bill(&ours, &books, &CUSTOMERS, |_| {}));
        until("we stand in the queue", || waiters(&theirs) == 1);
        guard.unlock().unwrap();
        assert_eq!(billed.join().unwrap().unwrap(), Billed::All);
    });
    assert_all_written(&books);
}

#[cfg_attr(test, test)]
pub(crate) fn stops_when_the_lock_is_lost_in_mid_work() {
    let (memory, ours, _theirs) = two_processes();
    let books = Books::default();
    let billed = bill(&ours, &books, &CUSTOMERS, |customer| {
        if customer == "bob" {
            memory.lapse(BILLING);
            // The renewal, which is due now, finds out.
            memory.advance(DEFAULT_TTL / 3);
        }
    });
    assert_eq!(billed.unwrap(), Billed::UpTo("bob".to_owned()));
    assert_eq!(states(&books), [State::Written, State::Draft]);
}

#[cfg_attr(test, test)]
pub(crate) fn stops_when_it_was_suspended_for_longer_than_the_ttl() {
    let (memory, ours, theirs) = two_processes();
    let books = Books::default();
    let billed = bill(&ours, &books, &CUSTOMERS, |customer| {
        if customer == "bob" {
            // The guard goes by the clock, so there is nothing to wait for.
            memory.advance(DEFAULT_TTL);
        }
    });
    assert_eq!(billed.unwrap(), Billed::UpTo("bob".to_owned()));
    assert_eq!(
        bill(&theirs, &books, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
    assert_all_written(&books);
}

#[cfg_attr(test, test)]
pub(crate) fn writes_nothing_late() {
    let (memory, ours, theirs) = two_processes();
    let books = Books::default();
    let billed = bill(&ours, &books, &CUSTOMERS, |customer| {
        if customer == "bob" {
            // We are not told before the next renewal. Meanwhile another is at it, with a larger fence.
            memory.lapse(BILLING);
            let billed = bill(&theirs, &books, &["ann", "bob"], |_| {});
            assert_eq!(billed.unwrap(), Billed::All);
        }
    });
    assert_eq!(billed.unwrap(), Billed::UpTo("bob".to_owned()));
    assert_eq!(states(&books), [State::Written; 2]);
}

#[cfg_attr(test, test)]
pub(crate) fn clears_up_after_a_holder_that_crashed() {
    let (memory, ours, theirs) = two_processes();
    let books = Books::default();
    let crashed = theirs.lock(BILLING).unwrap();
    books.begin(crashed.fence(), "bob");
    memory.lapse(BILLING);
    assert_eq!(
        bill(&ours, &books, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
    assert_all_written(&books);
}

#[cfg_attr(test, test)]
pub(crate) fn comes_back_later_while_redis_is_down() {
    let (memory, ours, _theirs) = two_processes();
    let books = Books::default();
    memory.go_down();
    thread::scope(|scope| {
        let asked_before = ours.stats().requests;
        let billed = scope.spawn(|| bill(&ours, &books, &CUSTOMERS, |_| {}));
        until("we ask", || ours.stats().requests > asked_before);
        memory.advance(PATIENCE);
        assert_eq!(billed.join().unwrap().unwrap(), Billed::Later);
    });
    memory.come_back();
    assert_eq!(
        bill(&ours, &books, &CUSTOMERS, |_| {}).unwrap(),
        Billed::All
    );
}

#[cfg_attr(test, test)]
pub(crate) fn works_on_while_redis_is_away_for_a_moment() {
    let (memory, ours, _theirs) = two_processes();
    let books = Books::default();
    let billed = bill(&ours, &books, &CUSTOMERS, |customer| match customer {
        "ann" => {
            memory.go_down();
            memory.advance(DEFAULT_TTL / 2);
        }
        "cid" => memory.come_back(),
        _ => {}
    });
    assert_eq!(billed.unwrap(), Billed::All);
    assert_all_written(&books);
}

#[cfg_attr(test, test)]
pub(crate) fn does_not_notice_a_connection_that_closes() {
    let (memory, ours, theirs) = two_processes();
    let books = Books::default();
    memory.inject(Fault::Disconnect);
    assert_eq!(
        bill(&ours, &books, &CUSTOMERS, |_| {}).unwrap(),
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
    let books = Books::default();
    memory.inject(Fault::LoseReply);
    thread::scope(|scope| {
        let asked_before = ours.stats().requests;
        let billed = scope.spawn(|| bill(&ours, &books, &CUSTOMERS, |_| {}));
        until("we ask", || ours.stats().requests > asked_before);
        // Redis has granted the lock, and we do not know it.
        memory.advance(DEFAULT_COMMAND_TIMEOUT);
        assert_eq!(billed.join().unwrap().unwrap(), Billed::All);
    });
    assert!(
        theirs.inspect(BILLING).unwrap().is_none(),
        "nothing is left behind"
    );
}

fn two_processes() -> (Memory, LockManager, LockManager) {
    let memory = Memory::new();
    let [ours, theirs] =
        [(); 2].map(|()| LockManager::connect(&memory).expect("there is nothing to fail"));
    (memory, ours, theirs)
}

fn waiters(mgr: &LockManager) -> u64 {
    mgr.inspect(BILLING).unwrap().map_or(0, |info| info.waiters)
}

fn states(books: &Books) -> Vec<State> {
    books.read().into_iter().map(|(_, state)| state).collect()
}

#[track_caller]
fn assert_all_written(books: &Books) {
    assert_eq!(
        books.read(),
        CUSTOMERS.map(|customer| (customer.to_owned(), State::Written))
    );
}

/// Polls, since what other threads do takes a moment; panics after a time that nothing here takes.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "in vain: {what}"
        );
        thread::sleep(Duration::from_micros(100));
    }
}
