//! R18 (replica acks): a lock counts only when enough replicas have it. On a real master with real
//! replicas.

mod kept;
mod replica_set;
mod services;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{
    Builder, Error, LockGuard, LockManager, LockOptions, LossReason, Misuse, Result, Step,
    endpoint::Endpoint,
};

use crate::connection_names::await_role;
use crate::support::{SLACK, Server, until, until_some};
pub(crate) use replica_set::ReplicaSet;

const P: Duration = Duration::from_millis(250);
/// For locks that are lost in a test.
const TTL: Duration = Duration::from_millis(3_700);
const T: Duration = Duration::from_millis(600);
/// For acknowledgements that do not come.
const ACK: Duration = Duration::from_millis(150);
/// For acknowledgements that come.
const PATIENT_ACK: Duration = Duration::from_millis(1_900);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(30);

fn builder(url: &str) -> Builder {
    LockManager::builder(url)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(P)
        .horizon(Duration::from_millis(2_050))
}

/// A manager whose replicas have much time. On a loaded machine, acknowledgements come late.
#[track_caller]
fn patient(set: &ReplicaSet, replicas: u32) -> LockManager {
    build(
        LockManager::builder(set.url())
            .options(LockOptions::new().ttl(Duration::from_secs(25)))
            .command_timeout(Duration::from_secs(4))
            .check_period(P)
            .horizon(Duration::from_millis(12_500))
            .replica_acks(replicas, PATIENT_ACK),
    )
}

/// A manager whose locks need no replica.
#[track_caller]
fn plain(set: &ReplicaSet) -> LockManager {
    build(builder(&set.url()))
}

/// A manager whose locks need this many replicas.
#[track_caller]
fn acked(set: &ReplicaSet, replicas: u32) -> LockManager {
    build(builder(&set.url()).replica_acks(replicas, ACK))
}

