//! Several mutexes at once, while connections, writes and processes are counted or lost. On Redis
//! alone, since the in-memory store has none of these; the faults of both stores are in
//! `behaviour/all_faults.rs`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, PreviousHolder};

use crate::fixtures::{
    P, Record, SOON, STEADY_T as T, STEADY_TTL as TTL, Verb, build, request, steady, warm_up,
};
use crate::lost_replies::grants;
use crate::managers::{self, assert_nothing_left, patient};
use crate::sums::Sums;
use crate::support::{Proxy, SLACK, Server, throughout, until};
use crate::worker;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("n{i:02}")).collect()
}

#[test]
fn free_names_are_acquired_and_released_in_one_write_each() {
    let server = Server::tcp();
    let mgr = patient(server.url());
    let names = names(40);
    mgr.lock_all(&names).unwrap().unlock().unwrap();
    let before = (
        mgr.stats().requests,
        server.counted("total_reads_processed"),
    );
    let guard = mgr.lock_all(&names).unwrap();
    guard.unlock().unwrap();
    let reads = server.counted("total_reads_processed") - before.1;
    assert_eq!(mgr.stats().requests - before.0, 80);
    // One read for each write, more if the socket split one, and one for each query of the test
    // itself.
    assert!(reads <= 6, "the server read {reads} times");
}

