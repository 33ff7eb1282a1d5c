//! `fairlock why-waiting`.

mod chain;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use fairlock::inspect::LockInfo;

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::parties::is_in_use;

use chain::Scene;

/// Follows the chain of waits from a lock to the holders that all wait for, and names a deadlock
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WhyWaiting {
    /// The name of the lock.
    name: String,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fairlock why-waiting invoices:42
  fairlock why-waiting invoices:42 --json | jq '.deadlocks'

Goes through all names to find those that a holder waits for, as `fairlock ls` does.

Exits with 0 if the chain has an end, with 1 if nobody holds the name or waits for it,
and with 2 if the chain runs into a deadlock.";

/// How often to look for a deadlock that lasts.
const MOST_LOOKS: usize = 100;

/// The locks by their names.
type Locks = BTreeMap<Arc<str>, LockInfo>;

impl WhyWaiting {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let manager = connection.manager()?;
        let Some(first) = manager.inspect(&self.name)?.filter(is_in_use) else {
            crate::note::note_line!("fairlock: nobody holds {:?} or waits for it", self.name);
            return Ok(Exit::NO);
        };
        let listed = manager.list("*").chain([Ok(first)]);
        let mut locks = listed
            .map(|info| info.map(|info| (Arc::clone(&info.name), info)))
            .collect::<fairlock::Result<Locks>>()?;
        let is_there = settle(&mut locks, &self.name, |name| manager.inspect(name))?;
        let scene = Scene::new(&locks);
        let mut report = scene.follow(&self.name);
        if is_there {
            report.find_deadlock();
        }
        if self.json {
            output::json(&report)?;
        } else {
            report.lines.iter().try_for_each(output::line)?;
        }
        Ok([Exit::OK, Exit::DEADLOCK][usize::from(report.is_certain)])
    }
}

/// Looks again at the names of a deadlock until it is there twice. Says whether it was.
///
/// The names were not seen at the same moment. A wait that was over before the next began looks
/// like a part of a circle. But a wait that two looks saw was there all the time between them. So
/// all waits of a deadlock that two looks saw were there at once. Names that are handed over all
/// the time can show another circle at each look, and none of them lasts.
fn settle(
    locks: &mut Locks,
    name: &str,
    mut look: impl FnMut(&str) -> fairlock::Result<Option<LockInfo>>,
) -> fairlock::Result<bool> {
    let mut before = Vec::new();
    for _ in 0..MOST_LOOKS {
        let deadlock = Scene::new(locks).follow(name).deadlocked();
        if deadlock == before {
            return Ok(true);
        }
        for (name, ..) in &deadlock {
            match look(name)? {
                Some(info) => drop(locks.insert(Arc::clone(name), info)),
                None => drop(locks.remove(name)),
            }
        }
        before = deadlock;
    }
    Ok(false)
}
