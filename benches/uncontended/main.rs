//! An uncontended lock beside the floor: a bare connection that runs SET NX PX and a
//! compare-and-delete script, the least that any lock on Redis can do.
//!
//!     cargo bench --bench uncontended
//!     cargo bench --features memory --bench uncontended
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench uncontended
//!
//! Without the variable it starts a private redis-server on a port of this host. Floor and fairlock
//! take turns every few milliseconds, so a disturbance of the machine hits both. Ratios are the
//! median of all rounds (least..most). The times beside them show where a cycle goes: the server's
//! time in its commands, and this thread's processor time; the rest is the way there and back.
//!
//! With the feature `memory` it also compares a lock of the in-memory store with one on this Redis
//! and with a `parking_lot::Mutex`, also where several threads want one name.

#[path = "../support/floor.rs"]
mod floor;
#[cfg(feature = "memory")]
mod in_memory;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/throughput.rs"]
mod throughput;

use std::time::Duration;

use fairlock::LockManager;
use floor::Floor;
use redis::Connection;
use rustix::time::ClockId;
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, median, micros, now, read, rounds, server};
use throughput::throughput;

/// Cycles for each kind in a round, and how many before the other kind's turn.
const CYCLES: usize = 3000;
const CYCLES_AT_ONCE: usize = 50;
/// Threads on the pool of 8: one per connection, and four per connection.
const CROWDS: [usize; 2] = [8, 32];
const THREADS_RUN_FOR: Duration = Duration::from_millis(1000);

fn main() {
    let redis = server();
    println!(
        "uncontended: fairlock against SET NX PX + EVALSHA on {}",
        redis.about
    );
    println!();
    one_thread(&redis.url, rounds(15));
    for threads in CROWDS {
        println!();
        many_threads(&redis.url, threads, rounds(7));
    }
    #[cfg(feature = "memory")]
    {
        println!();
        in_memory::compare(&redis.url, rounds(9));
    }
}

/// The cost of the cycles of a round.
#[derive(Default)]
struct Cost {
    times: Vec<u64>,
    /// The time of this thread.
    cpu: u64,
    /// The time of the server, in its commands.
    server: u64,
}

impl Cost {
    fn measure(&mut self, admin: &mut Connection, mut cycle: impl FnMut()) {
        let server = server_time(admin);
        let cpu = read(ClockId::ThreadCPUTime);
        for _ in 0..CYCLES_AT_ONCE {
            let started = now();
            cycle();
            self.times.push(now() - started);
        }
        self.cpu += read(ClockId::ThreadCPUTime) - cpu;
        self.server += server_time(admin) - server;
    }

    fn p50(&self) -> u64 {
        median(self.times.iter().copied())
    }
}

fn one_thread(url: &str, rounds: usize) {
    let mut admin = bare_connection(url);
    let mut floor = Floor::new(url, "bench:floor");
    let mgr = LockManager::connect(url).expect("a Redis that answers");
    let mut round = || {
        let (mut bare, mut lock) = (Cost::default(), Cost::default());
        for _ in 0..CYCLES / CYCLES_AT_ONCE {
            bare.measure(&mut admin, || floor.cycle());
            lock.measure(&mut admin, || {
                drop(mgr.lock("bench:uncontended").expect("nobody else wants it"))
            });
        }
        (bare, lock)
    };
    round();

    let before = mgr.stats();
    let mut ratio = Rounds::default();
    let mut bare = Vec::new();
    let mut lock = Vec::new();
    for _ in 0..rounds {
        let costs = round();
        ratio.add(costs.1.p50() as f64 / costs.0.p50() as f64);
        bare.push(costs.0);
        lock.push(costs.1);
    }
    let after = mgr.stats();
    println!("one thread, lock + drop, {rounds} rounds of {CYCLES} cycles");
    println!("  {:<28}{:>12}{:>12}   ratio", "", "floor", "fairlock");
    row("p50", &bare, &lock, Cost::p50, &ratio.to_string());
    let floor = format!("{} bare", micros(median(bare.iter().map(Cost::p50))));
    Figure::new(
        2,
        "Lock + drop by one thread, p50",
        "fairlock",
        "× the floor",
    )
    .beside(floor)
    .bound(Bound::AtMost(1.25))
    .note(&ratio);
    row(
        "server, in commands",
        &bare,
        &lock,
        |cost| cost.server / CYCLES as u64,
        "",
    );
    row(
        "this thread's processor",
        &bare,
        &lock,
        |cost| cost.cpu / CYCLES as u64,
        "",
    );
    let requests =
        (after.requests - before.requests) as f64 / (after.granted - before.granted) as f64;
    println!(
        "  {:<28}{:>12}{requests:>12.3}",
        "requests a cycle", "2.000"
    );
}

