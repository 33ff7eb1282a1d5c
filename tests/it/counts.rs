//! The costs of each operation in Redis: requests, commands within scripts, and bytes. These are
//! upper limits, so that no cost grows unnoticed; benches/ measures the exact costs. On Redis
//! alone: its own counters are read.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use fairlock::{LockGuard, LockManager, LockOptions, Waiter};

use crate::fixtures::SOON;
use crate::managers::{manager, patient};
use crate::support::{SLACK, Server, until};

/// How often each operation is repeated, so that one-time costs do not count.
const TIMES: u64 = 500;

/// The counters of Redis.
struct Count {
    commands: BTreeMap<String, u64>,
    bytes: u64,
}

/// The most that one operation may cost.
struct Limit {
    /// Scripts run, which is the number of round trips.
    scripts: f64,
    /// Commands within the scripts.
    commands: f64,
    /// In both directions.
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

#[track_caller]
fn assert_costs(server: &Server, times: u64, limit: &Limit, what: impl FnOnce()) {
    let before = count(server);
    // The queries of this function cost bytes too.
    let asking = count(server).bytes - before.bytes;
    let before = count(server);
    what();
    let after = count(server);
    let grown = |command: &str| {
        after.commands.get(command).unwrap_or(&0) - before.commands.get(command).unwrap_or(&0)
    };
    let ours = ["info", "eval", "evalsha"];
    let inner: u64 = after
        .commands
        .keys()
        .filter(|command| !ours.contains(&command.as_str()))
        .map(|c| grown(c))
        .sum();
    let scripts = (grown("evalsha") + grown("eval")) as f64 / times as f64;
    let commands = inner as f64 / times as f64;
    let bytes = (after.bytes - before.bytes).saturating_sub(asking) / times;
    println!("{scripts:.2} scripts, {commands:.2} commands in them, {bytes} bytes");
    // Renewals and syncs may add the fractions during the measurement.
    let fits =
        scripts <= limit.scripts + 0.1 && commands <= limit.commands + 0.5 && bytes <= limit.bytes;
    let seen: Vec<_> = after
        .commands
        .keys()
        .map(|command| (command, grown(command)))
        .filter(|(_, n)| *n > 0)
        .collect();
    assert!(
        fits,
        "{scripts} scripts, {commands} commands in them, {bytes} bytes each: {seen:?}"
    );
}

#[test]
fn an_uncontended_lock_costs_two_requests_and_five_commands() {
    let server = Server::start();
    let mgr = patient(server.url());
    mgr.lock("k").unwrap().unlock().unwrap();
    let limit = Limit {
        scripts: 2.0,
        commands: 5.0,
        bytes: 700,
    };
    assert_costs(&server, TIMES, &limit, || {
        for _ in 0..TIMES {
            mgr.lock("k").unwrap().unlock().unwrap();
        }
    });
}

#[test]
fn permits_cost_two_requests_and_eight_commands_or_nine_beside_others() {
    let server = Server::start();
    let mgr = patient(server.url());
    let n = mgr.semaphore("k", 1000);
    n.acquire().unwrap().unlock().unwrap();
    // Beside others, a release asks for the time: one of their leases may be over.
    for (others, commands) in [(0, 8.0), (500, 9.0)] {
        let _held: Vec<_> = (0..others).map(|_| n.acquire().unwrap()).collect();
        let limit = Limit {
            scripts: 2.0,
            commands,
            bytes: 800,
        };
        assert_costs(&server, TIMES, &limit, || {
            for _ in 0..TIMES {
                n.acquire().unwrap().unlock().unwrap();
            }
        });
    }
}

#[test]
fn read_and_write_locks_cost_two_requests_and_eight_commands() {
    let server = Server::start();
    let mgr = patient(server.url());
    let lock = mgr.rw_lock("k");
    let cycle = || {
        lock.read().unwrap().unlock().unwrap();
        lock.write().unwrap().unlock().unwrap();
    };
    cycle();
    let limit = Limit {
        scripts: 2.0,
        commands: 8.0,
        bytes: 830,
    };
    assert_costs(&server, 2 * TIMES, &limit, || {
        (0..TIMES).for_each(|_| cycle())
    });
}

#[test]
fn queueing_and_the_hand_over_cost_two_requests() {
    let server = Server::start();
    for managers in [
        vec![patient(server.url())],
        vec![patient(server.url()), patient(server.url())],
    ] {
        let limit = Limit {
            scripts: 2.0,
            commands: 14.0,
            bytes: 905,
        };
        let guard = managers[0].lock("k").unwrap();
        let queued = managers[managers.len() - 1].enqueue("k").unwrap();
        let take_turns = |turns: usize, mut guard: LockGuard, mut queued: Waiter| {
            for i in 0..turns {
                let next = managers[i % managers.len()].enqueue("k").unwrap();
                guard.unlock().unwrap();
                guard = queued.wait().unwrap();
                queued = next;
            }
            (guard, queued)
        };
        // The first calls on each lane bring the scripts' sources.
        let (guard, queued) = take_turns(4, guard, queued);
        let mut ends = None;
        assert_costs(&server, TIMES, &limit, || {
            ends = Some(take_turns(TIMES as usize, guard, queued));
        });
        drop(ends);
    }
}

#[test]
fn a_lone_renewal_costs_one_request_and_four_commands() {
    let limit = Limit {
        scripts: 1.0,
        commands: 4.0,
        bytes: 330,
    };
    assert_renewals_cost(1, &limit);
}

/// A name's data and HMGET and HSET, and a share of the call, of TIME and of PEXPIREAT.
#[test]
fn fifty_renewals_cost_one_request_and_two_commands_each() {
    let limit = Limit {
        scripts: 1.0 / 50.0,
        commands: 2.0,
        bytes: 140,
    };
    assert_renewals_cost(50, &limit);
}

#[track_caller]
fn assert_renewals_cost(locks: usize, limit: &Limit) {
    let server = Server::start();
    let mgr = manager(server.url(), Duration::from_secs(1));
    let guards: Vec<_> = (0..locks)
        .map(|i| mgr.lock(format!("k{i}")).unwrap())
        .collect();
    // The first renewals make the script known to the server.
    until(
        Duration::from_secs(1) + SLACK,
        "every lease is renewed once",
        || mgr.stats().renewed >= locks as u64,
    );
    let renewed = mgr.stats().renewed;
    assert_costs(&server, 4 * locks as u64, limit, || {
        until(Duration::from_secs(4) + SLACK, "four renewals each", || {
            mgr.stats().renewed >= renewed + 4 * locks as u64
        });
    });
    assert!(guards.iter().all(|guard| guard.is_held()));
}

#[test]
fn a_second_of_waiting_costs_no_more_than_the_check() {
    const WAITERS: usize = 20;
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
    let limit = Limit {
        scripts: 1.0,
        commands: 6.0,
        bytes: 470,
    };
    // The first waiter's check also reads the list.
    let before = lists_read(&server);
    until(SOON, "it is checked once", || lists_read(&server) > before);
    // Time itself is under test: one check and one sign of life (R3) a second, however many waiters
    // there are.
    assert_costs(&server, 4, &limit, || thread::sleep(Duration::from_secs(4)));
    drop(waiters);
}
