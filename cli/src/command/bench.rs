//! `fairlock bench`: how fast locks are on the user's own Redis.

mod measure;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use clap::Args;
use fairlock::LockManager;
use humantime::format_duration;
use serde_json::json;

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::note::note_line;
use crate::output;
use crate::stop::Stop;
use crate::table::Table;
use measure::Measured;

/// Measures locks on this Redis, next to its bare round trip
#[derive(Debug, Args)]
#[command(after_help = "\
round_trip   inspect of a free name: one request, a script that reads one key
lock_unlock  a lock and its release, each thread a name of its own
hand_over    from the drop of a guard to the return of wait in another manager
trips        the median as a multiple of the round trip's median

Examples:
  fairlock bench --threads 16 --duration 5s
  fairlock bench --json")]
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

const COLUMNS: [&str; 8] = [
    "", ">threads", ">p50", ">p90", ">p99", ">max", ">per sec", ">trips",
];

impl Bench {
    /// Blocks for the time of all measurements, and a few round trips.
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let stop = Stop::listen()?.or_unread();
        let managers = [connection.manager()?, connection.manager()?];
        let mut all = Measured::all(self.threads);
        let whole = format_duration(self.duration.saturating_mul(all.len() as u32));
        note_line!("fairlock: this loads the server for about {whole}");
        // The keys of a hash map are random in each process: 128 bits, of which this shows 64.
        let id = RandomState::new().build_hasher().finish();
        let name = |at| format!("{}:{id:016x}:{at}", self.names);
        let names: Vec<String> = (0..self.threads).map(name).collect();
        // An error or a stop ends it. What was measured until then counts.
        let measured = (0..ROUNDS).try_for_each(|_| {
            let mut each = all.iter_mut();
            each.try_for_each(|one| one.add_part(&managers, &names, self.duration / ROUNDS, &stop))
        });
        let requests: u64 = managers.iter().map(|one| one.stats().requests).sum();
        for manager in &managers {
            // A lock that it could not release in time ends with its TTL. The deletion says so.
            let _ = manager.shutdown(CLEANUP_TIME);
        }
        delete(&names, &managers[0]);
        let end = measured.map(|()| stop.exit().unwrap_or(Exit::OK));
        self.print(&all, requests)?;
        Ok(end?)
    }

    fn print(&self, all: &[Measured], requests: u64) -> Result<(), Failure> {
        let measured = all.iter().filter(|measured| !measured.times.is_empty());
        let mut table = Table::new(&COLUMNS);
        for measured in measured {
            let figures = measured.figures(&all[0]);
            if self.json {
                output::json(&figures)?;
            }
            let number = |field: &str| figures[field].as_f64().unwrap_or_default();
            let time = |field| duration::measured(Duration::from_secs_f64(number(field)));
            let [p50, p90, p99, max] = ["p50", "p90", "p99", "max"].map(time);
            let (id, threads) = (measured.id.to_owned(), measured.threads.to_string());
            let (rate, trips) = (number("per_second"), number("round_trips"));
            let (rate, trips) = (format!("{rate:.0}"), format!("{trips:.1}"));
            table.add(vec![id, threads, p50, p90, p99, max, rate, trips]);
        }
        if self.json {
            return output::json(&json!({ "measurement": "all", "requests": requests }));
        }
        output::table(&table, output::width())?;
        output::line(format_args!(
            "{requests} requests were sent to Redis in all"
        ))
    }
}

/// Deletes the names, which are never used again. Redis remembers a released name for an hour, to
/// protect its lock from late copies of earlier requests.
fn delete(names: &[String], manager: &LockManager) {
    let is_left = |name: &&String| !matches!(manager.delete(name), Ok(true));
    if let Some(name) = names.iter().find(is_left) {
        note_line!("fairlock: warning: {name:?} is not deleted; Redis forgets it within an hour");
    }
}
