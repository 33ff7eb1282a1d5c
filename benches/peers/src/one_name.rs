//! One name that several threads want: how often they get it, how soon the next one has it, how long
//! they wait, and whether all have equal shares.

use std::time::Duration;

use crate::client::{Client, Turn};
use crate::support::figure::{Bound, Figure};
use crate::support::{Rounds, median, sized};

const THREADS: usize = 8;
/// Fewer hand-overs say nothing about their median.
const ENOUGH: usize = 20;

/// The results of all rounds for one client.
#[derive(Default)]
struct Seen {
    rate: Rounds,
    /// µs from before a release until a thread that waited has the lock, unless the same thread
    /// takes it.
    handover: Rounds,
    /// ms
    longest: Rounds,
    /// The fewest turns of a thread, the most, and the one by the other.
    fewest: Rounds,
    most: Rounds,
    equality: Rounds,
}

pub(crate) fn measure<'a>(
    clients: impl Iterator<Item = &'a Client>,
    hold: Duration,
    rounds: usize,
) {
    let run_for = Duration::from_secs(sized(1, 1, 5));
    let take_turns = |client: &Client, name: &str, run_for| {
        let key = format!("bench:peers:wanted:{}:{name}", hold.as_millis());
        client.one_name(&key, THREADS, run_for, hold)
    };
    // To warm up: some subscribe when they first have to wait. Those that cannot wait are left out.
    let mut waiting: Vec<(&Client, Seen)> = clients
        .filter(|client| !take_turns(client, "first", run_for / 20).is_empty())
        .map(|client| (client, Seen::default()))
        .collect();
    for round in 0..rounds {
        for (client, seen) in &mut waiting {
            seen.add(take_turns(client, &round.to_string(), run_for), run_for);
        }
    }
    println!("\n{THREADS} threads on one name, held for {hold:?}, {rounds} rounds of {run_for:?}");
    println!(
        "  {:<44}{:<24}{:<24}{:<26}fewest, most turns of a thread",
        "", "turns/s", "hand-over, µs", "longest wait, ms"
    );
    for (client, seen) in &waiting {
        seen.show(client, hold);
    }
}

impl Seen {
    fn add(&mut self, mut turns: Vec<Turn>, run_for: Duration) {
        turns.sort_unstable_by_key(|turn| turn.granted);
        let longest = turns.iter().map(|turn| turn.granted - turn.asked).max();
        self.longest.add(longest.unwrap_or(0) as f64 / 1e6);
        // A thread that waited beyond the end did wait, but had no turn in this time.
        let started = turns.iter().map(|turn| turn.asked).min().unwrap_or(0);
        turns.retain(|turn| turn.granted < started + run_for.as_nanos() as u64);
        let mut counts = [0u32; THREADS];
        turns
            .iter()
            .for_each(|turn| counts[turn.thread as usize] += 1);
        let [fewest, most] = [counts.iter().min(), counts.iter().max()];
        let [fewest, most] = [fewest, most].map(|count| count.copied().map_or(0.0, f64::from));
        let handovers: Vec<u64> = turns
            .windows(2)
            .filter(|pair| pair[0].thread != pair[1].thread && pair[1].asked < pair[0].released)
            .map(|pair| pair[1].granted.saturating_sub(pair[0].released))
            .collect();
        self.rate.add(turns.len() as f64 / run_for.as_secs_f64());
        if handovers.len() >= ENOUGH {
            self.handover.add(median(handovers) as f64 / 1e3);
        }
        self.fewest.add(fewest);
        self.most.add(most);
        self.equality.add(fewest / most.max(1.0));
    }

    fn show(&self, client: &Client, hold: Duration) {
        let Seen {
            rate,
            handover,
            longest,
            fewest,
            most,
            equality,
        } = self;
        // A client that mostly serves one thread may have too few hand-overs.
        let shown = format!("{handover:.0}");
        println!(
            "  {:<44}{rate:<24.0}{shown:<24}{longest:<26.1}{fewest:.0}, {most:.0}",
            client.name
        );
        let figure = |what: &str, unit: &str| {
            let held = if hold.is_zero() {
                "not held".to_owned()
            } else {
                format!("held for {hold:?}")
            };
            let title = format!("{THREADS} threads on one name, {held}: {what}");
            Figure::new(1, &title, &client.name, unit)
        };
        figure("turns", "a second").note(rate);
        figure("hand-over, p50", "µs").note(handover);
        figure("longest wait", "ms").note(longest);
        figure("fewest turns of a thread", "turns").note(fewest);
        figure("most turns of a thread", "turns").note(most);
        // fairlock's turns are within 5 % of each other.
        let bound = if client.is_ours() {
            Bound::AtLeast(0.95)
        } else {
            Bound::None
        };
        figure("shares", "fewest by most turns")
            .beside("1 if all are equal")
            .bound(bound)
            .note(equality);
    }
}
