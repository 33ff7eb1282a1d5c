//! A contended lock: how soon after the release the next holder runs, beside a bare round trip; how
//! long the longest wait is; and whether equal threads get equal shares.
//!
//!     cargo bench --bench handoff
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench handoff
//!
//! Without the variable it starts a private redis-server on a port of this host. With n waiters,
//! n + 1 threads only wait for the lock, hold it for 1 ms and release it. With 2 waiters, one of
//! the four processes has no thread.
//!
//! Each round measures round trips before the lock: one after the other, and with a pause of 1 ms
//! between them. The second kind is the fair comparison, since a hand-over always follows a pause
//! and finds the processors asleep. The longest wait is divided by n × (hold + hand-over), the time
//! that a queue in perfect order takes. Two figures show where the time of a hand-over goes: the
//! call of the release, which ends when its caller has the reply, and the time that the server
//! spends in scripts per turn, the enqueue included. Ratios are the median of all rounds
//! (least..most).
//!
//! A round lasts until each thread has had enough turns to compare shares. Any window cuts off some
//! threads one turn earlier than others, and with few turns that matters. So a thread's share
//! counts whole turns: those from its first grant in the window to its first grant behind the
//! window, divided by all grants between the two. "Equal shares" is the smallest share divided by
//! the largest. A thread without a turn has a share of 0. A thread without a turn behind the window
//! is counted up to the last grant of all.

mod support;

use std::collections::HashMap;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{env, process, thread};

use fairlock::LockManager;
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, is_bench, median, micros, now, rounds, server};

const WAITERS: [usize; 4] = [2, 8, 64, 512];
const HOLD: Duration = Duration::from_millis(1);
/// A round lasts for this time, or for this many turns of each thread if that takes longer.
const RUN_FOR: Duration = Duration::from_millis(1000);
const TURNS: u32 = 12;
/// A turn with its hand-over, roughly.
const TURN: Duration = Duration::from_micros(1300);
/// With this many waiters there are fewer rounds, since each is long.
const LONG: usize = 512;
const LAYOUTS: [Layout; 3] = [
    Layout {
        title: "one manager",
        processes: 1,
        managers: 1,
    },
    Layout {
        title: "two managers",
        processes: 1,
        managers: 2,
    },
    Layout {
        title: "four processes",
        processes: 4,
        managers: 1,
    },
];

/// How the threads are spread.
struct Layout {
    title: &'static str,
    processes: usize,
    /// In each process.
    managers: usize,
}

/// One holding of the lock; the moments are of a clock that all processes share.
#[derive(Clone, Copy)]
struct Turn {
    /// Which manager, and which of its threads.
    manager: usize,
    thread: usize,
    asked: u64,
    granted: u64,
    released: u64,
    /// When the call of the release returned.
    given: u64,
    fence: u64,
}

/// The result of one round of one layout.
struct Seen {
    /// From one holder to the next, of another manager if there are two.
    handoff: u64,
    /// The call of the release.
    release: u64,
    /// The longest wait, as a part of what an orderly queue takes.
    longest: f64,
    /// The smallest share of a thread by the largest.
    equality: f64,
    /// The turns of the thread with the fewest, and of the thread with the most.
    turns: (usize, usize),
}

fn main() {
    let args: Vec<String> = env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "threads") {
        return play(&args[at + 1..]);
    }
    let redis = server();
    println!(
        "handoff: one lock, held for {HOLD:?} a turn, on {}",
        redis.about
    );
    println!();
    let titles = [
        "/ round trip",
        "/ after a pause",
        "the release",
        "scripts, µs",
        "longest wait",
        "equal shares",
    ]
    .map(|title| format!("{title:<24}"));
    println!(
        "  {:<15}{:>7}{:>7}{:>11}   {}turns a thread",
        "",
        "waiters",
        "rounds",
        "hand-over",
        titles.concat()
    );
    let mut floor = Floor {
        connection: bare_connection(&redis.url),
        hot: Vec::new(),
        paused: Vec::new(),
    };
    for layout in &LAYOUTS {
        for waiters in WAITERS {
            // The long ones take a minute, which is too much for who only wants to see it work.
            if waiters < LONG || is_bench() {
                case(&redis.url, layout, waiters, &mut floor);
            }
        }
    }
    println!();
    let (hot, paused) = (micros(median(floor.hot)), micros(median(floor.paused)));
    println!(
        "  a bare round trip: {hot} at once after another, {paused} after a pause of {HOLD:?}"
    );
}

