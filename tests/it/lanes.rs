//! Lanes: a few connections that all callers share, and drops that do not wait for the reply. Each
//! rule of ARCHITECTURE.md's section on lanes has a test here that fails without it; the faults that
//! meet a release whose reply nobody waits for are in `unread_releases.rs`, and the end of a process
//! in `exits.rs`. On Redis alone, since the in-memory store has no connections.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Builder, LockManager, Waiter};

use crate::fixtures::{
    P, Record, SOON, STEADY_T, Verb, build, is_free_within, release, request, steady, warm_up,
    with_ttl,
};
use crate::managers;
use crate::sums::Sums;
use crate::support::{Proxy, SLACK, Server, until};

/// So long that no call times out, and no check helps out, while a test looks.
const LONG: Duration = Duration::from_secs(5);

/// Only replies bring grants and releases on: T and P are longer than any slack.
fn patient(url: String) -> Builder {
    with_ttl(url, 8 * LONG)
        .command_timeout(LONG)
        .check_period(LONG)
        .horizon(4 * LONG)
}

/// A server, a manager with one lane that goes through a proxy, and one that does not.
struct Setup {
    server: Server,
    proxy: Proxy,
    ours: LockManager,
    other: LockManager,
}

fn setup(builder: impl Fn(String) -> Builder) -> Setup {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(builder(proxy.url()).lanes(1));
    let other = build(builder(server.url()));
    warm_up(&ours);
    warm_up(&other);
    // Nothing is unread now: the reply to this is awaited.
    ours.lock("warm").unwrap().unlock().unwrap();
    Setup {
        server,
        proxy,
        ours,
        other,
    }
}

/// From now on the server knows the script of an acquire, and no other.
fn forget_all_but_acquires(s: &Setup, turn: usize) {
    let _: String = s.server.query(&["SCRIPT", "FLUSH"]);
    // It stays held, because a release would make its script known.
    std::mem::forget(s.other.try_lock(format!("known{turn}")).unwrap());
}

#[test]
fn drop_returns_while_its_release_is_under_way() {
    let s = setup(patient);
    let guard = s.ours.lock("a").unwrap();
    let held = s.proxy.hold_request_when(release("used", "a"));
    let start = Instant::now();
    drop(guard);
    assert!(start.elapsed() <= SLACK, "it waited for the reply");
    held.wait(SOON);
    assert!(s.other.try_lock("a").unwrap().is_none());
    held.release();
    is_free_within(SLACK, &s.other, "a");
}

#[test]
fn retry_that_meets_an_unknown_script_counts_once() {
    let s = setup(patient);
    let _: String = s.server.query(&["SCRIPT", "FLUSH"]);
    let before = s.ours.stats().retries;
    let closed = s.proxy.swallow_reply_when(request(Verb::Acquire, "a"));
    let guard = s.ours.lock("a").unwrap();
    closed.wait(SOON);
    let stats = s.ours.stats();
    assert_eq!(stats.retries - before, 1, "{stats}");
    guard.unlock().unwrap();
}

#[test]
fn wait_on_drop_waits_for_the_reply() {
    let s = setup(|url| patient(url).wait_on_drop(true));
    let guards = [s.ours.lock("a").unwrap(), s.ours.lock("b").unwrap()];
    let both = s.ours.lock_all(["c", "d"]).unwrap();
    let [a, b] = guards;
    type Dropping = Box<dyn FnOnce() + Send>;
    let drops: [(&str, Dropping); 3] = [
        ("a", Box::new(move || drop(a))),
        ("b", Box::new(move || drop(b))),
        ("c", Box::new(move || drop(both))),
    ];
    for (name, dropping) in drops {
        let held = s.proxy.hold_request_when(release("used", name));
        thread::scope(|scope| {
            let dropping = scope.spawn(dropping);
            held.wait(SOON);
            assert!(!dropping.is_finished());
            held.release();
        });
        assert!(s.other.try_lock(name).unwrap().is_some());
    }
}

/// The waiter's grant is in the reply, and no message announces it.
#[test]
fn drop_waits_for_a_reply_that_serves_its_own_process() {
    let s = setup(patient);
    let guard = s.ours.lock("a").unwrap();
    let mut waiter = s.ours.enqueue("a").unwrap();
    let held = s.proxy.hold_request_when(release("used", "a"));
    thread::scope(|scope| {
        let dropping = scope.spawn(|| drop(guard));
        held.wait(SOON);
        assert!(!dropping.is_finished());
        held.release();
    });
    let granted = waiter.wait_for(SLACK).unwrap();
    granted.expect("it was granted").unlock().unwrap();
}

