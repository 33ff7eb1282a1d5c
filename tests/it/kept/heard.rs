//! Other managers get a kept lock in a known time although messages are lost, or the keeper is deaf. On
//! Redis alone: messages are lost by a proxy or for lack of a right.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::crossbeam_channel::select;
use fairlock::{LockManager, LockOptions, Waiter};

use crate::behaviour::kept::{
    KEEP, P, SHORT_TTL, T, builder, granted, keeper, keeping, patient, plain, short,
};
use crate::fixtures::{SOON, build, warm_up};
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{EndLoops, Proxy, SLACK, Server, until};
use crate::worker;

/// The message is refused, as if it were lost.
#[test]
fn lost_wanted_message_costs_one_check_period() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    warm_up(&other);
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let _: String = server.query(&["ACL", "SETUSER", "default", "-publish"]);
        let mut waiter = other.enqueue(name).unwrap();
        let _: String = server.query(&["ACL", "SETUSER", "default", "+publish"]);
        let guard = waiter.wait_for(P + T + SLACK).unwrap();
        drop(guard.expect("it asks again, and the keeper is told again"));
    }
    assert_eq!(mgr.stats().recalls, 3);
}

/// Messages never arrive. The answers to the keeper's renewals say that others wait.
#[test]
fn without_any_message_a_renewal_tells_the_keeper() {
    let server = Server::start();
    let ttl = SHORT_TTL;
    let mgr = short(server.url(), LockOptions::new().keep_idle(ttl / 3));
    let other = plain(server.url());
    warm_up(&other);
    keep(&mgr, "a");
    let _: String = server.query(&["ACL", "SETUSER", "default", "-publish"]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        scope.spawn(|| relock(&mgr, &over, Duration::from_millis(10)));
        let bound = ttl / 3 + T + P + SLACK;
        let guard = other.try_lock_for("a", bound).unwrap();
        drop(guard.expect("a renewal tells the keeper"));
    });
}

/// Locks and drops the name in a loop, for a short while each time.
fn relock(mgr: &LockManager, over: &AtomicBool, pause: Duration) {
    while !over.load(Ordering::Relaxed) {
        let guard = mgr.lock("a").unwrap();
        // Time itself is under test: the work under the guard.
        thread::sleep(pause / 2);
        drop(guard);
        // Time itself is under test: the work between two guards.
        thread::sleep(pause / 2);
    }
}

/// Nothing arrives at the keeper's subscription, and nobody closes it. Its threads go on locking.
#[test]
fn deaf_keeper_lets_others_wait_at_most_two_periods_and_a_timeout() {
    deaf_keeper(false);
}

/// Each subscription that it opens is as deaf.
#[test]
fn keeper_that_stays_deaf_lets_others_wait_no_longer() {
    deaf_keeper(true);
}

fn deaf_keeper(stays_deaf: bool) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), plain(server.url()));
    keep(&mgr, "a");
    let guard_time = Duration::from_millis(10);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        scope.spawn(|| relock(&mgr, &over, guard_time));
        proxy.silence_subscriptions();
        if stays_deaf {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    proxy.silence_subscriptions();
                    // A pause between two polls.
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for _ in 0..3 {
            let bound = 2 * P + T + guard_time + SLACK;
            let theirs = other.try_lock_for("a", bound).unwrap();
            drop(theirs.expect("the keeper knows that it is deaf"));
        }
    });
    assert_eq!(mgr.stats().losses(), 0);
}

/// A keeper that hears nothing asks Redis for each lock.
#[test]
fn keeper_that_hears_nothing_keeps_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), plain(server.url()));
    keep(&mgr, "a");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                proxy.silence_subscriptions();
                // A pause between two polls.
                thread::sleep(Duration::from_millis(1));
            }
        });
        until(2 * P + T + SLACK, "each lock is asked for", || {
            !costs_nothing(&mgr, || drop(mgr.lock("a").unwrap()))
        });
        until(SLACK, "and released", || {
            other.try_lock("a").unwrap().is_some()
        });
    });
    // It hears again, and keeps again.
    keep(&mgr, "a");
}

/// Nobody has checked its subscription for a while. One message to itself proves it: the next PING is
/// due only after a check period.
#[test]
fn keeper_that_was_idle_proves_its_subscription_by_one_message() {
    let server = Server::start();
    let builder = builder(server.url()).check_period(P / 2);
    let mgr = build(builder.command_timeout(T / 2)).with(keeping());
    keep(&mgr, "a");
    mgr.lock("a").unwrap().unlock().unwrap();
    let published = server.calls("publish");
    // Time itself is under test: a wish for proofs lasts 2 P + T, and the last proof as long.
    thread::sleep(2 * (P + T / 2) + P / 2);
    keep(&mgr, "a");
    assert_eq!(server.calls("publish") - published, 1);
}

