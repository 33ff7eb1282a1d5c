//! Nodes that are down, hang, or lose what was sent.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions, LossReason, endpoint::Endpoint};

use super::set::{Set, TIMEOUT, TTL, builder, now, numbers, owner, record, take};
use crate::support::{Proxy, SLACK, Server, contains, throughout, until};

/// A grant within one command timeout, for a name whose lane is open and one whose lane is not.
#[track_caller]
fn assert_grants(manager: &LockManager, what: &str) {
    for name in ["a", "b", "c", "d"] {
        let started = Instant::now();
        let guard = manager.try_lock(name);
        let took = started.elapsed();
        let guard = guard.unwrap_or_else(|error| panic!("{what}: {name}: {error:?}"));
        assert!(guard.is_some(), "{what}: {name} is free");
        assert!(took <= TIMEOUT + SLACK, "{what}: {name} took {took:?}");
    }
}

#[test]
fn two_dead_nodes_of_five_delay_nobody() {
    let set = Set::start(5);
    let manager = set.manager();
    assert_grants(&manager, "all are well");
    set.servers[0].kill();
    set.servers[3].kill();
    assert_grants(&manager, "two are dead");
    assert_grants(&set.manager(), "two were dead before");
}

#[test]
fn two_stopped_nodes_of_five_delay_nobody() {
    let set = Set::start(5);
    let manager = set.manager();
    assert_grants(&manager, "all are well");
    set.servers[1].stop();
    set.servers[2].stop();
    assert_grants(&manager, "two are stopped");
    assert_grants(&set.manager(), "two were stopped before");
    // The others' connections stay, so no call waits for the two: three round trips take no time.
    let started = Instant::now();
    for _ in 0..20 {
        drop(manager.try_lock("a").expect("three answer"));
    }
    assert!(
        started.elapsed() < TIMEOUT + SLACK,
        "{:?}",
        started.elapsed()
    );
    set.servers[1].cont();
    set.servers[2].cont();
}

#[test]
fn reset_connections_delay_nobody() {
    let set = Set::of((0..5).map(|_| thread::spawn(Server::tcp)));
    let proxies: Vec<_> = set
        .servers
        .iter()
        .map(|server| Proxy::to(server.addr()))
        .collect();
    let manager = builder(Endpoint::quorum(proxies.iter().map(Proxy::url)));
    let manager = manager.build().expect("all can be reached");
    assert_grants(&manager, "all are well");
    let faults: Vec<_> = proxies[..2]
        .iter()
        .map(|proxy| proxy.swallow_and_reset_when(contains(record("a"))))
        .collect();
    assert_grants(&manager, "two lose a reply");
    for fault in &faults {
        until(TIMEOUT + SLACK, "the reply is lost", || {
            fault.has_triggered()
        });
    }
    for proxy in &proxies[2..4] {
        proxy.reset_all();
    }
    assert_grants(&manager, "two reset their connections");
}

#[test]
fn nothing_is_granted_or_left_behind_without_a_majority() {
    let set = Set::start(5);
    let manager = set.manager();
    drop(manager.try_lock("x").expect("all answer"));
    for server in &set.servers[..3] {
        server.stop();
    }
    for name in ["x", "y"] {
        let started = Instant::now();
        let error = manager.try_lock(name).expect_err("two are no majority");
        let took = started.elapsed();
        assert!(took <= TIMEOUT + SLACK, "{took:?}");
        let Error::Unavailable { cause, .. } = &error else {
            panic!("{error:?}");
        };
        let text = cause.to_string();
        assert!(text.starts_with("3 of 5 nodes did not decide: "), "{text}");
        for server in &set.servers[3..] {
            until(TIMEOUT + SLACK, "nothing is left", || {
                owner(server, name).is_none()
            });
        }
    }
    for server in &set.servers[..3] {
        server.cont();
    }
    // The requests in the sockets of the three came too late, or their locks were released.
    set.await_owners("x", 0);
    set.await_owners("y", 0);
    drop(take(&manager, "x", TIMEOUT));
}

#[test]
fn dead_majority_is_reported_with_each_node() {
    let set = Set::start(3);
    let manager = set.manager();
    set.servers[0].kill();
    set.servers[2].kill();
    let started = Instant::now();
    let error = manager.try_lock("x").expect_err("one is no majority");
    assert!(started.elapsed() <= TIMEOUT + SLACK);
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(cause.to_string().starts_with("2 of 3 nodes"), "{cause}");
    let error = set.builder().build().expect_err("one can be reached");
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error:?}");
    };
    let cause = cause.to_string();
    assert!(cause.starts_with("1 of 3 nodes"), "{cause}");
    let remedy = "; no Redis runs there: start a majority, or correct the addresses";
    assert!(cause.ends_with(remedy), "{cause}");
}

#[test]
fn drop_leaves_nothing_on_a_node_that_was_stopped() {
    let set = Set::start(3);
    let manager = set.manager();
    let guard = manager.lock("x").expect("it is free");
    set.await_owners("x", 3);
    set.servers[1].stop();
    let started = Instant::now();
    drop(guard);
    assert!(started.elapsed() < TIMEOUT + SLACK);
    for at in [0, 2] {
        until(TIMEOUT + SLACK, "it is released", || {
            owner(&set.servers[at], "x").is_none()
        });
    }
    // Time itself is under test: the connection ends in it.
    thread::sleep(TIMEOUT * 2);
    set.servers[1].cont();
    set.await_owners("x", 0);
}

