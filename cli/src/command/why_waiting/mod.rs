//! `fairlock why-waiting`.

mod chain;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use fairlock::{LockManager, inspect::LockInfo};

use crate::command::run::label;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::parties::{is_in_use, live_holders};

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

/// The locks by their names.
type Locks = BTreeMap<Arc<str>, LockInfo>;

impl WhyWaiting {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let manager = connection.manager()?;
        let Some(first) = manager.inspect(&self.name)?.filter(is_in_use) else {
            crate::note::note_line!("fairlock: nobody holds {:?} or waits for it", self.name);
            return Ok(Exit::NO);
        };
        let mut locks = awaited(&manager)?;
        locks.insert(Arc::clone(&first.name), first);
        // The names were not seen at the same moment. A wait that was over before the next began
        // looks like a part of a circle, but a deadlock stays. So a second look decides.
        for name in Scene::new(&locks).follow(&self.name).deadlocked() {
            match manager.inspect(&*name)? {
                Some(info) => drop(locks.insert(name, info)),
                None => drop(locks.remove(&name)),
            }
        }
        let scene = Scene::new(&locks);
        let report = scene.follow(&self.name);
        let is_certain = report.deadlocks.iter().any(|deadlock| deadlock.certain);
        let exit = if is_certain { Exit::DEADLOCK } else { Exit::OK };
        output::set_exit_unread(exit);
        if self.json {
            output::json(&report)?;
        } else {
            report.to_string().lines().try_for_each(output::line)?;
        }
        Ok(exit)
    }
}

/// All names that somebody waits for, and those of runs inside others, which lead to the runs
/// around them.
fn awaited(manager: &LockManager) -> Result<Locks, Failure> {
    let mut locks = Locks::new();
    for info in manager.list("*") {
        let info = info?;
        let is_inside = live_holders(&info).any(|holder| label::around(&holder.label).is_some());
        if info.waiters > 0 || is_inside {
            locks.insert(Arc::clone(&info.name), info);
        }
    }
    Ok(locks)
}
