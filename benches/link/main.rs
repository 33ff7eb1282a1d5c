//! A Redis that is 1 ms away: the throughput of 64 threads on a pool of 4 connections, each thread
//! on a name of its own, beside a plain pool of 4 connections that checks one out for each command.
//!
//!     cargo bench --bench link
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench link
//!
//! Without the variable it starts a private redis-server on a port of this host. The link is a
//! proxy in a process of its own. It forwards each chunk 0.5 ms after the chunk came in, in each
//! direction, however many other chunks are on their way. The bare PING shows what the proxy itself
//! adds. The plain pool is r2d2, without a test at check-out, of bare connections that run SET NX
//! PX and a compare-and-delete script. The floor runs the same two commands on one connection per
//! thread. Within a round all take turns. Ratios are the median of all rounds (least..most).

#[path = "../support/child.rs"]
mod child;
#[path = "../support/floor.rs"]
mod floor;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/throughput.rs"]
mod throughput;

use std::env;
use std::time::Duration;

use fairlock::{LockManager, Stats};
use floor::Floor;
use proxy::Proxy;
use redis::{Connection, RedisError};
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, is_bench, median, micros, now, rounds, server};
use throughput::throughput;

const POOL: u32 = 4;
const THREADS: usize = 64;
/// Cycles of one thread, for each kind in a round, and how many before the other kind's turn.
const CYCLES: usize = 100;
const CYCLES_AT_ONCE: usize = 10;

fn main() {
    if env::args().any(|arg| arg == "proxy") {
        return proxy::run();
    }
    let redis = server();
    let mut proxy = Proxy::start(&redis.url);
    println!("link: a Redis that is 1 ms away, on {}", redis.about);
    let [near, far] = [&redis.url, &proxy.url].map(|url| micros(ping(url)));
    println!("  a bare PING: {near} without the link, {far} over it");
    println!();
    one_thread(&proxy.url, rounds(7));
    println!();
    many_threads(
        &mut proxy,
        rounds(7),
        Duration::from_millis(if is_bench() { 1000 } else { 200 }),
    );
}

fn ping(url: &str) -> u64 {
    let mut connection = bare_connection(url);
    median((0..500).map(|_| {
        timed(|| {
            redis::cmd("PING")
                .exec(&mut connection)
                .expect("PING is answered")
        })
    }))
}

fn timed(call: impl FnOnce()) -> u64 {
    let started = now();
    call();
    now() - started
}

fn one_thread(url: &str, rounds: usize) {
    let mut floor = Floor::new(url, "bench:link:floor");
    let manager = LockManager::builder(url)
        .lanes(POOL)
        .build()
        .expect("a Redis that answers");
    let mut round = || {
        let (mut bare, mut lock) = (Vec::new(), Vec::new());
        for _ in 0..CYCLES / CYCLES_AT_ONCE {
            (0..CYCLES_AT_ONCE).for_each(|_| bare.push(timed(|| floor.cycle())));
            let cycle = || drop(manager.lock("bench:link").expect("nobody else wants it"));
            (0..CYCLES_AT_ONCE).for_each(|_| lock.push(timed(cycle)));
        }
        (median(bare), median(lock))
    };
    round();

    let mut ratio = Rounds::default();
    let mut bare = Vec::new();
    let mut lock = Vec::new();
    for _ in 0..rounds {
        let pair = round();
        ratio.add(pair.1 as f64 / pair.0 as f64);
        bare.push(pair.0);
        lock.push(pair.1);
    }
    let [bare, lock] = [bare, lock].map(|times| micros(median(times)));
    println!("one thread, lock + drop, {rounds} rounds of {CYCLES} cycles");
    println!(
        "  {:<22}{:>12}{:>12}   fairlock / floor",
        "", "floor", "fairlock"
    );
    println!("  {:<22}{bare:>12}{lock:>12}   {ratio}", "p50");
    let figure = Figure::new(
        7,
        "Link of 1 ms, lock + drop by one thread, p50",
        "fairlock",
        "× the floor",
    );
    figure.beside(format!("{bare} bare")).note(&ratio);
}

