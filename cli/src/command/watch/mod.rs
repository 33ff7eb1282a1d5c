//! `fairlock watch`.

mod change;

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use fairlock::{Error, LockManager, Misuse, inspect::LockInfo};
use serde::Serialize;

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::printable::printable;
use crate::times;

use change::{Change, changes, first_look};

/// Prints a line for each change of a lock
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// The name of the lock.
    name: String,
    /// The time between two looks, 100ms to 1d. Changes between two looks that undo each other are
    /// not seen.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::interval)]
    interval: Duration,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fairlock watch invoices:42
  fairlock watch invoices:42 --interval 100ms --json | jq -r '[.at, .event] | @tsv'

It looks once per interval and compares. If a lock is taken and released between two
looks, no line says so. Times are the server's. It goes on until a signal ends it, or
until nobody reads its output.";

/// One line of the output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    at: Option<f64>,
    name: &'a str,
    #[serde(flatten)]
    change: &'a Change,
}

impl Watch {
    /// No signal is caught: INT and TERM end the process at once, even while Redis is silent. A
    /// shell shows that as 128 + n.
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        output::end_when_unread();
        let manager = connection.manager()?;
        let mut clock = ServerClock::default();
        let mut before = self.look(&manager, &mut clock)?;
        if !self.json {
            crate::note::note_line!(
                "looking every {}: changes between two looks are not seen",
                humantime::format_duration(self.interval)
            );
        }
        self.print(clock.now(), &first_look(before.as_ref()))?;
        let mut unreachable: Option<Instant> = None;
        let mut due = Instant::now();
        loop {
            // A look that took long delays the next one, and no look is made up for.
            due = (due + self.interval).max(Instant::now());
            thread::sleep(due.saturating_duration_since(Instant::now()));
            match self.look(&manager, &mut clock) {
                Ok(info) => {
                    if let Some(since) = unreachable.take() {
                        let silent_for = since.elapsed();
                        self.print(clock.now(), &Change::reachable(silent_for))?;
                    }
                    let at = clock.now();
                    for change in changes(before.as_ref(), info.as_ref()) {
                        self.print(at, &change)?;
                    }
                    before = info;
                }
                Err(error) if is_outage(&error) => {
                    if unreachable.is_none() {
                        unreachable = Some(Instant::now());
                        let why = Failure::from(error).to_string();
                        self.print(clock.now(), &Change::unreachable(why))?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn look(
        &self,
        manager: &LockManager,
        clock: &mut ServerClock,
    ) -> Result<Option<LockInfo>, Error> {
        let info = manager.inspect(&self.name)?;
        if let Some(info) = &info {
            clock.set(info.seen_at);
        }
        Ok(info)
    }

    fn print(&self, at: Option<SystemTime>, change: &Change) -> Result<(), Failure> {
        if self.json {
            let at = at.map(times::seconds);
            let name = &self.name;
            return output::json(&Line { at, name, change });
        }
        let at = at.map_or_else(|| format!("{:24}", "-"), times::moment);
        output::line(format_args!(
            "{at}  {:<11}  {}",
            change.event(),
            printable(&change.to_string())
        ))
    }
}

/// After the first look the name and the settings are known to be good. So even a refusal comes
/// from the server's state, for instance from a master that has become a replica.
fn is_outage(error: &Error) -> bool {
    !matches!(
        error,
        Error::Misused {
            misuse: Misuse::Kind { .. },
            ..
        } | Error::Closed
    )
}

/// The server's time. A look at a name that nobody uses does not show it, and neither does an
/// outage. Then it is the time of the last look that did, and what has passed here since.
#[derive(Debug, Default)]
struct ServerClock {
    seen: Option<(SystemTime, Instant)>,
}

impl ServerClock {
    fn set(&mut self, seen_at: SystemTime) {
        self.seen = Some((seen_at, Instant::now()));
    }

    /// `None` before the first look that showed it.
    fn now(&self) -> Option<SystemTime> {
        let (seen_at, here) = self.seen?;
        let micros = u64::try_from(here.elapsed().as_micros()).unwrap_or(u64::MAX);
        Some(seen_at + Duration::from_micros(micros))
    }
}