/// Builds the manager, and tries again if the machine was too slow for the connect timeout.
#[track_caller]
fn build(builder: Builder) -> LockManager {
    until_some(SOON, "the server is there", || {
        match builder.clone().build() {
            Ok(manager) => Some(manager),
            Err(Error::Unavailable { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
}

#[track_caller]
fn assert_not_replicated<G>(outcome: Result<G>, lock: &str, wanted: u32, acknowledged: u32) {
    match outcome {
        Err(Error::Unavailable {
            lock: name,
            step: Step::Replicas,
            cause,
            ..
        }) => {
            let counts = format!("only {acknowledged} of {wanted} replicas acknowledged it");
            assert_eq!((name.as_deref(), cause.to_string()), (Some(lock), counts));
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("{lock} was granted"),
    }
}

/// Takes a free lock, however late acknowledgements come on a loaded machine.
#[track_caller]
fn lock_acked(manager: &LockManager, name: &str) -> LockGuard {
    until_some(SOON, "acknowledgements come", || match manager.lock(name) {
        Ok(guard) => Some(guard),
        Err(Error::Unavailable {
            step: Step::Replicas,
            ..
        }) => None,
        Err(other) => panic!("{other}"),
    })
}

#[track_caller]
fn becomes_free(other: &LockManager, name: &str) {
    let guard = until_some(SOON, &format!("{name} is free"), || {
        other.try_lock(name).unwrap()
    });
    guard.unlock().unwrap();
}

/// The owner's token in the record of a mutex.
fn owner(server: &Server, name: &str) -> Option<String> {
    server.query(&["HGET", &format!("fairlock:{{{name}}}"), "o"])
}

#[test]
fn a_connection_that_awaits_replicas_is_named_so() {
    let set = ReplicaSet::start(1);
    let labelled = builder(&set.url())
        .options(LockOptions::new().ttl(TTL).label("billing"))
        .replica_acks(1, ACK);
    let mgr = build(labelled);
    let _guard = until_some(SOON, "the replica acknowledges it", || mgr.lock("a").ok());
    // The renewal thread checks the queue over another connection than the renewals'.
    let _waiter = mgr.enqueue("a").expect("the master answers");
    for role in ["lane", "acks", "renewal"] {
        await_role(&set.master, role);
    }
}

#[test]
fn r18_a_detached_lock_is_on_all_replicas() {
    let set = ReplicaSet::start(2);
    let (one, other) = (patient(&set, 2), patient(&set, 2));
    let is_everywhere = |token: &Option<String>| {
        set.replicas
            .iter()
            .all(|replica| owner(&replica.server, "n") == *token)
    };
    let mut guard = one.lock("n").unwrap();
    for turn in 0..10 {
        let before = owner(&set.master, "n");
        let detached = guard.detach(SOON).unwrap();
        let token = owner(&set.master, "n");
        assert!(token != before && is_everywhere(&token));
        let bearer = if turn % 2 == 0 { &other } else { &one };
        guard = bearer.attach(&detached).unwrap();
        assert!(is_everywhere(&owner(&set.master, "n")));
    }
}

#[test]
fn r18_a_text_serves_another_try_after_too_few_acks() {
    let set = ReplicaSet::start(1);
    let (giver, bearer) = (plain(&set), patient(&set, 2));
    let detached = giver.lock("n").unwrap().detach(SOON).unwrap();
    for _ in 0..2 {
        assert_not_replicated(bearer.attach(&detached), "n", 2, 1);
        assert!(
            giver.try_lock("n").unwrap().is_none(),
            "it is still detached"
        );
    }
    let guard = giver.attach(&detached).unwrap();
    assert!(guard.fence() > detached.fence());
    guard.unlock().unwrap();
    becomes_free(&giver, "n");
}

/// A worker may take the job again when the replica is back.
#[test]
fn text_outlives_a_replica_that_is_away() {
    let set = ReplicaSet::start(1);
    let (giver, bearers) = (patient(&set, 1), [acked(&set, 1), acked(&set, 1)]);
    let texts = [0, 1, 2, 3].map(|i| {
        let guard = giver.lock(format!("n{i}")).unwrap();
        guard.detach(Duration::from_secs(60)).unwrap()
    });
    set.replicas[0].server.stop();
    for (i, text) in texts.iter().enumerate() {
        let attached = bearers[i % 2].attach(text);
        assert_not_replicated(attached, text.name(), 1, 0);
    }
    set.replicas[0].server.cont();
    for (i, text) in texts.iter().enumerate() {
        let guard = until_some(SOON, "it is attached", || {
            bearers[1 - i % 2].attach(text).ok()
        });
        assert!(guard.fence() > text.fence());
        guard.unlock().unwrap();
    }
}

#[test]
fn r18_a_granted_lock_is_on_all_replicas() {
    let set = ReplicaSet::start(2);
    let manager = patient(&set, 2);
    for i in 0..50 {
        let name = format!("n{i}");
        let _guard = manager.lock(&name).unwrap();
        let token = owner(&set.master, &name);
        assert!(token.is_some());
        for replica in &set.replicas {
            assert_eq!(owner(&replica.server, &name), token, "{name}");
        }
    }
}

#[test]
fn r18_too_few_acks_fail_the_lock_and_free_it() {
    let set = ReplicaSet::start(2);
    let (manager, other) = (acked(&set, 2), plain(&set));
    set.replicas[1].server.stop();
    assert_not_replicated(patient(&set, 2).try_lock("patient"), "patient", 2, 1);
    becomes_free(&other, "patient");
    set.replicas[0].server.stop();
    // Also the first on a new connection, where WAIT alone would count all replicas.
    for name in ["first", "second"] {
        let started = Instant::now();
        assert_not_replicated(manager.try_lock(name), name, 2, 0);
        let took = started.elapsed();
        assert!(took >= ACK && took < ACK + T + SLACK, "{took:?}");
        becomes_free(&other, name);
    }
    let started = Instant::now();
    assert_not_replicated(manager.lock("third"), "third", 2, 0);
    assert!(started.elapsed() < ACK + T + SLACK);
    becomes_free(&other, "third");
    for replica in &set.replicas {
        replica.server.cont();
    }
    drop(lock_acked(&manager, "third"));
}

#[test]
fn r18_every_kind_of_lock_needs_acks() {
    let set = ReplicaSet::start(1);
    let manager = acked(&set, 1);
    // Opens the subscription, so that later calls register waiters.
    let _ = manager.enqueue("warm");
    set.replicas[0].server.stop();
    assert_not_replicated(manager.lock("mutex"), "mutex", 1, 0);
    assert_not_replicated(manager.try_lock_for("timed", T), "timed", 1, 0);
    assert_not_replicated(manager.reentrant_mutex("again").lock(), "again", 1, 0);
    assert_not_replicated(manager.semaphore("permits", 3).acquire(2), "permits", 1, 0);
    assert_not_replicated(manager.rw_lock("shared").read(), "shared", 1, 0);
    assert_not_replicated(manager.rw_lock("shared").try_write(), "shared", 1, 0);
    let waiter = manager.enqueue("queued");
    assert_not_replicated(waiter.and_then(|waiter| waiter.wait()), "queued", 1, 0);
    match manager.lock_all(["a", "b"]) {
        Err(Error::Unavailable {
            step: Step::Replicas,
            cause,
            ..
        }) => {
            assert!(cause.to_string().contains(" of 1 "), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    let fixed = manager.with(LockOptions::new().fixed_lease(TTL));
    assert_not_replicated(fixed.try_lock("fixed"), "fixed", 1, 0);
    let other = plain(&set);
    for name in ["mutex", "timed", "again", "queued", "a", "b", "fixed"] {
        becomes_free(&other, name);
    }
    until(SOON, "all permits are released", || {
        let all = other.semaphore("permits", 3).try_acquire(3);
        all.unwrap().is_some()
    });
}

/// The grant becomes known by a message, from a release of another manager.
#[test]
fn r18_a_lock_from_another_process_needs_acks() {
    let set = ReplicaSet::start(1);
    let other = plain(&set);
    let waits = |manager: &LockManager, name| {
        let held = other.lock(name).unwrap();
        let waiter = manager.enqueue(name).unwrap();
        (held, waiter)
    };
    let (held, waiter) = waits(&patient(&set, 1), "healthy");
    held.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    assert_eq!(
        owner(&set.replicas[0].server, "healthy"),
        owner(&set.master, "healthy")
    );
    drop(guard);

    let (held, waiter) = waits(&acked(&set, 1), "cut off");
    set.replicas[0].server.stop();
    let started = Instant::now();
    held.unlock().unwrap();
    assert_not_replicated(waiter.wait(), "cut off", 1, 0);
    assert!(started.elapsed() < ACK + T + SLACK);
    becomes_free(&other, "cut off");
}

/// The grant becomes known in the reply to a release of the same manager.
#[test]
fn r18_a_lock_from_another_thread_needs_acks() {
    let set = ReplicaSet::start(1);
    let (manager, other) = (acked(&set, 1), plain(&set));
    let held = lock_acked(&manager, "n");
    let waiter = manager.enqueue("n").unwrap();
    set.replicas[0].server.stop();
    held.unlock().unwrap();
    assert_not_replicated(waiter.wait(), "n", 1, 0);
    becomes_free(&other, "n");
}

/// Without a subscription, the grant becomes known by a sync.
#[test]
fn r18_a_lock_found_by_a_check_needs_acks() {
    let set = ReplicaSet::start(1);
    let (manager, other) = (acked(&set, 1), plain(&set));
    let held = other.lock("n").unwrap();
    let waiter = manager.enqueue("n").unwrap();
    // No message gets through.
    let clients: String = set.master.query(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
    assert!(clients.lines().count() >= 1, "{clients}");
    set.master
        .query::<()>(&["ACL", "SETUSER", "default", "resetchannels"]);
    set.master
        .query::<u64>(&["CLIENT", "KILL", "TYPE", "PUBSUB"]);
    set.replicas[0].server.stop();
    held.unlock().unwrap();
    match waiter.wait() {
        Err(Error::Unavailable {
            step: Step::Replicas,
            ..
        }) => becomes_free(&other, "n"),
        other => panic!("{other:?}"),
    }
}

/// The renewal thread enqueues the waiter again, and the lock is free.
#[test]
fn r18_a_lock_found_free_by_a_requeue_needs_acks() {
    let set = ReplicaSet::start(1);
    let (manager, other) = (acked(&set, 1), plain(&set));
    let held = other.lock("n").unwrap();
    let waiter = manager.enqueue("n").unwrap();
    set.replicas[0].server.stop();
    set.master.query::<()>(&["FLUSHALL"]);
    assert_not_replicated(waiter.wait(), "n", 1, 0);
    drop(held);
    becomes_free(&other, "n");
}

#[test]
fn r18_one_wait_serves_many_callers() {
    const THREADS: u64 = 32;
    const EACH: u64 = 10;
    let set = ReplicaSet::start(1);
    let manager = patient(&set, 1);
    manager.lock("warm").unwrap().unlock().unwrap();
    // So callers come while a WAIT is under way.
    set.replicas[0].cable.delay(Duration::from_millis(5));
    let before = set.commands("wait");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let manager = &manager;
            scope.spawn(move || {
                for i in 0..EACH {
                    let guard = manager.lock(format!("{thread}/{i}")).unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let waits = set.commands("wait") - before;
    assert!(
        waits <= THREADS * EACH / 4,
        "{waits} WAITs for {} grants",
        THREADS * EACH
    );
}

#[test]
fn r18_unacknowledged_renewals_lose_the_lock_at_its_deadline() {
    let set = ReplicaSet::start(1);
    let manager = acked(&set, 1);
    let guard = lock_acked(&manager, "n");
    until(SOON, "a renewal counts", || {
        manager.stats().renewals_confirmed > 0
    });
    set.replicas[0].server.stop();
    // One more may have been acknowledged just before.
    let renewed = manager.stats().renewals_confirmed + 1;
    let loss = guard.lost().recv_timeout(TTL + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(!guard.is_held());
    let stats = manager.stats();
    assert!(stats.renewals_confirmed <= renewed, "{stats:?}");
    assert!(stats.renewals_failed > 0, "{stats:?}");
    becomes_free(&plain(&set), "n");
}

#[test]
fn r18_renew_says_how_many_acknowledged() {
    let set = ReplicaSet::start(2);
    let manager = patient(&set, 2);
    let guard = manager.lock("n").unwrap();
    guard.renew().unwrap();
    set.replicas[0].server.stop();
    let before = guard.remaining();
    assert_not_replicated(guard.renew(), "n", 2, 1);
    assert!(guard.remaining() < before, "the deadline was moved");
    assert!(guard.is_held());
}

/// The server becomes a replica while it waits for acknowledgements.
#[test]
fn r18_a_role_change_during_the_wait_grants_nothing() {
    let set = ReplicaSet::start(1);
    let manager = patient(&set, 1);
    set.replicas[0].server.stop();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let manager = &manager;
        scope.spawn(move || sender.send(manager.try_lock("n").map(|guard| guard.is_some())));
        until(SOON, "the caller waits for the replica", || {
            let clients: String = set.master.query(&["INFO", "clients"]);
            clients.contains("blocked_clients:1")
        });
        let port = set.replicas[0].server.addr().port().to_string();
        set.master.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
        let started = Instant::now();
        let outcome = receiver.recv_timeout(SOON).unwrap();
        assert!(started.elapsed() < PATIENT_ACK, "it waited for the replica");
        match outcome {
            Err(Error::Refused { code, .. }) => assert_eq!(code, "UNBLOCKED"),
            other => panic!("{other:?}"),
        }
    });
    set.replicas[0].server.cont();
    set.master.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    becomes_free(&plain(&set), "n");
}

#[test]
fn r18_a_closed_connection_is_opened_again() {
    let set = ReplicaSet::start(1);
    let manager = patient(&set, 1);
    let guard = manager.lock("n").unwrap();
    for _ in 0..5 {
        set.master
            .query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        guard.renew().unwrap();
        manager.lock("m").unwrap().unlock().unwrap();
    }
}

/// The failover that the setting is for. The replica has received all that it acknowledged, and
/// nothing of what was written while it was cut off.
#[test]
fn r18_acknowledged_locks_survive_a_failover_that_loses_others() {
    let set = ReplicaSet::start(1);
    let (safe, unsafe_) = (patient(&set, 1), plain(&set));
    let kept: Vec<_> = (0..10)
        .map(|i| safe.lock(format!("kept{i}")).unwrap())
        .collect();
    let replica = &set.replicas[0];
    replica.cable.hold();
    let overtaken: Vec<_> = (0..10)
        .map(|i| unsafe_.lock(format!("overtaken{i}")).unwrap())
        .collect();
    assert_not_replicated(safe.try_lock("late"), "late", 1, 0);
    set.master.kill();
    replica.cable.cut();
    replica.promote();
    let survivor = build(builder(&replica.server.url()));
    for guard in &kept {
        assert!(guard.is_held());
        let taken = survivor.try_lock(guard.name()).unwrap();
        assert!(taken.is_none(), "{} has two holders", guard.name());
        let seen = survivor.inspect(guard.name()).unwrap().unwrap();
        assert_eq!(seen.fence, guard.fence());
    }
    for guard in &overtaken {
        assert!(guard.is_held(), "its holder still believes in it");
        let taken = survivor.try_lock(guard.name()).unwrap();
        assert!(taken.is_some(), "{} survived", guard.name());
    }
    assert!(survivor.try_lock("late").unwrap().is_some());
}

#[test]
fn without_replica_acks_no_wait_is_sent() {
    let set = ReplicaSet::start(1);
    let manager = build(builder(&set.url()).replica_acks(0, Duration::ZERO));
    let before = set.commands("wait");
    let guard = manager.lock("n").unwrap();
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert_eq!(set.commands("wait"), before);
    // One lane, or two.
    assert!(manager.stats().connects <= 2);
}

#[test]
fn a_missing_right_to_wait_fails_the_build() {
    let set = ReplicaSet::start(1);
    let user = [
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-wait",
    ];
    set.master.query::<()>(&user);
    let port = set.master.addr().port();
    let url = format!("redis://app:pw@127.0.0.1:{port}/");
    match builder(&url).replica_acks(1, ACK).build() {
        Err(Error::Refused { code, message, .. }) => {
            assert_eq!(code, "NOPERM");
            assert!(message.contains("+wait"), "{message}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the user may not run WAIT"),
    }
    build(builder(&url)).lock("n").unwrap().unlock().unwrap();
}

#[track_caller]
fn assert_is_of_acks(misuse: &Misuse) {
    let is_of_acks = matches!(misuse, Misuse::Setting { name, .. } if *name == "replica_acks");
    assert!(is_of_acks, "{misuse:?}");
}

#[test]
fn an_ack_timeout_that_does_not_fit_is_refused() {
    for timeout in [Duration::ZERO, Duration::from_micros(10), T] {
        match builder("redis://127.0.0.1:1/")
            .replica_acks(1, timeout)
            .build()
        {
            Err(Error::Misused { misuse, .. }) => assert_is_of_acks(&misuse),
            other => panic!("{timeout:?}: {other:?}"),
        }
    }
}

#[test]
fn a_quorum_has_no_replicas() {
    let quorum = Endpoint::quorum([
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
        "redis://127.0.0.1:3",
    ]);
    match LockManager::builder(quorum).replica_acks(1, ACK).build() {
        Err(Error::Misused { misuse, .. }) => assert_is_of_acks(&misuse),
        other => panic!("{other:?}"),
    }
}

#[cfg(feature = "memory")]
#[test]
fn a_store_in_memory_has_no_replicas() {
    match LockManager::builder(&fairlock::memory::Memory::new())
        .replica_acks(1, Duration::from_millis(10))
        .build()
    {
        Err(Error::Misused { misuse, .. }) => assert_is_of_acks(&misuse),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deleted_name_is_gone_from_the_replicas_too() {
    let set = ReplicaSet::start(1);
    let mgr = patient(&set, 1);
    let guard = lock_acked(&mgr, "a");
    assert!(!mgr.delete("a").unwrap());
    guard.unlock().unwrap();
    assert!(mgr.delete("a").unwrap());
    let replica = &set.replicas[0].server;
    until(SOON, "the replica has deleted it", || {
        replica
            .query::<Vec<String>>(&["KEYS", "fairlock*"])
            .is_empty()
    });
}
