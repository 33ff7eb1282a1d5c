//! The same work for fairlock and other lock clients for Redis, in Rust, Go and Java, in one run: one
//! thread that locks and releases, on one core and on two (support/cores.rs has the reason); 32
//! threads, each on a name of its own; 8 threads on one name, which each holds for a millisecond or
//! not at all; and 10,000 locks that one process holds and renews, for those that renew.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml -- --bench
//!     cargo run --release --manifest-path benches/peers/Cargo.toml -- --bench one_name held
//!
//! The second runs two of its parts: `one_thread`, `own_names`, `one_name`, `held`.
//! `FAIRLOCK_BENCH_URL` names a Redis; without it, a private redis-server is started on a port of
//! this host.
//!
//! The clients of each language are a child process: this program itself, one in Go and one in
//! Java. The children read the same orders and answer with times, and all are evaluated here.
//! Within a round all clients take turns. Those for Go are left out where `go` is not installed,
//! those for Java where `mvn` is not. redis-lock needs FUNCTION (Redis 7) and is left out where that
//! is missing.
//!
//! Each client keeps its own defaults; `subject.rs`, `go/subjects.go` and `java/src/Peers.java` say
//! which these are. On the name that several threads want, a client that polls also runs with a
//! retry after a millisecond or less. redis-lock uses `lock` with a sleep of 1 ms in place of
//! `DEFAULT_SLEEP`. rslock and redlock use `set_retry(u32::MAX, 2 ms)`: they draw whole
//! milliseconds below that, so they sleep for 0 or 1 ms. With 1 ms they would not sleep at all, and
//! get less done where there are fewer processors than threads. fairlock has nothing to set: Redis
//! notifies its waiters. With local hand-overs, a thread hands the lock to another one of its process
//! up to 100 times in a row. *Kept* is a lock that its process keeps after each drop, as no other
//! process wants it.

mod child;
mod client;
#[path = "../../support/floor.rs"]
mod floor;
mod held;
mod one_name;
mod one_thread;
mod own_names;
mod subject;
#[path = "../../support/mod.rs"]
mod support;

use std::time::Duration;
use std::{env, process};

use client::{Client, clients};
use support::cores::Cores;
use support::{is_quick, rounds, server, sized};

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if args.iter().any(|arg| arg == "child") {
        return child::serve();
    }
    let redis = server();
    println!("peers: fairlock and other clients on {}", redis.about);
    let (all, eager) = clients(&redis.url)
        .into_iter()
        .partition(|client| !client.is_eager());
    let (all, eager): (Vec<Client>, Vec<Client>) = (all, eager);
    warm_up(&all);
    let is_wanted = |part: &str| args.is_empty() || args.iter().any(|arg| arg == part);
    if is_wanted("one_thread") {
        let children = all.iter().map(Client::process_id);
        let ids: Vec<u32> = children.chain([process::id()]).collect();
        Cores::each(&redis.url, &ids, |cores| {
            one_thread::measure(&redis.url, cores, &all, rounds(9));
        });
    }
    if is_wanted("own_names") {
        own_names::measure(&all, rounds(5));
    }
    if is_wanted("one_name") {
        // Some clients wait for seconds for the last of their threads.
        let rounds = rounds(sized(1, 1, 3));
        one_name::measure(all.iter(), Duration::ZERO, rounds);
        one_name::measure(all.iter().chain(&eager), Duration::from_millis(1), rounds);
    }
    // It takes as long as half of the others.
    if is_wanted("held") && !is_quick() {
        held::measure(&redis.url, &all);
    }
}

/// Opens connections, and gives Java's compiler the time it takes.
fn warm_up(clients: &[Client]) {
    let run_for = Duration::from_millis(sized(50, 200, 1000));
    for client in clients {
        client.own_names("bench:peers:first", 8, run_for);
    }
}
