//! Numbers of `Stats` that move when connections break and processes die. On Redis alone: the
//! in-memory store has neither.

use crate::fixtures::DEFAULT_LANES;
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions};

use crate::fixtures::{SOON, build, steady};
use crate::managers::{check_period, horizon, manager};
use crate::sums::Sums;
use crate::support::{Child, Server, until};
use crate::worker;

#[test]
fn calls_that_wait_for_a_connection_are_counted() {
    let server = Server::start();
    let mgr = build(steady(server.url()).lanes(1));
    for _ in 0..3 {
        mgr.lock("k").unwrap().unlock().unwrap();
    }
    let before = mgr.stats();
    // The first call on the lane opened it.
    assert_eq!((before.connection_waits, before.retries), (1, 0));
    let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(killed > 0);
    mgr.lock("k").unwrap().unlock().unwrap();
    let after = mgr.stats();
    assert_eq!((after.connection_waits, after.retries), (2, 1), "{after}");
    assert!(
        after.connection_wait_time > before.connection_wait_time,
        "{after}"
    );
    server.kill();
    assert!(mgr.try_lock("k").is_err());
    let failed = mgr.stats();
    assert!(failed.connection_waits > after.connection_waits, "{failed}");
    assert_eq!(failed.acquisitions_failed, 1, "{failed}");
}

#[test]
fn waiters_of_killed_processes_are_counted_once_when_passed_over() {
    const TTL: Duration = Duration::from_secs(2);
    const CHILDREN: usize = 2;
    let server = Server::start();
    let [mgr, other] = [(); 2].map(|()| manager(server.url(), TTL));
    let guard = mgr.lock("k").unwrap();
    let mut children: Vec<Child> = (0..CHILDREN)
        .map(|_| worker::start(&server.url(), TTL))
        .collect();
    for child in &mut children {
        child.send("queue k");
        child.expect("queued", SOON);
    }
    let waiter = other.enqueue("k").unwrap();
    children.iter_mut().for_each(Child::kill);
    // Time itself is under test. Liveness counts in served time (R2), which passes while the
    // waiter's checks come.
    thread::sleep(horizon(TTL) + 2 * check_period(TTL));
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    let both = || mgr.stats().dead_waiters + other.stats().dead_waiters;
    until(SOON, "all are counted", || both() == CHILDREN as u64);
    mgr.lock("k").unwrap().unlock().unwrap();
    assert_eq!(both(), CHILDREN as u64);
}

/// How often each service takes a lock.
const TURNS: usize = 60;

/// Two managers whose threads do the same, each turn with its number.
fn healthy(what: &str, options: LockOptions, turn: impl Fn(&LockManager, usize) + Sync) {
    let server = Server::start();
    let managers = [(); 2].map(|()| build(steady(server.url())).with(options.clone()));
    thread::scope(|scope| {
        for mgr in &managers {
            let turn = &turn;
            scope.spawn(move || (0..TURNS).for_each(|number| turn(mgr, number)));
        }
    });
    for mgr in managers {
        let stats = mgr.stats();
        let troubles = [
            ("failed", stats.acquisitions_failed),
            ("lost", stats.losses()),
            ("renewal failures", stats.renewals_failed),
            ("requeued", stats.requeues),
            ("dead waiters", stats.dead_waiters),
            ("background releases", stats.background_releases),
            ("retries", stats.retries),
        ];
        for (name, count) in troubles {
            assert_eq!(count, 0, "{what} counts {name}: {stats}");
        }
        // Each lane once, the renewals and the subscription: a number that stays as it is.
        let lanes = DEFAULT_LANES as u64;
        assert!(stats.connects <= lanes + 2, "{what}: {stats}");
        // The threads of a service may wait for the same lane.
        assert!(stats.connection_waits <= 4 * lanes, "{what}: {stats}");
        mgr.shutdown(SOON).expect("all is released");
    }
}

#[test]
fn healthy_service_counts_no_trouble() {
    let plain = LockOptions::new;
    healthy("plain", plain(), |mgr, number| {
        drop(mgr.lock(format!("n{number}")).unwrap());
        mgr.lock(format!("m{number}")).unwrap().unlock().unwrap();
    });
    healthy("contended", plain(), |mgr, _| drop(mgr.lock("k").unwrap()));
    healthy("tries", plain(), |mgr, _| {
        drop(mgr.try_lock("k").unwrap());
        drop(mgr.try_lock_for("k", Duration::from_millis(3)).unwrap());
    });
    healthy("waiters", plain(), |mgr, number| {
        let waiter = mgr.enqueue("k").unwrap();
        if number % 2 == 0 {
            drop(waiter);
        } else {
            drop(waiter.wait().unwrap());
        }
    });
    healthy("permits", plain(), |mgr, number| {
        let semaphore = mgr.semaphore("s", 2);
        drop(semaphore.acquire(number as u32 % 2 + 1).unwrap());
    });
    healthy("readers and writers", plain(), |mgr, number| {
        let lock = mgr.rw_lock("r");
        if number % 3 == 0 {
            drop(lock.write().unwrap());
        } else {
            drop(lock.read().unwrap());
        }
    });
    healthy("several", plain(), |mgr, _| {
        drop(mgr.lock_all(["a", "b"]).unwrap())
    });
    healthy("re-entrant", plain(), |mgr, _| {
        let mutex = mgr.reentrant_mutex("m");
        let outer = mutex.lock().unwrap();
        drop(mutex.lock().unwrap());
        drop(outer);
    });
    healthy("detached", plain(), |mgr, _| {
        let detached = mgr.lock("d").unwrap().detach(SOON).unwrap();
        drop(mgr.attach(&detached).unwrap());
    });
}

#[test]
fn healthy_service_that_hands_over_or_keeps_counts_no_trouble() {
    let local = LockOptions::new().local_handovers(4);
    healthy("local hand-overs", local, |mgr, _| {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| drop(mgr.lock("k").unwrap()));
            }
        });
    });
    let keep = LockOptions::new().keep_idle(Duration::from_secs(1));
    healthy("kept by threads", keep.clone(), |mgr, _| {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| drop(mgr.lock("k").unwrap()));
            }
        });
    });
    healthy("kept, and recalled", keep, |mgr, number| {
        // A name becomes worth keeping, and then the others want it.
        for _ in 0..8 {
            drop(mgr.lock(format!("k{}", number / 20)).unwrap());
        }
    });
}
