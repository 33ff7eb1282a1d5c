//! R22 (tries among the dead): a try decides in one call whether a live process holds the lock or
//! waits for it. On Redis alone, since processes are killed.

use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, Result};

use crate::{
    fixtures::{Record, build, server_time, with_ttl},
    managers::{assert_nothing_left, check_period, command_timeout, manager},
    permits::{Permits, Want},
    support::{Child, SLACK, Server, until},
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(2);

/// The bound of a try, P8.
fn in_time() -> Duration {
    2 * command_timeout(TTL) + SLACK
}

/// Processes that die together: the first holds each name, and waits for it with the others.
fn processes_die(server: &Server, names: &[&str]) {
    let mut children: Vec<Child> = (0..4).map(|_| worker::start(&server.url(), TTL)).collect();
    for name in names {
        children[0].send(&format!("lock {name}"));
        expect_got(&children[0], name, SOON);
        for child in &mut children {
            for _ in 0..2 {
                child.send(&format!("queue {name}"));
                child.expect("queued", SOON);
            }
        }
    }
    children.iter_mut().for_each(Child::kill);
    for name in names {
        let record = Record::of(server, name);
        until(TTL + SLACK, "the lease lapses", || {
            record.number("e") <= server_time(server)
        });
    }
}

type Try = fn(&LockManager) -> Result<bool>;

/// The first try takes the lock, and so does the next one after its release.
fn assert_tries_take(server: &Server, tries: &[(&str, Try)]) {
    for (what, attempt) in tries {
        let first = Instant::now();
        let taken = attempt(&manager(server.url(), TTL));
        assert!(taken.unwrap_or_else(|e| panic!("{what}: {e}")), "{what}");
        assert!(first.elapsed() < in_time(), "{what}: {:?}", first.elapsed());
        let again = Instant::now();
        assert!(
            attempt(&manager(server.url(), TTL)).unwrap(),
            "{what}, again"
        );
        assert!(
            again.elapsed() < command_timeout(TTL),
            "{what}: nobody is left to ask: {:?}",
            again.elapsed()
        );
    }
}

#[test]
fn p5_first_try_takes_a_mutex_that_only_the_dead_want() {
    let server = Server::start();
    processes_die(&server, &["a", "b", "c", "d", "e"]);
    assert_tries_take(
        &server,
        &[
            ("try_lock", |m| Ok(m.try_lock("a")?.is_some())),
            ("try_lock_for", |m| {
                Ok(m.try_lock_for("b", Duration::ZERO)?.is_some())
            }),
            ("reentrant", |m| {
                Ok(m.reentrant_mutex("c").try_lock()?.is_some())
            }),
            ("try_lock_all", |m| {
                Ok(m.try_lock_all(["d", "e", "f"])?.is_some())
            }),
        ],
    );
    for name in ["a", "b", "c", "d", "e"] {
        assert_nothing_left(&server, name);
    }
}

#[test]
fn p5_first_try_takes_permits_that_only_the_dead_want() {
    let server = Server::start();
    let mut children: Vec<Child> = (0..4).map(|_| worker::start(&server.url(), TTL)).collect();
    for (name, held, wanted) in [
        ("a", "acquire 3/3 a", "acquire 2/3 a"),
        ("r", "write r", "read r"),
        ("w", "read w", "write w"),
    ] {
        children[0].send(held);
        expect_got(&children[0], name, SOON);
        children.iter_mut().for_each(|child| child.send(wanted));
        let record = Permits::of(&server, name);
        until(SOON, "all wait", || record.waiters().len() == 4);
    }
    children.iter_mut().for_each(Child::kill);
    for name in ["a", "r", "w"] {
        let record = Permits::of(&server, name);
        until(TTL + SLACK, "the lease lapses", || {
            record.number("b") <= server_time(&server)
        });
    }
    assert_tries_take(
        &server,
        &[
            ("try_acquire", |m| {
                Ok(m.semaphore("a", 3).try_acquire(3)?.is_some())
            }),
            ("try_read", |m| Ok(m.rw_lock("r").try_read()?.is_some())),
            ("try_write", |m| Ok(m.rw_lock("w").try_write()?.is_some())),
        ],
    );
    for name in ["a", "r", "w"] {
        Permits::of(&server, name).comes_to_rest();
    }
}

/// A live holder has one permit, and a dead waiter wants all.
#[test]
fn try_takes_what_a_dead_waiter_could_not_use() {
    let server = Server::start();
    let ours = manager(server.url(), TTL);
    let held = ours.semaphore("k", 3).acquire(1).unwrap();
    let mut child = worker::start(&server.url(), TTL);
    child.send("acquire 3/3 k");
    let record = Permits::of(&server, "k");
    until(SOON, "it waits", || record.waiters().len() == 1);
    child.kill();
    // Time itself is under test: the process is dead for longer than the horizon.
    std::thread::sleep(TTL);
    let theirs = manager(server.url(), TTL);
    let next = theirs.semaphore("k", 3).try_acquire(1).unwrap();
    next.expect("two are left, and nobody alive wants them")
        .unlock()
        .unwrap();
    held.unlock().unwrap();
}

/// R2 (served time): the server was away for longer than the horizon and all leases. The live waiter
/// comes back in the time that the try gives it.
#[test]
fn p3_try_does_not_overtake_a_waiter_after_an_outage() {
    for (want, hold) in [
        (Want::Mutex, "lock k"),
        (Want::Permits(2, 3), "acquire 2/3 k"),
        (Want::Write, "write k"),
    ] {
        let server = Server::start();
        let mut child = worker::start(&server.url(), TTL);
        child.send(hold);
        expect_got(&child, "k", SOON);
        let waits = build(with_ttl(server.url(), TTL).outage_limit(SOON));
        // Its own connection is open before the outage.
        let tries = manager(server.url(), TTL);
        assert!(want.try_take(&tries, "k").unwrap().is_none());
        let granted = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| want.take(&waits, "k").unwrap());
            until(SOON, "it waits", || {
                let info = tries.inspect("k").unwrap();
                info.is_some_and(|info| info.waiters == 1)
            });
            server.stop();
            child.kill();
            // Time itself is under test: how long the server is away.
            std::thread::sleep(3 * TTL);
            let fresh = LockManager::builder(server.url()).options(LockOptions::new().ttl(TTL));
            server.cont();
            let fresh = build(fresh);
            let taken = [&fresh, &tries].map(|mgr| want.try_take(mgr, "k").unwrap());
            assert!(taken.iter().all(Option::is_none), "{want:?}: overtaken");
            waiter.join().unwrap()
        });
        granted.unlock().unwrap();
        assert_eq!(waits.stats().requeues, 0, "{want:?}: the place was lost");
    }
}

