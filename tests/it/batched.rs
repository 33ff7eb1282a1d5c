//! Calls that find no free connection join a batch: its leader waits for a connection, and sends
//! the followers' requests with its own. These tests show the shared and the unshared parts. On
//! Redis alone, since the in-memory store has no pool.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use fairlock::{Builder, Error, LockGuard, LockManager, Result, Step};

use crate::fixtures::{
    H, P, Record, SOON, STEADY_T, TTL, Verb, build, request, steady, warm_up, with_ttl,
};
use crate::support::{Proxy, SLACK, Server, contains, proxy, until};

/// So long that no call times out while others are examined.
const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

fn patient(url: String) -> Builder {
    with_ttl(url, 8 * LONG)
        .command_timeout(LONG)
        .check_period(P)
        .horizon(4 * LONG)
}

/// A manager with a single connection for its calls, which goes through a proxy.
struct Setup {
    server: Server,
    proxy: Proxy,
    ours: LockManager,
}

fn one_connection(builder: impl FnOnce(String) -> Builder) -> Setup {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(builder(proxy.url()).lanes(1));
    warm_up(&ours);
    Setup {
        server,
        proxy,
        ours,
    }
}

/// Callers, each on its own thread, in a call that does not return soon.
struct Callers<'scope> {
    calls: Vec<ScopedJoinHandle<'scope, Result<Option<LockGuard>>>>,
}

impl<'scope> Callers<'scope> {
    /// Each caller uses its own name, `{name}{i}`. When this returns, all of them sleep in their
    /// calls.
    fn call<'env>(
        scope: &'scope Scope<'scope, 'env>,
        name: &'static str,
        count: usize,
        call: impl Fn(&str) -> Result<Option<LockGuard>> + Send + Copy + 'scope,
    ) -> Callers<'scope> {
        static CALLERS: AtomicU64 = AtomicU64::new(0);
        // Tests run at the same time in this process, so the threads' names must differ.
        let callers = format!("callers{}-", CALLERS.fetch_add(1, Ordering::Relaxed));
        let spawn = |i| {
            let thread = thread::Builder::new().name(format!("{callers}{i}"));
            thread
                .spawn_scoped(scope, move || call(&format!("{name}{i}")))
                .expect("a thread")
        };
        let calls = (0..count).map(spawn).collect();
        until(SOON, "all of them sleep in their calls", || {
            sleeping(&callers) == count
        });
        Callers { calls }
    }

    /// A caller whose request for `first0` the proxy holds back, so that its connection stays
    /// taken.
    fn stick<'env>(
        scope: &'scope Scope<'scope, 'env>,
        proxy: &Proxy,
        mgr: &'scope LockManager,
    ) -> (proxy::HeldRequest, Callers<'scope>) {
        let held = proxy.hold_request_when(request(Verb::Acquire, "first0"));
        let caller = Callers::call(scope, "first", 1, |name| mgr.try_lock(name));
        held.wait(SOON);
        (held, caller)
    }

    fn guards(self) -> Vec<LockGuard> {
        self.ends()
            .into_iter()
            .map(|end| end.expect("no error").expect("it is free"))
            .collect()
    }

    fn ends(self) -> Vec<Result<Option<LockGuard>>> {
        self.calls
            .into_iter()
            .map(|call| call.join().expect("no panic"))
            .collect()
    }
}

/// How many of this process's threads with this prefix are asleep. The kernel keeps the first 15
/// bytes of a name.
fn sleeping(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this process has threads");
    // "1234 (name) S 1 ..."
    let stats = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains(&format!("({name}")) && stat.contains(") S "))
        .count()
}

#[test]
fn calls_without_a_free_connection_share_one_write() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 40, |name| ours.try_lock(name));
        let before = (
            ours.stats().requests,
            server.counted("total_reads_processed"),
        );
        first.release();
        let guards = many.guards();
        let reads = server.counted("total_reads_processed") - before.1;
        assert!(ours.stats().requests - before.0 >= 40);
        // The first call's read, those for the test's own queries, and more if the proxy split the
        // pipeline.
        assert!(reads <= 8, "the server read {reads} times for 40 calls");
        guards
            .into_iter()
            .chain(one.guards())
            .for_each(|guard| guard.unlock().unwrap());
    });
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

