//! The next lock of a name that this process keeps.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use fairlock::{LockGuard, LockManager};

use crate::floor::Floor;
use crate::support::figure::Bound;
use crate::support::{
    Rounds, bare_connection, manager, median, micros, now, quantile, round_trip, rounds, sized,
};
use crate::throughput::throughput;
use crate::{figure, keeper, warm_up};

/// As many names as one manager keeps at a time are 1,024.
const MANY_NAMES: usize = 1000;
const TOO_MANY_NAMES: usize = 10_000;

#[derive(Clone, Copy, PartialEq)]
enum How {
    Handle,
    Name,
}

struct Case {
    how: How,
    threads: usize,
    /// Of each thread.
    names: usize,
    /// Under the guard, in ns.
    work: u64,
}

const CASES: [Case; 10] = [
    case(How::Handle, 1, 1, 0),
    case(How::Name, 1, 1, 0),
    case(How::Handle, 1, 1, 1_000),
    case(How::Name, 1, 1, 1_000),
    case(How::Handle, 1, 1, 10_000),
    case(How::Name, 1, 1, 10_000),
    case(How::Handle, 2, 1, 0),
    case(How::Name, 2, 1, 0),
    case(How::Handle, 1, MANY_NAMES, 0),
    case(How::Name, 1, MANY_NAMES, 0),
];

const fn case(how: How, threads: usize, names: usize, work: u64) -> Case {
    Case {
        how,
        threads,
        names,
        work,
    }
}

impl Case {
    fn title(&self) -> String {
        let how = match self.how {
            How::Handle => "by handle",
            How::Name => "by name",
        };
        let Case {
            threads,
            names,
            work,
            ..
        } = self;
        let names = if *names > 1 {
            format!(", {names} names")
        } else {
            String::new()
        };
        let work = if *work > 0 {
            format!(", {} µs of work", work / 1000)
        } else {
            String::new()
        };
        let s = if *threads > 1 { "s" } else { "" };
        format!("{threads} thread{s}, {how}{names}{work}")
    }

    /// The targets are for one thread and one name.
    fn bounds(&self) -> [Bound; 2] {
        match (self.how, self.threads, self.names, self.work) {
            (How::Handle, 1, 1, 0) => [Bound::AtMost(150.0), Bound::AtMost(1000.0)],
            (How::Name, 1, 1, 0) => [Bound::AtMost(250.0), Bound::AtMost(1000.0)],
            _ => [Bound::None; 2],
        }
    }
}

pub(crate) fn measure(url: &str) {
    let mut floor = Floor::new(url, "bench:kept:floor");
    let mut pinged = bare_connection(url);
    let plain = manager(url, None);
    let plain_lock = plain.mutex("bench:kept:plain");
    let keeping = keeper(url);
    let few = sized(50, 500, 500);
    let mut trips = Vec::new();
    let [mut floors, mut plains] = [Vec::new(), Vec::new()];
    let mut seen = CASES.map(|_| [(); 3].map(|()| Rounds::default()));
    for _ in 0..rounds(9) {
        trips.push(round_trip(&mut pinged));
        let of_floor = median((0..few).map(|_| timed(|| floor.cycle())));
        floors.push(of_floor);
        plains.push(median((0..few).map(|_| {
            timed(|| drop(plain_lock.lock().expect("nobody else wants it")))
        })));
        for (case, [p50, p99, to_floor]) in CASES.iter().zip(&mut seen) {
            let times = relock(&keeping, case);
            let [half, most] = [0.5, 0.99].map(|q| quantile(&times, q) as f64);
            p50.add(half);
            p99.add(most);
            to_floor.add(of_floor as f64 / half.max(1.0));
        }
    }
    let [trip, floor, plain] = [trips, floors, plains].map(|times| micros(median(times)));
    println!("relock: lock + drop of a kept name; a bare round trip takes {trip}");
    println!("  floor, p50: {floor}; lock + drop without keep: {plain}");
    println!("  {:<40}{:<22}{:<24}floor / p50", "ns", "p50", "p99");
    for (case, [p50, p99, to_floor]) in CASES.iter().zip(&seen) {
        let title = case.title();
        println!("  {title:<40}{p50:<22.0}{p99:<24.0}{to_floor:.0}");
        let [half, most] = case.bounds();
        figure("Lock + drop of a kept name, p50", &*title, "ns")
            .beside(format!("{floor} bare, {plain} without keep"))
            .bound(half)
            .note(p50);
        figure("Lock + drop of a kept name, p99", &*title, "ns")
            .bound(most)
            .note(p99);
        figure("The floor by lock + drop of a kept name, p50", &*title, "×")
            .beside(format!("{floor} bare, round trip {trip}"))
            .note(to_floor);
    }
    too_many_names(url);
}

