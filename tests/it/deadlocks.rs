//! Threads wait for each other in a circle: one warning names them all, when the last of them begins
//! to wait. On both stores. A logger belongs to a whole process, so each run is a process of its
//! own.

use std::{
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, LockOptions};

use crate::{
    fixtures::{build, with_ttl},
    log_capture,
    support::{Child, SLACK, child::Role, until},
};

pub(crate) const DEADLOCKS: (&str, Role) = ("deadlocks", deadlocks);
pub(crate) const DEADLOCK_AGAIN: (&str, Role) = ("deadlock again", deadlock_again);

const TTL: Duration = Duration::from_secs(60);
/// No check comes while these tests run: a warning must not wait for one.
const CHECK_PERIOD: Duration = Duration::from_secs(20);
const HORIZON: Duration = Duration::from_secs(30);
/// How long each wait lasts, if its turn does not come.
const WAIT: Duration = Duration::from_secs(3);

/// The managers of a case: two of one program, and the start of its names.
struct Scene<'a> {
    one: &'a LockManager,
    other: &'a LockManager,
    case: &'a str,
}

impl Scene<'_> {
    /// A name that belongs to this case alone.
    fn name(&self, of: &str) -> String {
        format!("{of} of {}", self.case)
    }

    /// Runs both in threads of these names. Each takes what it needs, meets the other at the
    /// barrier, and then waits.
    fn side_by_side(&self, a: impl FnOnce(&Barrier) + Send, b: impl FnOnce(&Barrier) + Send) {
        let met = &Barrier::new(2);
        thread::scope(|scope| {
            let named = |name: &str| thread::Builder::new().name(name.to_owned());
            named("a").spawn_scoped(scope, move || a(met)).unwrap();
            named("b").spawn_scoped(scope, move || b(met)).unwrap();
        });
    }
}

type Case = fn(&Scene<'_>);

/// In each of them threads wait in a circle, of which `x` is a name. The first wait to reach its
/// deadline ends the circle, so another may end with the lock.
const CIRCLES: &[(&str, Case)] = &[
    ("two threads", |s| two_threads(s, s.one, s.one)),
    ("two managers", |s| two_threads(s, s.one, s.other)),
    ("members of lines", |s| {
        let local = s.one.with(LockOptions::new().local_handovers(9));
        two_threads(s, &local, &local);
    }),
    ("five threads", |s| {
        let names: Vec<String> = ["x", "v", "w", "y", "z"].map(|of| s.name(of)).into();
        let met = Barrier::new(5);
        thread::scope(|scope| {
            for (at, own) in names.iter().enumerate() {
                let (next, met) = (&names[(at + 1) % names.len()], &met);
                scope.spawn(move || {
                    let _guard = s.one.lock(own).unwrap();
                    met.wait();
                    drop(s.one.try_lock_for(next, WAIT).unwrap());
                });
            }
        });
    }),
    ("without a deadline", |s| {
        // The first of them gives up, so that the other gets its turn.
        s.side_by_side(
            |met| {
                let guard = s.one.lock(s.name("x")).unwrap();
                met.wait();
                drop(s.one.try_lock_for(s.name("y"), WAIT).unwrap());
                drop(guard);
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                let _x = s.one.lock(s.name("x")).unwrap();
            },
        );
    }),
    ("permits", |s| {
        let permits = s.one.semaphore(s.name("x"), 4);
        s.side_by_side(
            |met| {
                let _three = permits.acquire_many(3).unwrap();
                met.wait();
                drop(s.one.try_lock_for(s.name("y"), WAIT).unwrap());
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                drop(permits.try_acquire_many_for(2, WAIT).unwrap());
            },
        );
    }),
    ("a reader and a writer", |s| {
        let lock = s.one.rw_lock(s.name("x"));
        s.side_by_side(
            |met| {
                let _reads = lock.read().unwrap();
                met.wait();
                drop(s.one.try_lock_for(s.name("y"), WAIT).unwrap());
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                drop(lock.try_write_for(WAIT).unwrap());
            },
        );
    }),
    ("several at once", |s| {
        s.side_by_side(
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                until(SLACK, "the other holds x and waits for y", || {
                    s.one.inspect(s.name("y")).unwrap().unwrap().waiters > 0
                });
                drop(s.one.try_lock_for(s.name("x"), WAIT).unwrap());
            },
            |met| {
                met.wait();
                let names = [s.name("x"), s.name("y")];
                drop(s.one.try_lock_all_for(&names, WAIT).unwrap());
            },
        );
    }),
    ("a re-entrant mutex and a waiter", |s| {
        s.side_by_side(
            |met| {
                let again = s.one.reentrant_mutex(s.name("x"));
                let _outer = again.lock().unwrap();
                let _inner = again.lock().unwrap();
                met.wait();
                drop(s.one.try_lock_for(s.name("y"), WAIT).unwrap());
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                let mut waiter = s.one.enqueue(s.name("x")).unwrap();
                let start = Instant::now();
                while start.elapsed() < WAIT / 2 {
                    assert!(waiter.wait_for(WAIT / 50).unwrap().is_none());
                }
            },
        );
    }),
];