/// More managers than one wait; the keeper is told once for all of them.
#[test]
fn many_waiting_managers_tell_the_keeper_once() {
    let server = Server::start();
    let mgr = keeper(server.url());
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let others = [(); 5].map(|()| patient(server.url()));
    let published = server.calls("publish");
    let waiters: Vec<Waiter> = others.iter().map(|mgr| mgr.enqueue("a").unwrap()).collect();
    until(SLACK, "the guard learns of it", || guard.is_wanted());
    assert_eq!(server.calls("publish") - published, 1);
    drop(guard);
    waiters.into_iter().for_each(|waiter| drop(granted(waiter)));
}

/// The process that waits first has died. The others behind it are served.
#[test]
fn kept_lock_passes_by_a_dead_waiter() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    let guard = mgr.lock("a").unwrap();
    let ttl = Duration::from_secs(2);
    let mut dead = crate::worker::start(&server.url(), ttl);
    dead.send("queue a");
    dead.expect("queued", SOON);
    dead.kill();
    let mut waiter = other.enqueue("a").unwrap();
    drop(guard);
    let guard = waiter.wait_for(ttl + P + SLACK).unwrap();
    drop(guard.expect("the dead one is passed by"));
}

/// The lock goes to and fro between a manager that keeps and one that does not, on the same names.
#[test]
fn keepers_and_plain_managers_exclude_each_other() {
    let server = Server::start();
    let managers = [
        build(builder(server.url())).with(keeping()),
        plain(server.url()),
        build(builder(server.url())).with(keeping().keep_idle(KEEP / 5)),
    ];
    let owners = [(); 4].map(|()| AtomicBool::new(false));
    thread::scope(|scope| {
        for mgr in managers.iter().flat_map(|mgr| [mgr; 3]) {
            let owners = &owners;
            scope.spawn(move || {
                for i in 0..150 {
                    // A few in a row, so that names are kept between two turns of others.
                    let at = i / 12 % owners.len();
                    let guard = mgr.lock(format!("n{at}")).unwrap();
                    assert!(!owners[at].swap(true, Ordering::SeqCst), "two have it");
                    guard.check().unwrap();
                    thread::yield_now();
                    assert!(owners[at].swap(false, Ordering::SeqCst));
                    drop(guard);
                }
            });
        }
    });
    for mgr in &managers {
        assert_eq!(mgr.stats().losses(), 0);
    }
}

#[test]
fn guard_learns_of_a_waiter_in_another_process() {
    let server = Server::start();
    let mgr = plain(server.url()).with(LockOptions::new().notify_wanted(true));
    let guard = mgr.lock("a").unwrap();
    let mut child = worker::start(&server.url(), KEEP);
    child.send("queue a");
    child.expect("queued", SOON);
    select! {
        recv(guard.wanted()) -> told => told.expect("a message"),
        recv(guard.lost()) -> loss => panic!("{loss:?}"),
        default(SLACK) => panic!("no message"),
    }
    guard.unlock().unwrap();
    worker::expect_got(&child, "a", SOON);
}

/// No message ever arrives. The answer to a renewal says that somebody waits.
#[test]
fn guard_learns_of_a_waiter_by_its_renewal_when_messages_are_lost() {
    let server = Server::start();
    let ttl = SHORT_TTL;
    let other = plain(server.url());
    warm_up(&other);
    for notified in [true, false] {
        let options = match notified {
            true => LockOptions::new().notify_wanted(true),
            false => LockOptions::new().keep_idle(ttl / 3),
        };
        let mgr = short(server.url(), options);
        let name = format!("n{notified}");
        if !notified {
            keep(&mgr, &name);
        }
        let guard = mgr.lock(&name).unwrap();
        let _: String = server.query(&["ACL", "SETUSER", "default", "-publish"]);
        let waiter = other.enqueue(&name).unwrap();
        let bound = ttl / 3 + T + SLACK;
        guard
            .wanted()
            .recv_timeout(bound)
            .expect("a renewal says it");
        drop(waiter);
        let _: String = server.query(&["ACL", "SETUSER", "default", "+publish"]);
    }
}
