//! A chain of waits, as text and as JSON. The form of the JSON is in docs/COMMAND_LINE.md.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlock::inspect::{LockInfo, LockState, Party};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::age;
use crate::parties::{fence_of, live_holders};
use crate::printable::printable;
use crate::times;

/// If a lock has more holders, those that wait are shown first.
const MOST_HOLDERS: usize = 10;
/// Deeper lines would be wider than any window.
const MOST_INDENTS: usize = 30;

#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    /// The locks of the chain, the first name first. Each once.
    pub(super) locks: Vec<&'a LockInfo>,
    pub(super) waits: Vec<Wait<'a>>,
    pub(super) deadlocks: Vec<Deadlock<'a>>,
    /// Holders of which a process of their command may wait unseen.
    #[serde(skip)]
    pub(super) unseen: Vec<&'a Party>,
}

/// A holder of one lock stands in the queue of another, or a process for which it waits does.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Wait<'a> {
    #[serde(serialize_with = "name")]
    pub(super) holds: &'a LockInfo,
    #[serde(serialize_with = "name")]
    pub(super) waits_for: &'a LockInfo,
    /// In the queue, from 1.
    pub(super) position: usize,
    /// In seconds.
    pub(super) waited: f64,
    /// Whether holder and waiter are surely the same thread; or, if the waiter is a process below
    /// the holder, whether the holder surely waits for it.
    pub(super) certain: bool,
    pub(super) holder: &'a Party,
    /// The process below the holder that waits in its place.
    pub(super) through: Option<&'a Party>,
    /// The wait may end while one holder keeps no more permits than these.
    #[serde(skip)]
    pub(super) free: u32,
}

/// Waits of which each is for a lock that the next one holds, and the last for one of the first.
#[derive(Debug, Serialize)]
pub(super) struct Deadlock<'a> {
    /// Whether it cannot end without help.
    pub(super) certain: bool,
    #[serde(serialize_with = "held")]
    pub(super) locks: Vec<Wait<'a>>,
}

fn name<S: Serializer>(lock: &LockInfo, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&lock.name)
}

fn held<S: Serializer>(waits: &[Wait<'_>], serializer: S) -> Result<S::Ok, S::Error> {
    let held = |wait: &Wait| json!({"name": wait.holds.name, "fence": wait.holder.fence});
    serializer.collect_seq(waits.iter().map(held))
}

/// The chain as a tree, and then each deadlock with its remedy.
impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for first in self.locks.iter().take(1) {
            self.lock(f, &mut HashSet::new(), first, "", 0)?;
        }
        let mut deadlocks = self.deadlocks.iter();
        deadlocks.try_for_each(|deadlock| deadlock.fmt(f))
    }
}

fn line(f: &mut fmt::Formatter<'_>, depth: usize, text: &str) -> fmt::Result {
    let indent = "  ".repeat(depth.min(MOST_INDENTS));
    writeln!(f, "{indent}{}", printable(text))
}

impl<'a> Report<'a> {
    /// The names in deadlocks.
    pub(super) fn deadlocked(&self) -> Vec<Arc<str>> {
        let waits = self.deadlocks.iter().flat_map(|deadlock| &deadlock.locks);
        waits.map(|wait| Arc::clone(&wait.holds.name)).collect()
    }

