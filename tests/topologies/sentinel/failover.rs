//! A master takes over from another one.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager, LockOptions};

use super::common::{P, SOON, T, TTL, build, builder, manager, moment_of_change};
use crate::sentinel_set::{SERVICE, SentinelSet, SentinelSetup, is_master};
use crate::support::{EndLoops, SLACK, Server, throughout, until, until_some};

/// Our share of the time from the master's end to the next grant: from when a sentinel names the new
/// master. The rest is the sentinels' share.
#[test]
fn lock_is_granted_soon_after_sentinels_name_the_new_master() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let before = mgr.lock("a").unwrap();
    let fence = before.fence();
    before.unlock().unwrap();
    set.await_replication();
    let old = &set.nodes[0];
    let killed = Instant::now();
    old.kill();
    let (named, granted) = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = mgr.lock("a").unwrap();
            assert!(guard.fence() > fence);
            Instant::now()
        });
        let (named, _) = moment_of_change(&set, &set.sentinels, old);
        (named, waits.join().unwrap())
    });
    let ours = granted.saturating_duration_since(named);
    println!("sentinels' share {:?}, ours {ours:?}", named - killed);
    assert!(ours <= P + SLACK, "{ours:?}");
}

/// The call has a command timeout that is longer than the failover. The lease of another name is why
/// the sentinels are asked meanwhile.
#[test]
fn call_that_hangs_on_a_stopped_master_ends_at_failover() {
    let set = SentinelSet::start();
    let mgr = patient(&set);
    let _held = mgr.lock("held").unwrap();
    mgr.lock("a").unwrap().unlock().unwrap();
    set.await_replication();
    let old = &set.nodes[0];
    let stopped = Instant::now();
    old.stop();
    let (named, granted) = thread::scope(|scope| {
        let hangs = scope.spawn(|| {
            assert!(mgr.try_lock("a").unwrap().is_some());
            Instant::now()
        });
        let (named, _) = moment_of_change(&set, &set.sentinels, old);
        (named, hangs.join().unwrap())
    });
    let ours = granted.saturating_duration_since(named);
    println!("sentinels' share {:?}, ours {ours:?}", named - stopped);
    assert!(ours <= P + SLACK, "{ours:?}");
    assert!(granted - stopped < LONG_TIMEOUT, "the call ended by itself");
}

/// The same, while the call waits for a connection, since the lanes were closed before.
#[test]
fn wait_for_a_connection_to_a_stopped_master_ends_at_failover() {
    let set = SentinelSet::start();
    let mgr = patient(&set);
    let _held = mgr.lock("held").unwrap();
    let old = stop_behind_closed_lanes(&set, &mgr);
    let (named, granted) = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            assert!(mgr.try_lock("a").unwrap().is_some());
            Instant::now()
        });
        let (named, _) = moment_of_change(&set, &set.sentinels, old);
        (named, waits.join().unwrap())
    });
    let ours = granted.saturating_duration_since(named);
    assert!(ours <= P + SLACK, "{ours:?}");
}

#[test]
fn connection_wait_that_a_failover_ends_is_counted() {
    let set = SentinelSet::start();
    let mgr = patient(&set);
    let _held = mgr.lock("held").unwrap();
    stop_behind_closed_lanes(&set, &mgr);
    let before = mgr.stats().connection_waits;
    assert!(mgr.try_lock("a").unwrap().is_some());
    let stats = mgr.stats();
    // One on the stopped master, and one on the next.
    assert_eq!(stats.connection_waits - before, 2, "{stats}");
}

/// Stops the master. The lane of this name was open, and its connection is closed.
fn stop_behind_closed_lanes<'a>(set: &'a SentinelSet, mgr: &LockManager) -> &'a Server {
    mgr.lock("a").unwrap().unlock().unwrap();
    set.await_replication();
    let old = &set.nodes[0];
    let _: i64 = old.query(&["CLIENT", "KILL", "TYPE", "normal"]);
    old.stop();
    old
}

/// The command timeout of a [`patient`] manager. Sentinels that do not agree at once try again after
/// ten seconds.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// A manager whose command timeout is longer than a failover.
fn patient(set: &SentinelSet) -> LockManager {
    build(
        builder(set.url())
            .options(LockOptions::new().ttl(10 * LONG_TIMEOUT))
            .command_timeout(LONG_TIMEOUT)
            .horizon(5 * LONG_TIMEOUT),
    )
}

