//! The same work for fairlock and the other lock crates for Redis: lock and unlock by one thread,
//! and one name that several threads want.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml -- --bench
//!
//! `FAIRLOCK_BENCH_URL` names a Redis; without it, a private redis-server is started on a port of
//! this host. Within a round all take turns. Each crate waits as its own waiting verb does by
//! default: redlock and rslock retry after a random time of less than 200 ms, redis-lock after 1 s.
//! redlock opens a connection for each request and has no other mode. redis-lock and rslock have a
//! connection for each thread; rslock also has a runtime of its own, on which nothing else runs.
//! fairlock has one manager with its lanes. redis-lock needs FUNCTION (Redis 7) and is left out
//! where that is missing.
//!
//! On the name that several threads want, each peer also runs with a retry after a millisecond or
//! less. redis-lock uses `lock` with a sleep of 1 ms in place of `DEFAULT_SLEEP`. rslock and
//! redlock use `set_retry(u32::MAX, 2 ms)`: they draw whole milliseconds below that, so they sleep
//! for 0 or 1 ms. With 1 ms they would not sleep at all, and get less done where there are fewer
//! processors than threads. fairlock has nothing to set: Redis notifies its waiters.

#[path = "../../support/floor.rs"]
mod floor;
mod subject;
#[path = "../../support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use floor::Floor;
use subject::{Subject, eager, subjects};
use support::figure::{Bound, Figure};
use support::{Rounds, is_bench, median, micros, now, rounds, server};

/// Cycles of one thread, for each kind in a round, and how many before the next kind's turn.
const CYCLES: usize = 1000;
const CYCLES_AT_ONCE: usize = 50;

const THREADS: usize = 8;
const HOLD: Duration = Duration::from_millis(1);

fn main() {
    let redis = server();
    println!("peers: fairlock and other crates on {}", redis.about);
    println!();
    let subjects = subjects(&redis.url);
    one_thread(&redis.url, &subjects, rounds(9));
    println!();
    let run_for = Duration::from_secs(if is_bench() { 5 } else { 1 });
    let subjects: Vec<_> = subjects.into_iter().chain(eager(&redis.url)).collect();
    one_name(&subjects, rounds(5), run_for);
}

fn one_thread(url: &str, subjects: &[Box<dyn Subject>], rounds: usize) {
    let mut floor = Floor::new(url, "bench:peers:floor");
    let mut cycles: Vec<_> = subjects
        .iter()
        .map(|subject| subject.cycle("bench:peers:alone"))
        .collect();
    let mut bare = Vec::new();
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); subjects.len()];
    let mut ratios: Vec<Rounds> = subjects.iter().map(|_| Rounds::default()).collect();
    // The first is to warm up.
    for round in 0..=rounds {
        let mut of_floor = Vec::new();
        let mut of_each = vec![Vec::new(); subjects.len()];
        for _ in 0..CYCLES / CYCLES_AT_ONCE {
            (0..CYCLES_AT_ONCE).for_each(|_| of_floor.push(timed(|| floor.cycle())));
            for (cycle, times) in cycles.iter_mut().zip(&mut of_each) {
                (0..CYCLES_AT_ONCE).for_each(|_| times.push(timed(|| cycle(&mut || {}))));
            }
        }
        if round == 0 {
            continue;
        }
        let floor = median(of_floor);
        bare.push(floor);
        for (i, of_one) in of_each.into_iter().enumerate() {
            let p50 = median(of_one);
            times[i].push(p50);
            ratios[i].add(p50 as f64 / floor as f64);
        }
    }
    let bare = micros(median(bare));
    println!(
        "one thread, lock + unlock, {rounds} rounds of {CYCLES} cycles; SET NX PX + EVALSHA takes {bare}"
    );
    println!("  {:<28}{:>12}   / floor", "", "p50");
    for ((subject, times), ratio) in subjects.iter().zip(times).zip(&ratios) {
        println!(
            "  {:<28}{:>12}   {ratio}",
            subject.name(),
            micros(median(times))
        );
        let figure = Figure::new(
            1,
            "Lock + unlock by one thread, p50",
            subject.name(),
            "× the floor",
        );
        figure.beside(format!("{bare} bare")).note(ratio);
    }
}

