//! Callers that wait for a lock of a quorum: there is no queue, so they ask again.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockGuard, LockManager, Misuse, Waiter};
#[cfg(feature = "metrics")]
use metrics_exporter_prometheus::PrometheusBuilder;

use super::set::{Set, TIMEOUT, TTL, record};
use crate::sums::Sums;
use crate::support::{SLACK, Server, until};

const MINUTE: Duration = Duration::from_secs(60);

fn until_waiting(manager: &LockManager, waiters: u64) {
    until(SLACK, "callers wait", || manager.stats().waiting == waiters);
}

/// Waits until a waiting caller has asked all nodes again, and again.
fn asks_again(manager: &LockManager) {
    let most = manager.stats().requests + 12;
    until(MINUTE, "it asks", || manager.stats().requests >= most);
}

/// A node that missed the grant, or that a waiting caller took for a moment, has it after a renewal.
fn await_majority(set: &Set, name: &str) {
    until(TIMEOUT + SLACK, "a majority has an owner", || {
        set.owners(name) >= 2
    });
}

/// The keys of a server, and how many of its clients subscribe.
fn leftovers(server: &Server) -> (Vec<String>, usize) {
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]);
    keys.sort();
    let clients: String = server.query(&["CLIENT", "LIST"]);
    let subscribed = clients.lines().filter(|line| !line.contains(" sub=0 "));
    (keys, subscribed.count())
}

#[test]
fn waiting_callers_all_get_the_lock_one_by_one() {
    let set = Set::start(3);
    let managers = [set.manager(), set.manager(), set.manager()];
    let last_fence = Mutex::new(0);
    thread::scope(|scope| {
        for manager in managers.iter().cycle().take(6) {
            let last_fence = &last_fence;
            scope.spawn(move || {
                for _ in 0..10 {
                    let guard = manager.lock("x").expect("each is served");
                    let mut last = last_fence.try_lock().expect("nobody else holds it");
                    assert!(*last < guard.fence());
                    *last = guard.fence();
                    drop(last);
                }
            });
        }
    });
    set.await_owners("x", 0);
    for server in &set.servers {
        assert_eq!(leftovers(server), (vec![record("x")], 0));
    }
    let granted: u64 = managers.iter().map(|m| m.stats().granted()).sum();
    assert_eq!(granted, 60);
}

/// Nothing else wakes the renewal thread of a process that only asks again.
#[test]
#[cfg(feature = "metrics")]
fn oldest_wait_is_shown_where_callers_ask_again() {
    let set = Set::start(3);
    let recorder = PrometheusBuilder::new().build_recorder();
    let exporter = recorder.handle();
    let oldest = || {
        let page = exporter.render();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix("fairlock_oldest_wait_seconds "));
        value.expect("the gauge").parse::<f64>().unwrap()
    };
    let other = set.manager();
    let held = other.lock("x").unwrap();
    let waiting = metrics::with_local_recorder(&recorder, || set.manager());
    thread::scope(|scope| {
        scope.spawn(|| drop(waiting.lock("x").unwrap()));
        until(MINUTE, "it grows", || oldest() > 1.0);
        held.unlock().unwrap();
    });
    until(MINUTE, "it has ended", || oldest() == 0.0);
}

#[test]
fn caller_waits_while_one_node_dies_and_comes_back() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let guard = theirs.lock("x").expect("it is free");
    // Otherwise the node that dies could be one of two that have it.
    set.await_owners("x", 3);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock("x"));
        until_waiting(&ours, 1);
        set.servers[1].kill();
        asks_again(&ours);
        set.servers[1].restart();
        asks_again(&ours);
        guard.unlock().expect("two of three answer");
        let guard = waiting.join().expect("no panic").expect("it is free");
        assert!(guard.is_held());
    });
}