/// In each of them threads wait in a circle, with a writer of another thread in between. That writer
/// may give up.
const POSSIBLE_CIRCLES: &[(&str, Case)] = &[("readers around a writer", |s| {
    let lock = s.one.rw_lock(s.name("x"));
    let writer = Mutex::new(None);
    s.side_by_side(
        |met| {
            let _reads = lock.read().unwrap();
            met.wait();
            drop(s.one.try_lock_for(s.name("y"), WAIT).unwrap());
        },
        |met| {
            let _guard = s.one.lock(s.name("y")).unwrap();
            met.wait();
            *writer.lock().unwrap() = Some(lock.enqueue_write().unwrap());
            drop(lock.try_read_for(WAIT).unwrap());
        },
    );
})];

fn two_threads(s: &Scene<'_>, first: &LockManager, second: &LockManager) {
    s.side_by_side(
        |met| {
            let _guard = first.lock(s.name("x")).unwrap();
            met.wait();
            drop(second.try_lock_for(s.name("y"), WAIT).unwrap());
        },
        |met| {
            let _guard = second.lock(s.name("y")).unwrap();
            met.wait();
            drop(first.try_lock_for(s.name("x"), WAIT).unwrap());
        },
    );
}

const SHORT: Duration = Duration::from_millis(200);

/// In none of them threads wait in a circle.
const CHAINS: &[(&str, Case)] = &[
    ("a holder that does not wait", |s| {
        s.side_by_side(
            |met| {
                let _guard = s.one.lock(s.name("x")).unwrap();
                met.wait();
                assert!(s.one.try_lock_for(s.name("y"), SHORT).unwrap().is_none());
                met.wait();
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                met.wait();
            },
        );
    }),
    ("released before", |s| {
        s.side_by_side(
            |met| {
                drop(s.one.lock(s.name("x")).unwrap());
                met.wait();
                met.wait();
                assert!(s.one.try_lock_for(s.name("y"), SHORT).unwrap().is_none());
                met.wait();
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                let third = thread::scope(|scope| scope.spawn(|| s.one.lock(s.name("x"))).join());
                let third = third.unwrap().unwrap();
                met.wait();
                assert!(s.one.try_lock_for(s.name("x"), SHORT).unwrap().is_none());
                met.wait();
                drop(third);
            },
        );
    }),
    ("permits that others have", |s| {
        let permits = s.one.semaphore(s.name("x"), 4);
        let others = thread::scope(|scope| scope.spawn(|| permits.acquire_many(2)).join());
        s.side_by_side(
            |met| {
                let _one = permits.acquire().unwrap();
                met.wait();
                assert!(s.one.try_lock_for(s.name("y"), SHORT).unwrap().is_none());
                met.wait();
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                assert!(permits.try_acquire_many_for(2, SHORT).unwrap().is_none());
                met.wait();
            },
        );
        drop(others);
    }),
    ("a place without a wait", |s| {
        s.side_by_side(
            |met| {
                let _guard = s.one.lock(s.name("x")).unwrap();
                met.wait();
                let _place = s.one.enqueue(s.name("y")).unwrap();
                met.wait();
                met.wait();
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                met.wait();
                assert!(s.one.try_lock_for(s.name("x"), SHORT).unwrap().is_none());
                met.wait();
            },
        );
    }),
    ("after a deadline", |s| {
        s.side_by_side(
            |met| {
                let _guard = s.one.lock(s.name("x")).unwrap();
                met.wait();
                assert!(s.one.try_lock_for(s.name("y"), SHORT).unwrap().is_none());
                met.wait();
                met.wait();
            },
            |met| {
                let _guard = s.one.lock(s.name("y")).unwrap();
                met.wait();
                met.wait();
                assert!(s.one.try_lock_for(s.name("x"), SHORT).unwrap().is_none());
                met.wait();
            },
        );
    }),
];

#[test]
fn circle_of_waiting_threads_is_warned_of_once_and_named() {
    log_capture::on_each_store(|store| check_circles(&lines_of(store, "circles")));
}

#[test]
fn threads_that_wait_in_no_circle_are_not_warned_of() {
    log_capture::on_each_store(|store| assert_eq!(lines_of(store, "chains"), [""; 0]));
}

#[test]
fn circle_that_a_writer_may_open_is_said_to_be_one_unless_it_does() {
    log_capture::on_each_store(|store| {
        let lines = lines_of(store, "possible");
        let [line] = &lines[..] else {
            panic!("{lines:#?}")
        };
        let unless = "deadlock of 2 threads, unless a writer before a reader gives up";
        assert!(line.contains(unless), "{line}");
    });
}

/// A wait with a deadline has closed a circle of the same names, and was warned of.
#[test]
fn deadlock_in_the_pause_of_a_warning_is_warned_of_in_the_end() {
    log_capture::on_each_store(|store| {
        let mut child = Child::spawn(DEADLOCK_AGAIN.0, &[store]);
        let lines = log_capture::receive_lines(&mut child);
        child.join();
        let deadlocks: Vec<&String> = circles_in(&lines).collect();
        let [first, again] = &deadlocks[..] else {
            panic!("{lines:#?}")
        };
        assert!(first.contains("has a deadline"), "{first}");
        assert!(!again.contains("has a deadline"), "{again}");
    });
}

