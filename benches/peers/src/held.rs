//! What it costs to hold and renew many locks. Of the peers, only rslock renews by itself: `using`
//! does, once in 0.94 of the ttl. fairlock renews in each third of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use redis::Connection;
use rustix::time::ClockId;
use tokio::runtime;
use tokio::sync::Semaphore;

use crate::subject::TTL;
use crate::support::figure::Figure;
use crate::support::{Rounds, bare_connection, now, read, sized};

const LOCKS: usize = 10_000;

pub(crate) fn measure(url: &str) {
    let hold_for = Duration::from_secs(sized(1, 10, 25));
    println!("\n{LOCKS} locks held for {hold_for:?} with a ttl of {TTL:?}");
    println!(
        "  {:<28}{:<14}{:<14}server, s of processor",
        "", "commands/s", "client"
    );
    while_fairlock_holds(url, || note("fairlock, drop", url, hold_for));
    while_rslock_holds(url, || note("rslock 0.10", url, hold_for));
}

fn note(name: &str, url: &str, hold_for: Duration) {
    let mut admin = bare_connection(url);
    let before = Used::read(&mut admin);
    thread::sleep(hold_for);
    let after = Used::read(&mut admin);
    let seconds = (after.at - before.at) as f64 / 1e9;
    let commands = (after.commands - before.commands) / seconds;
    let client = (after.client - before.client) as f64 / 1e9;
    let server = after.server - before.server;
    println!("  {name:<28}{commands:<14.0}{client:<14.2}{server:.2}");
    let figure = |what: &str, unit: &str, value: f64| {
        let mut seen = Rounds::default();
        seen.add(value);
        let title = format!("{LOCKS} locks held for {hold_for:?}, ttl {TTL:?}: {what}");
        Figure::new(1, &title, name, unit).note(&seen);
    };
    figure("commands", "a second", commands);
    figure("processor of the client", "s", client);
    figure("processor of the server", "s", server);
}

/// What this process and the server have used so far.
struct Used {
    /// ns
    at: u64,
    client: u64,
    /// s
    server: f64,
    /// Those in scripts included.
    commands: f64,
}

impl Used {
    fn read(admin: &mut Connection) -> Used {
        let info: String = redis::cmd("INFO").query(admin).expect("INFO is answered");
        let number = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        Used {
            at: now(),
            client: read(ClockId::ProcessCPUTime),
            server: number("used_cpu_user:") + number("used_cpu_sys:"),
            commands: number("total_commands_processed:"),
        }
    }
}

fn while_fairlock_holds(url: &str, measure: impl FnOnce()) {
    let options = fairlock::LockOptions::new().ttl(TTL);
    let builder = fairlock::LockManager::builder(url).options(options);
    let manager = builder.build().expect("a Redis that answers");
    let held: Vec<_> = (0..LOCKS)
        .map(|i| manager.lock(format!("bench:peers:held:{i}")))
        .collect();
    measure();
    for guard in held {
        let guard = guard.expect("nobody else wants it");
        guard.unlock().expect("it was renewed");
    }
}

/// All of them on one thread.
fn while_rslock_holds(url: &str, measure: impl FnOnce()) {
    let held = AtomicUsize::new(0);
    let over = Semaphore::new(0);
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let manager = rslock::LockManager::new(vec![url]);
            let hold = async |i: usize| {
                let name = format!("bench:peers:held:{i}:rslock");
                let wait = async || {
                    held.fetch_add(1, Ordering::Relaxed);
                    // The end is an error here.
                    let _ = over.acquire().await;
                };
                let held = manager.using(name.as_bytes(), TTL, wait).await;
                held.expect("nobody else wants it");
            };
            runtime.block_on(join_all((0..LOCKS).map(|i| hold(i))));
        });
        while held.load(Ordering::Relaxed) < LOCKS {
            assert!(!holder.is_finished(), "it holds until it is over");
            thread::sleep(Duration::from_millis(10));
        }
        measure();
        over.close();
    });
}
