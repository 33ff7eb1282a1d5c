//! `fairlock bench`: how fast locks are on the user's own Redis.

mod budget;
mod measure;
mod names;
mod report;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use budget::{Budget, Interrupt};
use measure::{Measured, Measurement};
use names::Names;

/// Measures locks on this Redis, next to its bare round trip
#[derive(Debug, Args)]
#[command(after_help = "\
It loads the server for as long as it runs. Its names contain a random id, so it never touches a
lock of yours.

Examples:
  fairlock bench
  fairlock bench --threads 16 --duration 5s
  fairlock bench --json | jq 'select(.measurement == \"lock_unlock\").p99'")]
pub(crate) struct Bench {
    /// How many threads lock and unlock at the same time, each a name of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// How long each of the three measurements takes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    duration: Duration,
    /// How the names of its locks begin
    #[arg(long, value_name = "PREFIX", default_value = "fairlock-bench")]
    names: String,
    /// Print one JSON object per measurement. Times are in seconds
    #[arg(long)]
    json: bool,
}

/// The load of a machine changes all the time. So each measurement is done in parts, and each part
/// has a bare round trip near it.
const ROUNDS: u32 = 5;
/// How long the managers may take to release what is held.
const CLEANUP_TIME: Duration = Duration::from_secs(1);

impl Bench {
    /// Blocks for the time of all measurements, and a few round trips.
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let interrupt = Interrupt::listen()?;
        let managers = [connection.manager()?, connection.manager()?];
        let names = Names::new(&self.names, self.threads);
        names.check_unused(&managers[0])?;
        let measurements = Measurement::all(self.threads);
        let whole = self.duration.saturating_mul(measurements.len() as u32);
        let whole = humantime::format_duration(whole);
        crate::note::note_line!("fairlock: this loads the server for about {whole}");
        let mut measured = Vec::new();
        let lasted = measure(&measurements, &mut measured, |measurement| {
            let budget = Budget::new(self.duration / ROUNDS, &interrupt);
            measurement.run(&managers, &names, &budget)
        });
        clear_progress();
        let requests = managers.iter().map(|manager| manager.stats().requests);
        let requests = requests.sum();
        let released = names.check_released(&managers[0]);
        for manager in &managers {
            // A lock that it could not release in time ends with its TTL. The check above said so.
            let _ = manager.shutdown(CLEANUP_TIME);
        }
        if let Err(leftovers) = names.delete(&managers[0]) {
            crate::note::note_line!("fairlock: warning: {leftovers}");
        }
        let end = lasted.and(released).map(|()| interrupt.exit());
        output::set_exit_unread(match &end {
            Ok(exit) => *exit,
            Err(failure) => failure.into(),
        });
        if self.json {
            report::json(&measured, requests)?;
        } else {
            report::print(&measured, requests)?;
        }
        end
    }
}

/// Goes through all measurements several times, until an error or an interrupt. The measurements
/// until then count.
fn measure(
    measurements: &[Measurement],
    measured: &mut Vec<Measured>,
    run: impl Fn(&Measurement) -> fairlock::Result<Option<Measured>>,
) -> Result<(), Failure> {
    for round in 1..=ROUNDS {
        for (at, measurement) in measurements.iter().enumerate() {
            progress(round, measurement);
            let Some(times) = run(measurement)? else {
                return Ok(());
            };
            match measured.get_mut(at) {
                Some(earlier) => earlier.add(&times),
                None => measured.push(times),
            }
        }
    }
    Ok(())
}

/// Which measurement runs, on a terminal.
fn progress(round: u32, measurement: &Measurement) {
    if io::stderr().is_terminal() {
        let title = measurement.title();
        crate::note::note!("\r\x1b[Kround {round} of {ROUNDS}: {title} …");
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        crate::note::note!("\r\x1b[K");
    }
}
