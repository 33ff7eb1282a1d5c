//! A lock on a quorum, while all nodes are well.

use std::{
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use fairlock::{
    Error, LockManager, LockOptions, LossReason, Misuse, PreviousHolder, endpoint::Endpoint,
    inspect::LockState,
};

use super::set::{Set, TIMEOUT, TTL, owner, record, take};
use crate::support::{SLACK, Server, throughout, until};

#[test]
fn one_client_holds_a_lock_on_all_nodes() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    let guard = a.lock("x").expect("it is free");
    set.await_owners("x", 3);
    assert!(b.try_lock("x").expect("all nodes answer").is_none());
    let fence = guard.fence();
    drop(guard);
    set.await_owners("x", 0);
    let guard = b.try_lock("x").expect("all nodes answer").expect("free");
    assert!(guard.fence() > fence);
    guard.unlock().expect("it was held");
}

/// A quorum has no queue, so nobody could tell a process that keeps a lock.
#[test]
fn quorum_refuses_to_keep_locks_and_to_notify_of_waiters() {
    let set = Set::start(3);
    let manager = set.manager();
    for (options, option, unset) in [
        (
            LockOptions::new().keep_idle(TTL / 5),
            "keep_idle",
            "no_keep_idle()",
        ),
        (
            LockOptions::new().notify_wanted(true),
            "notify_wanted",
            "notify_wanted(false)",
        ),
    ] {
        let handle = manager.with(options);
        let refused = [
            handle.lock("x").map(drop),
            handle.try_lock("x").map(drop),
            handle.enqueue("x").map(drop),
            handle.reentrant_mutex("x").lock().map(drop),
        ];
        for error in refused.map(|result| result.expect_err("it is refused")) {
            assert!(
                matches!(
                    error,
                    Error::Misused {
                        misuse: Misuse::Setting { .. },
                        ..
                    }
                ),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(option) && text.contains(unset), "{text}");
        }
    }
}