/// Locks and unlocks in a loop while `fail_over` runs and for `rest` after it. Every fence must be
/// larger than the one before.
fn check_no_error_surfaces<'a>(
    mgr: &LockManager,
    rest: Duration,
    fail_over: impl FnOnce() -> &'a Server,
) {
    let end = std::sync::atomic::AtomicBool::new(false);
    let new = thread::scope(|scope| {
        let cycles = scope.spawn(|| {
            let mut fence = 0;
            let mut count = 0;
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                let guard = mgr.lock("a").unwrap();
                assert!(guard.fence() > fence, "{} after {fence}", guard.fence());
                fence = guard.fence();
                count += 1;
                drop(guard);
                // A pause between two polls: each cycle looks for an error.
                thread::sleep(Duration::from_millis(1));
            }
            count
        });
        let ended = EndLoops(&end);
        let new = fail_over();
        // Time itself is under test: no cycle fails in it.
        thread::sleep(rest);
        drop(ended);
        let count = cycles.join().unwrap();
        println!("{count} locks");
        new
    });
    let guard = mgr.lock("a").unwrap();
    // A sentinel that reconfigures a server kills its clients, this test's connection among them.
    until(SOON, "the new master has it", || {
        matches!(new.try_query(&["HEXISTS", "fairlock:{a}", "o"]), Ok(true))
    });
    guard.unlock().unwrap();
}

/// So many locks that one call does not renew them all.
fn hold_many(mgr: &LockManager) -> Vec<LockGuard> {
    let names = (0..70).map(|number| format!("held-{number}"));
    names.map(|name| mgr.lock(name).unwrap()).collect()
}

#[test]
fn no_error_surfaces_in_a_failover_by_sentinels() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let held = hold_many(&mgr);
    // A failover by sentinels loses what its new master does not have yet.
    set.await_replication();
    check_no_error_surfaces(&mgr, TTL, || {
        set.sentinels[1].query::<()>(&["SENTINEL", "FAILOVER", SERVICE]);
        set.await_other_master(&set.all(), &set.nodes[0])
    });
    for guard in held {
        assert!(guard.is_held(), "{:?}", guard.lost().try_recv());
        guard.unlock().unwrap();
    }
}

/// The sentinels go on naming the old master, which is a replica now.
#[test]
fn no_error_surfaces_in_a_plain_failover() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let held = hold_many(&mgr);
    check_no_error_surfaces(&mgr, TTL, || {
        set.nodes[0].query::<()>(&["FAILOVER"]);
        until(SOON, "the old master is a replica", || {
            !is_master(&set.nodes[0])
        });
        assert_eq!(
            SentinelSet::named_by(&set.sentinels[0]),
            Some(set.nodes[0].addr())
        );
        until_some(SOON, "a replica took over", || {
            set.nodes[1..].iter().find(|node| is_master(node))
        })
    });
    for guard in held {
        assert!(guard.is_held(), "{:?}", guard.lost().try_recv());
        guard.unlock().unwrap();
    }
}

#[test]
fn waiter_is_ready_after_a_failover() {
    let set = SentinelSet::start();
    // The lease outlasts the failover.
    let options = LockOptions::new().ttl(2 * SOON);
    let [holder, ours] = [0, 1].map(|_| build(builder(set.url()).options(options.clone())));
    let guard = holder.lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    assert!(waiter.ready().is_empty());
    set.await_replication();
    set.nodes[0].kill();
    set.await_other_master(&set.all(), &set.nodes[0]);
    // The release may go on in the background until the new master is found.
    drop(guard);
    let guard = until_some(2 * SOON, "it is granted", || {
        let ready = waiter.ready().recv_timeout(2 * SOON);
        ready.expect("it is granted, or has failed");
        // Redis may have been silent for the outage limit, and then the wait goes on.
        waiter.wait_for(Duration::ZERO).ok().flatten()
    });
    guard.unlock().unwrap();
}

