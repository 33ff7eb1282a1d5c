//! An uncontended lock beside the floor: a bare connection per thread that runs SET NX PX and a
//! compare-and-delete script and waits for both replies, the least that any lock on Redis can do.
//!
//!     cargo bench --bench uncontended
//!     cargo bench --features memory --bench uncontended
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench uncontended
//!
//! Without the variable it starts a private redis-server on a port of this host. It measures one
//! thread (on one core and on two: support/cores.rs has the reason), 8 threads and 32 threads, each
//! on a name of its own: the floor, a bare client that sends the same commands of all threads over
//! one connection, `lock` + drop, and `lock` + `unlock`. All take turns within a round, so a
//! disturbance of the machine hits each of them. Ratios are the median of all rounds (least..most).
//!
//! The cost of a cycle is the processor time of this process and of the server. A profiler shows
//! more if one of them runs alone; this runs `lock` + drop by 8 threads for 2 s, on 2 lanes:
//!
//!     FAIRLOCK_BENCH_URL=redis://host/ strace -fc uncontended-0123abcd --bench alone drop 8 2
//!
//! With the feature `memory` it also compares a lock of the in-memory store with one on this Redis
//! and with a `parking_lot::Mutex`, also where several threads want one name.

mod crowd;
#[path = "../support/floor.rs"]
mod floor;
#[cfg(feature = "memory")]
mod in_memory;
#[path = "../support/mux.rs"]
mod mux;
mod one_thread;
mod subject;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/throughput.rs"]
mod throughput;

use std::time::Duration;
use std::{env, process};

use subject::{Kind, Measured};
use support::cores::Cores;
use support::{rounds, server};

const CROWDS: [usize; 2] = [8, 32];

fn main() {
    let redis = server();
    let args: Vec<String> = env::args()
        .skip_while(|arg| arg != "alone")
        .skip(1)
        .collect();
    if !args.is_empty() {
        return alone(&redis.url, &args);
    }
    println!(
        "uncontended: fairlock against SET NX PX + EVALSHA on {}",
        redis.about
    );
    println!();
    Cores::each(&redis.url, &[process::id()], |cores| {
        one_thread::measure(&redis.url, cores, rounds(15))
    });
    one_thread::count_wakeups(&redis.url);
    for threads in CROWDS {
        println!();
        crowd::measure(&redis.url, threads, rounds(9));
    }
    #[cfg(feature = "memory")]
    {
        println!();
        in_memory::compare(&redis.url, rounds(9));
    }
}

/// Runs one kind for a profiler: its name, and how many threads and lanes.
fn alone(url: &str, args: &[String]) {
    let number = |i: usize| args.get(i).and_then(|number| number.parse::<u32>().ok());
    let kind = match args[0].as_str() {
        "floor" => Kind::Floor,
        "mux" => Kind::Mux,
        "unlock" => Kind::Unlock,
        _ => Kind::Drop(number(2)),
    };
    let threads = number(1).unwrap_or(1) as usize;
    let mut measured = Measured::new(kind, url, threads);
    let cycles = measured.subject.cycles(threads);
    let rate = throughput::throughput(Duration::from_secs(2), cycles);
    println!(
        "{}, {threads} threads: {rate} cycles a second",
        kind.title()
    );
}