#[test]
fn p9_threads_locking_several_names_share_one_connection_without_deadlock() {
    let server = Server::start();
    let mgr = build(steady(server.url()).lanes(1));
    let names = names(6);
    let inside: Vec<AtomicU32> = names.iter().map(|_| AtomicU32::new(0)).collect();
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for i in 0..24 {
            let (mgr, names, inside, turns) = (&mgr, &names, &inside, &turns);
            scope.spawn(move || {
                for turn in 0..4 {
                    // Every thread uses another order, and other names in each turn.
                    let mine = [i % 6, (i + 1 + turn) % 6, (i + 3) % 6];
                    let guard = mgr
                        .try_lock_all_for(mine.map(|at| &names[at]), 4 * SOON)
                        .unwrap()
                        .expect("no deadlock");
                    let mut once = mine.to_vec();
                    once.sort_unstable();
                    once.dedup();
                    for at in &once {
                        assert_eq!(
                            inside[*at].fetch_add(1, Ordering::SeqCst),
                            0,
                            "two hold {}",
                            names[*at]
                        );
                    }
                    guard.check().unwrap();
                    for at in &once {
                        inside[*at].fetch_sub(1, Ordering::SeqCst);
                    }
                    drop(guard);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((turns.into_inner(), mgr.stats().losses()), (24 * 4, 0));
    for name in &names {
        Record::of(&server, name).comes_to_rest();
    }
}

/// The caller holds the first name and waits for the second. The lost reply is that to its acquire
/// of the first, to its enqueue for the second, or to its acquire of the third.
#[test]
fn p7_acquiring_several_survives_any_lost_reply_and_grants_each_once() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (build(steady(proxy.url())), build(steady(server.url())));
    warm_up(&ours);
    let one_by_one = |ours: &LockManager| ours.lock_all(["a", "b", "c"]).unwrap();
    for lost in ["a", "b", "c"] {
        let taken = other.lock("b").unwrap();
        thread::scope(|scope| {
            // The first request tries all names at once and may not wait (it says 0); the fault is
            // for a later one.
            let about = request(Verb::Acquire, lost);
            let fault = proxy.swallow_silently_when(move |bytes| about(bytes) && waits(bytes));
            let waiting = scope.spawn(|| one_by_one(&ours));
            let queued = || other.inspect("b").unwrap().is_some_and(|b| b.waiters == 1);
            until(SOON, "it waits for the second", queued);
            taken.unlock().unwrap();
            let guard = waiting.join().unwrap();
            let reply = fault.wait(SOON);
            assert!(
                lost == "b" || grants(&reply, guard.fence(lost).unwrap()),
                "{lost} was granted twice"
            );
            for name in ["a", "b", "c"] {
                let record = Record::of(&server, name);
                assert_eq!(record.number("f"), guard.fence(name).unwrap(), "{lost}");
                assert_eq!(record.tokens(), [""; 0]);
            }
            guard.check().unwrap();
            guard.unlock().unwrap();
        });
        for name in ["a", "b", "c"] {
            Record::of(&server, name).comes_to_rest();
        }
    }
    assert_eq!(ours.stats().losses(), 0);
}

/// Whether these bytes hold an acquire that may wait.
fn waits(bytes: &[u8]) -> bool {
    bytes
        .windows(b"$1\r\n1\r\n".len())
        .any(|w| w == b"$1\r\n1\r\n")
}

/// Copies of the requests for all names arrive after their caller timed out: they take none of them,
/// not even briefly. A request behind another's on a lane is sent again while its caller waits.
#[test]
fn p7_a_request_for_several_arriving_after_its_timeout_takes_none() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(steady(proxy.url()));
    warm_up(&ours);
    // Copies that are sent again go out on another connection. The time is over for some.
    let held = ["a", "b", "c", "a", "b", "c"]
        .map(|name| proxy.hold_request_when(request(Verb::Acquire, name)));
    let start = Instant::now();
    let end = ours.try_lock_all(["a", "b", "c"]);
    assert!(start.elapsed() <= 3 * T + SLACK, "{:?}", start.elapsed());
    assert!(
        matches!(end, Err(fairlock::Error::Unavailable { .. })),
        "{end:?}"
    );
    let came: Vec<_> = held.into_iter().filter(|held| held.is_held()).collect();
    assert!(came.len() >= 3, "{}", came.len());
    for held in came {
        assert!(String::from_utf8_lossy(&held.release()).contains("late"));
    }
    proxy.disarm();
    for name in ["a", "b", "c"] {
        until(SOON, "none is kept", || {
            Record::of(&server, name).tokens() == [""; 0]
        });
    }
    ours.try_lock_all(["a", "b", "c"])
        .unwrap()
        .expect("they are free")
        .unlock()
        .unwrap();
}

#[test]
fn p6_after_an_empty_restart_several_names_are_lost_as_one() {
    let server = Server::start();
    let (ours, other) = (build(steady(server.url())), build(steady(server.url())));
    let guard = ours.lock_all(["a", "b", "c"]).unwrap();
    let fences = ["a", "b", "c"].map(|name| guard.fence(name).unwrap());
    server.restart();
    let loss = guard
        .lost()
        .recv_timeout(TTL / 3 + SLACK)
        .expect("the loss is reported");
    assert!(!guard.is_held() && fences.contains(&loss.fence));
    assert!(
        guard.lost().recv_timeout(Duration::ZERO).is_err(),
        "the loss was reported twice"
    );
    let next = other
        .try_lock_all_for(["a", "b", "c"], SOON)
        .unwrap()
        .expect("they are free");
    for (name, fence) in ["a", "b", "c"].iter().zip(fences) {
        assert!(next.fence(name).unwrap() > fence);
        assert_ne!(next.previous_holder(name), Some(PreviousHolder::Forced));
    }
    drop(guard);
    next.check().unwrap();
    next.unlock().unwrap();
    throughout(P, "they are free", || {
        ["a", "b", "c"]
            .iter()
            .for_each(|name| assert_nothing_left(&server, name));
        true
    });
}

/// One process holds all of its names. Another holds the first of its names and waits for the
/// second.
#[test]
fn p5_crashes_holding_or_awaiting_several_cost_each_name_one_ttl() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let mgr = managers::manager(server.url(), TTL);
    let [mut holds, mut waits] = [(); 2].map(|()| worker::start(&server.url(), TTL));
    holds.send("all b c");
    holds.expect("got all", worker::SOON);
    waits.send("all a b c");
    until(SOON, "it waits for the second", || {
        mgr.inspect("b").unwrap().is_some_and(|b| b.waiters == 1)
    });
    let waiters = ["a", "b", "c"].map(|name| mgr.enqueue(name).unwrap());
    let crash = Instant::now();
    holds.kill();
    waits.kill();
    let bound = TTL + managers::check_period(TTL) + SLACK;
    for mut waiter in waiters {
        waiter
            .wait_for(bound)
            .unwrap()
            .expect("its turn comes")
            .unlock()
            .unwrap();
    }
    assert!(crash.elapsed() < bound, "{:?}", crash.elapsed());
    for name in ["a", "b", "c"] {
        assert_nothing_left(&server, name);
    }
}
