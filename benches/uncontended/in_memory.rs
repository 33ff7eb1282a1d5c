//! A lock of the in-memory store, beside one on Redis and beside a mutex that knows of nothing but
//! threads.

use std::hint::black_box;
use std::time::Duration;

use fairlock::{LockManager, memory::Memory};
use parking_lot::Mutex;

use crate::support::{Rounds, median, now};
use crate::throughput::throughput;

/// How many threads on how many names.
const CROWDS: [(usize, usize); 4] = [(8, 8), (2, 1), (4, 1), (8, 1)];
const CROWDS_RUN_FOR: Duration = Duration::from_millis(300);
const NAMES: usize = 8;

/// One thread's turns in a round: how often each kind has its turn, and for how many calls.
const TURNS: usize = 60;
const CALLS: usize = 50;

pub(crate) fn compare(url: &str, rounds: usize) {
    let locks = Locks {
        mutexes: [const { Mutex::new(()) }; NAMES],
        memory: LockManager::connect(&Memory::new()).expect("there is nothing to connect to"),
        redis: LockManager::connect(url).expect("a Redis that answers"),
    };
    println!("in memory, lock + drop, {rounds} rounds; all threads together take for one");
    let head = ["parking_lot", "in memory", "on Redis"]
        .map(|kind| format!("{kind:>13}"))
        .concat();
    println!(
        "  {:<22}{head}   {:<26}Redis / memory",
        "", "memory / parking_lot"
    );
    row("1 thread", rounds, || locks.one_thread());
    for (threads, names) in CROWDS {
        let title = format!(
            "{threads} threads, {names} name{}",
            if names == 1 { "" } else { "s" }
        );
        row(&title, rounds, || locks.crowd(threads, names));
    }
}

/// Prints what the rounds said, each in ns for a cycle of each kind; the first is to warm up.
fn row(title: &str, rounds: usize, mut round: impl FnMut() -> [f64; 3]) {
    round();
    let (mut to_mutex, mut to_redis) = (Rounds::default(), Rounds::default());
    let mut times = [(); 3].map(|()| Rounds::default());
    for _ in 0..rounds {
        let [mutex, memory, redis] = round();
        to_mutex.add(memory / mutex);
        to_redis.add(redis / memory);
        times
            .iter_mut()
            .zip([mutex, memory, redis])
            .for_each(|(all, time)| all.add(time));
    }
    let times = times
        .map(|all| format!("{:>10.3} µs", all.median() / 1e3))
        .concat();
    println!("  {title:<22}{times}   {to_mutex:<26.0}{to_redis:.1}");
}

#[derive(Clone, Copy)]
enum Kind {
    Mutex,
    Memory,
    Redis,
}

const KINDS: [Kind; 3] = [Kind::Mutex, Kind::Memory, Kind::Redis];

impl Kind {
    /// In one call: a mutex's are so short that a call for each would be felt.
    fn cycles(self) -> usize {
        match self {
            Kind::Mutex => 100,
            Kind::Memory | Kind::Redis => 1,
        }
    }
}

struct Locks {
    mutexes: [Mutex<()>; NAMES],
    memory: LockManager,
    redis: LockManager,
}

impl Locks {
    /// ns for a cycle of each kind.
    fn one_thread(&self) -> [f64; 3] {
        let mut calls = KINDS.map(|kind| (self.call(kind, 0), Vec::new()));
        for _ in 0..TURNS {
            for (call, times) in &mut calls {
                let started = now();
                (0..CALLS).for_each(|_| call());
                times.push(now() - started);
            }
        }
        let mut calls = calls.into_iter();
        KINDS.map(|kind| {
            let (_, times) = calls.next().expect("as many as kinds");
            median(times) as f64 / (CALLS * kind.cycles()) as f64
        })
    }

    /// The same, of several threads.
    fn crowd(&self, threads: usize, names: usize) -> [f64; 3] {
        KINDS.map(|kind| {
            let calls = (0..threads)
                .map(|thread| self.call(kind, thread % names))
                .collect();
            1e9 / (throughput(CROWDS_RUN_FOR, calls) as f64 * kind.cycles() as f64)
        })
    }

    fn call(&self, kind: Kind, name: usize) -> Box<dyn FnMut() + Send + '_> {
        let manager = match kind {
            Kind::Mutex => {
                let mutex = &self.mutexes[name];
                return Box::new(move || {
                    (0..kind.cycles()).for_each(|_| drop(black_box(mutex.lock())))
                });
            }
            Kind::Memory => &self.memory,
            Kind::Redis => &self.redis,
        };
        let lock = manager.mutex(format!("bench:in-memory:{name}"));
        Box::new(move || drop(lock.lock().expect("the store answers")))
    }
}