/// P1: a deadline that counts from a later send would outlive the lease.
#[test]
fn r12_a_grant_is_dated_by_its_own_send() {
    const LATER: Duration = Duration::from_millis(500);
    let s = setup(patient);
    let dropped = s.ours.lock("dropped").unwrap();
    let held = s.proxy.hold_request_when(request(Verb::Acquire, "a"));
    thread::scope(|scope| {
        let first = scope.spawn(|| s.ours.try_lock("a"));
        held.wait(SOON);
        let seen = Instant::now();
        // Time itself is under test: the two sends are this far apart.
        thread::sleep(LATER);
        let sent = s.proxy.commands();
        let second = scope.spawn(|| s.ours.try_lock("b"));
        // This one's reply has no caller.
        drop(dropped);
        until(SOON, "both are sent behind it", || {
            s.proxy.commands() >= sent + 2
        });
        held.release();
        let guard = first.join().unwrap().unwrap().expect("it is free");
        let age = seen.elapsed();
        let left = guard.remaining();
        assert!(left + age <= 8 * LONG, "{left:?} after {age:?}");
        assert!(second.join().unwrap().unwrap().is_some());
    });
}

/// R20 (write order): the server runs neither the release nor, before it, what follows it.
#[test]
fn a_release_refused_with_noscript_goes_ahead_of_later_calls() {
    let s = setup(patient);
    for turn in 0..50 {
        let guard = s.ours.try_lock("a").unwrap().expect("it is free");
        forget_all_but_acquires(&s, turn);
        drop(guard);
        // Its first answer, "taken", came behind the refused release and is void.
        let again = s.ours.try_lock("a").unwrap();
        again.expect("the release came first").unlock().unwrap();
    }
}

#[test]
fn r13_a_waiter_behind_a_refused_release_is_served_at_once() {
    let s = setup(patient);
    for turn in 0..20 {
        let guard = s.ours.try_lock("a").unwrap().expect("it is free");
        forget_all_but_acquires(&s, turn);
        drop(guard);
        let mut waiter: Waiter = s.ours.enqueue("a").unwrap();
        let granted = waiter.wait_for(SLACK).unwrap();
        granted.expect("it is its turn").unlock().unwrap();
    }
}

#[test]
fn a_refused_release_that_nobody_follows_runs_soon() {
    let s = setup(steady);
    for turn in 0..3 {
        let guard = s.ours.lock("a").unwrap();
        forget_all_but_acquires(&s, turn);
        drop(guard);
        is_free_within(STEADY_T + SLACK, &s.other, "a");
    }
}

/// A release that serves more waiters than one request can: who reads the reply sends the next.
#[test]
fn an_unread_release_serves_all_of_many_waiters() {
    const MANY: usize = 150;
    // No check helps within the time that is allowed.
    let s = setup(|url| patient(url).command_timeout(STEADY_T));
    let writer = s.ours.rw_lock("r").write().unwrap();
    let readers: Vec<_> = (0..MANY)
        .map(|_| s.other.rw_lock("r").enqueue_read().unwrap())
        .collect();
    drop(writer);
    let start = Instant::now();
    for mut reader in readers {
        let left = (STEADY_T + SLACK).saturating_sub(start.elapsed());
        assert!(reader.wait_for(left).unwrap().is_some());
    }
}

#[test]
fn a_release_on_a_broken_lane_goes_ahead_of_later_calls() {
    let s = setup(patient);
    for _ in 0..10 {
        for names in [&["a"][..], &["a", "b", "c"]] {
            let guard = s.ours.lock_all(names).unwrap();
            let last = names[names.len() - 1];
            let reset = s.proxy.reset_request_when(release("used", last));
            drop(guard);
            let again = s.ours.try_lock_all(names).unwrap();
            assert!(reset.has_triggered());
            again.expect("the releases came first").unlock().unwrap();
        }
    }
}

/// Another caller reads while the lane has several releases that nobody waits for.
#[test]
fn all_unread_releases_of_a_broken_lane_are_sent_again() {
    let s = setup(patient);
    let guards: Vec<_> = (0..20)
        .map(|i| s.ours.lock(format!("k{i}")).unwrap())
        .collect();
    let held = s.proxy.hold_request_when(request(Verb::Acquire, "stuck"));
    thread::scope(|scope| {
        let reader = scope.spawn(|| s.ours.try_lock("stuck"));
        held.wait(SOON);
        let sent = s.proxy.commands();
        guards.into_iter().for_each(drop);
        until(SOON, "all are sent behind it", || {
            s.proxy.commands() >= sent + 20
        });
        s.proxy.reset_all();
        assert!(reader.join().unwrap().unwrap().is_some());
        for i in 0..20 {
            let again = s.ours.try_lock(format!("k{i}")).unwrap();
            assert!(again.is_some(), "k{i}");
        }
    });
    assert_eq!(s.ours.stats().losses(), 0);
}

#[test]
fn a_release_broken_off_that_nobody_follows_runs_soon() {
    let s = setup(steady);
    for _ in 0..3 {
        let guard = s.ours.lock("a").unwrap();
        let reset = s.proxy.reset_request_when(release("used", "a"));
        drop(guard);
        reset.wait(SOON);
        is_free_within(2 * STEADY_T + SLACK, &s.other, "a");
    }
}

