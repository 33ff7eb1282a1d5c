//! `fairlock release`.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};

use clap::Args;
use fairlock::inspect::{LockInfo, LockState, Party};

use crate::age;
use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::note::{note, note_line};
use crate::output;
use crate::parties::is_taken;
use crate::printable::printable;
use crate::times;

/// Takes a lock away from its holder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Release {
    /// The name of the lock.
    name: String,
    /// Only if this is still the holder's fence. Needed if several holders have different fences.
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
    /// Does not ask. Needed where there is no terminal to ask on.
    #[arg(long, short)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  fairlock release invoices:42    # shows the holder, and asks
  fairlock release invoices:42 --yes --fence 1795404011123456

The second one is for a script that has seen this fence. The holder may go on for a while: the
command says how long. During that time only fences protect the data.

Exits with 0 if the lock was taken away, and with 1 if not: it was free already,
its fence is another one by now, or the answer was no.";

impl Release {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        if !self.yes && !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "no terminal to ask on: give --yes to go on without a question",
            ));
        }
        let manager = connection.manager()?;
        let info = manager.inspect(&self.name)?;
        let Some(info) = info.filter(|info| is_taken(info.state)) else {
            return no(format_args!("{:?} is free already", self.name));
        };
        let fences = info.holders.iter().filter_map(|holder| holder.fence);
        let (name, fences) = (&self.name, fences.collect::<BTreeSet<u64>>());
        let fence = match self.fence {
            Some(fence) if fences.contains(&fence) => fence,
            Some(_) => {
                return no(format_args!(
                    "{name:?} has another fence by now: {fences:?}"
                ));
            }
            None if fences.len() > 1 => {
                return Err(Failure::usage(format!(
                    "{name:?} has several holders: name one by its --fence: {fences:?}"
                )));
            }
            None => fences.first().copied().unwrap_or(info.fence),
        };
        explain(&info, fence);
        if !self.yes && !is_confirmed() {
            return no(format_args!("{name:?} stays as it is"));
        }
        if !manager.force_release(&self.name, fence)? {
            return no(format_args!(
                "{name:?} is free already, or its fence is no longer {fence}"
            ));
        }
        output::line(format_args!("released {name:?}, fence {fence}"))?;
        Ok(Exit::OK)
    }
}

fn no(why: impl std::fmt::Display) -> Result<Exit, Failure> {
    note_line!("fairlock: not released: {why}");
    Ok(Exit::NO)
}

/// How many of those that share a fence are named before the question.
const LOSERS_SHOWN: usize = 10;

/// Shows who loses the lock, and says when each of them will notice.
fn explain(info: &LockInfo, fence: u64) {
    let has_fence = |holder: &&Party| holder.fence == Some(fence);
    let losers: Vec<&Party> = info.holders.iter().filter(has_fence).collect();
    let (kind, state, waiters) = (&info.kind, info.state, info.waiters);
    // The time left is that of the lock, so it may be that of another holder.
    let left = format!("at most {}", age::short(info.time_left));
    let name = printable(&info.name);
    note_line!("{name}: {kind}, {state}, fence {fence}, {left} left, {waiters} waiting");
    for holder in losers.iter().take(LOSERS_SHOWN) {
        let (who, held) = (holder.to_string(), times::held(info, holder));
        note_line!("  {}, for {}", printable(&who), age::short(held));
    }
    if losers.len() > 1 {
        note_line!("They share this fence: all {} lose the lock.", losers.len());
    }
    if state != LockState::Held {
        return note_line!("No process holds it now, and the one before notices nothing.");
    }
    let renewed = losers.iter().filter(|holder| !holder.fixed_lease);
    match renewed.map(|holder| holder.ttl / 3).max() {
        Some(third) => note!(
            "The holder notices at its next renewal, within {} and one request.\n\
             If it cannot reach Redis, it",
            duration::measured(third)
        ),
        None => note!("The lease is fixed. Unless the holder unlocks or renews, it"),
    }
    note_line!(
        " notices when its lease would have ended, within {left}.\n\
         Until then it believes that it holds the lock: only fences protect the data."
    );
}

/// Asks on the terminal. No answer is a no.
fn is_confirmed() -> bool {
    note!("Release it? [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin().read_line(&mut answer);
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
