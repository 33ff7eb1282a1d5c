//! Nodes that restart without their data.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions};

use super::set::{Set, owner, take};
use crate::support::{SLACK, until};

const TTL: Duration = Duration::from_secs(2);
/// The uptime of a server is known to a second.
const FRESH: Duration = Duration::from_secs(4);

fn manager(set: &Set, uptime_check: bool) -> LockManager {
    let builder = set.builder().options(LockOptions::new().ttl(TTL));
    let builder = builder
        .command_timeout(Duration::from_millis(200))
        .uptime_check(uptime_check);
    builder.build().expect("a majority can be reached")
}

#[test]
fn renewal_takes_the_lock_again_on_an_empty_node() {
    let set = Set::start(3);
    let (a, b) = (manager(&set, false), manager(&set, false));
    let guard = a.lock("x").expect("it is free");
    set.await_owners("x", 3);
    let token = owner(&set.servers[0], "x");
    // Nobody asks meanwhile: a node that has granted a larger fence since is not taken again.
    set.servers[0].restart();
    until(TTL * 2 + SLACK, "the renewal takes it again", || {
        owner(&set.servers[0], "x") == token
    });
    assert!(b.try_lock("x").expect("all answer").is_none());
    assert!(guard.is_held());
    drop(guard);
    set.await_owners("x", 0);
}

/// A release must end what the renewal took again, also if both were under way at once.
#[test]
fn released_lock_is_not_taken_again() {
    let set = Set::start(3);
    let a = manager(&set, false);
    for _ in 0..20 {
        let guard = a.lock("x").expect("it is free");
        set.servers[2].query::<()>(&["FLUSHALL"]);
        let _ = guard.renew();
        drop(guard);
        set.await_owners("x", 0);
    }
}

#[test]
fn fresh_node_does_not_vote() {
    let set = Set::start(3);
    let fresh = manager(&set, true);
    let error = fresh.try_lock("x").expect_err("all have just started");
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(
        cause
            .to_string()
            .contains("it has run for less than the ttl"),
        "{cause}"
    );
    drop(take(&fresh, "x", FRESH));
}

/// The holder has a majority. Two nodes forget it, and vote for another.
#[test]
fn without_the_uptime_check_two_hold_one_lock() {
    let set = Set::start(3);
    let a = manager(&set, false);
    let b = manager(&set, false);
    // Without renewals, which would take it again.
    let fixed = a.with(LockOptions::new().fixed_lease(TTL));
    let guard = fixed.lock("x").expect("it is free");
    set.servers[0].restart();
    set.servers[1].restart();
    let second = take(&b, "x", TTL);
    assert!(guard.is_held(), "the failure that the check prevents");
    assert!(second.is_held());
}

#[test]
fn with_the_uptime_check_nobody_gets_a_forgotten_lock() {
    let set = Set::start(3);
    let (a, b) = (manager(&set, true), manager(&set, true));
    let guard = take(&a, "x", FRESH);
    set.await_owners("x", 3);
    set.servers[0].restart();
    set.servers[1].restart();
    let restarted = Instant::now();
    while restarted.elapsed() < TTL {
        assert!(!matches!(b.try_lock("x"), Ok(Some(_))), "two hold it");
    }
    // The holder's renewals have taken it again on the two.
    set.await_owners("x", 3);
    assert!(guard.is_held());
}
