//! Many calls on one lane: they are sent while earlier ones have no reply, and share only the
//! connection's fate. On Redis alone, since the in-memory store has no lanes.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use fairlock::{Builder, Error, LockGuard, LockManager, Result, Step};

use crate::fixtures::{P, Record, SOON, STEADY_T, Verb, build, request, steady, warm_up, with_ttl};
use crate::sums::Sums;
use crate::support::{Proxy, SLACK, Server, contains, proxy, until};
use crate::verbs_once;

/// So long that no call times out while others are examined.
const LONG: Duration = Duration::from_secs(10);
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
fn calls_behind_one_without_a_reply_are_sent_at_once() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let connects = ours.stats().connects;
        let sent = proxy.commands();
        let many = Callers::call(scope, "many", 40, |name| ours.try_lock(name));
        until(SOON, "all are under way", || proxy.commands() >= sent + 40);
        let waiting = |callers: &Callers| callers.calls.iter().all(|call| !call.is_finished());
        assert!(first.is_held() && waiting(&many));
        first.release();
        let guards = many.guards().into_iter().chain(one.guards());
        guards.for_each(|guard| guard.unlock().unwrap());
        assert_eq!(ours.stats().connects, connects);
    });
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

#[test]
fn p9_a_stuck_connection_delays_only_its_own_calls() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(patient(proxy.url()).lanes(2));
    warm_up(&ours);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let others: Vec<_> = (0..24)
            .map(|i| {
                let ours = &ours;
                scope.spawn(move || {
                    for _ in 0..20 {
                        ours.lock(format!("other{i}")).unwrap().unlock().unwrap();
                    }
                })
            })
            .collect();
        // Each name is on one of the two lanes.
        let done = || others.iter().filter(|call| call.is_finished()).count();
        until(LONG, "those on the other lane go on", || done() > 0);
        assert!(first.is_held() && done() < 24);
        first.release();
        for call in others {
            call.join().unwrap();
        }
        one.guards()
            .into_iter()
            .for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn p8_a_call_behind_many_others_ends_at_its_own_deadline() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(steady);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let start = Instant::now();
        let many = Callers::call(scope, "many", 40, |name| ours.try_lock(name));
        let short = Callers::call(scope, "short", 4, |name| {
            ours.try_lock_for(name, STEADY_T / 4)
        });
        for end in short.ends() {
            // The stuck lane is replaced after its first call's timeout, so a later one may succeed.
            let in_time = matches!(&end, Ok(Some(_)) | Err(Error::Unavailable { .. }));
            assert!(in_time, "{end:?}");
        }
        let took = start.elapsed();
        assert!(took <= STEADY_T / 4 + STEADY_T + SLACK, "{took:?}");
        first.release();
        drop((one.ends(), many.ends()));
        let took = start.elapsed();
        assert!(took <= 2 * STEADY_T + SLACK, "{took:?}");
    });
    for name in ["first0", "many0", "many39", "short0", "short3"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn p7_a_call_that_timed_out_on_a_lane_takes_nothing() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let start = Instant::now();
        let held = ["short0", "short1", "short2"]
            .map(|name| proxy.hold_request_when(request(Verb::Acquire, name)));
        let short = Callers::call(scope, "short", 3, |name| ours.try_lock_for(name, SHORT));
        for end in short.ends() {
            // A call with time left is sent again on the next connection, and has the lock.
            let is_unanswered = matches!(
                end,
                Ok(Some(_))
                    | Err(Error::Unavailable {
                        step: Step::Reply,
                        ..
                    })
            );
            assert!(is_unanswered, "{end:?}");
        }
        let took = start.elapsed();
        assert!(took <= SHORT + LONG + SLACK, "{took:?}");
        drop((first, held));
        // They stay held back; the lane was replaced.
        drop(one.ends());
    });
    for name in ["first0", "short0", "short1", "short2"] {
        Record::of(&server, name).comes_to_rest();
    }
}

#[test]
fn calls_on_a_broken_connection_get_another() {
    let Setup {
        server: _server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (_first, one) = Callers::stick(scope, &proxy, &ours);
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
        proxy.reset_all();
        let guards = many.guards().into_iter().chain(one.guards());
        guards.for_each(|guard| guard.unlock().unwrap());
    });
}

#[test]
fn calls_are_sent_again_when_their_lane_was_closed() {
    let Setup {
        server,
        proxy,
        ours,
    } = one_connection(patient);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let cut = proxy.swallow_and_reset_when(request(Verb::Acquire, "many7"));
        let many = Callers::call(scope, "many", 12, |name| ours.try_lock(name));
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
fn a_forgotten_script_is_sent_once_for_many_refused_calls() {
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
    // The field that says how the last holder ended gets a value that does not exist. It counts once
    // the lease's end is 0.
    Record::of(&server, "spoilt").set(&[("e", "0"), ("d", "5")]);
    thread::scope(|scope| {
        let (first, one) = Callers::stick(scope, &proxy, &ours);
        let before = Callers::call(scope, "before", 3, |name| ours.try_lock(name));
        let broken = Callers::call(scope, "spoilt", 1, |_| ours.try_lock("spoilt"));
        let behind = Callers::call(scope, "behind", 6, |name| ours.try_lock(name));
        first.release();
        let refused = broken.ends().remove(0);
        assert!(
            matches!(&refused, Err(Error::Refused { code, .. }) if code == "PROTOCOL"),
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
    } = one_connection(verbs_once::builder);
    let scan = proxy.swallow_silently_when(contains("SCAN"));
    thread::scope(|scope| {
        let listing = scope.spawn(|| ours.list("*").next());
        until(SOON, "the listing is in progress", || scan.has_triggered());
        // Time itself is under test: a call that starts then has half of its time for a connection
        // left when the listing fails.
        thread::sleep(verbs_once::T / 2);
        let one = Callers::call(scope, "one", 1, |name| ours.try_lock(name));
        // The listing goes on, on the same connection.
        let listed = listing.join().unwrap();
        assert!(!matches!(listed, Some(Err(_))), "{listed:?}");
        assert_eq!(one.guards().len(), 1);
    });
}

#[test]
fn a_guard_dropped_on_a_busy_lane_frees_its_lock() {
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
    assert_eq!(ours.stats().background_releases, 0, "{:?}", ours.stats());
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
    assert_eq!(ours.stats().losses(), 0);
    for i in 0..3 {
        Record::of(&server, &format!("k{i}")).comes_to_rest();
    }
}
