//! Kept locks: the price of a lock that this process had last and nobody else wants, and the price for
//! others that want it.
//!
//!     cargo bench --bench kept
//!     cargo bench --bench kept -- turns recall
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench kept
//!
//! Without the variable it starts a private redis-server on a port of this host. Arguments choose parts:
//!
//! - `relock`: `lock` and drop of a kept name, by 1 and 2 threads, by handle and by name, of 1 and of
//!   many names, with work of 0, 1 and 10 µs under the guard. Beside it, the *floor*: a bare connection
//!   that sends SET NX PX and a compare-and-delete script. The time is that of the two calls alone, less
//!   the time of reading the clock.
//! - `crowd`: 32 threads, each on a name of its own, with work of 1 µs; and 8 threads on one name. Beside
//!   them, the same locks without `keep_idle`, the floor, and a `parking_lot::FairMutex`. rueidislock
//!   has its figure for 32 threads in `peers`, where Go is installed.
//! - `turns`: two processes lock one name by turns, r times in a row each, on this host and over a link
//!   of 1 ms (link/proxy.rs). The first turns are not measured: in them a process may find out that the
//!   name is not worth keeping.
//! - `all_wait`: 2, 3 and 10 managers that all wait for one name.
//! - `recall`: how long others wait for a name that a manager keeps, while it is idle and while it locks
//!   again and again.
//!
//! Within a round, the things that are compared take turns. Ratios are the median of all rounds
//! (least..most). A profiler shows more if one subject runs alone, for 2 s: `handle`, `name`,
//! `threads` (two, on names of their own) or `one` (8 threads on one name).
//!
//!     FAIRLOCK_BENCH_URL=redis://host/ perf record -g kept-0123abcd --bench alone handle

mod all_wait;
mod by_turns;
#[path = "../support/child.rs"]
mod child;
mod crowd;
#[path = "../support/floor.rs"]
mod floor;
#[path = "../support/handovers.rs"]
mod handovers;
#[path = "../link/proxy.rs"]
mod proxy;
mod recall;
mod relock;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/throughput.rs"]
mod throughput;

use std::env;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions};
use support::figure::Figure;
use support::server;

/// A part's name, and what measures it on the server of a URL.
type Part = (&'static str, fn(&str));

/// For how long a lock is kept that nobody uses.
const KEEP: Duration = Duration::from_secs(3);
/// By then a manager knows that it hears of others, unless something is wrong.
const MOST_WARM_UP: Duration = Duration::from_secs(20);

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("proxy") => return proxy::run(),
        Some("turns-child") => return by_turns::run_child(&args[1..]),
        _ => {}
    }
    let redis = server();
    if let Some(at) = args.iter().position(|arg| arg == "alone") {
        return match args.get(at + 1).map_or("handle", String::as_str) {
            "one" => crowd::alone(&redis.url),
            subject => relock::alone(&redis.url, subject),
        };
    }
    println!("kept: locks that a process keeps, on {}", redis.about);
    let chosen: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let parts: [Part; 5] = [
        ("relock", relock::measure),
        ("crowd", crowd::measure),
        ("turns", by_turns::measure),
        ("all_wait", all_wait::measure),
        ("recall", recall::measure),
    ];
    for (name, measure) in parts {
        if chosen.is_empty() || chosen.iter().any(|arg| *arg == name) {
            println!();
            measure(&redis.url);
        }
    }
}

/// A manager that keeps its locks.
fn keeper(url: &str) -> LockManager {
    support::manager(url, None).with(LockOptions::new().keep_idle(KEEP))
}

/// Locks this name until it is kept.
fn warm_up(manager: &LockManager, name: &str) {
    let began = Instant::now();
    loop {
        let before = manager.stats().kept_turns;
        drop(manager.lock(name).expect("a lock"));
        if manager.stats().kept_turns > before {
            return;
        }
        assert!(began.elapsed() < MOST_WARM_UP, "{name} is not kept");
        sleep(Duration::from_micros(200));
    }
}

/// A figure on the page's part about kept locks.
fn figure(title: &str, case: impl Into<String>, unit: &str) -> Figure {
    Figure::new(10, title, case, unit)
}