/// The clock of the server goes forward by an hour, so nobody seems to have come for as long. The
/// next check of the live waiter is due much later than the try asks again.
#[test]
fn p3_live_waiter_answers_the_call_of_a_try() {
    const P: Duration = Duration::from_secs(5);
    let server = Server::start();
    let ttl = Duration::from_secs(20);
    let timeout = Duration::from_millis(200);
    let slow = || {
        let builder = with_ttl(server.url(), ttl).command_timeout(timeout);
        build(builder.check_period(P).horizon(Duration::from_secs(6)))
    };
    let mut child = worker::start(&server.url(), TTL);
    child.send("lock k");
    expect_got(&child, "k", SOON);
    let waits = slow();
    let waiter = waits.enqueue("k").unwrap();
    child.kill();
    let record = Record::of(&server, "k");
    let hour_ago = server_time(&server) - 3_600_000_000;
    record.set(&[("s", &hour_ago.to_string()), ("e", &hour_ago.to_string())]);
    let started = Instant::now();
    assert!(slow().try_lock("k").unwrap().is_none(), "overtaken");
    let guard = waiter.wait().unwrap();
    assert!(started.elapsed() < P, "{:?}", started.elapsed());
    guard.unlock().unwrap();
    assert_eq!(waits.stats().requeues, 0, "the place was lost");
}

/// Nobody pays for the dead who does not meet them.
#[test]
fn try_of_a_lock_that_is_held_or_awaited_asks_once() {
    let server = Server::start();
    let ours = manager(server.url(), TTL);
    let guard = ours.lock("k").unwrap();
    let waiter = ours.enqueue("k").unwrap();
    let theirs = manager(server.url(), TTL);
    for _ in 0..8 {
        let started = Instant::now();
        assert!(theirs.try_lock("k").unwrap().is_none());
        assert!(started.elapsed() < command_timeout(TTL), "it asked again");
        // Time itself is under test: checks and renewals come in between.
        std::thread::sleep(check_period(TTL));
    }
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
}

#[test]
fn inspect_shows_when_a_waiter_was_last_heard_of() {
    let server = Server::start();
    let ours = manager(server.url(), TTL);
    for want in [Want::Mutex, Want::Permits(2, 2)] {
        let name = format!("{want:?}");
        let name = name.split('(').next().expect("it has a name");
        let guard = want.take(&ours, name).unwrap();
        let mut child = worker::start(&server.url(), TTL);
        child.send(&match want {
            Want::Mutex => format!("queue {name}"),
            _ => format!("acquire 2/2 {name}"),
        });
        let look = || ours.inspect(name).unwrap().expect("it is held");
        until(SOON, "it waits", || look().waiters == 1);
        let theirs = manager(server.url(), TTL);
        let _waiter = match want {
            Want::Mutex => Some(theirs.enqueue(name).unwrap()),
            _ => None,
        };
        let heard = || look().queue[0].last_heard.expect("it waits");
        assert!(heard() < check_period(TTL) + SLACK);
        child.kill();
        until(TTL + SLACK, "nobody hears of it", || heard() > TTL);
        let info = look();
        assert_eq!(info.holder.expect("it is held").last_heard, None);
        if let Some(live) = info.queue.get(1) {
            let ago = live.last_heard.expect("it waits");
            assert!(ago < check_period(TTL) + SLACK, "{ago:?}");
        }
        guard.unlock().unwrap();
    }
}