/// Each call would fail. The reason is the option, and not what it does to a call.
#[test]
fn builder_of_a_quorum_refuses_what_a_quorum_has_not() {
    let new = LockOptions::new;
    let set = Set::start(3);
    let manager = set.manager();
    for (options, words) in [
        (new().keep_idle(TTL / 5), ["keep_idle", "no_keep_idle()"]),
        (
            new().local_handovers(2),
            ["local_handovers", "local_handovers(0)"],
        ),
        (
            new().notify_wanted(true),
            ["notify_wanted", "notify_wanted(false)"],
        ),
        (
            new().hold_at_least(TTL * 2),
            ["hold_at_least", "at most the ttl"],
        ),
    ] {
        let built = set.builder().options(options.clone().ttl(TTL)).build();
        let handle = manager.with(options);
        let refused = [
            built.map(drop),
            handle.lock("x").map(drop),
            handle.try_lock("x").map(drop),
        ];
        for error in refused.map(|result| result.expect_err("it is refused")) {
            assert!(
                matches!(
                    error,
                    Error::Misused {
                        misuse: Misuse::Setting { .. },
                        ..
                    }
                ),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(
                words.iter().all(|word| text.contains(word)),
                "{words:?}: {text}"
            );
        }
    }
    for (options, option) in [
        (new().ttl(TTL * 2), "ttl"),
        (new().fixed_lease(TTL * 2), "fixed_lease"),
    ] {
        let error = manager.with(options).lock("x").expect_err("it is refused");
        let Error::Misused {
            misuse: Misuse::Setting { name, .. },
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!((*name, error.lock()), (option, Some("x")));
    }
    // Nobody is asked, so it is refused although no node is there.
    let nowhere = Endpoint::quorum([1, 2, 3].map(|port| Endpoint::server("127.0.0.1", port)));
    let built = LockManager::builder(nowhere)
        .options(new().keep_idle(TTL / 5))
        .build();
    assert!(
        matches!(
            built,
            Err(Error::Misused {
                misuse: Misuse::Setting { .. },
                ..
            })
        ),
        "{built:?}"
    );
}

#[test]
fn lock_of_a_quorum_goes_to_no_other_process() {
    let set = Set::start(3);
    let manager = set.manager();
    let guard = manager.lock("x").expect("it is free");
    let error = guard.detach(TTL).expect_err("a quorum passes no lock on");
    let (guard, error) = error.into_parts();
    assert!(
        matches!(
            error,
            Error::Misused {
                misuse: Misuse::Setting { .. },
                ..
            }
        ),
        "{error}"
    );
    assert!(guard.is_held());
    guard.unlock().expect("it was held");
    let text = format!("fairlock-detached/1:fairlock:x:1:{}", "0".repeat(32));
    let detached = text.parse().expect("it has the form");
    let error = manager
        .attach(&detached)
        .expect_err("a quorum attaches no lock");
    assert!(
        matches!(
            error,
            Error::Misused {
                misuse: Misuse::Setting { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn hash_of_another_program_is_left_unchanged() {
    let set = Set::start(3);
    let manager = set.manager();
    for server in &set.servers {
        let _: i64 = server.query(&["HSET", "fairlock:{x}", "a", "mine"]);
    }
    let error = manager.try_lock("x").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("WRONGTYPE"), "{text}");
    for server in &set.servers {
        let fields: Vec<String> = server.query(&["HGETALL", "fairlock:{x}"]);
        assert_eq!(fields, ["a", "mine"]);
        assert_eq!(server.query::<i64>(&["PTTL", "fairlock:{x}"]), -1);
    }
}

#[test]
fn at_most_one_of_many_threads_holds_the_lock() {
    let set = Set::start(3);
    let managers = [set.manager(), set.manager()];
    let held = Mutex::new(());
    thread::scope(|scope| {
        for manager in managers.iter().cycle().take(6) {
            let held = &held;
            scope.spawn(move || {
                for _ in 0..15 {
                    let guard = manager.lock("x").expect("it becomes free");
                    drop(held.try_lock().expect("nobody else holds it"));
                    drop(guard);
                }
            });
        }
    });
    set.await_owners("x", 0);
}

#[test]
fn somebody_wins_soon_when_clients_ask_in_lock_step() {
    const CLIENTS: usize = 8;
    let set = Set::start(5);
    let managers: Vec<_> = (0..CLIENTS).map(|_| set.manager()).collect();
    let barrier = Barrier::new(CLIENTS);
    for _ in 0..5 {
        let started = Instant::now();
        let won = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for manager in &managers {
                let (won, barrier) = (&won, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let guard = manager.lock("x").expect("it becomes free");
                    won.lock()
                        .expect("no panic")
                        .push((started.elapsed(), guard.fence()));
                });
            }
        });
        let won = won.into_inner().expect("no panic");
        assert!(won[0].0 < TIMEOUT + SLACK, "{won:?}");
        assert!(won.is_sorted_by_key(|(_, fence)| *fence), "{won:?}");
    }
}

#[test]
fn dropped_guard_says_clean_and_lapsed_one_lapsed() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    drop(a.lock("x").expect("it is free"));
    set.await_owners("x", 0);
    let guard = b.try_lock("x").expect("all answer").expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    drop(guard);
    set.await_owners("x", 0);
    let fixed = a.with(LockOptions::new().fixed_lease(Duration::from_millis(100)));
    std::mem::forget(
        fixed
            .try_lock("x")
            .expect("all answer")
            .expect("it is free"),
    );
    let guard = take(&b, "x", Duration::from_millis(100));
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

/// A refused acquire may have taken the lock on some nodes. It says nothing about the guard before.
#[test]
fn failed_attempt_does_not_hide_how_the_previous_guard_ended() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    drop(a.lock("x").expect("it is free"));
    set.await_owners("x", 0);
    // The attempt takes the third node alone.
    let blocked: Vec<&Server> = set.servers[..2].iter().collect();
    for server in &blocked {
        server.stop();
    }
    assert!(b.try_lock("x").is_err());
    for server in &blocked {
        server.cont();
    }
    let guard = take(&b, "x", TIMEOUT);
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
}

#[test]
fn forced_release_takes_the_lock_from_its_holder() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    let guard = a.lock("x").expect("it is free");
    set.await_owners("x", 3);
    assert!(!b.force_release("x", guard.fence() + 1).expect("all answer"));
    assert!(b.force_release("x", guard.fence()).expect("all answer"));
    assert_eq!(set.owners("x"), 0);
    until(TTL / 2 + SLACK, "the holder learns of it", || {
        guard
            .lost()
            .try_recv()
            .is_ok_and(|loss| loss.reason == LossReason::Forced)
    });
    let guard = b.try_lock("x").expect("all answer").expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Forced);
}

