//! Many threads, each on a name of its own: how much they do together.

use std::time::Duration;

use crate::subject::Subject;
use crate::support::figure::Figure;
use crate::support::{Rounds, is_bench, now, quantile};
use crate::throughput::throughput;

const THREADS: usize = 32;

pub(crate) fn measure(subjects: &[Box<dyn Subject>], rounds: usize) {
    let run_for = Duration::from_millis(if is_bench() { 500 } else { 50 });
    let mut rates: Vec<Rounds> = subjects.iter().map(|_| Rounds::default()).collect();
    let mut p99s: Vec<Rounds> = subjects.iter().map(|_| Rounds::default()).collect();
    // The first is to warm up.
    for number in 0..=rounds {
        for ((subject, rate), p99) in subjects.iter().zip(&mut rates).zip(&mut p99s) {
            let turn = turn(&**subject, run_for);
            if number > 0 {
                rate.add(turn.0);
                p99.add(turn.1);
            }
        }
    }
    println!("\n{THREADS} threads on as many names, {rounds} rounds of {run_for:?}");
    println!("  {:<28}{:<28}p99, ms", "", "cycles/s");
    for ((subject, rate), p99) in subjects.iter().zip(&rates).zip(&p99s) {
        println!("  {:<28}{rate:<28.0}{p99}", subject.name());
        let figure = |what: &str, unit: &str| {
            let title = format!("{THREADS} threads on as many names: {what}");
            Figure::new(1, &title, subject.name(), unit)
        };
        figure("locks", "a second").note(rate);
        figure("p99", "ms").note(p99);
    }
}

/// Cycles a second, and the p99 in ms.
fn turn(subject: &dyn Subject, run_for: Duration) -> (f64, f64) {
    let mut times: Vec<Vec<u64>> = vec![Vec::with_capacity(1 << 14); THREADS];
    let cycles = times.iter_mut().enumerate().map(|(i, times)| {
        let mut cycle = subject.cycle(&format!("bench:peers:own:{i}"));
        move || {
            let started = now();
            cycle(&mut || {});
            times.push(now() - started);
        }
    });
    let rate = throughput(run_for, cycles.collect());
    (rate as f64, quantile(&times.concat(), 0.99) as f64 / 1e6)
}