#[test]
fn wait_with_a_deadline_ends_in_time_on_a_quorum() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let _guard = theirs.lock("x").expect("it is free");
    let started = Instant::now();
    let missed = ours.try_lock_for("x", TIMEOUT * 2).expect("all answer");
    let took = started.elapsed();
    assert!(missed.is_none());
    assert!(
        (TIMEOUT * 2..TIMEOUT * 3 + SLACK).contains(&took),
        "{took:?}"
    );
    await_majority(&set, "x");
    // Without a majority nobody knows who has the lock.
    set.servers[0].stop();
    set.servers[1].stop();
    let started = Instant::now();
    let unknown = ours.try_lock_for("x", TIMEOUT * 2);
    let took = started.elapsed();
    assert!(
        matches!(unknown, Err(Error::Unavailable { .. })),
        "{unknown:?}"
    );
    assert!(took < TIMEOUT * 3 + SLACK, "{took:?}");
    set.servers[0].cont();
    set.servers[1].cont();
}

#[test]
fn wait_on_a_quorum_ends_at_the_outage_limit() {
    let set = Set::start(3);
    let limit = TIMEOUT * 3;
    let ours = set
        .builder()
        .outage_limit(limit)
        .build()
        .expect("all are up");
    let theirs = set.manager();
    let _guard = theirs.lock("x").expect("it is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock("x").map(drop));
        until_waiting(&ours, 1);
        set.servers[0].stop();
        set.servers[2].stop();
        let started = Instant::now();
        let ended = waiting.join().expect("no panic");
        let took = started.elapsed();
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
        assert!(took < limit + TIMEOUT * 2 + SLACK, "{took:?}");
        set.servers[0].cont();
        set.servers[2].cont();
    });
}

#[test]
fn shutdown_ends_a_wait_on_a_quorum() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let _guard = theirs.lock("x").expect("it is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock("x").map(drop));
        until_waiting(&ours, 1);
        ours.shutdown(Duration::ZERO).expect("all answer");
        let ended = waiting.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    });
    await_majority(&set, "x");
}

#[test]
fn callers_of_several_names_do_not_deadlock_on_a_quorum() {
    let set = Set::start(3);
    let managers = [set.manager(), set.manager()];
    thread::scope(|scope| {
        for (manager, names) in managers.iter().zip([["a", "b", "c"], ["c", "b", "a"]]) {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..5 {
                        let guard = manager.lock_all(names).expect("all are free in turn");
                        assert!(guard.is_held());
                    }
                });
            }
        }
    });
    for name in ["a", "b", "c"] {
        set.await_owners(name, 0);
    }
}

#[test]
fn waiter_of_a_quorum_asks_while_it_waits() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let guard = theirs.lock("x").expect("it is free");
    let mut waiter = ours.enqueue("x").expect("all answer");
    assert_eq!(waiter.position(), None);
    let early = waiter.wait_for(TIMEOUT).expect("all answer");
    assert!(early.is_none());
    guard.unlock().expect("it was held");
    // It does not ask by itself.
    set.await_owners("x", 0);
    let guard = waiter.wait_for(MINUTE).expect("all answer").expect("free");
    drop(guard);
    set.await_owners("x", 0);
    // A waiter that has the lock at once is renewed until it is taken or dropped.
    let waiter = ours.enqueue("x").expect("it is free");
    await_majority(&set, "x");
    // Time itself is under test: the lease would lapse in it.
    thread::sleep(TTL + TIMEOUT);
    await_majority(&set, "x");
    assert!(theirs.try_lock("x").expect("all answer").is_none());
    drop(waiter);
    set.await_owners("x", 0);
}

/// Waits by the channel alone, as a candidate does that also waits for a stop signal.
fn taken_by_channel(waiter: &mut Waiter) -> LockGuard {
    loop {
        let ready = waiter.ready().recv_timeout(MINUTE);
        ready.expect("its pause ends");
        if let Some(guard) = waiter.wait_for(Duration::ZERO).expect("all answer") {
            return guard;
        }
    }
}

