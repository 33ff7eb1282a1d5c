//! The costs of each operation: requests, commands within scripts, bytes and system calls. They are
//! compared with docs/OPERATIONS.md, so that no cost grows unnoticed. On Redis alone: its own counters
//! are read.

pub(crate) mod contended;
mod operations;
mod page;
pub(crate) mod system_calls;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions};

use crate::behaviour::many_holders::plant_holders;
use crate::fixtures::SOON;
use crate::managers::manager;
use crate::permits::Permits;
use crate::support::{SLACK, Server, until};
use operations::{OPERATIONS, quiet};
use page::Costs;

/// How often each operation is repeated, so that one-time costs do not count.
const TIMES: u64 = 500;

/// The counters of Redis.
struct Count {
    commands: BTreeMap<String, u64>,
    bytes: u64,
}

fn count(server: &Server) -> Count {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    let bytes = server.counted("total_net_input_bytes") + server.counted("total_net_output_bytes");
    Count {
        commands: stats.lines().filter_map(calls).collect(),
        bytes,
    }
}

/// The server's counts for each of these `times`, and the calls of all its commands.
fn costs(server: &Server, times: u64, what: impl FnOnce()) -> (Costs, BTreeMap<String, u64>) {
    let before = count(server);
    // The queries of this function cost bytes too.
    let asking = count(server).bytes - before.bytes;
    let before = count(server);
    what();
    let Count {
        mut commands,
        bytes,
    } = count(server);
    for (command, calls) in &mut commands {
        *calls -= before.commands.get(command).unwrap_or(&0);
    }
    commands.retain(|_, calls| *calls > 0);
    let of = |command| commands.get(command).copied().unwrap_or(0);
    let scripts = of("eval") + of("evalsha");
    let each = |n: u64| n as f64 / times as f64;
    let costs = Costs {
        requests: each(scripts),
        commands: each(commands.values().sum::<u64>() - scripts - of("info")),
        bytes: each((bytes - before.bytes).saturating_sub(asking)),
        system_calls: None,
        by_load: None,
    };
    (costs, commands)
}

fn own_thread() -> String {
    let thread = thread::current();
    thread
        .name()
        .expect("a test's thread has its name")
        .to_owned()
}

#[test]
fn each_operation_costs_what_its_row_says() {
    let mut wrong = Vec::new();
    for (operation, prepare) in OPERATIONS {
        let server = Server::start();
        let mut cycle = prepare(&server.url());
        // The first cycles open connections and make the scripts known to the server.
        (0..20).for_each(|_| cycle());
        let mut measure = || costs(&server, TIMES, || (0..TIMES).for_each(|_| cycle()));
        let (mut seen, mut commands) = measure();
        // The first check of a waiter comes some time later, and brings a script's source.
        if commands.contains_key("eval") {
            (seen, commands) = measure();
        }
        let seen = seen.without_names(&own_thread());
        println!("{operation}: {seen:.2?}");
        let row = Costs::of(operation);
        if !seen.is(&row) {
            wrong.push(format!(
                "{operation}: {seen:.2?}, not {row:?}: {commands:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Leases that begin together are renewed together. On a busy machine they may begin apart, so this
/// takes them again then.
#[test]
fn renewals_cost_no_more_than_their_rows_say() {
    for locks in [1, 50] {
        let server = Server::start();
        let mgr = manager(server.url(), Duration::from_secs(1));
        let renewals = |many: u64| {
            let all = mgr.stats().renewals_confirmed + many * locks;
            let within = many as u32 * Duration::from_secs(1) + SLACK;
            until(within, "every lease is renewed", || {
                mgr.stats().renewals_confirmed >= all
            });
        };
        let operation = match locks {
            1 => "a lone renewal",
            _ => "each of 50 renewals",
        };
        let row = Costs::of(operation);
        until(3 * SOON, "renewals cost what their row says", || {
            let take = |i| mgr.lock(format!("k{i}")).unwrap();
            let guards: Vec<_> = (0..locks).map(take).collect();
            // The first renewals make the script known to the server.
            renewals(1);
            let (seen, commands) = costs(&server, 4 * locks, || renewals(4));
            println!("{operation}: {seen:.2?}, at most {row:?}: {commands:?}");
            assert!(guards.iter().all(|guard| guard.is_held()));
            seen.is_within(&row)
        });
    }
}

#[test]
fn a_thousand_waiters_cost_no_more_than_their_row_says() {
    const WAITERS: usize = 1000;
    let server = Server::start();
    let holder = LockManager::connect(server.url()).unwrap();
    let _guard = holder
        .with(LockOptions::new().fixed_lease(Duration::from_secs(60)))
        .lock("k")
        .unwrap();
    let mgr = LockManager::connect(server.url()).unwrap();
    // Asking for the rights reads a list, too.
    let lists_read = |server: &Server| count(server).commands.get("llen").copied().unwrap_or(0);
    let waiters: Vec<_> = (0..WAITERS).map(|_| mgr.enqueue("k").unwrap()).collect();
    // The first waiter's check also reads the list.
    let before = lists_read(&server);
    until(SOON, "it is checked once", || lists_read(&server) > before);
    // Time itself is under test: one check and one sign of life (R3) a second, however many waiters
    // there are.
    let (seen, commands) = costs(&server, 4, || thread::sleep(Duration::from_secs(4)));
    let row = Costs::of("a second of 1,000 waiters");
    assert!(
        seen.is_within(&row),
        "{seen:.2?}, more than {row:?}: {commands:?}"
    );
    drop(waiters);
}

/// Each call looks at one page of the holders, however many there are.
#[test]
fn a_permit_beside_a_hundred_thousand_costs_what_its_row_says() {
    let server = Server::start();
    let mgr = quiet(&server.url());
    let permits = mgr.semaphore("k", 1_000_000);
    let _kept = permits.acquire(1).unwrap();
    permits.acquire(1).unwrap().unlock().unwrap();
    plant_holders(&server, &Permits::of(&server, "k"), 100_000, 60_000_000);
    let (seen, commands) = costs(&server, TIMES, || {
        for _ in 0..TIMES {
            permits.acquire(1).unwrap().unlock().unwrap();
        }
    });
    let seen = seen.without_names(&own_thread());
    let operation = "semaphore, beside 100,000 other holders: acquire + unlock";
    println!("{operation}: {seen:.2?}");
    let row = Costs::of(operation);
    assert!(
        seen.is(&row),
        "{operation}: {seen:.2?}, not {row:?}: {commands:?}"
    );
}
