//! How much several threads do together.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::now;

/// Cycles a second of all together, each on a thread of its own.
pub(crate) fn throughput<F: FnMut() + Send>(run_for: Duration, cycles: Vec<F>) -> u64 {
    let start = Barrier::new(cycles.len() + 1);
    let over = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let started = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        for mut cycle in cycles {
            let start = &start;
            let over = &over;
            let done = &done;
            let started = &started;
            scope.spawn(move || {
                start.wait();
                started.fetch_min(now(), Ordering::Relaxed);
                let mut count = 0;
                while !over.load(Ordering::Relaxed) {
                    cycle();
                    count += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
            });
        }
        start.wait();
        // If the others need the processor, this thread may run late.
        thread::sleep(run_for);
        over.store(true, Ordering::Relaxed);
    });
    done.into_inner() * 1_000_000_000 / (now() - started.into_inner())
}
