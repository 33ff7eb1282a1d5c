//! Local hand-overs: how many turns the threads of one process make on one lock, and how soon after
//! a release the next thread runs, beside a mutex of the process alone. And whether two processes
//! get equal shares.
//!
//!     cargo bench --bench local
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench local
//!
//! Without the variable it starts a private redis-server on a port of this host. The threads only
//! take the lock and release it. In each round, the subjects follow each other:
//!
//! - a lock without local hand-overs, whose every turn goes through Redis;
//! - the same lock with up to [`MAX`] local hand-overs in a row;
//! - a `parking_lot::FairMutex`, which its thread also hands over to the next at each release. It is
//!   the floor: no lock that is handed over from thread to thread can be faster.
//!
//! A profiler shows more if one of them runs alone: `redis`, `here` or `mutex`, for 2 s.
//!
//!     FAIRLOCK_BENCH_URL=redis://host/ perf record -g local-0123abcd --bench alone here

#[path = "support/child.rs"]
mod child;
#[path = "support/handovers.rs"]
mod handovers;
mod support;
#[path = "support/throughput.rs"]
mod throughput;

use std::env;

use child::ChildProcess;
use fairlock::{LockManager, LockOptions};
use handovers::{MAX, Seen, THREADS, lock_turns, mutex_turns};
use parking_lot::FairMutex;
use support::figure::{Bound, Figure};
use support::{Rounds, median, micros, rounds, server};

fn main() {
    let args: Vec<String> = env::args().collect();
    if args.iter().any(|arg| arg == "share") {
        return share();
    }
    let redis = server();
    if let Some(at) = args.iter().position(|arg| arg == "alone") {
        return alone(&redis.url, args.get(at + 1).map_or("here", String::as_str));
    }
    println!("local: {THREADS} threads on one lock, on {}", redis.about);
    let manager = LockManager::connect(&redis.url).expect("a Redis that answers");
    let local = manager.with(LockOptions::new().local_handovers(MAX));
    let mutex = FairMutex::new(());
    let mut more = Rounds::default();
    let mut ratio = Rounds::default();
    let mut equality = Rounds::default();
    let mut times = Times::default();
    for _ in 0..rounds(9) {
        let through_redis = lock_turns(&manager);
        let here = lock_turns(&local);
        let floor = mutex_turns(&mutex);
        more.add(here.turns as f64 / through_redis.turns as f64);
        ratio.add(here.handover as f64 / floor.handover as f64);
        equality.add(shares(&redis.url));
        times.add(&through_redis, &here, &floor);
    }
    let [redis_turns, here_turns, floor_turns] = times.turns.map(|of| median(of) as f64);
    let [redis_time, here_time, floor_time] = times.handovers.map(|of| micros(median(of)));
    println!(
        "turns a second: {redis_turns:.0} through Redis, {here_turns:.0} here, {floor_turns:.0} of a FairMutex"
    );
    println!(
        "hand-over p50: {redis_time} through Redis, {here_time} here, {floor_time} of a FairMutex"
    );
    println!("turns here / turns through Redis: {more}");
    println!("hand-over here / of a FairMutex:  {ratio}");
    println!("shares of two processes:          {equality:.3}");
    let case = format!("{THREADS} threads");
    Figure::new(9, "turns with local hand-overs / without", &*case, "×")
        .beside(format!("without: {redis_turns:.0} a second"))
        .bound(Bound::AtLeast(20.0))
        .note(&more);
    Figure::new(
        9,
        "local hand-over, p50 / parking_lot FairMutex",
        &*case,
        "×",
    )
    .beside(format!("FairMutex: {floor_time}"))
    .bound(Bound::AtMost(3.0))
    .note(&ratio);
    Figure::new(9, "equal shares of two processes", &*case, "×")
        .bound(Bound::AtLeast(0.95))
        .note(&equality);
}

/// Runs one subject for a profiler.
fn alone(url: &str, subject: &str) {
    let manager = LockManager::connect(url).expect("a Redis that answers");
    let local = manager.with(LockOptions::new().local_handovers(MAX));
    let mutex = FairMutex::new(());
    let rounds = (0..4).map(|_| match subject {
        "redis" => lock_turns(&manager),
        "mutex" => mutex_turns(&mutex),
        _ => lock_turns(&local),
    });
    for seen in rounds {
        let handover = micros(seen.handover);
        println!(
            "{subject}: {} turns a second, hand-over p50 {handover}",
            seen.turns
        );
    }
}

#[derive(Default)]
struct Times {
    turns: [Vec<u64>; 3],
    handovers: [Vec<u64>; 3],
}

impl Times {
    fn add(&mut self, through_redis: &Seen, here: &Seen, floor: &Seen) {
        for (at, seen) in [through_redis, here, floor].into_iter().enumerate() {
            self.turns[at].push(seen.turns);
            self.handovers[at].push(seen.handover);
        }
    }
}

/// Two processes with as many threads each: the turns of the one with fewer by those of the other.
fn shares(url: &str) -> f64 {
    let mut processes = [(); 2].map(|()| ChildProcess::spawn(url, &["share"]));
    let turns = std::thread::scope(|scope| {
        let asked = processes.each_mut().map(|process| {
            scope.spawn(|| {
                let [turns] = process.ask("run");
                turns
            })
        });
        asked.map(|asked| asked.join().expect("the child answers"))
    });
    let [a, b] = turns.map(|turns| turns as f64);
    a.min(b) / a.max(b)
}

/// One of the two processes.
fn share() {
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names it");
    let manager = LockManager::connect(&*url).expect("a Redis that answers");
    let manager = manager.with(LockOptions::new().local_handovers(20));
    child::serve(|_| vec![lock_turns(&manager).turns]);
}