#[test]
fn inspection_and_list_show_what_a_majority_says() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    let labelled = a.with(LockOptions::new().ttl(TTL).label("import"));
    let guard = labelled.lock("x").expect("it is free");
    let _other = a.lock("y").expect("it is free");
    set.await_owners("x", 3);
    set.servers[1].kill();
    let info = b
        .inspect("x")
        .expect("a majority answers")
        .expect("it is held");
    assert_eq!((info.state, info.fence), (LockState::Held, guard.fence()));
    let holder = info.holder.expect("somebody holds it");
    assert_eq!(holder.label, "import");
    assert!(info.time_left > TTL / 3 && info.time_left <= TTL);
    let names = b.list("*");
    let names = names.map(|info| info.expect("two answer").name.to_string());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, ["x", "y"]);
    let previous = |name: &str| {
        let info = b.inspect(name).expect("a majority answers");
        let info = info.expect("it is held");
        (info.previous_holder, info.served)
    };
    assert_eq!(previous("x"), (PreviousHolder::Unknown, 0));
    guard.abandon().expect("it is held");
    let guard = a.lock("x").expect("a majority answers");
    assert_eq!(previous("x"), (PreviousHolder::Lapsed, 0));
    drop(guard);
    until(TIMEOUT + SLACK, "it is free", || {
        b.inspect("x").expect("a majority answers").is_none()
    });
}

#[test]
fn other_kinds_of_lock_and_longer_leases_are_refused() {
    let set = Set::start(3);
    let manager = set.manager();
    let refused = |error: Error| {
        assert!(
            matches!(
                error,
                Error::Misused {
                    misuse: Misuse::Setting { .. },
                    ..
                }
            ),
            "{error}"
        )
    };
    refused(
        manager
            .semaphore("s", 3)
            .try_acquire(1)
            .expect_err("no semaphore"),
    );
    refused(
        manager
            .rw_lock("r")
            .try_read()
            .expect_err("no reader/writer lock"),
    );
    let longer = manager.with(LockOptions::new().ttl(TTL * 2));
    refused(
        longer
            .try_lock("x")
            .expect_err("longer than the manager's ttl"),
    );
    let reentrant = manager.reentrant_mutex("x");
    let outer = reentrant.try_lock().expect("all answer").expect("free");
    let inner = reentrant
        .try_lock()
        .expect("all answer")
        .expect("it is this thread's");
    assert_eq!(inner.fence(), outer.fence());
}

#[test]
fn several_names_are_taken_together() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    let held = b.lock("y").expect("it is free");
    assert!(
        a.try_lock_all(["x", "y", "z"])
            .expect("all answer")
            .is_none()
    );
    set.await_owners("x", 0);
    drop(held);
    set.await_owners("y", 0);
    let guard = a
        .try_lock_all(["x", "y", "z"])
        .expect("all answer")
        .expect("free");
    for name in ["x", "y", "z"] {
        set.await_owners(name, 3);
    }
    drop(guard);
    set.await_owners("z", 0);
}

/// The lease is renewed on all nodes, long past its ttl.
#[test]
fn held_lock_is_renewed_on_all_nodes() {
    let set = Set::start(3);
    let ttl = Duration::from_secs(2);
    let builder = set.builder().options(LockOptions::new().ttl(ttl));
    let manager = builder
        .command_timeout(Duration::from_millis(200))
        .build()
        .expect("a majority can be reached");
    let guard = take(&manager, "x", TIMEOUT);
    throughout(ttl * 2, "it is held", || guard.is_held());
    let tokens: Vec<_> = set
        .servers
        .iter()
        .map(|server| owner(server, "x"))
        .collect();
    assert!(tokens[0].is_some() && tokens.iter().all(|token| *token == tokens[0]));
    assert!(manager.stats().renewals_confirmed >= 3);
}

/// P2: a node that has forgotten a name would grant it under a smaller fence, or again to a holder
/// that lost it and still renews.
#[test]
fn quorum_deletes_no_name() {
    let set = Set::start(3);
    let mgr = set.manager();
    let guard = take(&mgr, "x", TIMEOUT);
    set.await_owners("x", 3);
    guard.unlock().expect("it was held");
    let refused = mgr.delete("x");
    assert!(
        matches!(
            &refused,
            Err(Error::Misused {
                misuse: Misuse::Setting { name: "delete", .. },
                ..
            })
        ),
        "{refused:?}"
    );
    for server in &set.servers {
        assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]), [record("x")]);
    }
}
