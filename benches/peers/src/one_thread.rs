//! One thread that locks and releases a name that nobody else wants.

use crate::client::Client;
use crate::support::cores::Cores;
use crate::support::figure::Figure;
use crate::support::{Rounds, bare_connection, median, micros, quantile, round_trip};

/// Cycles of each client in a round, one after another, as in a program that uses one client. In short
/// turns, each finds the two cores as another one left them, and that costs the slower ones more.
const CYCLES: usize = 1000;
/// Before them.
const WARM_UP: usize = 100;

/// The results of all rounds for one client.
#[derive(Default)]
struct Seen {
    /// µs
    p50: Rounds,
    p99: Rounds,
    /// p50 by that of the floor, which is the first client.
    ratio: Rounds,
}

pub(crate) fn measure(url: &str, cores: Cores, clients: &[Client], rounds: usize) {
    let mut pinged = bare_connection(url);
    let mut trips = Vec::new();
    let mut seen: Vec<Seen> = clients.iter().map(|_| Seen::default()).collect();
    for _ in 0..rounds {
        trips.push(round_trip(&mut pinged));
        let times = round(clients);
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
    println!("  {:<44}{:<24}{:<24}p50 / floor", "", "p50, µs", "p99, µs");
    for (client, Seen { p50, p99, ratio }) in clients.iter().zip(&seen) {
        println!("  {:<44}{p50:<24.1}{p99:<24.1}{ratio}", client.name);
        let note = |what: &str, unit: &str, seen: &Rounds| {
            let title = format!("One thread, lock + release: {what}");
            Figure::new(1, &title, &client.name, unit)
                .beside(&trip)
                .note(seen);
        };
        note("p50", "µs", p50);
        note("p99", "µs", p99);
        note("p50 beside the bare commands", "×", ratio);
    }
}

/// The times of each client, in ns.
fn round(clients: &[Client]) -> Vec<Vec<u64>> {
    let turn = |client: &Client| {
        let mut times = client.one_thread("bench:peers:alone", WARM_UP + CYCLES);
        times.split_off(WARM_UP)
    };
    clients.iter().map(turn).collect()
}