/// Its lanes are closed, so a drop cannot send anything there.
#[test]
fn node_that_comes_back_with_its_data_is_released() {
    let appending = || Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let set = Set::of((0..3).map(|_| thread::spawn(appending)));
    let manager = set.manager();
    let guard = manager.lock("x").expect("it is free");
    set.await_owners("x", 3);
    set.servers[1].kill();
    drop(guard);
    set.servers[1].restart();
    set.await_owners("x", 0);
}

#[test]
fn lock_is_lost_before_its_lease_ends_on_a_majority() {
    let set = Set::start(3);
    let manager = set.manager();
    let guard = manager.lock("x").expect("it is free");
    let lease_end = |at: usize| numbers(&set.servers[at], "x").0;
    let before = [lease_end(0), lease_end(1)];
    // Directly after a renewal, so that none comes between this look and the stop.
    until(TTL, "a renewal", || {
        lease_end(0) > before[0] && lease_end(1) > before[1]
    });
    let ends = lease_end(0).min(lease_end(1));
    set.servers[0].stop();
    set.servers[1].stop();
    loop {
        let looked = now();
        if !guard.is_held() {
            break;
        }
        assert!(
            looked < ends,
            "the lease has ended on a majority, and the guard does not know"
        );
    }
    let loss = guard.lost().recv_timeout(TIMEOUT + SLACK);
    let loss = loss.expect("a majority is gone");
    assert_eq!(loss.reason, LossReason::Expired);
    set.servers[0].cont();
    set.servers[1].cont();
}

#[test]
fn lease_survives_a_node_that_hangs() {
    let set = Set::start(3);
    let ttl = Duration::from_secs(2);
    let builder = set.builder().options(LockOptions::new().ttl(ttl));
    let manager = builder
        .command_timeout(Duration::from_millis(200))
        .build()
        .expect("all can be reached");
    let guard = take(&manager, "x", TIMEOUT);
    set.servers[2].stop();
    throughout(ttl * 2, "it is held", || guard.is_held());
    set.servers[2].cont();
}

/// P7, R7: the copy arrives after the lock was released.
#[test]
fn late_copy_of_an_acquire_takes_nothing() {
    let set = Set::of((0..3).map(|_| thread::spawn(Server::tcp)));
    let proxy = Proxy::to(set.servers[2].addr());
    let urls = [set.servers[0].url(), set.servers[1].url(), proxy.url()];
    let manager = builder(Endpoint::quorum(urls))
        .build()
        .expect("all can be reached");
    set.warm_up(&manager, "x");
    let held = proxy.hold_request_when(contains(record("x")));
    let scripts = || set.servers[2].calls("eval") + set.servers[2].calls("evalsha");
    let before = scripts();
    drop(
        manager
            .try_lock("x")
            .expect("two answer")
            .expect("it is free"),
    );
    // The connection with the held request ends.
    until(TIMEOUT * 2 + SLACK, "the release goes over another", || {
        scripts() > before
    });
    held.release();
    throughout(TIMEOUT, "the late copy takes nothing", || {
        set.owners("x") == 0
    });
}

/// A straggler's late grant belongs to the lock: it is renewed and released with it.
#[test]
fn late_grant_is_released_with_the_lock() {
    let set = Set::of((0..3).map(|_| thread::spawn(Server::tcp)));
    let proxy = Proxy::to(set.servers[2].addr());
    let urls = [set.servers[0].url(), set.servers[1].url(), proxy.url()];
    let manager = builder(Endpoint::quorum(urls))
        .build()
        .expect("all can be reached");
    set.warm_up(&manager, "x");
    proxy.delay(TIMEOUT / 6);
    let guard = manager
        .try_lock("x")
        .expect("two answer")
        .expect("it is free");
    assert!(owner(&set.servers[2], "x").is_none());
    set.await_owners("x", 3);
    drop(guard);
    set.await_owners("x", 0);
}

/// R7: a renewal that is under way when the lock is released takes the lock again on a node that has
/// forgotten it. So the release goes on until no such renewal can come any more.
#[test]
fn renewal_under_way_takes_nothing_for_good() {
    let set = Set::of((0..3).map(|_| thread::spawn(Server::tcp)));
    let proxy = Proxy::to(set.servers[2].addr());
    let urls = [set.servers[0].url(), set.servers[1].url(), proxy.url()];
    // Long, so that the renewal that is held back is not too late on a loaded machine.
    let manager = builder(Endpoint::quorum(urls))
        .options(LockOptions::new().ttl(TTL * 2))
        .command_timeout(Duration::from_secs(1))
        .build()
        .expect("all can be reached");
    set.warm_up(&manager, "x");
    let guard = manager.lock("x").expect("it is free");
    set.await_owners("x", 3);
    set.servers[2].query::<()>(&["FLUSHALL"]);
    // The first renewal brings the source of its script.
    let held = proxy.hold_request_when(contains("extends the lease of a token on this node"));
    held.wait(TTL + SLACK);
    drop(guard);
    let released = |at: usize| owner(&set.servers[at], "x").is_none();
    until(TIMEOUT + SLACK, "the release", || {
        released(0) && released(1)
    });
    let answer = held.release();
    assert!(
        answer.windows(7).any(|word| word == b"renewed"),
        "it came too late to take anything"
    );
    until(TTL, "a second release", || released(2));
}
