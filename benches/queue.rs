//! The cost of long queues: a hand-over, joining the queue and leaving it, with 10, 100, 1,000 and
//! 10,000 waiters of several managers in the queue.
//!
//!     cargo bench --bench queue
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench queue
//!
//! Without the variable it starts a private redis-server on a port of this host. A waiter needs no
//! thread while it is queued; only the next one in line has one. All queues exist at the same time
//! and take turns every few milliseconds. Ratios are to the shortest queue, as the median of all
//! rounds (least..most). Waiters leave from the middle. Their entries stay in the list until it is
//! more than half dead; then the next leaver rewrites it. The longest leave of a run that is long
//! enough for this is shown apart.

mod support;

use std::collections::VecDeque;
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fairlock::{LockGuard, LockManager, Waiter};
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, is_bench, median, micros, now, rounds, server, sized};

const MANAGERS: usize = 4;
const HOLD: Duration = Duration::from_millis(1);

/// Turns for each queue in a round, and how many before the next queue's turn.
const TURNS: usize = 10;
const AT_ONCE: usize = 10;

fn main() {
    let redis = server();
    let lengths: &[usize] = if is_bench() {
        &[10, 100, 1_000, 10_000]
    } else {
        &[10, 100]
    };
    let rounds = rounds(sized(1, 1, 7));
    println!(
        "queue: waiters of {MANAGERS} managers, {rounds} rounds, on {}",
        redis.about
    );
    println!();
    let managers: Vec<_> = (0..MANAGERS)
        .map(|_| LockManager::connect(&*redis.url).expect("a Redis"))
        .collect();
    let mut queues: Vec<_> = lengths
        .iter()
        .map(|length| Queue::new(&managers, *length))
        .collect();
    let mut floor = bare_connection(&redis.url);
    let mut trips = Vec::new();
    let mut seen: Vec<Seen> = lengths.iter().map(|_| Seen::default()).collect();
    for _ in 0..rounds {
        trips.push(median((0..500).map(|_| {
            let started = now();
            let _: String = redis::cmd("PING")
                .query(&mut floor)
                .expect("PING is answered");
            now() - started
        })));
        let mut times: Vec<Times> = lengths.iter().map(|_| Times::default()).collect();
        for _ in 0..TURNS {
            for (queue, times) in queues.iter_mut().zip(&mut times) {
                (0..AT_ONCE).for_each(|_| queue.turn(times));
            }
        }
        let medians: Vec<[u64; 3]> = times.into_iter().map(Times::medians).collect();
        for (of, seen) in medians.iter().zip(&mut seen) {
            seen.add(*of, medians[0]);
        }
    }
    let trip = micros(median(trips));
    let head = TITLES
        .map(|title| format!("{title:>12}   {:<20}", "/ shortest"))
        .concat();
    println!("  {:<9}{head}", "queued");
    for (length, seen) in lengths.iter().zip(&seen) {
        seen.show(*length, lengths[0], &trip);
    }
    println!();
    println!("  a bare round trip: {trip}");
    println!();
    let queue = queues.last_mut().expect("there are queues");
    let (mut typical, mut longest) = (Rounds::default(), Rounds::default());
    let leaving = queue.waiting.len() / 2 + 100.min(queue.waiting.len() / 4);
    for _ in 0..rounds.min(3) {
        let times: Vec<u64> = (0..leaving).map(|_| queue.leave()).collect();
        longest.add(times.iter().copied().max().unwrap_or(0) as f64 / 1e3);
        typical.add(median(times) as f64 / 1e3);
        for _ in 0..leaving {
            queue.come();
        }
    }
    let length = queue.waiting.len();
    println!(
        "  {leaving} leave the middle of {length}, one after the other: p50 {typical:.1} µs, longest {longest:.1} µs"
    );
    let case = format!("{leaving} leave the middle of {length}");
    Figure::new(4, "Leaving a queue, p50", &case, "µs")
        .beside(format!("{trip} round trip"))
        .note(&typical);
    Figure::new(
        4,
        "Leaving a queue, longest, the rewriting of the list included",
        case,
        "µs",
    )
    .beside(format!("{trip} round trip"))
    .note(&longest);
}