#[test]
fn waiters_keep_their_places_in_a_failover() {
    let set = SentinelSet::start();
    // The lease outlasts the failover.
    let options = LockOptions::new().ttl(2 * SOON);
    let [holder, first, second] =
        [0, 1, 2].map(|_| build(builder(set.url()).options(options.clone())));
    let guard = holder.lock("a").unwrap();
    let places = [first.enqueue("a").unwrap(), second.enqueue("a").unwrap()];
    set.await_replication();
    set.nodes[0].kill();
    set.await_other_master(&set.all(), &set.nodes[0]);
    // The manager may not have found the new master yet. Then the release goes on in the background.
    drop(guard);
    let [one, two] = places;
    let (granted, grants) = crossbeam_channel::unbounded();
    thread::scope(|scope| {
        let again = granted.clone();
        scope.spawn(move || {
            let guard = two.wait().unwrap();
            again.send((2, guard.fence())).unwrap();
        });
        scope.spawn(move || {
            let guard = one.wait().unwrap();
            granted.send((1, guard.fence())).unwrap();
            guard.unlock().unwrap();
        });
        let order: Vec<(i32, u64)> = (0..2).map(|_| grants.recv_timeout(SOON).unwrap()).collect();
        assert_eq!((order[0].0, order[1].0), (1, 2));
        assert!(order[0].1 < order[1].1);
    });
    assert_eq!(first.stats().requeues + second.stats().requeues, 0);
}

/// R12 (doubtful grants): the new master may have another clock, and a message of the old one may be
/// late. So grants that come by message are confirmed by a renewal, for T + P.
#[test]
fn grants_by_message_are_confirmed_after_a_change_of_master() {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: &[
            "--slowlog-log-slower-than",
            "0",
            "--slowlog-max-len",
            "100000",
        ],
        ..SentinelSetup::default()
    });
    // T + P is longer than a failover.
    let long = |to: String| {
        builder(to)
            .options(LockOptions::new().ttl(Duration::from_secs(100)))
            .command_timeout(SOON)
            .check_period(Duration::from_secs(2))
            .horizon(Duration::from_secs(50))
    };
    let (holder, waiter) = (build(long(set.url())), build(long(set.url())));
    let renewals = |node: &Server| {
        let log: Vec<redis::Value> = node.query(&["SLOWLOG", "GET", "-1"]);
        let words = log.into_iter().filter_map(|entry| match entry {
            redis::Value::Array(parts) => {
                redis::from_redis_value::<Vec<String>>(parts.into_iter().nth(3)?).ok()
            }
            _ => None,
        });
        // A renewal of a mutex has one key and ten words.
        words
            .filter(|words| words.len() == 10 && words[2] == "1" && words[3].contains("{a}"))
            .count()
    };
    let hand_over = |node: &Server| {
        let guard = holder.lock("a").unwrap();
        let place = waiter.enqueue("a").unwrap();
        let before = renewals(node);
        guard.unlock().unwrap();
        place.wait().unwrap().unlock().unwrap();
        renewals(node) - before
    };
    assert_eq!(
        hand_over(&set.nodes[0]),
        0,
        "the clock of the first master is known"
    );
    // While they hold something, managers look for another master.
    let _held = [holder.lock("b").unwrap(), waiter.lock("c").unwrap()];
    set.sentinels[0].query::<()>(&["SENTINEL", "FAILOVER", SERVICE]);
    let new = set.await_other_master(&set.all(), &set.nodes[0]);
    for (mgr, name) in [(&holder, "d"), (&waiter, "e")] {
        until(SOON, "the manager is at the new master", || {
            drop(mgr.try_lock(name).unwrap());
            new.query::<i64>(&["EXISTS", &format!("fairlock:{{{name}}}")]) == 1
        });
    }
    assert!(
        hand_over(new) > 0,
        "the clock of the new master is not known yet"
    );
}

/// R18 (replica acks): of two replicas, one is left to acknowledge what the other grants.
#[test]
fn acknowledged_grants_outlive_a_failover() {
    let set = SentinelSet::start();
    let mgr = build(builder(set.url()).replica_acks(1, T / 2));
    // On a busy machine the replicas may be silent for longer than the manager waits for them.
    let held = until_some(SOON, "a grant is acknowledged", || mgr.lock("held").ok());
    set.await_replication();
    let old = &set.nodes[0];
    set.sentinels[0].query::<()>(&["SENTINEL", "FAILOVER", SERVICE]);
    let new = set.await_other_master(&set.all(), old);
    until(SOON, "locks are granted by the new master", || {
        drop(mgr.lock("a"));
        new.query::<i64>(&["EXISTS", "fairlock:{a}"]) == 1
    });
    throughout(TTL, "its renewals are acknowledged", || held.is_held());
}