fn row(title: &str, floor: &[Cost], ours: &[Cost], of: impl Fn(&Cost) -> u64, ratio: &str) {
    let [floor, ours] = [floor, ours].map(|costs| micros(median(costs.iter().map(&of))));
    println!("  {title:<28}{floor:>12}{ours:>12}   {ratio}");
}

/// The time that the server has spent so far in the two commands of a cycle, in ns, the commands
/// that a script calls included.
fn server_time(admin: &mut Connection) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(admin)
        .expect("INFO is answered");
    let usec = |line: &str| {
        line.split_once("usec=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    };
    let of_a_cycle =
        |line: &&str| line.starts_with("cmdstat_set:") || line.starts_with("cmdstat_evalsha:");
    stats
        .lines()
        .filter(of_a_cycle)
        .filter_map(usec)
        .sum::<u64>()
        * 1000
}

/// Each thread has a name of its own; the floor has a connection for each, and fairlock its pool of
/// 8.
fn many_threads(url: &str, threads: usize, rounds: usize) {
    let mut floors: Vec<Floor> = (0..threads)
        .map(|i| Floor::new(url, &format!("bench:floor:{i}")))
        .collect();
    let mgr = LockManager::connect(url).expect("a Redis that answers");
    let mut locks: Vec<_> = (0..threads)
        .map(|i| mgr.mutex(format!("bench:uncontended:{i}")))
        .collect();
    let mut floor = || {
        throughput(
            THREADS_RUN_FOR,
            floors
                .iter_mut()
                .map(|floor| move || floor.cycle())
                .collect(),
        )
    };
    let mut ours = || {
        throughput(
            THREADS_RUN_FOR,
            locks
                .iter_mut()
                .map(|lock| move || drop(lock.lock().expect("nobody else wants it")))
                .collect(),
        )
    };
    floor();
    ours();

    let mut ratio = Rounds::default();
    let mut bare = Vec::new();
    let mut lock = Vec::new();
    let before = mgr.stats();
    for _ in 0..rounds {
        let pair = (floor(), ours());
        ratio.add(pair.1 as f64 / pair.0 as f64);
        bare.push(pair.0);
        lock.push(pair.1);
    }
    let after = mgr.stats();
    let granted = (after.granted - before.granted) as f64;
    println!("{threads} threads on {threads} names, {rounds} rounds of {THREADS_RUN_FOR:?} each");
    println!("  {:<28}{:>12}{:>12}   ratio", "", "floor", "fairlock");
    println!(
        "  {:<28}{:>12}{:>12}   {ratio}",
        "cycles a second",
        median(bare.clone()),
        median(lock)
    );
    Figure::new(
        2,
        "Lock + drop, throughput",
        format!("{threads} threads on as many names"),
        "× the floor",
    )
    .beside(format!("{}/s bare, {threads} connections", median(bare)))
    .bound(Bound::AtLeast(0.8))
    .note(&ratio);
    println!("  {:<28}{threads:>12}{:>12}", "connections", after.connects);
    println!(
        "  {:<28}{:>12}{:>12.3}",
        "requests a cycle",
        "2.000",
        (after.requests - before.requests) as f64 / granted
    );
    let background = (after.background_releases - before.background_releases) as f64 / granted;
    println!(
        "  {:<28}{:>12}{background:>12.3}",
        "of them in the background", "–"
    );
}
