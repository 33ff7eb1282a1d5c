//! One thread: the time of a cycle.

use std::fs;

use redis::Connection;

use crate::subject::{Cpu, Cycle, Kind, Measured};
use crate::support::cores::Cores;
use crate::support::figure::{Bound, Figure};
use crate::support::{Rounds, bare_connection, manager, median, micros, now, quantile, round_trip};

/// Cycles for each kind in a round, and how many before the next kind's turn. In shorter turns, each
/// finds the two cores as another one left them, and that costs the slower ones more.
const CYCLES: usize = 2000;
const CYCLES_AT_ONCE: usize = 500;

const KINDS: [Kind; 4] = [Kind::Floor, Kind::Mux, Kind::Drop(None), Kind::Unlock];

/// From this on a round trip counts as slow, in ns. The saved wait is another share of each.
const SLOW: u64 = 40_000;

/// The result of a round.
struct Round {
    /// ns
    round_trip: u64,
    of_kind: Vec<Times>,
}

struct Times {
    p50: u64,
    p99: u64,
    rate: u64,
}

pub(crate) fn measure(url: &str, cores: Cores, rounds: usize) {
    let mut admin = bare_connection(url);
    let mut all: Vec<Measured> = KINDS.map(|kind| Measured::new(kind, url, 1)).into();
    round(&mut admin, &mut all);
    all.iter_mut().for_each(Measured::forget);
    let seen: Vec<Round> = (0..rounds).map(|_| round(&mut admin, &mut all)).collect();

    println!("one thread, cores: {cores}, {rounds} rounds of {CYCLES} cycles each");
    show(&seen);
    Measured::print_costs_of(&all);
}

fn round(admin: &mut Connection, all: &mut [Measured]) -> Round {
    let mut round_trips = Vec::new();
    let mut times: Vec<Vec<u64>> = all.iter().map(|_| Vec::new()).collect();
    let mut whole = vec![0; all.len()];
    for _ in 0..CYCLES / CYCLES_AT_ONCE {
        round_trips.push(round_trip(admin));
        for (i, measured) in all.iter_mut().enumerate() {
            whole[i] += turn(admin, measured, &mut times[i]);
        }
    }
    let of_one = |(times, whole): (Vec<u64>, u64)| Times {
        p50: quantile(&times, 0.5),
        p99: quantile(&times, 0.99),
        rate: CYCLES as u64 * 1_000_000_000 / whole,
    };
    Round {
        round_trip: median(round_trips),
        of_kind: times.into_iter().zip(whole).map(of_one).collect(),
    }
}

/// Answers how long it took, until the server has done all of it.
fn turn(admin: &mut Connection, measured: &mut Measured, times: &mut Vec<u64>) -> u64 {
    let before = Cpu::read(admin);
    let began = now();
    {
        let mut cycles = measured.subject.cycles(1);
        let cycle: &mut Cycle<'_> = &mut cycles[0];
        for _ in 0..CYCLES_AT_ONCE {
            let started = now();
            cycle();
            times.push(now() - started);
        }
    }
    // Its reply comes behind the last release, which may still be on its way.
    let after = Cpu::read(admin);
    measured.add(CYCLES_AT_ONCE as u64, before, after);
    now() - began
}

fn show(rounds: &[Round]) {
    let trip = median(rounds.iter().map(|round| round.round_trip));
    let most = if trip < SLOW { 1.0 } else { 0.65 };
    let trip = micros(trip);
    println!("  a bare round trip takes {trip}");
    println!(
        "  {:<22}{:>12}{:>12}{:>10}   p50 / floor",
        "", "p50", "p99", "cycles/s"
    );
    let of = |kind: usize, of: fn(&Times) -> u64| {
        median(rounds.iter().map(|round| of(&round.of_kind[kind])))
    };
    let floor = of(0, |times| times.p50);
    for (i, kind) in KINDS.into_iter().enumerate() {
        let mut ratio = Rounds::default();
        for round in rounds {
            ratio.add(round.of_kind[i].p50 as f64 / round.of_kind[0].p50 as f64);
        }
        println!(
            "  {:<22}{:>12}{:>12}{:>10}   {ratio}",
            kind.title(),
            micros(of(i, |times| times.p50)),
            micros(of(i, |times| times.p99)),
            of(i, |times| times.rate),
        );
        let bound = match kind {
            Kind::Floor => continue,
            Kind::Mux => Bound::None,
            Kind::Drop(_) => Bound::AtMost(most),
            Kind::Unlock => Bound::AtMost(1.1),
        };
        Figure::new(2, "One thread, p50", kind.title(), "× the floor")
            .beside(format!("{} bare, round trip {trip}", micros(floor)))
            .bound(bound)
            .note(&ratio);
    }
}

/// How often the renewal thread wakes while locks come and go.
pub(crate) fn count_wakeups(url: &str) {
    const CYCLES: usize = 10_000;
    let manager = manager(url, None);
    let lock = manager.mutex("bench:wakeups");
    drop(lock.lock().expect("nobody else wants it"));
    let before = sleeps_of_renewal_threads();
    (0..CYCLES).for_each(|_| drop(lock.lock().expect("nobody else wants it")));
    if let (Some(before), Some(after)) = (before, sleeps_of_renewal_threads()) {
        let wakeups = after - before;
        println!("  {CYCLES} cycles of lock + drop wake the renewal thread {wakeups} times");
        let mut seen = Rounds::default();
        seen.add(wakeups as f64);
        let title = "Wake-ups of the renewal thread in 10,000 cycles";
        Figure::new(2, title, "lock + drop", "wake-ups")
            .bound(Bound::AtMost(20.0))
            .note(&seen);
    }
}

/// `None` where the system does not say.
fn sleeps_of_renewal_threads() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten();
    let sleeps = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        // Linux keeps the first 15 bytes of a name.
        status.starts_with("Name:\tfairlock-renewa").then_some(())?;
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    });
    Some(sleeps.sum())
}
