//! A thread waits for a lock that it took itself: one warning says so. On Redis alone: a logger
//! belongs to a whole process, so each case is a process of its own.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, LockOptions};

use crate::{
    managers::{self, check_period},
    support::{
        Child, SLACK, Server,
        child::{Role, report},
        until,
    },
    worker::SOON,
};

pub(crate) const SELF_WAITS: (&str, Role) = ("self_waits", self_waits);

const TTL: Duration = Duration::from_secs(2);

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
        let _two = held.semaphore(n, 4).acquire_many(2).unwrap();
        let _one = held.semaphore(n, 4).acquire().unwrap();
        let more = wanted.semaphore(n, 4).try_acquire_many_for(2, wait);
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
    ("read twice around a writer", |[held, wanted], n, wait| {
        let _guard = held.rw_lock(n).read().unwrap();
        let _writer = held.rw_lock(n).enqueue_write().unwrap();
        assert!(wanted.rw_lock(n).try_read_for(wait).unwrap().is_none());
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
        let _own = held.semaphore(n, 3).acquire().unwrap();
        let acquire = || held.semaphore(n, 3).acquire_many(2).unwrap();
        let other = thread::scope(|scope| scope.spawn(acquire).join());
        let more = wanted.semaphore(n, 3).try_acquire_many_for(2, wait);
        assert!(more.unwrap().is_none());
        drop(other);
    }),
    ("for less than it released", |[held, wanted], n, wait| {
        let mut own = held.semaphore(n, 4).acquire_many(3).unwrap();
        own.release_permits(2).unwrap();
        let acquire = || held.semaphore(n, 4).acquire_many(2).unwrap();
        let other = thread::scope(|scope| scope.spawn(acquire).join());
        let more = wanted.semaphore(n, 4).try_acquire_many_for(2, wait);
        assert!(more.unwrap().is_none());
        drop(other);
    }),
    ("not yet", |[held, wanted], n, wait| {
        // It has a place in the queue, and does not wait before it has released the lock.
        let guard = held.lock(n).unwrap();
        let waiter = wanted.enqueue(n).unwrap();
        let start = Instant::now();
        until(wait + SLACK, "time passes", || start.elapsed() > wait);
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
fn a_thread_that_waits_for_others_is_not_warned_of() {
    assert_eq!(lines_of("waits"), [""; 0]);
}

/// What a process logs that runs these cases side by side.
fn lines_of(cases: &str) -> Vec<String> {
    let server = Server::start();
    let mut child = Child::spawn(SELF_WAITS.0, &[&server.url(), cases]);
    let many: usize = child.expect("logged", 2 * SOON).parse().unwrap();
    let lines = (0..many).map(|_| child.expect("line", SOON)).collect();
    child.join(SOON);
    lines
}

/// Those of the lines that have the name of this case.
fn of<'a>(lines: &'a [String], name: &str) -> Vec<&'a String> {
    let named = |line: &&String| line.contains(&format!("{name:?}"));
    lines.iter().filter(named).collect()
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Capture;

impl log::Log for Capture {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{} {}", record.level(), record.args());
            LINES.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

/// A child role that captures what is logged at level Warn. The name of each case is also the name
/// of its lock.
fn self_waits(args: &[String]) {
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let mgr = managers::manager(args[0].as_str(), TTL);
    let labelled = |label: &str| mgr.with(LockOptions::new().ttl(TTL).label(label));
    let (held, wanted) = (labelled("held"), labelled("wanted"));
    let deadlocks = args[1] == "deadlocks";
    // Long enough for several checks on a busy machine.
    let wait = 3 * check_period(TTL) + SLACK;
    thread::scope(|scope| {
        let start = Instant::now();
        let worker = || thread::Builder::new().name("worker".to_owned());
        for (name, case) in if deadlocks { DEADLOCKS } else { WAITS } {
            let body = || case([&held, &wanted], name, wait);
            worker().spawn_scoped(scope, body).unwrap();
        }
        if deadlocks {
            until(check_period(TTL) + SLACK, "all are warned of", || {
                let lines = LINES.lock().unwrap();
                DEADLOCKS
                    .iter()
                    .all(|(name, _)| !of(&lines, name).is_empty())
            });
            assert!(start.elapsed() < wait, "no wait is over");
        }
    });
    let lines = LINES.lock().unwrap();
    report(format_args!("logged {}", lines.len()));
    lines
        .iter()
        .for_each(|line| report(format_args!("line {line}")));
}