fn case(url: &str, layout: &Layout, waiters: usize, floor: &mut Floor) {
    let rounds = rounds(if waiters < LONG { 7 } else { 3 });
    let [
        mut hot,
        mut paused,
        mut release,
        mut longest,
        mut equality,
        mut server,
    ] = [(); 6].map(|()| Rounds::default());
    let mut times = Vec::new();
    let mut turns = (usize::MAX, 0);
    for _ in 0..rounds {
        let trip = floor.measure();
        let before = scripts(&mut floor.connection);
        let taken = round(url, layout, waiters + 1);
        let after = scripts(&mut floor.connection);
        server.add((after - before) as f64 / taken.len() as f64);
        let Some(seen) = evaluate(taken, waiters + 1) else {
            continue;
        };
        hot.add(seen.handoff as f64 / trip.0 as f64);
        paused.add(seen.handoff as f64 / trip.1 as f64);
        release.add(seen.release as f64 / trip.1 as f64);
        longest.add(seen.longest);
        equality.add(seen.equality);
        times.push(seen.handoff);
        turns = (turns.0.min(seen.turns.0), turns.1.max(seen.turns.1));
    }
    let time = micros(median(times));
    let trip = micros(median(floor.hot.iter().copied()));
    let (case, (fewest, most)) = (format!("{waiters} waiters, {}", layout.title), turns);
    let figure = |title: &str, unit: &str| Figure::new(3, title, case.as_str(), unit);
    figure("Hand-over, p50", "× a round trip")
        .beside(format!("{trip} bare"))
        .bound(Bound::AtMost(2.5))
        .note(&hot);
    figure(
        "Hand-over beside a trip after the same pause",
        "× a round trip",
    )
    .beside(format!(
        "{} bare",
        micros(median(floor.paused.iter().copied()))
    ))
    .bound(Bound::AtMost(2.5))
    .note(&paused);
    figure(
        "The release call of a hand-over",
        "× a round trip after a pause",
    )
    .note(&release);
    figure("The server's scripts in a turn", "µs").note(&server);
    figure("Longest wait", "× n × (hold + hand-over)")
        .bound(Bound::AtMost(1.3))
        .note(&longest);
    let shares = figure("Shares of equal threads", "smallest by largest");
    shares
        .beside("1 if all are equal")
        .bound(Bound::AtLeast(0.95))
        .note(&equality);
    println!(
        "  {:<15}{waiters:>7}{rounds:>7}{time:>11}   {hot:<24}{paused:<24}{release:<24}{server:<24}{longest:<24}{equality:<24.3}{fewest}..{most}",
        layout.title
    );
}

/// The time that the server has spent in scripts so far, in µs.
fn scripts(admin: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(admin)
        .expect("INFO is answered");
    let usec = |line: &str| {
        line.strip_prefix("cmdstat_eval")?
            .split_once("usec=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    };
    stats.lines().filter_map(usec).sum()
}

/// A bare PING.
struct Floor {
    connection: redis::Connection,
    hot: Vec<u64>,
    paused: Vec<u64>,
}

impl Floor {
    fn measure(&mut self) -> (u64, u64) {
        let mut ping = |pause| {
            thread::sleep(pause);
            let started = now();
            let _: String = redis::cmd("PING")
                .query(&mut self.connection)
                .expect("PING is answered");
            now() - started
        };
        let hot = median((0..2000).map(|_| ping(Duration::ZERO)));
        let paused = median((0..200).map(|_| ping(HOLD)));
        self.hot.push(hot);
        self.paused.push(paused);
        (hot, paused)
    }
}

/// Lets this many threads, spread over the layout, take turns. Returns all turns.
fn round(url: &str, layout: &Layout, threads: usize) -> Vec<Turn> {
    // Managers and processes take a moment to come up; all threads start at this one.
    let start = now() + 300_000_000;
    let until = start + RUN_FOR.max(TURN * threads as u32 * TURNS).as_nanos() as u64;
    let name = format!("bench:handoff:{}:{start}", process::id());
    if layout.processes == 1 {
        let shares: Vec<usize> = (0..layout.managers)
            .map(|i| share(threads, layout.managers, i))
            .collect();
        return take_turns(url, &name, 0, &shares, (start, until));
    }
    let mut children = Vec::new();
    for i in 0..layout.processes {
        let this = env::current_exe().expect("a running bench has a binary");
        let child = Command::new(this)
            .args([
                "threads",
                &name,
                &i.to_string(),
                &share(threads, layout.processes, i).to_string(),
            ])
            .args([start.to_string(), until.to_string()])
            .env("FAIRLOCK_BENCH_URL", url)
            .stdout(Stdio::piped())
            .spawn();
        children.push(child.expect("the bench can be started again"));
    }
    let mut turns = Vec::new();
    for child in children {
        let out = child.wait_with_output().expect("a child ends");
        assert!(out.status.success(), "a child ended with {}", out.status);
        turns.extend(String::from_utf8_lossy(&out.stdout).lines().map(parse));
    }
    turns
}

fn share(threads: usize, among: usize, i: usize) -> usize {
    (threads + i) / among
}

/// A process of its own: one manager with its threads; prints the turns.
fn play(args: &[String]) {
    let [name, manager, threads, start, until] = args else {
        panic!("not the arguments of a child")
    };
    let number = |arg: &String| arg.parse::<u64>().expect("a number");
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let shares = [number(threads) as usize];
    let window = (number(start), number(until));
    for t in take_turns(&url, name, number(manager) as usize, &shares, window) {
        println!(
            "{} {} {} {} {} {} {}",
            t.manager, t.thread, t.asked, t.granted, t.released, t.given, t.fence
        );
    }
}

fn parse(line: &str) -> Turn {
    let numbers: Vec<u64> = line
        .split(' ')
        .map(|n| n.parse().expect("a number"))
        .collect();
    let [manager, thread, asked, granted, released, given, fence] = numbers[..] else {
        panic!("not a turn: {line}")
    };
    Turn {
        manager: manager as usize,
        thread: thread as usize,
        asked,
        granted,
        released,
        given,
        fence,
    }
}

/// A manager for each share of the threads.
fn take_turns(
    url: &str,
    name: &str,
    first: usize,
    shares: &[usize],
    (start, until): (u64, u64),
) -> Vec<Turn> {
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (i, threads) in shares.iter().enumerate() {
            let manager = LockManager::connect(url).expect("a Redis that answers");
            for thread in 0..*threads {
                let lock = manager.mutex(name);
                let all = &all;
                scope.spawn(move || {
                    thread::sleep(Duration::from_nanos(start.saturating_sub(now())));
                    let mut turns = Vec::new();
                    loop {
                        let asked = now();
                        if asked >= until {
                            break;
                        }
                        let guard = lock.lock().expect("a lock in its turn");
                        let granted = now();
                        thread::sleep(HOLD);
                        let fence = guard.fence();
                        let released = now();
                        drop(guard);
                        let given = now();
                        turns.push(Turn {
                            manager: first + i,
                            thread,
                            asked,
                            granted,
                            released,
                            given,
                            fence,
                        });
                    }
                    all.lock().expect("no thread panicked").extend(turns);
                });
            }
        }
    });
    all.into_inner().expect("no thread panicked")
}

