//! A thread waits for a lock that it took itself: one warning says so at once. On Redis alone: a logger
//! belongs to a whole process, so each case is a process of its own.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, LockOptions};

use crate::{
    fixtures::{build, with_ttl},
    log_capture,
    support::{Child, SLACK, Server, child::Role, until},
};

pub(crate) const SELF_WAITS: (&str, Role) = ("self_waits", self_waits);

const TTL: Duration = Duration::from_secs(60);
/// No check comes while these tests run: a warning must not wait for one.
const CHECK_PERIOD: Duration = Duration::from_secs(20);
const HORIZON: Duration = Duration::from_secs(30);

/// Takes a name with the first manager, whose label is `held`. Waits for it with the second, whose
/// label is `wanted`, for at most the given time.
type Case = fn([&LockManager; 2], &str, Duration);

const DEADLOCKS: &[(&str, Case)] = &[
    ("lock", |[held, wanted], n, wait| {
        let _guard = held.lock(n).unwrap();
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
    }),
    ("mutex", |[held, wanted], n, wait| {
        let _guard = held.mutex(n).lock().unwrap();
        assert!(wanted.mutex(n).try_lock_for(wait).unwrap().is_none());
    }),
    ("lock that waited", |[held, wanted], n, wait| {
        let other = held.lock(n).unwrap();
        let waiter = held.enqueue(n).unwrap();
        drop(other);
        let _guard = waiter.wait().unwrap();
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
    }),
    ("waiter", |[held, wanted], n, wait| {
        let _guard = held.lock(n).unwrap();
        let mut waiter = wanted.enqueue(n).unwrap();
        let start = Instant::now();
        while start.elapsed() < wait {
            assert!(waiter.wait_for(wait / 50).unwrap().is_none());
        }
    }),
    ("lock_all", |[held, wanted], n, wait| {
        let _guard = held.lock(n).unwrap();
        let all = wanted.try_lock_all_for(["a name", n], wait).unwrap();
        assert!(all.is_none());
    }),
    ("one of all", |[held, wanted], n, wait| {
        let _guard = held.lock_all(["another", n]).unwrap();
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
    }),
    ("permits", |[held, wanted], n, wait| {
        let _two = held.semaphore(n, 4).acquire(2).unwrap();
        let _one = held.semaphore(n, 4).acquire(1).unwrap();
        let more = wanted.semaphore(n, 4).try_acquire_for(2, wait);
        assert!(more.unwrap().is_none());
    }),
    ("upgrade", |[held, wanted], n, wait| {
        let _guard = held.rw_lock(n).read().unwrap();
        assert!(wanted.rw_lock(n).try_write_for(wait).unwrap().is_none());
    }),
    ("read below write", |[held, wanted], n, wait| {
        let _guard = held.rw_lock(n).write().unwrap();
        assert!(wanted.rw_lock(n).try_read_for(wait).unwrap().is_none());
    }),
];

/// The wait ends when another process, or another thread, does something.
const POSSIBLE_DEADLOCKS: &[(&str, Case)] = &[
    ("read twice around a writer", |[held, wanted], n, wait| {
        let _guard = held.rw_lock(n).read().unwrap();
        let _writer = held.rw_lock(n).enqueue_write().unwrap();
        assert!(wanted.rw_lock(n).try_read_for(wait).unwrap().is_none());
    }),
    (
        "read twice, and the writer gives up",
        |[held, wanted], n, _| {
            let _guard = held.rw_lock(n).read().unwrap();
            let writer = held.rw_lock(n).enqueue_write().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || {
                    until(SLACK, "the reader is warned of", || {
                        !of(&log_capture::lines(), n).is_empty()
                    });
                    drop(writer);
                });
                wanted.rw_lock(n).read().unwrap().unlock().unwrap();
            });
        },
    ),
    ("a guard that another thread has", |[held, wanted], n, _| {
        let guard = held.lock(n).unwrap();
        let waited_often = &Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(move || {
                waited_often.wait();
                drop(guard);
            });
            // Each of them seems to be a wait for itself.
            for _ in 0..5 {
                let moment = Duration::from_millis(20);
                assert!(wanted.try_lock_for(n, moment).unwrap().is_none());
            }
            waited_often.wait();
            wanted.lock(n).unwrap().unlock().unwrap();
        });
    }),
];