/// The time of each cycle, in ns.
fn relock(manager: &LockManager, case: &Case) -> Vec<u64> {
    let cycles = sized(500, 10_000, 20_000).max(case.names * 3);
    let start = Barrier::new(case.threads);
    let of_thread = |thread: usize| {
        let (name, start) = (|i: usize| format!("bench:kept:{thread}:{i}"), &start);
        let names: Vec<String> = (0..case.names).map(name).collect();
        names.iter().for_each(|name| warm_up(manager, name));
        let handles: Vec<fairlock::Mutex> = names.iter().map(|name| manager.mutex(name)).collect();
        let empty = median((0..1000).map(|_| timed(|| ())));
        start.wait();
        let cycle = |i: usize| {
            let at = i % case.names;
            let take = || match case.how {
                How::Handle => handles[at].lock(),
                How::Name => manager.lock(&names[at]),
            };
            with_work(|| take().expect("nobody else wants it"), case.work, empty)
        };
        (0..cycles).map(cycle).collect::<Vec<u64>>()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads)
            .map(|thread| scope.spawn(move || of_thread(thread)))
            .collect();
        let ends = threads.into_iter();
        ends.flat_map(|thread| thread.join().expect("no thread panics"))
            .collect()
    })
}

fn timed(call: impl FnOnce()) -> u64 {
    let began = now();
    call();
    now() - began
}

/// The time of both calls. `empty` is what it takes to read the clock.
fn with_work(take: impl FnOnce() -> LockGuard, work: u64, empty: u64) -> u64 {
    let began = now();
    let guard = take();
    if work == 0 {
        drop(guard);
        return (now() - began).saturating_sub(empty);
    }
    let taken = now();
    let mut done = taken;
    while done < taken + work {
        spin_loop();
        done = now();
    }
    drop(guard);
    (taken - began + (now() - done)).saturating_sub(2 * empty)
}

/// More names than a manager keeps, in turn: most of them go through Redis.
fn too_many_names(url: &str) {
    let number = sized(1500, TOO_MANY_NAMES, TOO_MANY_NAMES);
    let names = ["plain", "keep"].map(|kind| -> Vec<String> {
        (0..number)
            .map(|i| format!("bench:many:{kind}:{i}"))
            .collect()
    });
    let (plain, keeping) = (manager(url, None), keeper(url));
    warm_up(&keeping, "bench:many");
    let sweep = |manager: &LockManager, names: &[String]| {
        timed(|| {
            for name in names {
                drop(manager.lock(name).expect("nobody else wants it"));
            }
        })
    };
    // The second time, a name is found again. The third time, it is kept.
    (0..2).for_each(|_| _ = sweep(&keeping, &names[1]));
    let [mut ratio, mut kept] = [(); 2].map(|()| Rounds::default());
    for _ in 0..rounds(3) {
        let without = sweep(&plain, &names[0]);
        let before = keeping.stats().kept_turns;
        let with = sweep(&keeping, &names[1]);
        kept.add((keeping.stats().kept_turns - before) as f64);
        ratio.add(with as f64 / without as f64);
    }
    println!(
        "  {number} names in turn: {kept:.0} of them were kept; time with keep / without: {ratio}"
    );
    figure(
        "More names than are kept: with keep / without",
        "1 thread",
        "×",
    )
    .bound(Bound::AtMost(1.1))
    .note(&ratio);
}

/// Runs one subject for a profiler.
pub(crate) fn alone(url: &str, subject: &str) {
    let manager = keeper(url);
    let threads = if subject == "threads" { 2 } else { 1 };
    let names: Vec<String> = (0..threads).map(|i| format!("bench:kept:{i}")).collect();
    names.iter().for_each(|name| warm_up(&manager, name));
    let cycle = |name: &String| {
        let (manager, name) = (manager.clone(), name.clone());
        let handle = (subject != "name").then(|| manager.mutex(&name));
        move || {
            let guard = match &handle {
                Some(handle) => handle.lock(),
                None => manager.lock(&name),
            };
            drop(guard.expect("nobody else wants it"));
        }
    };
    let rate = throughput(Duration::from_secs(2), names.iter().map(cycle).collect());
    println!("{subject}: {rate} cycles a second");
}
