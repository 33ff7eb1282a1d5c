//! Partitions: servers and clients on hosts of their own (network namespaces), links that are cut,
//! and the soak's workers and checker.
//!
//!     tests/run.sh --test partitions                              every scenario once
//!     tests/run.sh --test partitions -- --seconds 600             for ten minutes
//!     tests/run.sh --test partitions -- --only sentinel,cluster
//!
//! It needs root on Linux. Where namespaces cannot be made, it says why and fails.
//!
//! The topologies run beside each other, and the scenarios of each one after the other, again and
//! again until the time is over. `FAIRLOCK_SEED` determines what the workers do. The notes of a
//! failed scenario are kept.

#[path = "../soak/checker.rs"]
#[allow(dead_code, reason = "some of it is for the soak")]
mod checker;
#[path = "../soak/history.rs"]
mod history;
#[path = "../soak/history_writer.rs"]
#[allow(dead_code, reason = "some of it is for the soak")]
mod history_writer;
mod network;
mod probe;
#[path = "../soak/resource.rs"]
#[allow(dead_code, reason = "some of it is for the soak")]
mod resource;
#[path = "../soak/rng.rs"]
mod rng;
mod run;
mod scenario_checker;
mod scenarios;
mod servers;
#[path = "../it/support/mod.rs"]
mod support;
#[path = "../soak/worker.rs"]
#[allow(dead_code, reason = "some of it is for the soak")]
mod worker;

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{self, ExitCode},
    thread,
    time::{Duration, Instant},
};

use network::Network;
use scenario_checker::Outcome;
use scenarios::{Scenario, World};
use servers::Servers;

/// A topology, its servers, and what is done to it.
struct Topology {
    name: &'static str,
    /// Part of the names of its network's devices.
    tag: &'static str,
    start: fn(&mut Network) -> Servers,
    scenarios: &'static [Scenario],
}

const TOPOLOGIES: [Topology; 5] = [
    Topology {
        name: "single",
        tag: "single",
        start: Servers::single,
        scenarios: &scenarios::SINGLE,
    },
    Topology {
        name: "sentinel",
        tag: "sentinel",
        start: Servers::sentinel,
        scenarios: &scenarios::SENTINEL,
    },
    // A second set, to take half the time.
    Topology {
        name: "sentinel",
        tag: "failover",
        start: Servers::sentinel,
        scenarios: &scenarios::FAILOVER,
    },
    Topology {
        name: "cluster",
        tag: "cluster",
        start: Servers::cluster,
        scenarios: &scenarios::CLUSTER,
    },
    Topology {
        name: "quorum",
        tag: "quorum",
        start: Servers::quorum,
        scenarios: &scenarios::QUORUM,
    },
];

struct Options {
    lasting: Duration,
    only: String,
    seed: u64,
}

fn main() -> ExitCode {
    if env::var_os("FAIRLOCK_CHILD").is_some() {
        support::child::play(&[("work", worker::work), ("probe", probe::probe)]);
        return ExitCode::SUCCESS;
    }
    let options = Options::parse(env::args().skip(1));
    if let Some(why) = network::missing() {
        println!("partitions: FAILED: no network namespaces here: {why}");
        return ExitCode::FAILURE;
    }
    if let Err(why) = network::enter() {
        println!("partitions: FAILED: {why}");
        return ExitCode::FAILURE;
    }
    let seed = options.seed;
    println!(
        "partitions: {:?} from FAIRLOCK_SEED={seed}",
        options.lasting
    );
    let start = Instant::now();
    probe::check();
    let notes =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("partitions-{}", process::id()));
    let rows: Vec<Row> = thread::scope(|scope| {
        let chosen = TOPOLOGIES.iter().enumerate().filter(|(_, topology)| {
            options.only.is_empty() || options.only.split(',').any(|name| topology.name == name)
        });
        let (notes, options) = (&notes, &options);
        let running: Vec<_> = chosen
            .map(|(at, topology)| {
                scope.spawn(move || topology.run(at as u8, notes, options, start))
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .flat_map(|rows| rows.expect("a topology's thread catches panics"))
            .collect()
    });
    print_table(&rows);
    let failed = rows.iter().filter(|row| !row.outcome.failures.is_empty());
    let failed = failed.count();
    println!(
        "partitions: {} in {:.0?}: {} scenarios, {failed} failed",
        if failed == 0 { "passed" } else { "FAILED" },
        start.elapsed(),
        rows.len()
    );
    if failed == 0 {
        let _ = fs::remove_dir_all(&notes);
        return ExitCode::SUCCESS;
    }
    println!("partitions: the notes are in {}", notes.display());
    ExitCode::FAILURE
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Options {
        let seed = env::var("FAIRLOCK_SEED").ok();
        let mut options = Options {
            lasting: Duration::ZERO,
            only: String::new(),
            seed: seed.map_or_else(|| process::id().into(), |s| s.parse().expect("a number")),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} wants a value"));
            match arg.as_str() {
                "--seconds" => {
                    let seconds = value().parse().expect("--seconds wants a number");
                    options.lasting = Duration::from_secs(seconds);
                }
                "--only" => options.only = value(),
                other => panic!("no such option: {other}"),
            }
        }
        options
    }
}