/// Each thread has a name of its own.
fn many_threads(proxy: &mut Proxy, rounds: usize, run_for: Duration) {
    let url = proxy.url.as_str();
    let plain = Plain::new(url);
    let manager = LockManager::builder(url)
        .lanes(POOL)
        .build()
        .expect("a Redis that answers");
    let mut floors: Vec<Floor> = (0..THREADS)
        .map(|i| Floor::new(url, &format!("bench:link:floor:{i}")))
        .collect();
    let mut measure = || {
        let plain = (0..THREADS).map(|i| {
            let plain = &plain;
            let key = format!("bench:link:plain:{i}");
            move || plain.cycle(&key)
        });
        let ours = (0..THREADS).map(|i| {
            let lock = manager.mutex(format!("bench:link:{i}"));
            move || drop(lock.lock().expect("nobody else wants it"))
        });
        let floor = floors.iter_mut().map(|floor| move || floor.cycle());
        [
            throughput(run_for, plain.collect()),
            throughput(run_for, ours.collect()),
            throughput(run_for, floor.collect()),
        ]
    };
    measure();

    let before = manager.stats();
    let used = proxy.child.usage();
    let [mut to_plain, mut to_floor] = [(); 2].map(|()| Rounds::default());
    let mut rates = [(); 3].map(|()| Rounds::default());
    for _ in 0..rounds {
        let [plain, ours, floor] = measure().map(|rate| rate as f64);
        to_plain.add(ours / plain);
        to_floor.add(ours / floor);
        rates
            .iter_mut()
            .zip([plain, ours, floor])
            .for_each(|(all, rate)| all.add(rate));
    }
    let after = manager.stats();
    let used = proxy.child.usage() - used;

    println!("{THREADS} threads on {THREADS} names, {rounds} rounds of {run_for:?} each");
    let row = |title: &str, [plain, ours, floor]: [String; 3]| {
        println!("  {title:<22}{plain:>16}{ours:>12}{floor:>12}");
    };
    let cycle = |of: fn(&Stats) -> u64| {
        let part = (of(&after) - of(&before)) as f64 / (after.granted - before.granted) as f64;
        format!("{part:.3}")
    };
    row(
        "",
        ["plain check-out", "fairlock", "floor"].map(str::to_owned),
    );
    let [plain, ours, floor] = rates;
    row(
        "cycles a second",
        [&plain, &ours, &floor].map(|rates| format!("{:.0}", rates.median())),
    );
    row(
        "connections",
        [u64::from(POOL), after.connects, THREADS as u64].map(|number| number.to_string()),
    );
    row(
        "requests a cycle",
        [
            "2.000".to_owned(),
            cycle(|stats| stats.requests),
            "2.000".to_owned(),
        ],
    );
    row(
        "in the background",
        [
            "–".to_owned(),
            cycle(|stats| stats.background_releases),
            "–".to_owned(),
        ],
    );
    println!("  fairlock / plain check-out: {to_plain}; fairlock / floor: {to_floor}");
    println!("  the proxy takes {:.0} % of a core", used.load());

    let figure = |title: &str, case: &str, unit: &str| Figure::new(7, title, case, unit);
    let title = "Link of 1 ms, 64 threads on as many names, by plain check-out";
    figure(title, "fairlock, pool of 4", "× plain check-out")
        .beside(format!("{:.0}/s plain, pool of 4", plain.median()))
        .bound(Bound::AtLeast(5.0))
        .note(&to_plain);
    let title = "Link of 1 ms, 64 threads on as many names, by the floor";
    figure(title, "fairlock, pool of 4", "× the floor")
        .beside(format!(
            "{:.0}/s bare, {THREADS} connections",
            floor.median()
        ))
        .note(&to_floor);
    let title = "Link of 1 ms, 64 threads on as many names: lock + drop";
    figure(title, "plain check-out, pool of 4", "a second").note(&plain);
    figure(title, "fairlock, pool of 4", "a second").note(&ours);
    figure(title, "bare, 64 connections", "a second").note(&floor);
}

/// A pool of bare connections; each command has one to itself until it is answered.
struct Plain {
    pool: r2d2::Pool<Bare>,
    sha: String,
}

impl Plain {
    fn new(url: &str) -> Plain {
        // A test at each check-out would be one more round trip.
        let pool = r2d2::Pool::builder()
            .max_size(POOL)
            .test_on_check_out(false)
            .build(Bare(url.to_owned()));
        let pool = pool.expect("a Redis that answers");
        let sha = floor::load(&mut pool.get().expect("a connection"));
        Plain { pool, sha }
    }

    fn cycle(&self, key: &str) {
        let taken = floor::take(&mut self.pool.get().expect("a connection"), key);
        let released = floor::release(&mut self.pool.get().expect("a connection"), &self.sha, key);
        assert!(taken && released, "somebody else uses {key}");
    }
}

struct Bare(String);

impl r2d2::ManageConnection for Bare {
    type Connection = Connection;
    type Error = RedisError;

    fn connect(&self) -> Result<Connection, RedisError> {
        Ok(bare_connection(&self.0))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}
