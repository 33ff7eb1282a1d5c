//! `fairlock why-waiting`.

mod below;
mod chain;
mod circles;
mod report;
mod shell;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use fairlock::{LockManager, inspect::LockInfo};

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::parties;

use below::Sight;
use chain::Chain;

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
        let Some(first) = manager.inspect(&self.name)?.filter(parties::is_in_use) else {
            crate::note::note_line!("fairlock: nobody holds {:?} or waits for it", self.name);
            return Ok(Exit::NO);
        };
        let mut locks = Locks::from([(Arc::clone(&first.name), first.clone())]);
        if parties::live_holders(&first).next().is_some() {
            locks.extend(awaited(&manager)?);
            locks.insert(Arc::clone(&first.name), first.clone());
        }
        // The names were not seen at the same moment. A wait that was over before the next began
        // looks like a part of a circle, but a deadlock stays. So a second look decides.
        let sight = Sight::from_this_host();
        let circles = Chain::follow(&first.name, &locks, &sight).deadlocks;
        let names: Vec<Arc<str>> = circles.iter().flat_map(|circle| circle.names()).collect();
        for name in names {
            match manager.inspect(&*name)? {
                Some(info) => drop(locks.insert(name, info)),
                None => drop(locks.remove(&name)),
            }
        }
        let sight = Sight::from_this_host();
        let chain = Chain::follow(&first.name, &locks, &sight);
        let exit = if chain.deadlocks.iter().any(|circle| circle.is_certain) {
            Exit::DEADLOCK
        } else {
            Exit::OK
        };
        output::set_exit_unread(exit);
        if self.json {
            output::json(&report::Report::of(&chain))?;
        } else {
            report::print(&chain, &sight)?;
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
        if info.waiters > 0 || below::is_held_inside_a_run(&info) {
            locks.insert(Arc::clone(&info.name), info);
        }
    }
    Ok(locks)
}