const WAITS: &[(&str, Case)] = &[
    ("for another thread", |[held, wanted], n, wait| {
        let guard = thread::scope(|scope| scope.spawn(|| held.lock(n).unwrap()).join());
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
        drop(guard);
    }),
    ("for another name", |[held, wanted], n, wait| {
        let _guard = held.lock("mine").unwrap();
        let other = thread::scope(|scope| scope.spawn(|| held.lock(n).unwrap()).join());
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
        drop(other);
    }),
    ("after a release", |[held, wanted], n, wait| {
        drop(held.lock(n).unwrap());
        let other = thread::scope(|scope| scope.spawn(|| held.lock(n).unwrap()).join());
        assert!(wanted.try_lock_for(n, wait).unwrap().is_none());
        drop(other);
    }),
    ("for permits that others have", |[held, wanted], n, wait| {
        let _own = held.semaphore(n, 3).acquire(1).unwrap();
        let acquire = || held.semaphore(n, 3).acquire(2).unwrap();
        let other = thread::scope(|scope| scope.spawn(acquire).join());
        let more = wanted.semaphore(n, 3).try_acquire_for(2, wait);
        assert!(more.unwrap().is_none());
        drop(other);
    }),
    ("for less than it released", |[held, wanted], n, wait| {
        let mut own = held.semaphore(n, 4).acquire(3).unwrap();
        own.release_permits(2).unwrap();
        let acquire = || held.semaphore(n, 4).acquire(2).unwrap();
        let other = thread::scope(|scope| scope.spawn(acquire).join());
        let more = wanted.semaphore(n, 4).try_acquire_for(2, wait);
        assert!(more.unwrap().is_none());
        drop(other);
    }),
    ("not yet", |[held, wanted], n, wait| {
        // It has a place in the queue, and does not wait before it has released the lock.
        let guard = held.lock(n).unwrap();
        let waiter = wanted.enqueue(n).unwrap();
        // Time itself is under test: a wait of this length would be reported.
        thread::sleep(wait);
        drop(guard);
        waiter.wait().unwrap().unlock().unwrap();
    }),
];

#[test]
fn a_thread_that_waits_for_itself_is_warned_of_once() {
    let lines = lines_of("deadlocks");
    for (name, _) in DEADLOCKS {
        let [line] = &of(&lines, name)[..] else {
            panic!("{name}: {lines:?}")
        };
        for part in ["WARN", "\"held\"", "\"wanted\"", "\"worker\""] {
            assert!(line.contains(part), "{name}: no {part} in {line:?}");
        }
    }
    assert_eq!(lines.len(), DEADLOCKS.len(), "{lines:?}");
}

#[test]
fn wait_that_others_can_end_is_said_to_be_one() {
    let lines = lines_of("possible");
    for (name, _) in POSSIBLE_DEADLOCKS {
        let [line] = &of(&lines, name)[..] else {
            panic!("{name}: {lines:?}")
        };
        let end = ", unless another thread has it by now";
        assert!(
            line.starts_with("WARN") && line.ends_with(end),
            "{name}: {line:?}"
        );
    }
    assert_eq!(lines.len(), POSSIBLE_DEADLOCKS.len(), "{lines:?}");
}

#[test]
fn a_thread_that_waits_for_others_is_not_warned_of() {
    assert_eq!(lines_of("waits"), [""; 0]);
}

/// Runs these cases side by side in one process, and returns the lines that it logs.
fn lines_of(cases: &str) -> Vec<String> {
    let server = Server::start();
    let mut child = Child::spawn(SELF_WAITS.0, &[&server.url(), cases]);
    let lines = log_capture::receive_lines(&mut child);
    child.join();
    lines
}

/// Those of the lines that have the name of this case.
fn of<'a>(lines: &'a [String], name: &str) -> Vec<&'a String> {
    let named = |line: &&String| line.contains(&format!("{name:?}"));
    lines.iter().filter(named).collect()
}

/// A child role that captures what is logged at level Warn. The name of each case is also the name
/// of its lock.
fn self_waits(args: &[String]) {
    log_capture::start();
    let builder = with_ttl(args[0].as_str(), TTL).check_period(CHECK_PERIOD);
    let mgr = build(builder.horizon(HORIZON));
    let labelled = |label: &str| mgr.with(LockOptions::new().ttl(TTL).label(label));
    let (held, wanted) = (labelled("held"), labelled("wanted"));
    let cases = match args[1].as_str() {
        "deadlocks" => DEADLOCKS,
        "possible" => POSSIBLE_DEADLOCKS,
        _ => WAITS,
    };
    let wait = 2 * SLACK;
    thread::scope(|scope| {
        let start = Instant::now();
        let worker = || thread::Builder::new().name("worker".to_owned());
        for (name, case) in cases {
            let body = || case([&held, &wanted], name, wait);
            worker().spawn_scoped(scope, body).unwrap();
        }
        if args[1] != "waits" {
            until(SLACK, "all are warned of before the first check", || {
                let lines = log_capture::lines();
                cases.iter().all(|(name, _)| !of(&lines, name).is_empty())
            });
            assert!(start.elapsed() < wait, "no wait is over");
        }
    });
    log_capture::report_lines();
}
