//! Nodes that miss a grant of the majority. While one does, another node that forgets is enough for
//! a second holder. So it must not last for a third of the ttl.

use std::{thread, time::Duration};

use fairlock::{LockManager, LockOptions, endpoint::Endpoint};

use super::set::{Set, TIMEOUT, builder, owner};
use crate::support::{SLACK, Server, throughout, until, until_some};

/// A third of it is far longer than the tests allow.
const TTL: Duration = Duration::from_secs(60);
/// The longest pause between two requests at that ttl.
const BACK_OFF: Duration = Duration::from_millis(500);

fn manager(quorum: Endpoint) -> LockManager {
    let options = LockOptions::new().ttl(TTL);
    let built = builder(quorum).options(options).build();
    built.expect("a majority can be reached")
}

#[track_caller]
fn assert_on_all_soon(set: &Set, name: &str) {
    // A connection is opened, and the renewal has its reply.
    let bound = BACK_OFF * 2 + TIMEOUT;
    until(bound + SLACK, "the lock is on all nodes", || {
        set.owners(name) == set.servers.len()
    });
}

/// It votes when the majority has long decided, or never. Then a node of the majority forgets.
#[test]
fn node_that_hung_during_a_grant_gets_the_lock_soon() {
    let set = Set::start(3);
    let (one, other) = (manager(set.quorum()), manager(set.quorum()));
    set.warm_up(&one, "a");
    for pause in [Duration::ZERO, TIMEOUT * 3] {
        set.servers[2].stop();
        let guard = one.lock("a").expect("two of three answer");
        // Time itself is under test: the request is late there, or its connection is closed.
        thread::sleep(pause);
        set.servers[2].cont();
        assert_on_all_soon(&set, "a");
        set.servers[0].query::<()>(&["FLUSHALL"]);
        assert!(other.try_lock("a").expect("two of three answer").is_none());
        assert!(guard.is_held());
        guard.unlock().expect("it is held");
        set.await_owners("a", 0);
    }
}

#[test]
fn node_that_was_down_during_a_grant_gets_the_lock_soon() {
    let set = Set::start(3);
    let one = manager(set.quorum());
    set.warm_up(&one, "a");
    set.servers[2].kill();
    let guard = one.lock("a").expect("two of three answer");
    // Time itself is under test: the first renewal finds it down.
    thread::sleep(BACK_OFF * 2);
    set.servers[2].restart();
    assert_on_all_soon(&set, "a");
    guard.unlock().expect("it is held");
}

/// It had granted the lock to an attempt that got no majority.
#[test]
fn node_that_was_taken_during_a_grant_gets_the_lock_soon() {
    let set = Set::start(3);
    // Two servers that only the other holder knows give it a majority with the third.
    let beside = [Server::start(), Server::start()];
    let urls = [set.servers[2].url(), beside[0].url(), beside[1].url()];
    let (one, other) = (manager(set.quorum()), manager(Endpoint::quorum(urls)));
    let held = other.lock("a").expect("it is free");
    until(SLACK, "it is on all its nodes", || {
        let all = [&set.servers[2], &beside[0], &beside[1]];
        all.iter().all(|server| owner(server, "a").is_some())
    });
    // A node grants no smaller fence than before, and each manager has its own view of the clocks.
    let guard = until_some(SLACK, "a larger fence", || {
        let guard = one.lock("a").expect("two of three grant it");
        (guard.fence() > held.fence()).then_some(guard)
    });
    // Time itself is under test: it is asked for in vain meanwhile.
    thread::sleep(BACK_OFF * 2);
    set.await_owners("a", 3);
    held.unlock().expect("it is held");
    let third = || owner(&set.servers[2], "a") == owner(&set.servers[0], "a");
    until(BACK_OFF + TIMEOUT + SLACK, "it is on the third, too", third);
    guard.unlock().expect("it is held");
}

/// A lock that all nodes have is renewed as it was.
#[test]
fn complete_grant_costs_no_further_request() {
    let set = Set::start(3);
    // On a slow machine a call may be sent twice, and a late copy is excluded by a later release.
    let one = until_some(SLACK * 3, "a warm-up without a second copy", || {
        let one = manager(set.quorum());
        set.warm_up(&one, "a");
        (one.stats().retries == 0).then_some(one)
    });
    let guard = one.lock("a").expect("it is free");
    set.await_owners("a", 3);
    let asked = one.stats().requests;
    throughout(BACK_OFF * 3, "nothing is sent", || {
        one.stats().requests == asked
    });
    guard.unlock().expect("it is held");
}
