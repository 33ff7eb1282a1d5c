//! One thread that locks and releases a name that nobody else wants.

use crate::subject::{Cycle, Subject};
use crate::support::cores::Cores;
use crate::support::figure::Figure;
use crate::support::{Rounds, bare_connection, median, micros, now, quantile, round_trip};

/// Cycles of each subject in a round, one after another, as in a program that uses one crate. In short
/// turns, each finds the two cores as another one left them, and that costs the slower ones more.
const CYCLES: usize = 1000;
/// Before them.
const WARM_UP: usize = 100;

/// The results of all rounds for one subject.
#[derive(Default)]
struct Seen {
    /// µs
    p50: Rounds,
    p99: Rounds,
    /// p50 by that of the floor, which is the first subject.
    ratio: Rounds,
}

pub(crate) fn measure(url: &str, cores: Cores, subjects: &[Box<dyn Subject>], rounds: usize) {
    let mut pinged = bare_connection(url);
    let mut cycles: Vec<_> = subjects
        .iter()
        .map(|subject| subject.cycle("bench:peers:alone"))
        .collect();
    let mut trips = Vec::new();
    let mut seen: Vec<Seen> = subjects.iter().map(|_| Seen::default()).collect();
    for _ in 0..rounds {
        trips.push(round_trip(&mut pinged));
        let times = round(&mut cycles);
        let floor = quantile(&times[0], 0.5) as f64;
        for (seen, times) in seen.iter_mut().zip(times) {
            let [p50, p99] = [0.5, 0.99].map(|q| quantile(&times, q) as f64);
            seen.p50.add(p50 / 1e3);
            seen.p99.add(p99 / 1e3);
            seen.ratio.add(p50 / floor);
        }
    }
    let trip = format!("a round trip of {}", micros(median(trips)));
    println!("\none thread, cores: {cores}, {trip}; {rounds} rounds of {CYCLES} cycles");
    println!("  {:<28}{:<24}{:<24}p50 / floor", "", "p50, µs", "p99, µs");
    for (subject, Seen { p50, p99, ratio }) in subjects.iter().zip(&seen) {
        println!("  {:<28}{p50:<24.1}{p99:<24.1}{ratio}", subject.name());
        let note = |what: &str, unit: &str, seen: &Rounds| {
            let title = format!("One thread, lock + release: {what}");
            Figure::new(1, &title, subject.name(), unit)
                .beside(&trip)
                .note(seen);
        };
        note("p50", "µs", p50);
        note("p99", "µs", p99);
        note("p50 beside the bare commands", "×", ratio);
    }
}

/// The times of each subject, in ns.
fn round(cycles: &mut [Cycle]) -> Vec<Vec<u64>> {
    let turn = |cycle: &mut Cycle| {
        (0..WARM_UP).for_each(|_| cycle(&mut || {}));
        let timed = |_| {
            let started = now();
            cycle(&mut || {});
            now() - started
        };
        (0..CYCLES).map(timed).collect()
    };
    cycles.iter_mut().map(turn).collect()
}