fn circles_in(lines: &[String]) -> impl Iterator<Item = &String> {
    lines.iter().filter(|line| line.contains("deadlock of"))
}

fn check_circles(lines: &[String]) {
    for (case, _) in CIRCLES {
        let [line] = &of(lines, case)[..] else {
            panic!("{case}: {lines:#?}")
        };
        let names: &[&str] = match *case {
            "five threads" => &["x", "v", "w", "y", "z"],
            _ => &["x", "y"],
        };
        let mut parts: Vec<String> = ["WARN deadlock of", "\"first\"", "fence", "has a deadline"]
            .map(str::to_owned)
            .into();
        parts.push(format!("deadlock of {} threads", names.len()));
        parts.extend(
            names
                .iter()
                .map(|name| format!("waits for \"{name} of {case}\"")),
        );
        if *case == "two managers" {
            parts.push("\"second\"".to_owned());
        }
        for part in parts {
            assert!(line.contains(&part), "{case}: no {part} in {line:?}");
        }
        if names.len() == 2 {
            for thread in ["thread \"a\" (", "thread \"b\" ("] {
                let named = line.matches(thread).count();
                assert_eq!(named, 2, "{case}: it waits and it took: {line:?}");
            }
        }
    }
    assert_eq!(lines.len(), CIRCLES.len(), "{lines:#?}");
}

fn lines_of(store: &str, cases: &str) -> Vec<String> {
    let mut child = Child::spawn(DEADLOCKS.0, &[store, cases]);
    let lines = log_capture::receive_lines(&mut child);
    child.join();
    lines
}

fn of<'a>(lines: &'a [String], case: &str) -> Vec<&'a String> {
    let named = |line: &&String| line.contains(&format!("x of {case}\""));
    lines.iter().filter(named).collect()
}

/// A child role: runs the cases side by side, and reports what was logged.
fn deadlocks(args: &[String]) {
    log_capture::start();
    let cases = match args[1].as_str() {
        "circles" => CIRCLES,
        "possible" => POSSIBLE_CIRCLES,
        _ => CHAINS,
    };
    let store = log_capture::store(&args[0]);
    let [one, other] = ["first", "second"].map(|label| {
        let options = LockOptions::new().ttl(TTL).label(label);
        let builder = with_ttl(store.clone(), TTL).options(options);
        build(builder.check_period(CHECK_PERIOD).horizon(HORIZON))
    });
    let start = Instant::now();
    thread::scope(|scope| {
        for (case, body) in cases {
            let (one, other) = (&one, &other);
            scope.spawn(move || body(&Scene { one, other, case }));
        }
        if args[1] != "chains" {
            let unnamed = || -> Vec<&str> {
                let lines = log_capture::lines();
                let names = cases.iter().map(|(case, _)| *case);
                names.filter(|case| of(&lines, case).is_empty()).collect()
            };
            while !unnamed().is_empty() {
                let late = start.elapsed() >= SLACK;
                assert!(!late, "not warned of before a check: {:?}", unnamed());
                thread::yield_now();
            }
            assert!(start.elapsed() < WAIT, "no wait is over");
        }
    });
    log_capture::report_lines();
}

/// A child role: two threads wait in a circle, until the first gives up. Then two wait in the same
/// circle without a deadline, while the pause after the warning lasts. Reports what was logged.
fn deadlock_again(args: &[String]) {
    log_capture::start();
    let builder = with_ttl(log_capture::store(&args[0]), TTL).long_wait(SLACK);
    let mgr = &build(builder.check_period(SHORT));
    let scene = Scene {
        one: mgr,
        other: mgr,
        case: "again",
    };
    let (x, y) = (scene.name("x"), scene.name("y"));
    let wait_for = |name: &str, most: Option<Duration>| match most {
        Some(most) => mgr.try_lock_for(name, most).unwrap(),
        None => Some(mgr.lock(name).unwrap()),
    };
    let close_circle = |most: Option<Duration>| {
        let end_of = |own: &str, next: &str, met: &Barrier| {
            let _guard = mgr.lock(own).unwrap();
            met.wait();
            drop(wait_for(next, most));
        };
        scene.side_by_side(|met| end_of(&x, &y, met), |met| end_of(&y, &x, met));
    };
    close_circle(Some(SHORT));
    assert_eq!(circles_in(&log_capture::lines()).count(), 1);
    thread::scope(|scope| {
        scope.spawn(|| close_circle(None));
        let start = Instant::now();
        let are_two = || circles_in(&log_capture::lines()).count() == 2;
        while !are_two() && start.elapsed() < 3 * SLACK {
            thread::yield_now();
        }
        let holder = &mgr.inspect(&x).unwrap().unwrap().holders[0];
        let released = mgr.force_release(&x, holder.fence.unwrap()).unwrap();
        assert!(released, "nothing else ends the circle");
    });
    log_capture::report_lines();
}
