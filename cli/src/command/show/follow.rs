//! `fairlock show --follow`.

use std::mem;
use std::thread;
use std::time::{Instant, SystemTime};

use fairlock::{Error, LockManager, inspect::LockInfo};
use humantime::format_duration;
use serde::Serialize;

use super::Show;
use super::change::{Change, changes, first_look};
use crate::exit::{Exit, Failure};
use crate::note::note_line;
use crate::output::{self, name_in_json};
use crate::printable::printable;
use crate::times;

/// The server's time at the last look that showed it, and when that was here. A look at a name that
/// nobody uses does not show it, and neither does an outage.
type Clock = Option<(SystemTime, Instant)>;

/// One line of the output.
#[derive(Serialize)]
struct Line<'a> {
    at: Option<f64>,
    name: &'a str,
    #[serde(flatten)]
    change: &'a Change,
}

impl Show {
    /// Prints a line for each change. No signal is caught: INT and TERM end the process at once,
    /// even while Redis is silent. A shell shows that as 128 + n.
    pub(super) fn follow(&self, manager: &LockManager) -> Result<Exit, Failure> {
        let mut clock = None;
        let mut before = self.look(manager, &mut clock)?;
        if !self.json {
            let interval = format_duration(self.interval);
            note_line!("looking every {interval}: changes between two looks are not seen");
        }
        self.print_change(clock, &first_look(before.as_ref()))?;
        let mut is_away = false;
        let mut due = Instant::now();
        loop {
            // A look that took long delays the next one, and no look is made up for.
            due = (due + self.interval).max(Instant::now());
            thread::sleep(due.saturating_duration_since(Instant::now()));
            match self.look(manager, &mut clock) {
                Ok(info) => {
                    if mem::take(&mut is_away) {
                        self.print_change(clock, &Change::outage(None))?;
                    }
                    for change in changes(before.as_ref(), info.as_ref()) {
                        self.print_change(clock, &change)?;
                    }
                    before = info;
                }
                // After the first look the name and the settings are known to be good. So even a
                // refusal comes from the server's state, such as a master that became a replica.
                Err(error) if !is_away => {
                    is_away = true;
                    let why = Failure::from(error).to_string();
                    self.print_change(clock, &Change::outage(Some(why)))?;
                }
                Err(_) => {}
            }
        }
    }

    fn look(&self, manager: &LockManager, clock: &mut Clock) -> Result<Option<LockInfo>, Error> {
        let info = manager.inspect(&self.name)?;
        if let Some(info) = &info {
            *clock = Some((info.seen_at, Instant::now()));
        }
        Ok(info)
    }

    fn print_change(&self, clock: Clock, change: &Change) -> Result<(), Failure> {
        let at = clock.map(|(seen_at, here)| seen_at + here.elapsed());
        if self.json {
            let (at, name) = (at.map(times::seconds), &self.name);
            return output::json(&Line { at, name, change });
        }
        let at = at.map_or_else(|| format!("{:24}", "-"), times::moment);
        let (event, text) = (name_in_json(&change.event), printable(&change.text));
        output::line(format_args!("{at}  {event:<12}  {text}"))
    }
}