#[test]
fn channel_of_a_quorum_says_when_it_is_time_to_ask() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let guard = theirs.lock("x").expect("it is free");
    let mut waiter = ours.enqueue("x").expect("all answer");
    let before = ours.stats().requests;
    for _ in 0..3 {
        waiter.ready().recv_timeout(MINUTE).expect("its pause ends");
        let early = waiter.wait_for(Duration::ZERO).expect("all answer");
        assert!(early.is_none());
    }
    assert!(ours.stats().requests >= before + 9, "it asked each time");
    guard.unlock().expect("it was held");
    taken_by_channel(&mut waiter).unlock().expect("it is held");
    // Without a look, nothing is asked.
    let guard = theirs.lock("x").expect("it is free");
    let waiter = ours.enqueue("x").expect("all answer");
    waiter.ready().recv_timeout(MINUTE).expect("its pause ends");
    let before = ours.stats().requests;
    let again = waiter.ready().recv_timeout(TIMEOUT);
    assert!(again.is_err_and(|error| error.is_timeout()));
    assert_eq!(ours.stats().requests, before);
    drop(waiter);
    drop(guard);
}

#[test]
fn waiter_of_a_quorum_asks_again_after_a_refusal() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let guard = theirs.lock("x").expect("it is free");
    let mut waiter = ours.enqueue("x").expect("all answer");
    guard.unlock().expect("it was held");
    let allow = |change: &str| {
        for server in &set.servers {
            let _: () = server.query(&["ACL", "SETUSER", "default", change]);
        }
    };
    allow("-evalsha");
    for _ in 0..2 {
        let refused = waiter.wait_for(MINUTE);
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    allow("+evalsha");
    taken_by_channel(&mut waiter).unlock().expect("it is held");
}

#[test]
fn channel_of_a_quorum_fires_for_grants_and_shutdowns() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let mut waiter = ours.enqueue("x").expect("it is free");
    waiter.ready().try_recv().expect("it was granted at once");
    let seen = theirs.inspect("x").expect("all answer");
    let fence = seen.expect("it is held").fence;
    assert!(theirs.force_release("x", fence).expect("all answer"));
    // The next renewal finds the loss. From then on it asks again.
    until(MINUTE, "it has asked again, and has the lock", || {
        let ready = waiter.ready().recv_timeout(TTL).is_ok();
        let guard = ready.then(|| waiter.wait_for(Duration::ZERO));
        matches!(guard, Some(Ok(Some(guard))) if guard.fence() > fence)
    });
    let _guard = theirs.lock("x").expect("it is free");
    let mut waiter = ours.enqueue("x").expect("all answer");
    let _ = waiter.ready();
    ours.shutdown(Duration::ZERO).expect("all answer");
    waiter.ready().recv_timeout(SLACK).expect("it has failed");
    let closed = waiter.wait_for(Duration::ZERO);
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

#[test]
fn lock_lost_before_its_waiter_takes_it_is_wanted_again() {
    let set = Set::start(3);
    let (ours, theirs) = (set.manager(), set.manager());
    let mut waiter = ours.enqueue("x").expect("it is free");
    let seen = theirs.inspect("x").expect("all answer");
    let fence = seen.expect("it is held").fence;
    assert!(theirs.force_release("x", fence).expect("all answer"));
    let guard = theirs.lock("x").expect("it is free");
    // Time itself is under test: the next renewal finds the loss.
    thread::sleep(TTL / 3 + TIMEOUT);
    let early = waiter.wait_for(TIMEOUT).expect("all answer");
    assert!(early.is_none());
    let fence = guard.fence();
    guard.unlock().expect("it was held");
    let guard = waiter.wait_for(MINUTE).expect("all answer").expect("free");
    assert!(guard.fence() > fence);
}

#[test]
fn other_kinds_are_refused_on_a_quorum_without_a_request() {
    let set = Set::start(3);
    let manager = set.manager();
    let requests = manager.stats().requests;
    let refused = [
        manager.semaphore("x", 2).try_acquire(1).err(),
        manager.semaphore("x", 2).acquire(1).err(),
        manager.rw_lock("x").read().err(),
        manager.rw_lock("x").try_write().err(),
        manager.rw_lock("x").enqueue_read().err(),
    ];
    for error in refused {
        assert!(
            matches!(
                error,
                Some(Error::Misused {
                    misuse: Misuse::Setting { .. },
                    ..
                })
            ),
            "{error:?}"
        );
    }
    assert_eq!(manager.stats().requests, requests);
    let again = manager.reentrant_mutex("x");
    let outer = again.lock().expect("it is free");
    let inner = again.lock().expect("this thread has it");
    assert_eq!(inner.fence(), outer.fence());
}