/// A held lock and its waiters, head first.
struct Queue<'a> {
    managers: &'a [LockManager],
    /// The manager that enqueues next.
    turn: usize,
    name: String,
    held: Option<LockGuard>,
    waiting: VecDeque<Waiter>,
    /// The thread of the next waiter.
    next: Sender<Waiter>,
    served: Receiver<(u64, LockGuard)>,
}

/// ns
#[derive(Default)]
struct Times {
    handovers: Vec<u64>,
    comings: Vec<u64>,
    leavings: Vec<u64>,
}

impl Times {
    fn medians(self) -> [u64; 3] {
        [self.handovers, self.comings, self.leavings].map(median)
    }
}

impl Queue<'_> {
    fn new(managers: &[LockManager], length: usize) -> Queue<'_> {
        let name = format!("bench:queue:{length}:{}", process::id());
        let held = managers[0].lock(&name).expect("nobody else wants it");
        let (next, to_serve) = channel::<Waiter>();
        let (serve, served) = channel();
        thread::spawn(move || {
            for waiter in to_serve {
                let guard = waiter.wait().expect("a lock in its turn");
                if serve.send((now(), guard)).is_err() {
                    break;
                }
            }
        });
        let mut queue = Queue {
            managers,
            turn: 0,
            name,
            held: Some(held),
            waiting: VecDeque::new(),
            next,
            served,
        };
        for _ in 0..length {
            queue.come();
        }
        queue
    }

    /// One hand-over, one waiter that leaves, and two that replace them.
    fn turn(&mut self, times: &mut Times) {
        times.handovers.push(self.hand_over());
        times.comings.push(self.come());
        times.leavings.push(self.leave());
        times.comings.push(self.come());
    }

    /// From the call of the release to the next holder running.
    fn hand_over(&mut self) -> u64 {
        let next = self.waiting.pop_front().expect("the queue is never empty");
        self.next.send(next).expect("the thread waits");
        // While the lock is held for a while, the next waiter's thread falls asleep.
        thread::sleep(HOLD);
        let released = now();
        drop(self.held.take());
        let (granted, guard) = self.served.recv().expect("the thread was served");
        self.held = Some(guard);
        granted.saturating_sub(released)
    }

    fn come(&mut self) -> u64 {
        self.turn = (self.turn + 1) % self.managers.len();
        let started = now();
        let waiter = self.managers[self.turn]
            .enqueue(&self.name)
            .expect("a place in the queue");
        let took = now() - started;
        self.waiting.push_back(waiter);
        took
    }

    /// Out of the middle.
    fn leave(&mut self) -> u64 {
        let waiter = self
            .waiting
            .remove(self.waiting.len() / 2)
            .expect("the queue is never empty");
        let started = now();
        drop(waiter);
        now() - started
    }
}

impl Drop for Queue<'_> {
    /// From the back, so that nobody is served on the way out.
    fn drop(&mut self) {
        while self.waiting.pop_back().is_some() {}
    }
}

const TITLES: [&str; 3] = ["hand-over", "coming", "leaving"];

/// The results for one length.
#[derive(Default)]
struct Seen {
    times: [Vec<u64>; 3],
    ratios: [Rounds; 3],
}

impl Seen {
    fn add(&mut self, times: [u64; 3], shortest: [u64; 3]) {
        for i in 0..times.len() {
            self.times[i].push(times[i]);
            self.ratios[i].add(times[i] as f64 / shortest[i].max(1) as f64);
        }
    }

    fn show(&self, length: usize, shortest: usize, trip: &str) {
        let times = self
            .times
            .each_ref()
            .map(|times| micros(median(times.iter().copied())));
        let shown = times
            .iter()
            .zip(&self.ratios)
            .map(|(time, ratio)| format!("{time:>12}   {ratio:<20}"));
        println!("  {length:<9}{}", shown.collect::<String>());
        for (i, time) in times.iter().enumerate() {
            let title = [
                "Hand-over",
                "Coming to a queue",
                "Leaving the middle of a queue",
            ][i];
            let figure = Figure::new(
                4,
                title,
                format!("{length} queued"),
                &format!("× with {shortest}"),
            )
            .beside(format!("{time} here; {trip} round trip"));
            // Only hand-over and enqueue have a bound that is a ratio.
            let bound = match i {
                0 if length > shortest => Bound::AtMost(1.1),
                1 if length > shortest => Bound::AtMost(1.5),
                _ => Bound::None,
            };
            figure.bound(bound).note(&self.ratios[i]);
        }
    }
}