    /// A lock, and what is behind it. `wait` says how the holder above waits for it.
    fn lock(
        &self,
        f: &mut fmt::Formatter<'_>,
        shown: &mut HashSet<&'a str>,
        lock: &'a LockInfo,
        wait: &str,
        depth: usize,
    ) -> fmt::Result {
        let (name, kind) = (&lock.name, &lock.kind);
        if !shown.insert(name) {
            return line(f, depth, &format!("{wait}{name}, see above"));
        }
        let waiters = match (lock.waiters, times::silent(lock)) {
            (0, _) => String::new(),
            (many, 0) => format!(", {many} waiting"),
            (many, silent) => format!(", {many} waiting, {silent} of them not heard of"),
        };
        line(f, depth, &format!("{wait}{name}: {kind}{waiters}"))?;
        let waits_of = |holder: &Party| {
            let waits = self.waits.iter();
            let waits = waits.filter(|wait| std::ptr::eq(wait.holder, holder));
            waits.collect::<Vec<&Wait>>()
        };
        let mut holders: Vec<&Party> = live_holders(lock).collect();
        holders.sort_by_cached_key(|holder| (waits_of(holder).is_empty(), holder.since));
        if holders.is_empty() {
            line(f, depth + 1, &unheld(lock))?;
        }
        for holder in holders.iter().take(MOST_HOLDERS) {
            let held = age::short(times::held(lock, holder));
            let kept = if holder.keeps { " or kept" } else { "" };
            let fence = fence_of(lock, holder);
            let text = format!("held{kept} for {held} by {holder}, fence {fence}");
            line(f, depth + 1, &text)?;
            let waits = waits_of(holder);
            if waits.is_empty() {
                line(f, depth + 2, &self.end(holder))?;
            }
            for wait in waits {
                self.lock(f, shown, wait.waits_for, &wait.to_string(), depth + 2)?;
            }
        }
        match holders.len().saturating_sub(MOST_HOLDERS) {
            0 => Ok(()),
            more => line(f, depth + 1, &format!("and {more} more holders")),
        }
    }

    /// Why a chain ends at this holder.
    fn end(&self, holder: &Party) -> String {
        let host = &holder.host;
        if self.unseen.contains(&holder) {
            format!("which waits for no lock itself; only {host} shows whether its command waits")
        } else if holder.keeps {
            "which lets go of it as soon as no guard has it".to_owned()
        } else {
            "which waits for no lock".to_owned()
        }
    }
}

impl fmt::Display for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = age::short(Duration::from_secs_f64(self.waited));
        let position = self.position;
        let waits = if self.certain { "waits" } else { "may wait" };
        write!(f, "which {waits} for ")?;
        if let Some(Party { pid, host, .. }) = self.through {
            write!(f, "process {pid} on {host}, which waits for ")?;
        }
        write!(f, "{waited}, position {position}, for ")
    }
}

/// Why a lock has no holder that could be followed.
fn unheld(lock: &LockInfo) -> String {
    let (state, left) = (lock.state, age::short(lock.time_left));
    match state {
        LockState::Detached => format!("no process holds it: it can be attached for {left}"),
        LockState::Cooling => format!("nobody holds it: it cools for {left} (hold_at_least)"),
        _ if times::is_awaited(lock) => {
            format!("nobody holds it, it is {state}: the first live waiter gets it")
        }
        _ => "nobody holds it, and no waiter is heard of: the next try takes it".to_owned(),
    }
}

impl fmt::Display for Deadlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.certain, &self.locks[..]) {
            (false, _) => {
                "This may be a deadlock: each may wait for a lock that the next one holds."
            }
            (true, [own]) if own.through.is_none() => {
                "Deadlock: a thread waits for a lock that it took itself."
            }
            (true, [_]) => {
                "Deadlock: a run waits for its command, which waits for the lock of the run."
            }
            (true, _) => {
                "Deadlock: each of these, or a process for which it waits, waits for a lock that \
                 the next one holds."
            }
        };
        writeln!(f, "\n{what}")?;
        for wait in &self.locks {
            let (name, next) = (&wait.holds.name, &wait.waits_for.name);
            let text = format!("{}, holds {name} and waits for {next}", wait.holder);
            line(f, 1, &text)?;
        }
        writeln!(
            f,
            "End one of the processes, or take a lock away from its holder:"
        )?;
        let mut locks = self.locks.iter();
        locks.try_for_each(|wait| line(f, 1, &release(wait)))
    }
}

/// The command that takes the lock away from its holder. Control characters in a name are shown
/// escaped: no shell takes them for more, and such a command finds no lock.
fn release(wait: &Wait) -> String {
    let name = &*wait.holds.name;
    let fence = fence_of(wait.holds, wait.holder);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    let word = match name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    };
    match name.starts_with('-') {
        true => format!("fairlock release --fence {fence} -- {word}"),
        false => format!("fairlock release {word} --fence {fence}"),
    }
}
