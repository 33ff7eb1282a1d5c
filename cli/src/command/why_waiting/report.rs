//! A chain of waits as text and as JSON.

use std::collections::HashSet;
use std::time::Duration;

use fairlock::inspect::{Kind, LockInfo, LockState, Party};
use serde::Serialize;

use super::below::Sight;
use super::chain::Chain;
use super::circles::{Circle, Wait};
use super::shell;
use crate::age;
use crate::exit::Failure;
use crate::output;
use crate::parties::{all_holders, live_holders};
use crate::printable::printable;
use crate::times;

/// If a lock has more holders, those that wait are shown first.
const MOST_HOLDERS: usize = 10;
/// Deeper lines would be wider than any window.
const MOST_INDENTS: usize = 30;

/// Prints the chain as a tree, and then each deadlock with its remedy.
pub(super) fn print(chain: &Chain<'_>, sight: &Sight) -> Result<(), Failure> {
    let mut tree = Tree {
        chain,
        sight,
        shown: HashSet::new(),
        lines: Vec::new(),
    };
    if let Some(first) = chain.locks.first() {
        tree.lock(first, "", 0);
    }
    tree.lines.iter().try_for_each(output::line)?;
    for circle in &chain.deadlocks {
        deadlock(circle).iter().try_for_each(output::line)?;
    }
    Ok(())
}

struct Tree<'a> {
    chain: &'a Chain<'a>,
    sight: &'a Sight,
    shown: HashSet<&'a str>,
    lines: Vec<String>,
}

impl<'a> Tree<'a> {
    fn line(&mut self, depth: usize, text: &str) {
        let indent = "  ".repeat(depth.min(MOST_INDENTS));
        self.lines.push(format!("{indent}{text}"));
    }

    /// A lock, and what is behind it. `wait` says how the holder above waits for it.
    fn lock(&mut self, lock: &'a LockInfo, wait: &str, depth: usize) {
        let name = printable(&lock.name);
        let kind = lock.kind.to_string();
        if !self.shown.insert(&lock.name) {
            return self.line(depth, &format!("{wait}{name}, see above"));
        }
        let waiters = match lock.waiters {
            0 => String::new(),
            many => match times::silent(lock) {
                0 => format!(", {many} waiting"),
                silent => format!(", {many} waiting, {silent} of them not heard of"),
            },
        };
        self.line(
            depth,
            &format!("{wait}{name}: {}{waiters}", printable(&kind)),
        );
        let mut holders: Vec<&Party> = live_holders(lock).collect();
        if holders.is_empty() {
            return self.line(depth + 1, &unheld(lock));
        }
        let chain = self.chain;
        holders.sort_by_key(|holder| (chain.waits_of(lock, holder).count() == 0, holder.since));
        for holder in holders.iter().take(MOST_HOLDERS) {
            self.holder(lock, holder, depth + 1);
        }
        if holders.len() > MOST_HOLDERS {
            let more = holders.len() - MOST_HOLDERS;
            self.line(depth + 1, &format!("and {more} more holders"));
        }
    }

    fn holder(&mut self, lock: &'a LockInfo, holder: &'a Party, depth: usize) {
        let held = age::short(times::held(lock, holder));
        let text = format!(
            "held{} for {held} by {}{}",
            if holder.keeps { " or kept" } else { "" },
            printable(&holder.to_string()),
            fence(holder)
        );
        self.line(depth, &text);
        let waits: Vec<&Wait<'a>> = self.chain.waits_of(lock, holder).collect();
        if waits.is_empty() && self.sight.may_miss_waits_below(holder) {
            let host = printable(&holder.host);
            let text = format!(
                "which waits for no lock itself; only {host} shows whether its command waits"
            );
            return self.line(depth + 1, &text);
        }
        if waits.is_empty() && holder.keeps {
            return self.line(depth + 1, "which lets go of it as soon as no guard has it");
        }
        if waits.is_empty() {
            return self.line(depth + 1, "which waits for no lock");
        }
        for wait in waits {
            let verb = if wait.is_certain {
                "which waits"
            } else {
                "which may wait"
            };
            let verb = if wait.is_below {
                format!("{verb} for {}, which waits", process(wait.waiter))
            } else {
                verb.to_owned()
            };
            let waited = age::short(times::waited(wait.waits_for, wait.waiter));
            let text = format!("{verb} for {waited}, position {}, for ", wait.position);
            self.lock(wait.waits_for, &text, depth + 1);
        }
    }
}

fn process(party: &Party) -> String {
    format!("process {} on {}", party.pid, printable(&party.host))
}

fn fence(holder: &Party) -> String {
    holder
        .fence
        .map_or_else(String::new, |fence| format!(", fence {fence}"))
}