#[test]
fn p9_a_stuck_connection_delays_only_its_own_calls() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(patient(proxy.url()).lanes(2));
    warm_up(&ours);
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        let holds =
            ["first0", "second0"].map(|name| proxy.hold_request_when(request(Verb::Acquire, name)));
        let first = Callers::call(scope, "first", 1, |name| ours.try_lock(name));
        let second = Callers::call(scope, "second", 1, |name| ours.try_lock(name));
        holds.iter().for_each(|hold| hold.wait(SOON));
        // These calls form a batch on the connection that is freed first, and the proxy holds that
        // batch back.
        let stuck = proxy.hold_request_when(contains("{stuck"));
        let callers = Callers::call(scope, "stuck", 6, |name| ours.try_lock(name));
        let [one, other] = holds;
        one.release();
        stuck.wait(SOON);
        other.release();
        let (ours, turns) = (&ours, &turns);
        for i in 0..16 {
            scope.spawn(move || {
                let name = format!("other{i}");
                for _ in 0..20 {
                    ours.lock(&name).unwrap().unlock().unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until(LONG, "the others get their turns", || {
            turns.load(Ordering::Relaxed) == 16 * 20
        });
        assert!(stuck.is_held() && callers.calls.iter().all(|call| !call.is_finished()));
        stuck.release();
        let guards = [first, second, callers]
            .into_iter()
            .flat_map(Callers::guards);
        guards.for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn p8_a_waiting_follower_ends_at_its_own_deadline() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(|url| {
        with_ttl(url, 3 * TTL)
            .command_timeout(STEADY_T)
            .check_period(P)
            .horizon(2 * H + P)
    });
    // All later calls join the batch of a leader that waits for the stuck connection.
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let start = Instant::now();
        let leader = Callers::call(scope, "leader", 1, |name| ours.try_lock(name));
        let short = Callers::call(scope, "short", 4, |name| {
            ours.try_lock_for(name, STEADY_T / 4)
        });
        for end in short.ends() {
            assert!(
                matches!(
                    end,
                    Err(Error::Unavailable {
                        step: Step::Pool,
                        ..
                    })
                ),
                "{end:?}"
            );
        }
        let took = start.elapsed();
        assert!(took <= STEADY_T / 4 + STEADY_T + SLACK, "{took:?}");
        first.release();
        // These two may have timed out by now; how they end is not under test.
        drop((one.ends(), leader.ends()));
    });
    for name in ["first0", "leader0", "short0", "short3"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn p8_a_follower_sent_late_ends_at_its_own_deadline() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let leader = Callers::call(scope, "leader", 1, |name| ours.try_lock(name));
        let start = Instant::now();
        let short = Callers::call(scope, "short", 3, |name| ours.try_lock_for(name, SHORT));
        let second = proxy.hold_request_when(request(Verb::Acquire, "leader0"));
        let third = proxy.hold_request_when(request(Verb::Acquire, "short1"));
        // Wait until the followers' deadline is over but their time for a connection is not: they
        // are then sent late.
        thread::sleep((start + SHORT + LONG / 3).saturating_duration_since(Instant::now()));
        first.release();
        second.wait(SOON);
        for end in short.ends() {
            assert!(
                matches!(
                    end,
                    Err(Error::Unavailable {
                        step: Step::Reply,
                        ..
                    })
                ),
                "{end:?}"
            );
        }
        let took = start.elapsed();
        assert!(took <= SHORT + LONG + SLACK, "{took:?}");
        second.release();
        let said = third.release();
        assert!(
            contains("late")(&said),
            "R5 (dated requests): it took the lock: {:?}",
            String::from_utf8_lossy(&said)
        );
        drop((one.ends(), leader.ends()));
    });
    for name in ["short0", "short1", "short2"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn p7_a_follower_that_timed_out_in_a_batch_takes_nothing() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(steady);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let leader = Callers::call(scope, "leader", 1, |name| ours.try_lock(name));
        let followers = Callers::call(scope, "along", 3, |name| {
            ours.try_lock_for(name, STEADY_T / 4)
        });
        let second = proxy.hold_request_when(request(Verb::Acquire, "leader0"));
        first.release();
        second.wait(SOON);
        for end in followers.ends() {
            assert!(
                matches!(
                    end,
                    Err(Error::Unavailable {
                        step: Step::Reply,
                        ..
                    })
                ),
                "{end:?}"
            );
        }
        // The server carries the held request out or refuses it as late. Either way nothing stays
        // taken.
        second.release();
        drop((one.ends(), leader.ends()));
    });
    for name in ["leader0", "along0", "along1", "along2"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn calls_waiting_for_a_broken_connection_get_another() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (_first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
        proxy.reset_all();
        // The calls get an error if the pool opens no other connection for them: they would wait
        // for LONG.
        let guards = many.guards().into_iter().chain(one.guards());
        guards.for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn followers_are_sent_again_when_the_connection_was_closed() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
        let cut = proxy.swallow_and_reset_when(request(Verb::Acquire, "many7"));
        first.release();
        let guards = many.guards().into_iter().chain(one.guards());
        assert!(cut.has_triggered());
        guards.for_each(|guard| guard.unlock().unwrap());
    });
    for i in 0..12 {
        Record::of(&server, &format!("many{i}")).comes_to_rest();
    }
}

