//! One name that several threads want: how often they get it, how soon the next one has it, how long
//! they wait, and whether all have equal shares.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::subject::Subject;
use crate::support::figure::{Bound, Figure};
use crate::support::{Rounds, median, now, sized};

const THREADS: usize = 8;
/// Fewer hand-overs say nothing about their median.
const ENOUGH: usize = 20;

/// A turn of one thread; times are in ns.
struct Turn {
    thread: usize,
    asked: u64,
    granted: u64,
    released: u64,
    /// Not if the thread waited beyond the end: that is a wait, but no turn of this time.
    counts: bool,
}

/// The results of all rounds for one subject.
#[derive(Default)]
struct Seen {
    rate: Rounds,
    /// µs from a release until a thread that waited has the lock, unless the same thread takes it.
    handover: Rounds,
    /// ms
    longest: Rounds,
    /// The fewest turns of a thread, the most, and the one by the other.
    fewest: Rounds,
    most: Rounds,
    equality: Rounds,
}

pub(crate) fn measure(subjects: &[Box<dyn Subject>], hold: Duration, rounds: usize) {
    let run_for = Duration::from_secs(sized(1, 1, 5));
    let mut seen: Vec<Seen> = subjects.iter().map(|_| Seen::default()).collect();
    for subject in subjects {
        // To warm up: fairlock subscribes when it first has to wait.
        take_turns(&**subject, "bench:peers:wanted:first", hold, run_for / 20);
    }
    for round in 0..rounds {
        for (subject, seen) in subjects.iter().zip(&mut seen) {
            let name = format!("bench:peers:wanted:{}:{round}", hold.as_millis());
            seen.add(take_turns(&**subject, &name, hold, run_for));
        }
    }
    println!("\n{THREADS} threads on one name, held for {hold:?}, {rounds} rounds of {run_for:?}");
    println!(
        "  {:<28}{:<24}{:<24}{:<26}fewest, most turns of a thread",
        "", "turns/s", "hand-over, µs", "longest wait, ms"
    );
    for (subject, seen) in subjects.iter().zip(&seen) {
        seen.show(&**subject, hold);
    }
}

impl Seen {
    fn add(&mut self, (mut turns, lasted): (Vec<Turn>, u64)) {
        turns.sort_unstable_by_key(|turn| turn.granted);
        let mut counts = [0u32; THREADS];
        let in_time = turns.iter().filter(|turn| turn.counts);
        in_time.for_each(|turn| counts[turn.thread] += 1);
        let [fewest, most] = [counts.iter().min(), counts.iter().max()];
        let [fewest, most] = [fewest, most].map(|count| count.copied().map_or(0.0, f64::from));
        let longest = turns.iter().map(|turn| turn.granted - turn.asked).max();
        let handovers: Vec<u64> = turns
            .windows(2)
            .filter(|pair| pair[0].thread != pair[1].thread && pair[1].asked < pair[0].released)
            .map(|pair| pair[1].granted.saturating_sub(pair[0].released))
            .collect();
        let rate = f64::from(counts.iter().sum::<u32>()) * 1e9 / lasted as f64;
        self.rate.add(rate);
        if handovers.len() >= ENOUGH {
            self.handover.add(median(handovers) as f64 / 1e3);
        }
        self.longest.add(longest.unwrap_or(0) as f64 / 1e6);
        self.fewest.add(fewest);
        self.most.add(most);
        self.equality.add(fewest / most.max(1.0));
    }

    fn show(&self, subject: &dyn Subject, hold: Duration) {
        let Seen {
            rate,
            handover,
            longest,
            fewest,
            most,
            equality,
        } = self;
        println!(
            "  {:<28}{rate:<24.0}{handover:<24.0}{longest:<26.1}{fewest:.0}, {most:.0}",
            subject.name()
        );
        let figure = |what: &str, unit: &str| {
            let held = if hold.is_zero() {
                "not held".to_owned()
            } else {
                format!("held for {hold:?}")
            };
            let title = format!("{THREADS} threads on one name, {held}: {what}");
            Figure::new(1, &title, subject.name(), unit)
        };
        figure("turns", "a second").note(rate);
        figure("hand-over, p50", "µs").note(handover);
        figure("longest wait", "ms").note(longest);
        figure("fewest turns of a thread", "turns").note(fewest);
        figure("most turns of a thread", "turns").note(most);
        // fairlock's turns are within 5 % of each other.
        let bound = if subject.is_fair() {
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

/// All turns, and how long the threads began new ones, in ns.
fn take_turns(
    subject: &dyn Subject,
    name: &str,
    hold: Duration,
    run_for: Duration,
) -> (Vec<Turn>, u64) {
    let over = AtomicBool::new(false);
    let all = Mutex::new(Vec::new());
    let started = now();
    let mut ended = 0;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut cycle = subject.cycle(name);
            let (over, all) = (&over, &all);
            scope.spawn(move || {
                let mut turns = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let asked = now();
                    cycle(&mut || {
                        let granted = now();
                        let counts = !over.load(Ordering::Relaxed);
                        if !hold.is_zero() {
                            thread::sleep(hold);
                        }
                        turns.push(Turn {
                            thread,
                            asked,
                            granted,
                            released: now(),
                            counts,
                        });
                    });
                }
                all.lock().expect("no thread panicked").extend(turns);
            });
        }
        thread::sleep(run_for);
        over.store(true, Ordering::Relaxed);
        ended = now();
    });
    (
        all.into_inner().expect("no thread panicked"),
        ended - started,
    )
}