fn timed(call: impl FnOnce()) -> u64 {
    let started = now();
    call();
    now() - started
}

fn one_name(subjects: &[Box<dyn Subject>], rounds: usize, run_for: Duration) {
    println!("{THREADS} threads on one name, held for {HOLD:?}, {rounds} rounds of {run_for:?}");
    println!(
        "  {:<28}{:<26}{:<32}shares",
        "", "acquisitions/s", "longest wait, ms"
    );
    let mut seen: Vec<Seen> = subjects.iter().map(|_| Seen::default()).collect();
    for subject in subjects {
        // To warm up: fairlock subscribes when it first has to wait.
        Seen::default().add(&**subject, "bench:peers:wanted:first", run_for / 20);
    }
    for round in 0..rounds {
        for (subject, seen) in subjects.iter().zip(&mut seen) {
            seen.add(&**subject, &format!("bench:peers:wanted:{round}"), run_for);
        }
    }
    for (subject, seen) in subjects.iter().zip(seen) {
        let Seen {
            rate,
            longest,
            equality,
            least,
            most,
        } = seen;
        println!(
            "  {:<28}{rate:<26.0}{longest:<32.0}{least}..{most}",
            subject.name()
        );
        let figure = |title: &str, unit: &str| Figure::new(1, title, subject.name(), unit);
        let ideal = format!("{:.0}/s without any hand-over", 1.0 / HOLD.as_secs_f64());
        figure("8 threads on one name, 1 ms hold: acquisitions", "a second")
            .beside(ideal)
            .note(&rate);
        let in_turn = format!(
            "{:?} in turn without any hand-over",
            HOLD * (THREADS as u32 - 1)
        );
        figure("8 threads on one name, 1 ms hold: longest wait", "ms")
            .beside(in_turn)
            .note(&longest);
        // For fairlock the bound is turns within 5 % of each other.
        let bound = if subject.is_ours() {
            Bound::AtLeast(0.95)
        } else {
            Bound::None
        };
        let shares = figure(
            "8 threads on one name, 1 ms hold: shares",
            "fewest by most turns",
        );
        shares
            .beside("1 if all are equal")
            .bound(bound)
            .note(&equality);
    }
}

struct Seen {
    rate: Rounds,
    /// ms
    longest: Rounds,
    /// The fewest turns of a thread by the most.
    equality: Rounds,
    least: usize,
    most: usize,
}

impl Default for Seen {
    fn default() -> Seen {
        let [rate, longest, equality] = [(); 3].map(|()| Rounds::default());
        Seen {
            rate,
            longest,
            equality,
            least: usize::MAX,
            most: 0,
        }
    }
}

impl Seen {
    fn add(&mut self, subject: &dyn Subject, name: &str, run_for: Duration) {
        let over = AtomicBool::new(false);
        let all = Mutex::new(Vec::new());
        let started = now();
        let mut ended = 0;
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let mut cycle = subject.cycle(name);
                let over = &over;
                let all = &all;
                scope.spawn(move || {
                    let mut turns = 0;
                    let mut longest = 0;
                    while !over.load(Ordering::Relaxed) {
                        let asked = now();
                        cycle(&mut || {
                            longest = longest.max(now() - asked);
                            // A thread that waited beyond the end did wait, but had no turn in this
                            // time.
                            turns += usize::from(!over.load(Ordering::Relaxed));
                            thread::sleep(HOLD);
                        });
                    }
                    all.lock()
                        .expect("no thread panicked")
                        .push((turns, longest));
                });
            }
            thread::sleep(run_for);
            over.store(true, Ordering::Relaxed);
            ended = now();
        });
        let all = all.into_inner().expect("no thread panicked");
        let turns: Vec<usize> = all.iter().map(|(turns, _)| *turns).collect();
        let least = turns.iter().min().copied().unwrap_or(0);
        let most = turns.iter().max().copied().unwrap_or(0);
        self.rate
            .add(turns.iter().sum::<usize>() as f64 * 1e9 / (ended - started) as f64);
        self.longest
            .add(all.iter().map(|(_, longest)| *longest).max().unwrap_or(0) as f64 / 1e6);
        self.equality.add(least as f64 / most.max(1) as f64);
        self.least = self.least.min(least);
        self.most = self.most.max(most);
    }
}