/// Why a lock has no holder that could be followed.
fn unheld(lock: &LockInfo) -> String {
    let left = age::short(lock.time_left);
    match lock.state {
        LockState::Detached => match &lock.holder {
            Some(giver) => format!(
                "no process holds it: {} has detached it, and it can be attached for {left}",
                process(giver)
            ),
            None => format!("no process holds it: it is detached, for {left}"),
        },
        LockState::Cooling => format!("nobody holds it: it cools for {left} (hold_at_least)"),
        LockState::Lapsed => {
            "nobody holds it: its lease lapsed, and the first live waiter gets it".to_owned()
        }
        _ if !times::is_awaited(lock) => {
            "nobody holds it, and no waiter is heard of: the next try takes it".to_owned()
        }
        _ => "nobody holds it: the first live waiter gets it at its next check".to_owned(),
    }
}

/// The lines about a circle.
fn deadlock(circle: &Circle<'_>) -> Vec<String> {
    let mut lines = vec![String::new()];
    let is_through_processes = circle.waits.iter().any(|wait| wait.is_below);
    lines.push(match (circle.is_certain, circle.waits.len()) {
        (true, 1) if is_through_processes => {
            "Deadlock: a run waits for its command, which waits for the lock of the run.".to_owned()
        }
        (true, _) if is_through_processes => {
            "Deadlock: each of these, or a process for which it waits, waits for a lock that the \
             next one holds."
                .to_owned()
        }
        (true, 1) => "Deadlock: a thread waits for a lock that it took itself.".to_owned(),
        (true, _) => "Deadlock: each of these waits for a lock that the next one holds.".to_owned(),
        (false, _) => "This may be a deadlock: each may wait for a lock that the next one \
                       holds."
            .to_owned(),
    });
    for wait in &circle.waits {
        lines.push(format!(
            "  {}, holds {} and waits for {}{}",
            printable(&wait.holder.to_string()),
            printable(&wait.holds.name),
            if wait.is_below {
                format!("{}, which waits for ", process(wait.waiter))
            } else {
                String::new()
            },
            printable(&wait.waits_for.name)
        ));
    }
    let fences: Vec<String> = circle
        .waits
        .iter()
        .filter_map(|wait| Some(shell::release(&wait.holds.name, wait.holder.fence?)))
        .collect();
    lines.push(if fences.len() == 1 {
        "End one of the processes, or take the lock away from its holder:".to_owned()
    } else {
        "End one of the processes, or take one of the locks away from its holder:".to_owned()
    });
    lines.extend(fences.into_iter().map(|command| format!("  {command}")));
    lines
}

/// A chain as JSON. Its form is documented in docs/COMMAND_LINE.md.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    name: &'a str,
    locks: Vec<LockReport<'a>>,
    waits: Vec<WaitReport<'a>>,
    deadlocks: Vec<DeadlockReport<'a>>,
}

#[derive(Debug, Serialize)]
struct LockReport<'a> {
    name: &'a str,
    kind: &'a Kind,
    state: LockState,
    waiters: u64,
    holders: Vec<&'a Party>,
}

#[derive(Debug, Serialize)]
struct WaitReport<'a> {
    holds: &'a str,
    waits_for: &'a str,
    position: usize,
    waited: f64,
    certain: bool,
    holder: &'a Party,
    /// The process below the holder that waits in its place.
    through: Option<&'a Party>,
}

#[derive(Debug, Serialize)]
struct DeadlockReport<'a> {
    certain: bool,
    locks: Vec<HeldReport<'a>>,
}

#[derive(Debug, Serialize)]
struct HeldReport<'a> {
    name: &'a str,
    fence: Option<u64>,
}

impl<'a> Report<'a> {
    pub(super) fn of(chain: &'a Chain<'a>) -> Report<'a> {
        let locks = chain.locks.iter().map(|lock| LockReport {
            name: &lock.name,
            kind: &lock.kind,
            state: lock.state,
            waiters: lock.waiters,
            holders: all_holders(lock).collect(),
        });
        let waits = chain.waits.iter().map(|wait| WaitReport {
            holds: &wait.holds.name,
            waits_for: &wait.waits_for.name,
            position: wait.position,
            waited: micros(times::waited(wait.waits_for, wait.waiter)),
            certain: wait.is_certain,
            holder: wait.holder,
            through: wait.is_below.then_some(wait.waiter),
        });
        let deadlocks = chain.deadlocks.iter().map(|circle| DeadlockReport {
            certain: circle.is_certain,
            locks: circle.waits.iter().map(HeldReport::of).collect(),
        });
        Report {
            name: chain.first,
            locks: locks.collect(),
            waits: waits.collect(),
            deadlocks: deadlocks.collect(),
        }
    }
}

impl<'a> HeldReport<'a> {
    fn of(wait: &'a Wait<'a>) -> HeldReport<'a> {
        HeldReport {
            name: &wait.holds.name,
            fence: wait.holder.fence,
        }
    }
}

/// Seconds with a fraction, in whole µs, as in the JSON of a lock.
fn micros(waited: Duration) -> f64 {
    Duration::from_micros(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)).as_secs_f64()
}
