//! Many threads, each on a name of its own: how much they do together.

use std::time::Duration;

use crate::client::Client;
use crate::support::figure::Figure;
use crate::support::{Rounds, is_bench, quantile};

const THREADS: usize = 32;

pub(crate) fn measure(clients: &[Client], rounds: usize) {
    let run_for = Duration::from_millis(if is_bench() { 500 } else { 50 });
    let mut rates: Vec<Rounds> = clients.iter().map(|_| Rounds::default()).collect();
    let mut p99s: Vec<Rounds> = clients.iter().map(|_| Rounds::default()).collect();
    // The first is to warm up.
    for number in 0..=rounds {
        for ((client, rate), p99) in clients.iter().zip(&mut rates).zip(&mut p99s) {
            let (elapsed, times) = client.own_names("bench:peers:own", THREADS, run_for);
            if number > 0 {
                rate.add(times.len() as f64 * 1e9 / elapsed as f64);
                p99.add(quantile(&times, 0.99) as f64 / 1e6);
            }
        }
    }
    println!("\n{THREADS} threads on as many names, {rounds} rounds of {run_for:?}");
    println!("  {:<44}{:<28}p99, ms", "", "cycles/s");
    for ((client, rate), p99) in clients.iter().zip(&rates).zip(&p99s) {
        println!("  {:<44}{rate:<28.0}{p99}", client.name);
        let figure = |what: &str, unit: &str| {
            let title = format!("{THREADS} threads on as many names: {what}");
            Figure::new(1, &title, &client.name, unit)
        };
        figure("locks", "a second").note(rate);
        figure("p99", "ms").note(p99);
    }
}