/// A scenario that was played.
struct Row {
    topology: &'static str,
    scenario: &'static str,
    outcome: Outcome,
}

impl Topology {
    /// Plays every scenario once, and then again in order until the time is over.
    fn run(&self, subnet: u8, notes: &Path, options: &Options, start: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut world = None;
        for (number, scenario) in self.scenarios.iter().cycle().enumerate() {
            if number >= self.scenarios.len() && start.elapsed() >= options.lasting {
                break;
            }
            let dir = notes.join(format!("{}-{number}", self.tag));
            let seed = options.seed.wrapping_mul(1000) + number as u64;
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let world = world.get_or_insert_with(|| self.world(subnet));
                world.servers.wait_until_formed();
                run::play(scenario, world, &dir, seed)
            }))
            .unwrap_or_else(|_| Outcome::failed("the scenario panicked".to_owned()));
            self.report(scenario, &outcome, &dir, began);
            let failed = !outcome.failures.is_empty();
            rows.push(Row {
                topology: self.name,
                scenario: scenario.name,
                outcome,
            });
            if !failed {
                let _ = fs::remove_dir_all(&dir);
                continue;
            }
            // The servers may be in any state: the next scenario gets others.
            match world.take() {
                Some(world) => world.servers.keep_logs(&dir),
                None => break,
            }
        }
        rows
    }

    fn world(&self, subnet: u8) -> World {
        let mut network = Network::new(self.tag, 10 + subnet);
        let servers = (self.start)(&mut network);
        let clients = [(); 3].map(|()| network.add_host());
        World {
            servers,
            network,
            clients,
        }
    }

    fn report(&self, scenario: &Scenario, outcome: &Outcome, dir: &Path, began: Instant) {
        let (longest, all) = outcome.overlap_times();
        println!(
            "{}: {} ({:.1?}): grants {:?}; overlaps {}, longest {longest:.0?}, in all {all:.0?}; refused {}, equal fences {}; {}",
            self.name,
            scenario.name,
            began.elapsed(),
            outcome.grants,
            outcome.overlaps.len(),
            outcome.refused,
            outcome.shared_fences,
            outcome.ends
        );
        for failure in &outcome.failures {
            println!(
                "{}: {}: FAILED: {failure}\n  notes: {}",
                self.name,
                scenario.name,
                dir.display()
            );
        }
    }
}

/// Prints the table of tests/README.md: the worst of all runs of each scenario.
fn print_table(rows: &[Row]) {
    println!(
        "| topology | scenario | runs | overlaps | longest | from first to last | refused writes | equal fences |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut seen = Vec::new();
    for row in rows {
        let key = (row.topology, row.scenario);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let same: Vec<&Outcome> = rows
            .iter()
            .filter(|other| (other.topology, other.scenario) == key)
            .map(|row| &row.outcome)
            .collect();
        let most = |value: fn(&Outcome) -> u128| same.iter().map(|o| value(o)).max().unwrap_or(0);
        println!(
            "| {} | {} | {} | {} | {} ms | {} ms | {} | {} |",
            row.topology,
            row.scenario,
            same.len(),
            most(|o| o.overlaps.len() as u128),
            most(|o| o.overlap_times().0.as_millis()),
            most(|o| o.overlap_times().1.as_millis()),
            most(|o| o.refused as u128),
            most(|o| o.shared_fences as u128)
        );
    }
}