/// `None` if so little was done that nothing can be said.
fn evaluate(mut turns: Vec<Turn>, threads: usize) -> Option<Seen> {
    turns.sort_unstable_by_key(|turn| turn.fence);
    // At first the threads come one by one, and at last they leave so.
    let window = 2 * threads..turns.len().saturating_sub(threads);
    let middle = turns.get(window.clone()).unwrap_or_default();
    if middle.len() <= threads {
        eprintln!(
            "only {} turns in a round of {threads} threads: too few to evaluate",
            turns.len()
        );
        return None;
    }
    let several = middle.iter().any(|turn| turn.manager != middle[0].manager);
    let handoffs = middle
        .windows(2)
        // A thread that asked only after the release was not handed the lock.
        .filter(|pair| pair[1].asked < pair[0].released)
        .filter(|pair| !several || pair[0].manager != pair[1].manager)
        .map(|pair| pair[1].granted.saturating_sub(pair[0].released));
    let handoff = median(handoffs);
    let hold = median(middle.iter().map(|turn| turn.released - turn.granted));
    let longest = middle
        .iter()
        .map(|turn| turn.granted - turn.asked)
        .max()
        .unwrap_or(0);
    let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
    for turn in middle {
        *counts.entry((turn.manager, turn.thread)).or_default() += 1;
    }
    let fewest = if counts.len() < threads {
        0
    } else {
        counts.values().copied().min().unwrap_or(0)
    };
    Some(Seen {
        handoff,
        release: median(middle.iter().map(|turn| turn.given - turn.released)),
        longest: longest as f64 / ((threads - 1) as f64 * (hold + handoff) as f64),
        equality: equality(&turns, window, threads),
        turns: (fewest, counts.values().copied().max().unwrap_or(0)),
    })
}

/// The smallest share by the largest, measured by the whole turns that began in the window.
fn equality(turns: &[Turn], window: Range<usize>, threads: usize) -> f64 {
    let mut grants: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    for (at, turn) in turns.iter().enumerate().skip(window.start) {
        grants
            .entry((turn.manager, turn.thread))
            .or_default()
            .push(at);
    }
    let shares = grants.values().map(|grants| {
        let within = grants.partition_point(|at| *at < window.end);
        let behind = grants.get(within).copied().unwrap_or(turns.len());
        if within == 0 {
            0.0
        } else {
            within as f64 / (behind - grants[0]) as f64
        }
    });
    let (smallest, largest) = shares.fold((f64::MAX, 0.0), |(least, most), share| {
        (share.min(least), share.max(most))
    });
    if grants.len() < threads {
        0.0
    } else {
        smallest / largest
    }
}
