//! Several threads, each on a name of its own: how much they do together.

use std::time::Duration;

use redis::Connection;

use crate::subject::{Cpu, Kind, Measured};
use crate::support::figure::{Bound, Figure};
use crate::support::{
    Rounds, bare_connection, is_bench, median, micros, now, quantile, round_trip,
};
use crate::throughput::throughput;

/// The first is what the others are measured against.
const KINDS: [Kind; 7] = [
    Kind::Floor,
    Kind::Mux,
    Kind::Drop(None),
    Kind::Unlock,
    Kind::Drop(Some(1)),
    Kind::Drop(Some(2)),
    Kind::Drop(Some(4)),
];
const MUX: usize = 1;

/// The results of all rounds for one kind.
#[derive(Default)]
struct Seen {
    rate: Rounds,
    p50: Rounds,
    p99: Rounds,
    /// Beside the floor, and beside the bare client that multiplexes.
    to_floor: Rounds,
    to_mux: Rounds,
    p99_to_floor: Rounds,
}

struct Turn {
    /// Cycles a second.
    rate: f64,
    /// ns
    p50: f64,
    p99: f64,
}

pub(crate) fn measure(url: &str, threads: usize, rounds: usize) {
    let run_for = Duration::from_millis(if is_bench() { 400 } else { 50 });
    let mut admin = bare_connection(url);
    let mut all: Vec<Measured> = KINDS.map(|kind| Measured::new(kind, url, threads)).into();
    let mut round = |all: &mut [Measured]| -> Vec<Turn> {
        let turn = |measured| turn(&mut admin, measured, threads, run_for);
        all.iter_mut().map(turn).collect()
    };
    round(&mut all);
    all.iter_mut().for_each(Measured::forget);
    let mut seen = KINDS.map(|_| Seen::default());
    let mut trips = Vec::new();
    let mut pinged = bare_connection(url);
    for _ in 0..rounds {
        trips.push(round_trip(&mut pinged));
        let turns = round(&mut all);
        for (seen, turn) in seen.iter_mut().zip(&turns) {
            seen.rate.add(turn.rate);
            seen.p50.add(turn.p50);
            seen.p99.add(turn.p99);
            seen.to_floor.add(turn.rate / turns[0].rate);
            seen.to_mux.add(turn.rate / turns[MUX].rate);
            seen.p99_to_floor.add(turn.p99 / turns[0].p99);
        }
    }
    println!(
        "{threads} threads on {threads} names, {rounds} rounds of {run_for:?} each; a bare round trip takes {}",
        micros(median(trips))
    );
    show(threads, &seen);
    Measured::print_costs_of(&all);
}

fn turn(
    admin: &mut Connection,
    measured: &mut Measured,
    threads: usize,
    run_for: Duration,
) -> Turn {
    let before = Cpu::read(admin);
    let mut times: Vec<Vec<u64>> = (0..threads).map(|_| Vec::with_capacity(1 << 14)).collect();
    let cycles = measured.subject.cycles(threads);
    let timed = cycles
        .into_iter()
        .zip(&mut times)
        .map(|(mut cycle, times)| {
            move || {
                let started = now();
                cycle();
                times.push(now() - started);
            }
        });
    let rate = throughput(run_for, timed.collect());
    let times = times.concat();
    measured.add(times.len() as u64, before, Cpu::read(admin));
    let [p50, p99] = [0.5, 0.99].map(|q| quantile(&times, q) as f64);
    Turn {
        rate: rate as f64,
        p50,
        p99,
    }
}

fn show(threads: usize, seen: &[Seen]) {
    println!(
        "  {:<22}{:>10}{:>12}{:>12}   {:<20}{:<20}p99 / floor",
        "", "cycles/s", "p50", "p99", "/ floor", "/ multiplexed"
    );
    let rate = seen[0].rate.median();
    for (kind, seen) in KINDS.into_iter().zip(seen) {
        let [p50, p99] = [&seen.p50, &seen.p99].map(|times| micros(times.median() as u64));
        println!(
            "  {:<22}{:>10.0}{p50:>12}{p99:>12}   {:<20}{:<20}{}",
            kind.title(),
            seen.rate.median(),
            seen.to_floor,
            seen.to_mux,
            seen.p99_to_floor,
        );
        note(threads, kind, seen, format!("{rate:.0}/s bare"));
    }
}

fn note(threads: usize, kind: Kind, seen: &Seen, floor: String) {
    let case = format!("{threads} threads on as many names, {}", kind.title());
    let figure = |title: &str, unit: &str, bound: Bound| {
        Figure::new(2, title, &case, unit)
            .beside(&floor)
            .bound(bound)
    };
    // The targets hold for the default number of lanes.
    let demanded = |bound: Bound| match kind {
        Kind::Drop(None) => bound,
        _ => Bound::None,
    };
    let is_crowded = threads > 8;
    let least = Bound::AtLeast(if is_crowded { 1.3 } else { 1.1 });
    match kind {
        Kind::Floor => return,
        Kind::Mux => {}
        Kind::Drop(_) | Kind::Unlock => {
            let bound = if is_crowded {
                Bound::AtLeast(1.0)
            } else {
                Bound::None
            };
            let title = "Throughput beside one multiplexed connection";
            figure(title, "× the bare client", demanded(bound)).note(&seen.to_mux);
        }
    }
    figure("Throughput", "× the floor", demanded(least)).note(&seen.to_floor);
    let most = if is_crowded {
        Bound::AtMost(1.0)
    } else {
        Bound::None
    };
    figure("Longest of 100 cycles (p99)", "× the floor", demanded(most)).note(&seen.p99_to_floor);
}
