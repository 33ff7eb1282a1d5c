//! A lock on a quorum of three servers beside a lock on one of them, all on this host.
//!
//!     cargo bench --bench quorum
//!
//! The servers and the client share the processors of the host, so three servers cost three times
//! the processor time. Where each has a host of its own, that time runs in parallel.

#[path = "support/mod.rs"]
mod support;

use std::env;
use std::time::Duration;

use fairlock::{LockManager, Quorum};
use support::{now, rounds, server};

/// Cycles in a round.
const CYCLES: usize = 2000;

fn main() {
    // Safe: no other thread runs yet, and one server for all would be no quorum.
    assert!(
        env::var_os("FAIRLOCK_BENCH_URL").is_none(),
        "this bench starts its own servers"
    );
    let servers = [server(), server(), server()];
    let single = LockManager::connect(&servers[0].url).expect("a Redis that answers");
    let quorum = LockManager::builder(Quorum::new(servers.iter().map(|server| &server.url)))
        .uptime_check(false)
        .build()
        .expect("three that answer");
    println!("quorum: three servers against one: {}", servers[0].about);
    for (what, unlock) in [("lock + drop", false), ("lock + unlock", true)] {
        let mut ratios = Vec::new();
        for _ in 0..rounds(15) {
            let alone = median_cycle(&single, unlock);
            let of_three = median_cycle(&quorum, unlock);
            ratios.push((
                of_three.as_nanos() as f64 / alone.as_nanos() as f64,
                alone,
                of_three,
            ));
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, alone, of_three) = ratios[ratios.len() / 2];
        let (least, most) = (ratios[0].0, ratios[ratios.len() - 1].0);
        println!(
            "{what}: {alone:?} on one, {of_three:?} on three: {ratio:.2} ({least:.2}..{most:.2})"
        );
    }
}

/// The median time of a cycle.
fn median_cycle(manager: &LockManager, unlock: bool) -> Duration {
    let mut times: Vec<u64> = (0..CYCLES)
        .map(|_| {
            let started = now();
            let guard = manager.lock("bench").expect("it is free");
            if unlock {
                guard.unlock().expect("it is held");
            } else {
                drop(guard);
            }
            now() - started
        })
        .collect();
    times.sort_unstable();
    Duration::from_nanos(times[times.len() / 2])
}
