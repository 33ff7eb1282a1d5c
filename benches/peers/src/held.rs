//! The cost of holding and renewing many locks, for the clients that renew. fairlock and Redisson
//! renew in each third of the ttl, rueidislock in each half, and rslock's `using` once in 0.94 of it.

use std::thread;
use std::time::Duration;

use redis::Connection;

use crate::client::Client;
use crate::support::figure::Figure;
use crate::support::{Rounds, bare_connection, is_bench, now};

pub(crate) fn measure(url: &str, clients: &[Client]) {
    let locks = if is_bench() { 10_000 } else { 200 };
    let hold_for = Duration::from_secs(if is_bench() { 25 } else { 1 });
    println!("\n{locks} locks held for {hold_for:?} with a ttl of 10 s");
    println!(
        "  {:<44}{:<14}{:<14}server, s of processor",
        "", "commands/s", "client"
    );
    let mut admin = bare_connection(url);
    for client in clients {
        if client.hold("bench:peers:held", locks) == 0 {
            continue;
        }
        let before = Used::read(client, &mut admin);
        thread::sleep(hold_for);
        let after = Used::read(client, &mut admin);
        client.drop_all();
        let seconds = (after.at - before.at) as f64 / 1e9;
        let commands = (after.commands - before.commands) / seconds;
        let [own, server] = [after.client - before.client, after.server - before.server];
        println!(
            "  {:<44}{commands:<14.0}{own:<14.2}{server:.2}",
            client.name
        );
        let note = |what: &str, unit: &str, value: f64| {
            let mut seen = Rounds::default();
            seen.add(value);
            let title = format!("{locks} locks held for {hold_for:?}, ttl 10s: {what}");
            Figure::new(1, &title, &client.name, unit).note(&seen);
        };
        note("commands", "a second", commands);
        note("processor of the client", "s", own);
        note("processor of the server", "s", server);
    }
}

/// The processor time that the client's process and the server have used so far.
struct Used {
    /// ns
    at: u64,
    /// s
    client: f64,
    server: f64,
    /// Those in scripts included.
    commands: f64,
}

impl Used {
    fn read(client: &Client, admin: &mut Connection) -> Used {
        let info: String = redis::cmd("INFO").query(admin).expect("INFO is answered");
        let number = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        Used {
            at: now(),
            client: client.cpu(),
            server: number("used_cpu_user:") + number("used_cpu_sys:"),
            commands: number("total_commands_processed:"),
        }
    }
}
