//! `fairlock release`.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use fairlock::inspect::{LockInfo, LockState, Party};
use humantime::format_duration;

use crate::age;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
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

The second one is for a script that has seen this fence.

The holder may go on for a while, believing that it holds the lock. During that time
only fences protect the data. The command says how long that can be.

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
        let fence = match (self.fence, &fences(&info)[..]) {
            (Some(wanted), held) if !held.contains(&wanted) => {
                return no(format_args!(
                    "{:?} has another fence by now: {}",
                    self.name,
                    join(held)
                ));
            }
            (Some(wanted), _) => wanted,
            (None, [only]) => *only,
            (None, held) => {
                return Err(Failure::usage(format!(
                    "{:?} has several holders: name one by its --fence (see `fairlock show`): {}",
                    self.name,
                    join(held)
                )));
            }
        };
        explain(&info, fence);
        if !self.yes && !is_confirmed()? {
            return no(format_args!("{:?} stays as it is", self.name));
        }
        if !manager.force_release(&self.name, fence)? {
            return no(format_args!(
                "{:?} is free already, or its fence is no longer {fence}",
                self.name
            ));
        }
        output::line(format_args!("released {:?}, fence {fence}", self.name))?;
        Ok(Exit::OK)
    }
}

fn no(why: impl std::fmt::Display) -> Result<Exit, Failure> {
    crate::note::note_line!("fairlock: not released: {why}");
    Ok(Exit::NO)
}

/// Their fences, each once.
fn fences(info: &LockInfo) -> Vec<u64> {
    let mut fences: Vec<u64> = info
        .holders
        .iter()
        .filter_map(|holder| holder.fence)
        .collect();
    fences.sort_unstable();
    fences.dedup();
    fences
}

fn join(fences: &[u64]) -> String {
    let fences: Vec<String> = fences.iter().map(u64::to_string).collect();
    fences.join(", ")
}

/// Shows who loses the lock, and says when each of them will notice.
fn explain(info: &LockInfo, fence: u64) {
    let losers: Vec<&Party> = info
        .holders
        .iter()
        .filter(|holder| holder.fence == Some(fence))
        .collect();
    // The time left is that of the lock, so it may be that of another holder.
    let at_most = if losers.len() < info.holders.len() {
        "at most "
    } else {
        ""
    };
    crate::note::note_line!(
        "{}: {}, {}, fence {fence}, {at_most}{} left, {} waiting",
        printable(&info.name),
        info.kind,
        info.state,
        age::short(info.time_left),
        info.waiters
    );
    for holder in losers.iter().take(LOSERS_SHOWN) {
        crate::note::note_line!(
            "  {}, for {}",
            printable(&holder.to_string()),
            age::short(times::held(info, holder))
        );
    }
    if losers.len() > LOSERS_SHOWN {
        crate::note::note_line!("  and {} more", losers.len() - LOSERS_SHOWN);
    }
    if losers.len() > 1 {
        crate::note::note_line!("They share this fence: all {} lose the lock.", losers.len());
    }
    crate::note::note_line!("{}", notice(info, &losers));
}

/// How many of those that share a fence are named before the question.
const LOSERS_SHOWN: usize = 10;

/// The text that says what the holders will notice, and when.
fn notice(info: &LockInfo, losers: &[&Party]) -> String {
    if info.state == LockState::Cooling {
        return "Its holder has released it already, and notices nothing.".to_owned();
    }
    if info.state == LockState::Detached {
        return "No process holds it. Its bearer notices when it attaches the lock.".to_owned();
    }
    let (fixed, renewed): (Vec<&Party>, Vec<&Party>) =
        losers.iter().partition(|holder| holder.fixed_lease);
    let mut lines = Vec::new();
    if let Some(ttl) = longest_ttl(&renewed) {
        lines.push(format!(
            "The holder notices at its next renewal, within {} (a third of its ttl, {}) and one \
             request.",
            times::about(ttl / 3),
            format_duration(ttl)
        ));
        lines.push(format!(
            "If it cannot reach Redis, it notices when its lease would have ended, within {}.",
            lease_end(info, &renewed, ttl)
        ));
    }
    if let Some(ttl) = longest_ttl(&fixed) {
        lines.push(format!(
            "A holder with a fixed lease notices only when it unlocks, renews, or its lease would \
             have ended, within {}.",
            lease_end(info, &fixed, ttl)
        ));
    }
    lines.push(
        "Until then it believes that it holds the lock: only fences protect the data.".to_owned(),
    );
    lines.join("\n")
}

fn longest_ttl(holders: &[&Party]) -> Option<Duration> {
    holders.iter().map(|holder| holder.ttl).max()
}

/// The time within which the leases of these holders end, whose longest ttl this is. Redis shows
/// only the time left of the longest lease of the lock, and that may be another holder's. A lease
/// is longer than its ttl only with `hold_at_least`, which Redis does not show.
fn lease_end(info: &LockInfo, holders: &[&Party], ttl: Duration) -> String {
    let left = age::short(info.time_left);
    if info.time_left <= ttl || holders.len() == info.holders.len() {
        return left;
    }
    let ttl = times::about(ttl);
    format!("{ttl}, or within {left} if it has a longer hold_at_least")
}

/// Asks on the terminal. No answer is a no.
fn is_confirmed() -> Result<bool, Failure> {
    crate::note::note!("Release it? [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::internal(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
