//! The cost of waiting: 1,000 threads of a process of their own wait on one name, and on 1,000
//! names.
//!
//!     cargo bench --bench waiting
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench waiting
//!
//! Without the variable it starts a private redis-server on a port of this host; nothing else may
//! use a server that is named. This process holds the locks by fixed leases, which nothing renews,
//! so every request that the server sees comes from the waiters. They share one lane.
//! Figures are the median of all rounds (least..most).

#[path = "support/child.rs"]
mod child;
mod support;

use std::time::Duration;
use std::{env, process, thread};

use child::{ChildProcess, serve};
use fairlock::{LockGuard, LockManager, LockOptions};
use redis::Connection;
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, is_bench, rounds, server, sized};

const THREADS: usize = 1000;

fn main() {
    let args: Vec<String> = env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "crowd") {
        return crowd(&args[at + 1..]);
    }
    let redis = server();
    let rounds = rounds(sized(1, 1, 3));
    let threads = if is_bench() { THREADS } else { 50 };
    let look_for = Duration::from_secs(sized(2, 5, 15));
    println!(
        "waiting: {threads} threads of one process, {rounds} rounds of {look_for:?}, on {}",
        redis.about
    );
    println!();
    let titles = [
        "requests/s",
        "commands/s in all",
        "connections",
        "switches/s",
        "% of a core",
    ];
    println!(
        "  {:<15}{}",
        "",
        titles.map(|title| format!("{title:<30}")).concat()
    );
    let layouts = [(1, "one name"), (threads, "as many names")];
    let mut seen = layouts.map(|_| Seen::default());
    for round in 0..rounds {
        for ((names, _), seen) in layouts.iter().zip(&mut seen) {
            seen.add(
                &redis.url,
                &format!("bench:waiting:{}:{round}:{names}", process::id()),
                *names,
                threads,
                look_for,
            );
        }
    }
    for ((names, layout), seen) in layouts.iter().zip(seen) {
        let Seen {
            requests,
            commands,
            connections,
            switches,
            load,
        } = seen;
        println!(
            "  {layout:<15}{requests:<30}{commands:<30.0}{connections:<30.0}{switches:<30.1}{load:.2}"
        );
        let figure = |title: &str, unit: &str| {
            Figure::new(5, title, format!("{threads} threads, {layout}"), unit)
        };
        let bound = if *names == 1 {
            Bound::AtMost(3.0)
        } else {
            Bound::None
        };
        figure("Waiting: requests at the server", "a second")
            .bound(bound)
            .note(&requests);
        figure("Waiting: commands, those in scripts included", "a second").note(&commands);
        figure("Waiting: connections beside the pool", "connections")
            .bound(Bound::AtMost(2.0))
            .note(&connections);
        figure("Waiting: context switches of the process", "a second").note(&switches);
        figure("Waiting: processor of the process", "% of a core").note(&load);
    }
}

#[derive(Default)]
struct Seen {
    requests: Rounds,
    commands: Rounds,
    connections: Rounds,
    switches: Rounds,
    load: Rounds,
}

impl Seen {
    fn add(&mut self, url: &str, prefix: &str, names: usize, threads: usize, look_for: Duration) {
        let mut admin = bare_connection(url);
        let options = LockOptions::new().fixed_lease(Duration::from_secs(600));
        let holder = LockManager::builder(url)
            .lanes(1)
            .options(options)
            .build()
            .expect("a Redis that answers");
        let locks: Vec<LockGuard> = (0..names)
            .map(|i| {
                holder
                    .lock(format!("{prefix}:{i}"))
                    .expect("nobody else wants it")
            })
            .collect();
        let connections = clients(&mut admin);
        let mut child = ChildProcess::spawn(
            url,
            &["crowd", prefix, &names.to_string(), &threads.to_string()],
        );
        while child.ask("waiting") != [threads as u64] {
            thread::sleep(Duration::from_millis(20));
        }
        // The requests that follow from joining are done.
        thread::sleep(look_for / 5);
        let before = ServerUse::now(&mut admin);
        let used = child.usage();
        thread::sleep(look_for);
        let after = ServerUse::now(&mut admin);
        let used = child.usage() - used;
        self.requests
            .add((after.requests - before.requests) as f64 / used.seconds());
        // Each look is an INFO.
        self.commands
            .add((after.commands - before.commands - 1) as f64 / used.seconds());
        self.switches.add(used.switches as f64 / used.seconds());
        self.load.add(used.load());
        // One of them is the lane.
        self.connections
            .add((clients(&mut admin) - connections) as f64 - 1.0);
        drop(child);
        drop(locks);
    }
}

/// The traffic that the server has seen so far.
struct ServerUse {
    /// By clients, one by one or in pipelines.
    requests: u64,
    /// With those that scripts call.
    commands: u64,
}

impl ServerUse {
    fn now(admin: &mut Connection) -> ServerUse {
        let info: String = redis::cmd("INFO")
            .arg("all")
            .query(admin)
            .expect("INFO is answered");
        let number = |name: &str| -> u64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split(',').next()?.parse().ok())
                .unwrap_or(0)
        };
        let calls = |command: &str| number(&format!("cmdstat_{command}:calls="));
        // Each script has one HMGET, so what is beyond them was sent by itself. TIME is in scripts
        // alone once the connections are open.
        let scripts = calls("eval") + calls("evalsha");
        let requests = scripts + calls("hmget").saturating_sub(scripts) + calls("ping");
        ServerUse {
            requests,
            commands: number("total_commands_processed:"),
        }
    }
}

fn clients(admin: &mut Connection) -> usize {
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(admin)
        .expect("CLIENT LIST is answered");
    list.lines().count()
}

/// The waiting process. It ends with its threads in the queue: the locks are not released before.
fn crowd(args: &[String]) {
    let [prefix, names, threads] = args else {
        panic!("not the arguments of a child")
    };
    let number = |arg: &String| arg.parse::<usize>().expect("a number");
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let manager = LockManager::builder(url)
        .lanes(1)
        .build()
        .expect("a Redis that answers");
    for thread in 0..number(threads) {
        let lock = manager.mutex(format!("{prefix}:{}", thread % number(names)));
        thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(move || lock.lock())
            .expect("a thread");
    }
    serve(|_| vec![manager.stats().waiting]);
    process::exit(0);
}
