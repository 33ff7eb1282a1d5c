//! A wait that lasts for long is logged, and again when it has doubled. On both
//! stores. A logger belongs to a whole process, so each case is a process of its own.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{after, select};
use fairlock::{Builder, LockManager, LockOptions, endpoint::Endpoint};

use crate::{
    fixtures::{build, with_ttl},
    log_capture,
    support::{
        Child, Server,
        child::{Role, report},
        until,
    },
    worker::SOON,
};

pub(crate) const LONG_WAITS: (&str, Role) = ("long_waits", long_waits);

/// A holder keeps its lock, and a call its time, although the machine stands still for a while.
const TTL: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(5);
const HORIZON: Duration = Duration::from_secs(20);
const CHECK_PERIOD: Duration = Duration::from_millis(125);
const LONG: Duration = Duration::from_millis(200);
/// On an idle machine there is time for five lines.
const WAIT: Duration = Duration::from_secs(5);
/// So long that a busy machine does not make a short wait a long one.
const LONGER: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

/// Holds this name with the first manager, whose label is `holds`. Waits for it with the second,
/// whose label is `wants`.
type Case = fn(&LockManager, &LockManager, &str);

const LONG_CASES: &[(&str, Case)] = &[
    ("one wait", |holds, wants, n| {
        let _guard = holds.lock(n).unwrap();
        worker(|| {
            assert!(wants.try_lock_for(n, WAIT).unwrap().is_none());
        });
    }),
    ("wait in pieces", |holds, wants, n| {
        let _guard = holds.lock(n).unwrap();
        worker(|| {
            let mut waiter = wants.enqueue(n).unwrap();
            let start = Instant::now();
            while start.elapsed() < WAIT {
                assert!(waiter.wait_for(LONG / 10).unwrap().is_none());
            }
        });
    }),
    ("wait beside other things", |holds, wants, n| {
        let _guard = holds.lock(n).unwrap();
        worker(|| {
            let mut waiter = wants.enqueue(n).unwrap();
            let stop = after(WAIT);
            loop {
                select! {
                    recv(stop) -> _ => break,
                    recv(waiter.ready()) -> _ => {}
                    // A look in between does not end the wait.
                    default(LONG / 10) => {}
                }
                assert!(waiter.wait_for(Duration::ZERO).unwrap().is_none());
            }
        });
    }),
    ("several names", |holds, wants, n| {
        let _guard = holds.lock(n).unwrap();
        worker(|| {
            let all = wants.try_lock_all_for(["a free name", n], WAIT);
            assert!(all.unwrap().is_none());
        });
    }),
    ("permits", |holds, wants, n| {
        let _guard = holds.semaphore(n, 3).acquire(2).unwrap();
        worker(|| {
            let more = wants.semaphore(n, 3).try_acquire_for(2, WAIT);
            assert!(more.unwrap().is_none());
        });
    }),
    ("a member of a line", |_, wants, n| {
        // The lock is held by the same line, so no check asks Redis about the waiter.
        let local = wants.with(LockOptions::new().local_handovers(9));
        let _guard = local
            .with(LockOptions::new().label("holds"))
            .lock(n)
            .unwrap();
        worker(|| {
            assert!(local.try_lock_for(n, WAIT).unwrap().is_none());
        });
    }),
    ("a member of a line, in pieces", |_, wants, n| {
        let local = wants.with(LockOptions::new().local_handovers(9));
        let _guard = local
            .with(LockOptions::new().label("holds"))
            .lock(n)
            .unwrap();
        worker(|| {
            let mut waiter = local.enqueue(n).unwrap();
            let start = Instant::now();
            while start.elapsed() < WAIT {
                assert!(waiter.wait_for(LONG / 10).unwrap().is_none());
            }
        });
    }),
    ("a member whose line gets the lock", |holds, wants, n| {
        let local = wants.with(LockOptions::new().local_handovers(9));
        let theirs = holds.lock(n).unwrap();
        let first = local.with(LockOptions::new().label("holds"));
        let first = first.enqueue(n).unwrap();
        thread::scope(|scope| {
            let wait = || assert!(local.try_lock_for(n, WAIT).unwrap().is_none());
            let waits = scope.spawn(move || worker(wait));
            until(SOON, "it waits", || {
                first.position() == Some(1) && local.stats().waiting >= 2
            });
            drop(theirs);
            let _guard = first.wait().unwrap();
            waits.join().unwrap();
        });
    }),
    ("members of a line, one after the other", |_, wants, n| {
        let local = wants.with(LockOptions::new().local_handovers(9));
        let _guard = local
            .with(LockOptions::new().label("holds"))
            .lock(n)
            .unwrap();
        let (end, local) = (Instant::now() + WAIT, &local);
        thread::scope(|scope| {
            for younger in 0..6 {
                // Time itself is under test: those that come later are not reported.
                thread::sleep(LONG / 4 * u32::from(younger > 0));
                let left = end - Instant::now();
                let wait = move || assert!(local.try_lock_for(n, left).unwrap().is_none());
                scope.spawn(move || worker(wait));
                // A place is no wait.
                until(SOON, "it is behind the others", || {
                    local.enqueue(n).unwrap().position() == Some(younger + 2)
                });
            }
        });
    }),
    ("many waiters", |holds, wants, n| {
        let _guard = holds.lock(n).unwrap();
        thread::scope(|scope| {
            for _ in 0..MANY {
                let wait = || assert!(wants.try_lock_for(n, WAIT).unwrap().is_none());
                scope.spawn(move || worker(wait));
            }
        });
    }),
];

