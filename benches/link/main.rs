//! A Redis that is 1 ms away: one thread beside the floor, and the throughput of 64 threads on 4
//! lanes, each thread on a name of its own, beside a plain pool of 4 connections that checks one
//! out for each command.
//!
//!     cargo bench --bench link
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench link
//!
//! Without the variable it starts a private redis-server on a port of this host. The link is a
//! proxy in a process of its own. It forwards each chunk 0.5 ms after the chunk came in, in each
//! direction, however many other chunks are on their way. The bare PING shows what the proxy itself
//! adds. The plain pool is r2d2, without a test at check-out, of bare connections that run SET NX
//! PX and a compare-and-delete script. The floor runs the same two commands on one connection per
//! thread, and the multiplexed client on one connection for all. Within a round all take turns. Ratios are the median of all rounds (least..most).

#[path = "../support/child.rs"]
mod child;
#[path = "../support/floor.rs"]
mod floor;
#[path = "../support/mux.rs"]
mod mux;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/throughput.rs"]
mod throughput;

use std::env;
use std::time::Duration;

use fairlock::stats::Stats;
use floor::Floor;
use mux::Mux;
use proxy::Proxy;
use redis::{Connection, RedisError};
use support::figure::{Bound, Figure};
use support::{
    Rounds, bare_connection, is_bench, manager, median, micros, now, rounds, server, sized,
};
use throughput::throughput;

/// The number for the plain pool, and for the lanes.
const CONNECTIONS: u32 = 4;
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
    let rounds = rounds(sized(1, 1, 7));
    one_thread(&proxy.url, rounds);
    println!();
    many_threads(
        &mut proxy,
        rounds,
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
    let manager = manager(url, Some(CONNECTIONS));
    let lock = || manager.lock("bench:link").expect("nobody else wants it");
    let unlock = || lock().unlock().expect("it is still held");
    let mut round = || {
        let [mut bare, mut dropped, mut unlocked] = [(); 3].map(|()| Vec::new());
        for _ in 0..CYCLES / CYCLES_AT_ONCE {
            (0..CYCLES_AT_ONCE).for_each(|_| bare.push(timed(|| floor.cycle())));
            (0..CYCLES_AT_ONCE).for_each(|_| dropped.push(timed(|| drop(lock()))));
            (0..CYCLES_AT_ONCE).for_each(|_| unlocked.push(timed(unlock)));
        }
        [bare, dropped, unlocked].map(median)
    };
    round();

    let mut seen = [(); 3].map(|()| (Vec::new(), Rounds::default()));
    for _ in 0..rounds {
        let times = round();
        for ((all, ratio), time) in seen.iter_mut().zip(times) {
            all.push(time);
            ratio.add(time as f64 / times[0] as f64);
        }
    }
    println!("one thread, {rounds} rounds of {CYCLES} cycles");
    println!("  {:<22}{:>12}   p50 / floor", "", "p50");
    let floor = micros(median(seen[0].0.iter().copied()));
    let kinds = [
        ("floor", Bound::None),
        ("lock + drop", Bound::AtMost(0.55)),
        ("lock + unlock", Bound::AtMost(1.1)),
    ];
    for ((kind, bound), (times, ratio)) in kinds.into_iter().zip(seen) {
        println!("  {kind:<22}{:>12}   {ratio}", micros(median(times)));
        if kind != "floor" {
            Figure::new(7, "Link of 1 ms, one thread, p50", kind, "× the floor")
                .beside(format!("{floor} bare"))
                .bound(bound)
                .note(&ratio);
        }
    }
}

