//! The same work for fairlock and the other lock crates for Redis, in one run:
//!
//! - one thread that locks and releases, on one core and on two (support/cores.rs has the reason);
//! - 32 threads, each on a name of its own;
//! - 8 threads on one name, which each holds for a millisecond or not at all;
//! - 10,000 locks that one process holds and renews.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml -- --bench
//!
//! `FAIRLOCK_BENCH_URL` names a Redis; without it, a private redis-server is started on a port of
//! this host. Within a round all take turns. Each crate waits as its own waiting verb does by
//! default: redlock and rslock retry after a random time of less than 200 ms, redis-lock after 1 s.
//! redlock opens a connection for each request and has no other mode. redis-lock and rslock have a
//! connection for each thread; rslock also has a runtime of its own, on which nothing else runs.
//! fairlock has one manager with its lanes. redis-lock needs FUNCTION (Redis 7) and is left out
//! where that is missing.
//!
//! On the name that several threads want, each peer also runs with a retry after a millisecond or
//! less. redis-lock uses `lock` with a sleep of 1 ms in place of `DEFAULT_SLEEP`. rslock and
//! redlock use `set_retry(u32::MAX, 2 ms)`: they draw whole milliseconds below that, so they sleep
//! for 0 or 1 ms. With 1 ms they would not sleep at all, and get less done where there are fewer
//! processors than threads. fairlock has nothing to set: Redis notifies its waiters. With local
//! hand-overs, a thread hands the lock to another one of its process up to 100 times in a row.

#[path = "../../support/floor.rs"]
mod floor;
mod held;
mod one_name;
mod one_thread;
mod own_names;
mod subject;
#[path = "../../support/mod.rs"]
mod support;
#[path = "../../support/throughput.rs"]
mod throughput;

use std::time::Duration;

use subject::{eager, uncontended, waiting};
use support::cores::Cores;
use support::{is_bench, rounds, server};

fn main() {
    let redis = server();
    println!("peers: fairlock and other crates on {}", redis.about);
    let subjects = uncontended(&redis.url);
    Cores::each(&redis.url, |cores| {
        one_thread::measure(&redis.url, cores, &subjects, rounds(9))
    });
    own_names::measure(&subjects, rounds(5));
    let subjects = waiting(&redis.url);
    one_name::measure(&subjects, Duration::ZERO, rounds(3));
    let subjects: Vec<_> = subjects.into_iter().chain(eager(&redis.url)).collect();
    one_name::measure(&subjects, Duration::from_millis(1), rounds(5));
    if is_bench() {
        held::measure(&redis.url);
    }
}