const SHORT_CASES: &[(&str, Case)] = &[("a short wait", |holds, wants, n| {
    let _guard = holds.lock(n).unwrap();
    assert!(wants.try_lock_for(n, SHORT).unwrap().is_none());
    // A place is no wait while nobody waits with it.
    let mut place = wants.enqueue(n).unwrap();
    assert!(place.wait_for(SHORT).unwrap().is_none());
    // Time itself is under test: a wait of this length would be reported.
    thread::sleep(LONGER + 2 * CHECK_PERIOD);
})];

const MANY: usize = 50;

fn worker(wait: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("worker".to_owned());
        named.spawn_scoped(scope, wait).unwrap();
    });
}

#[test]
fn long_wait_is_logged_each_time_it_doubles() {
    log_capture::on_each_store(|store| {
        let mut child = Child::spawn(LONG_WAITS.0, &[store, "long"]);
        let lines = log_capture::receive_lines(&mut child);
        child.join();
        for (case, _) in LONG_CASES {
            let lines = about(&lines, case);
            check_doubling(case, &lines);
            let is_first = if *case == "many waiters" { "" } else { "1)" };
            let position =
                format!("s for {case:?} (thread \"worker\", label \"wants\", position {is_first}");
            for part in ["WARN waited ", &position] {
                let has_it = |line: &&String| line.contains(part);
                assert!(lines.iter().all(has_it), "{case}: no {part} in {lines:#?}");
            }
        }
    });
}

#[test]
fn short_waits_and_places_alone_are_not_logged() {
    log_capture::on_each_store(|store| {
        for limit in ["short", "turned off"] {
            let mut child = Child::spawn(LONG_WAITS.0, &[store, limit]);
            assert_eq!(log_capture::receive_lines(&mut child), [""; 0], "{limit}");
            child.join();
        }
    });
}

/// The server hangs, and the caller outlasts that.
#[test]
fn long_wait_is_logged_while_redis_is_silent() {
    let server = Server::start();
    let mut child = Child::spawn(LONG_WAITS.0, &[&server.url(), "outage"]);
    child.expect("waits", SOON);
    server.stop();
    child.send("stopped");
    child.expect("logged", SOON);
    server.cont();
    child.join();
}

/// At least three lines, and each comes when the wait has doubled once more.
fn check_doubling(case: &str, lines: &[&String]) {
    assert_ne!(lines, [""; 0], "{case}");
    // As all waits end, the first may leave before another one, which then reports its own wait.
    let position = |line: &String| line.rsplit("position ").next().map(str::to_owned);
    let of_first = |line: &&&String| position(line) == position(lines[0]);
    let waited: Vec<Duration> = lines
        .iter()
        .take_while(of_first)
        .map(|line| waited(line))
        .collect();
    // At best after 0.2, 0.4, 0.8, 1.6 and 3.2 s. A line that a busy machine writes late says a
    // longer time, but none comes before its own.
    assert!(waited.len() >= 3, "{case}: {lines:#?}");
    // The text has tenths of a second.
    let tenth = Duration::from_millis(100);
    let mut due = LONG;
    for waited in waited {
        assert!(waited + tenth >= due, "{case}: {lines:#?}");
        due *= 2;
    }
}

/// The time that a line says, `waited 1.6s` or `waited 213.4ms`.
fn waited(line: &str) -> Duration {
    let (_, rest) = line.split_once("waited ").expect("the time");
    let (text, _) = rest.split_once(" for ").expect("the name");
    let (number, unit) = match text.strip_suffix("ms") {
        Some(ms) => (ms, 1e-3),
        None => (text.strip_suffix('s').expect("a unit"), 1.0),
    };
    Duration::from_secs_f64(number.parse::<f64>().expect("a number") * unit)
}

fn about<'a>(lines: &'a [String], name: &str) -> Vec<&'a String> {
    let named = |line: &&String| line.contains(&format!("{name:?}"));
    lines.iter().filter(named).collect()
}

/// A child role: runs cases side by side, and reports what was logged.
fn long_waits(args: &[String]) {
    log_capture::start();
    let store = log_capture::store(&args[0]);
    let (cases, limit) = match args[1].as_str() {
        "long" => (LONG_CASES, LONG),
        "short" => (SHORT_CASES, LONGER),
        "turned off" => (&LONG_CASES[..1], Duration::MAX),
        _ => {
            let wants = labelled(store, "wants").long_wait(LONG);
            return outage(&build(wants.outage_limit(Duration::MAX)));
        }
    };
    let [holds, wants] =
        ["holds", "wants"].map(|label| build(labelled(store.clone(), label).long_wait(limit)));
    thread::scope(|scope| {
        for (name, case) in cases {
            let (holds, wants) = (&holds, &wants);
            scope.spawn(move || case(holds, wants, name));
        }
    });
    log_capture::report_lines();
}

fn labelled(store: Endpoint, label: &str) -> Builder {
    let options = LockOptions::new().ttl(TTL).label(label);
    with_ttl(store, TTL)
        .command_timeout(T)
        .check_period(CHECK_PERIOD)
        .horizon(HORIZON)
        .options(options)
}

/// Waits while the server is stopped, until that is logged.
fn outage(manager: &LockManager) {
    let fixed = LockOptions::new().fixed_lease(Duration::from_secs(60));
    let guard = manager.with(fixed).lock("n").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut waiter = manager.enqueue("n").unwrap();
            report(format_args!("waits"));
            crate::support::child::receive().expect("the server is stopped");
            waiter.wait_for(SOON).unwrap()
        });
        let is_logged = || {
            let lines = log_capture::lines();
            lines.iter().any(|line| line.contains("label \"wants\""))
        };
        until(SOON, "the wait is logged", is_logged);
        report(format_args!("logged"));
        let _ = guard.unlock();
        assert!(waiting.join().unwrap().is_some());
    });
}