/// Each thread has a name of its own.
fn many_threads(proxy: &mut Proxy, rounds: usize, run_for: Duration) {
    let url = proxy.url.as_str();
    let plain = Plain::new(url);
    let manager = manager(url, Some(CONNECTIONS));
    let mut floors: Vec<Floor> = (0..THREADS)
        .map(|i| Floor::new(url, &format!("bench:link:floor:{i}")))
        .collect();
    let mux = Mux::new(url);
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
        let muxed = (0..THREADS).map(|i| {
            let mut lock = mux.lock(format!("bench:link:mux:{i}"));
            move || lock.cycle()
        });
        [
            throughput(run_for, plain.collect()),
            throughput(run_for, ours.collect()),
            throughput(run_for, floor.collect()),
            throughput(run_for, muxed.collect()),
        ]
    };
    measure();

    let before = manager.stats();
    let used = proxy.child.usage();
    let [mut to_plain, mut to_floor] = [(); 2].map(|()| Rounds::default());
    let mut rates = [(); 4].map(|()| Rounds::default());
    for _ in 0..rounds {
        let [plain, ours, floor, muxed] = measure().map(|rate| rate as f64);
        to_plain.add(ours / plain);
        to_floor.add(ours / floor);
        rates
            .iter_mut()
            .zip([plain, ours, floor, muxed])
            .for_each(|(all, rate)| all.add(rate));
    }
    let after = manager.stats();
    let used = proxy.child.usage() - used;

    println!("{THREADS} threads on {THREADS} names, {rounds} rounds of {run_for:?} each");
    let row = |title: &str, [plain, ours, floor, muxed]: [String; 4]| {
        println!("  {title:<22}{plain:>16}{ours:>12}{floor:>12}{muxed:>12}");
    };
    let granted = |stats: &Stats| stats.acquisitions_at_once + stats.acquisitions_after_wait;
    let cycle = |of: fn(&Stats) -> u64| {
        let part = (of(&after) - of(&before)) as f64 / (granted(&after) - granted(&before)) as f64;
        format!("{part:.3}")
    };
    row(
        "",
        ["plain check-out", "fairlock", "floor", "multiplexed"].map(str::to_owned),
    );
    let [plain, ours, floor, muxed] = rates;
    row(
        "cycles a second",
        [&plain, &ours, &floor, &muxed].map(|rates| format!("{:.0}", rates.median())),
    );
    row(
        "connections",
        [u64::from(CONNECTIONS), after.connects, THREADS as u64, 1]
            .map(|number| number.to_string()),
    );
    row(
        "requests a cycle",
        [
            "2.000".to_owned(),
            cycle(|stats| stats.requests),
            "2.000".to_owned(),
            "2.000".to_owned(),
        ],
    );
    row(
        "in the background",
        [
            "–".to_owned(),
            cycle(|stats| stats.background_releases),
            "–".to_owned(),
            "–".to_owned(),
        ],
    );
    println!("  fairlock / plain check-out: {to_plain}; fairlock / floor: {to_floor}");
    println!("  the proxy takes {:.0} % of a core", used.load());

    let figure = |title: &str, case: &str, unit: &str| Figure::new(7, title, case, unit);
    let title = "Link of 1 ms, 64 threads on as many names, by plain check-out";
    figure(title, "fairlock, 4 lanes", "× plain check-out")
        .beside(format!("{:.0}/s plain, pool of 4", plain.median()))
        .bound(Bound::AtLeast(5.0))
        .note(&to_plain);
    let title = "Link of 1 ms, 64 threads on as many names, by the floor";
    figure(title, "fairlock, 4 lanes", "× the floor")
        .beside(format!(
            "{:.0}/s bare, {THREADS} connections",
            floor.median()
        ))
        .note(&to_floor);
    let title = "Link of 1 ms, 64 threads on as many names: lock + drop";
    figure(title, "plain check-out, pool of 4", "a second").note(&plain);
    figure(title, "fairlock, 4 lanes", "a second").note(&ours);
    figure(title, "bare, 64 connections", "a second").note(&floor);
    figure(title, "bare, multiplexed on one connection", "a second").note(&muxed);
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
            .max_size(CONNECTIONS)
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