#[test]
fn a_forgotten_script_is_sent_once_for_a_whole_batch() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
        let _: String = server.query(&["SCRIPT", "FLUSH"]);
        let before = proxy.requests_bytes();
        first.release();
        let guards: Vec<_> = many.guards().into_iter().chain(one.guards()).collect();
        let sent = proxy.requests_bytes() - before;
        // A script's source has 10 kB or more. It may be sent twice: for the first caller, and for
        // the batch.
        assert!(sent < 50_000, "{sent} bytes were sent");
        guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn without_a_connection_all_calls_fail_and_the_next_succeeds() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = one_connection(steady);
    thread::scope(|scope| {
        let (_first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
        proxy.refuse();
        proxy.reset_all();
        for end in one.ends().into_iter().chain(many.ends()) {
            assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
        }
        proxy.accept();
    });
    until(SOON, "connections can be opened again", || {
        ours.try_lock("next").is_ok()
    });
    assert!(ours.try_lock("next").unwrap().is_some());
}

#[test]
fn p10_a_broken_record_fails_only_its_own_callers() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    ours.lock("spoilt").unwrap().unlock().unwrap();
    // The field that says how the last holder ended gets a value that does not exist.
    Record::of(&server, "spoilt").set(&[("d", "5")]);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let before = Callers::call(scope, "before", 3, |name| ours.try_lock(name));
        let broken = Callers::call(scope, "spoilt", 1, |_| ours.try_lock("spoilt"));
        let behind = Callers::call(scope, "behind", 6, |name| ours.try_lock(name));
        first.release();
        let refused = broken.ends().remove(0);
        assert!(
            matches!(&refused, Err(Error::Server { code, .. }) if code == "PROTOCOL"),
            "{refused:?}"
        );
        let guards = [one, before, behind].into_iter().flat_map(Callers::guards);
        guards.for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn a_connection_broken_during_list_is_replaced_for_waiting_calls() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = one_connection(steady);
    let scan = proxy.swallow_silently_when(contains("SCAN"));
    thread::scope(|scope| {
        let listing = scope.spawn(|| ours.list("*").next());
        until(SOON, "the listing is in progress", || scan.has_triggered());
        // A call that starts now has half of its time for a connection left when the listing fails.
        thread::sleep(STEADY_T / 2);
        let one = Callers::call(scope, "one", 1, |name| ours.try_lock(name));
        assert!(matches!(
            listing.join().unwrap(),
            Some(Err(Error::Unavailable { .. }))
        ));
        assert_eq!(one.guards().len(), 1);
    });
}

#[test]
fn a_guard_dropped_without_a_free_connection_frees_its_lock() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = one_connection(patient);
    proxy.delay(Duration::from_millis(2));
    thread::scope(|scope| {
        for i in 0..16 {
            let ours = &ours;
            scope.spawn(move || {
                let name = format!("own{i}");
                for turn in 0..20 {
                    assert!(
                        ours.try_lock(&name).unwrap().is_some(),
                        "turn {turn} of {name}"
                    );
                }
            });
        }
    });
    assert!(ours.stats().background_releases > 16, "{:?}", ours.stats());
}

#[test]
fn p1_one_shared_connection_keeps_exclusion_while_it_keeps_breaking() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(steady);
    let inside = AtomicU64::new(0);
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for i in 0..24 {
            let (ours, inside, turns): (&LockManager, _, _) = (&ours, &inside, &turns);
            scope.spawn(move || {
                let name = format!("k{}", i % 3);
                let bit = 1 << (8 * (i % 3));
                for _ in 0..8 {
                    let guard = ours.lock(&name).unwrap();
                    let before = inside.fetch_add(bit, Ordering::SeqCst);
                    assert_eq!(before / bit % 256, 0, "another thread holds {name}");
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(bit, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        for breaks in 1..=4 {
            until(4 * SOON, "some threads have had a turn", || {
                turns.load(Ordering::SeqCst) >= 40 * breaks
            });
            proxy.reset_all();
        }
    });
    assert_eq!(turns.into_inner(), 24 * 8);
    assert_eq!(ours.stats().lost, 0);
    for i in 0..3 {
        Record::of(&server, &format!("k{i}")).comes_to_rest();
    }
}
