//! Fences rise while nodes die and return.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use fairlock::LockManager;

use super::set::{Set, take};
use crate::support::EndLoops;

/// Grants in the short form. The long form: `FAIRLOCK_GRANTS=10000`.
const GRANTS: usize = 300;

/// A cheap source of numbers that differ from run to run.
fn random(below: usize) -> usize {
    let now = super::set::now();
    (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % below
}

#[test]
fn fences_rise_while_random_nodes_die_and_return() {
    let grants = std::env::var("FAIRLOCK_GRANTS")
        .ok()
        .and_then(|n| n.parse().ok());
    let grants: usize = grants.unwrap_or(GRANTS);
    let appending =
        || crate::support::Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let set = Set::of((0..5).map(|_| thread::spawn(appending)));
    let managers: Vec<LockManager> = (0..3).map(|_| set.manager()).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Two of five, so that a majority is left.
                let (first, second) = (random(5), random(4));
                let second = (first + 1 + second) % 5;
                set.servers[first].kill();
                set.servers[second].stop();
                // Time itself is under test: grants go on in an outage, and after it.
                thread::sleep(Duration::from_millis(50));
                set.servers[first].restart();
                set.servers[second].cont();
                // Time itself is under test, as above.
                thread::sleep(Duration::from_millis(50));
            }
        });
        let started = Instant::now();
        let mut newest = 0;
        for at in 0..grants {
            let guard = take(&managers[at % 3], "x", Duration::from_secs(30));
            assert!(guard.fence() > newest, "{} after {newest}", guard.fence());
            newest = guard.fence();
        }
        println!("{grants} grants in {:?}", started.elapsed());
    });
}
