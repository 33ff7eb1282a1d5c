//! Several managers that all wait for one name: what being told of others does to a hand-over.

use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use fairlock::{LockManager, LockOptions};
use redis::Connection;

use crate::support::cores::Cores;
use crate::support::figure::Bound;
use crate::support::{
    Rounds, bare_connection, manager, median, micros, now, quantile, round_trip, rounds, sized,
};
use crate::{KEEP, figure, warm_up};

const MANAGERS: [usize; 3] = [2, 3, 10];
const HOLD: Duration = Duration::from_micros(300);

/// The managers' wishes. The first is what the others are measured against.
const KINDS: [(&str, LockOptions); 3] = [
    ("without keep", LockOptions::new()),
    ("keep", LockOptions::new().keep_idle(KEEP)),
    // Never cold: each hand-over has what a kept lock needs.
    ("notify_wanted", LockOptions::new().notify_wanted(true)),
];

#[derive(Default)]
struct Seen {
    p50: Rounds,
    p99: Rounds,
    /// The longest hand-over.
    most: Rounds,
    ratio: Rounds,
    stall: Rounds,
}

pub(crate) fn measure(url: &str) {
    let mut pinged = bare_connection(url);
    println!("all_wait: managers that all wait for one name, {HOLD:?} under each guard");
    Cores::each(url, &[process::id()], |cores| {
        println!(
            "  {:<24}{:<16}{:>12}{:>12}{:>12}   {:<22}longest / round trip",
            format!("managers, cores: {cores}"),
            "",
            "p50",
            "p99",
            "longest",
            "p50 / without"
        );
        MANAGERS
            .iter()
            .for_each(|managers| compare(url, &mut pinged, *managers));
    });
}

fn compare(url: &str, pinged: &mut Connection, managers: usize) {
    let all = KINDS.map(|(_, options)| {
        let managers: Vec<LockManager> = (0..managers)
            .map(|_| manager(url, None).with(options.clone()))
            .collect();
        managers
    });
    for (i, manager) in all[1].iter().enumerate() {
        warm_up(manager, &format!("bench:all-wait:warm-up:{managers}:{i}"));
    }
    let mut seen: [Seen; 3] = Default::default();
    for round in 0..rounds(7) {
        let trip = round_trip(pinged) as f64;
        let mut halves = [0.0; 3];
        for ((managers, seen), half) in all.iter().zip(&mut seen).zip(&mut halves) {
            let handovers = take_turns(managers, &format!("bench:all-wait:{round}"));
            *half = median(handovers.iter().copied()) as f64;
            let most = handovers.iter().copied().max().unwrap_or(0) as f64;
            seen.p50.add(*half);
            seen.p99.add(quantile(&handovers, 0.99) as f64);
            seen.most.add(most);
            seen.stall.add(most / trip);
        }
        for (seen, half) in seen.iter_mut().zip(halves) {
            seen.ratio.add(half / halves[0]);
        }
    }
    for ((kind, _), seen) in KINDS.into_iter().zip(&seen) {
        show(managers, kind, seen);
    }
}

fn show(managers: usize, kind: &str, seen: &Seen) {
    let [p50, p99, most] =
        [&seen.p50, &seen.p99, &seen.most].map(|times| micros(times.median() as u64));
    println!(
        "  {managers:<24}{kind:<16}{p50:>12}{p99:>12}{most:>12}   {:<22}{:.1}",
        seen.ratio, seen.stall
    );
    let case = format!("{managers} managers, {kind}");
    if kind != "without keep" {
        figure("All wait: hand-over p50, by that without keep", &*case, "×")
            .bound(Bound::AtMost(1.1))
            .note(&seen.ratio);
    }
    figure("All wait: the longest hand-over", &*case, "round trips")
        .beside(format!("p50 {p50}, p99 {p99}"))
        .note(&seen.stall);
}

/// Each manager has one thread. Returns the time from each release to the next grant, in ns.
fn take_turns(managers: &[LockManager], name: &str) -> Vec<u64> {
    let run_for = Duration::from_millis(sized(50, 150, 300));
    let until = now() + run_for.as_nanos() as u64;
    let released = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for manager in managers {
            scope.spawn(|| {
                let mut handovers = Vec::new();
                while now() < until {
                    let guard = manager.lock(name).expect("a lock");
                    let before = released.load(Ordering::Relaxed);
                    if before > 0 {
                        handovers.push(now().saturating_sub(before));
                    }
                    sleep(HOLD);
                    released.store(now(), Ordering::Relaxed);
                    drop(guard);
                }
                all.lock().expect("no thread panicked").extend(handovers);
            });
        }
    });
    all.into_inner().expect("no thread panicked")
}