#[test]
fn a_lane_whose_reply_is_overdue_is_replaced() {
    let s = setup(steady);
    let guard = s.ours.lock("a").unwrap();
    let late = s.proxy.hold_request_when(release("used", "a"));
    let before = s.ours.stats().connects;
    drop(guard);
    late.wait(SOON);
    is_released_in_background(&s, STEADY_T);
    // A call on the old lane would wait for its reply in vain.
    let guard = s.ours.try_lock("b").unwrap().expect("it is free");
    assert!(s.ours.stats().connects > before);
    guard.unlock().unwrap();
    late.release();
    is_free_within(SLACK, &s.other, "a");
    assert_eq!(s.ours.stats().losses(), 0);

    // If somebody waits for the reply, the call goes out again on the next connection.
    let late = s.proxy.hold_request_when(request(Verb::Acquire, "c"));
    let before = s.ours.stats().connects;
    let guard = s.ours.try_lock("c").unwrap().expect("it is free");
    assert!(s.ours.stats().connects > before);
    late.release();
    guard.renew().unwrap();
    guard.unlock().unwrap();
    Record::of(&s.server, "c").comes_to_rest();
}

#[track_caller]
fn is_released_in_background(s: &Setup, timeout: Duration) {
    until(
        timeout + SLACK,
        "the release goes on in the background",
        || s.ours.stats().background_releases > 0,
    );
}

/// A write into a connection that the server has closed succeeds and does nothing.
#[test]
fn a_drop_on_a_lane_that_closed_while_idle_has_released() {
    // A time of silence after which a lane may be dead, and long timeouts.
    let s = setup(|url| patient(url).check_period(P));
    for _ in 0..5 {
        let guard = s.ours.lock("a").unwrap();
        // Time itself is under test: the lane is idle for this long.
        thread::sleep(P);
        let _: i64 = s
            .server
            .query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        drop(guard);
        let next = s.other.try_lock("a").unwrap();
        next.expect("drop had the reply").unlock().unwrap();
    }
}

/// Here the write fails, so the drop notices that it cannot leave.
#[test]
fn a_drop_whose_write_fails_has_released() {
    let server = Server::start();
    let [ours, other] = [build(steady(server.url())), build(steady(server.url()))];
    for _ in 0..5 {
        // The server knows the scripts on this connection, and has just answered on it.
        ours.lock("a").unwrap().unlock().unwrap();
        let guard = ours.lock("a").unwrap();
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        drop(guard);
        let next = other.try_lock("a").unwrap();
        next.expect("drop had the reply").unlock().unwrap();
    }
}

#[test]
fn a_dropped_lock_is_free_for_every_later_call_of_its_manager() {
    const TURNS: usize = 10_000;
    let server = Server::start();
    let mgr = managers::patient(server.url());
    let (sender, taken) = crossbeam_channel::bounded::<String>(0);
    thread::scope(|scope| {
        let mgr = &mgr;
        // The channel ends with this thread.
        scope.spawn(move || {
            for name in taken {
                let guard = mgr.try_lock(&name).unwrap();
                drop(guard.unwrap_or_else(|| panic!("{name} is still taken")));
            }
        });
        for turn in 0..TURNS {
            let name = format!("k{}", turn % 7);
            drop(mgr.lock(&name).unwrap());
            sender.send(name).expect("the other thread goes on");
        }
        drop(sender);
    });
}

#[test]
fn requests_for_many_names_are_all_sent_before_a_reply() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(patient(proxy.url()));
    let names: Vec<String> = (0..12).map(|i| format!("n{i:02}")).collect();
    // The lanes are open, and the scripts known.
    ours.lock_all(&names).unwrap().unlock().unwrap();
    let hold = |verb| {
        let hold = |name: &String| proxy.hold_request_when(request(verb, name));
        names.iter().map(hold).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let held = hold(Verb::Acquire);
        let locking = scope.spawn(|| ours.lock_all(&names).unwrap());
        held.iter().for_each(|held| held.wait(SOON));
        held.into_iter().for_each(|held| drop(held.release()));
        let all = locking.join().unwrap();
        let held = hold(Verb::Release);
        let releasing = scope.spawn(|| all.unlock().unwrap());
        held.iter().for_each(|held| held.wait(SOON));
        held.into_iter().for_each(|held| drop(held.release()));
        releasing.join().unwrap();
    });
}

#[test]
fn the_last_handle_and_a_shutdown_wait_for_unread_releases() {
    let s = setup(patient);
    let shuts_down = build(patient(s.proxy.url()));
    warm_up(&shuts_down);
    let ends: [(LockManager, fn(LockManager)); 2] = [
        (s.ours.clone(), |mgr| drop(mgr)),
        (shuts_down, |mgr| {
            assert!(mgr.shutdown(Duration::ZERO).unwrap().is_empty());
        }),
    ];
    let Setup {
        server: _server,
        proxy,
        ours,
        other,
    } = s;
    drop(ours);
    for (mgr, end) in ends {
        let guard = mgr.lock("a").unwrap();
        proxy.delay(Duration::from_millis(100));
        drop(guard);
        end(mgr);
        proxy.delay(Duration::ZERO);
        assert!(other.try_lock("a").unwrap().is_some());
    }
}
