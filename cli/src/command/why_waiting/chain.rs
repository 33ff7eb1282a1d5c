//! Follows a chain of waits through what was seen of the locks. It asks nobody.
//!
//! A holder waits where its own thread waits. A run waits for the processes of its command, too: on
//! this host `/proc` shows which processes are below one.

use fairlock::inspect::{LockInfo, Party};

use super::Locks;
use super::report::{Report, Wait};
use crate::age;
use crate::command::run;
use crate::parties::{fence_of, is_same_thread, live_holders};
use crate::processes::{Process, above};
use crate::times;

/// A chain is followed through this many names. Only a program that goes wrong has a longer one.
const MOST_NAMES: usize = 200;
/// If a lock has more holders, those that do not wait are only counted.
const MOST_HOLDERS: usize = 10;

/// The locks as they were a moment ago, and the processes of this host.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    locks: &'a Locks,
    host: String,
}

impl<'a> Scene<'a> {
    pub(super) fn new(locks: &'a Locks) -> Scene<'a> {
        let name = rustix::system::uname();
        // As the library writes it.
        let host = name.nodename().to_string_lossy().replace(' ', "-");
        Scene { locks, host }
    }

    /// The chain behind a name: its holders, the names for which they wait, and so on.
    pub(super) fn follow(&self, name: &'a str) -> Report<'a> {
        let mut report = Report {
            name,
            ..Report::default()
        };
        if let Some(first) = self.locks.get(name) {
            self.walk(&mut report, first, "", 0);
        }
        report
    }

    /// A depth-first walk. `wait` says how the holder above waits for this lock.
    fn walk(&self, report: &mut Report<'a>, lock: &'a LockInfo, wait: &str, depth: usize) {
        let name = &lock.name;
        let is_seen = report.locks.iter().any(|seen| seen.name == *name);
        if is_seen || depth >= 2 * MOST_NAMES {
            let end = if is_seen { "see above" } else { "and so on" };
            return report.line(depth, &format!("{wait}{name}, {end}"));
        }
        report.locks.push(lock);
        let silent = match times::silent(lock) {
            0 => String::new(),
            silent => format!(", {silent} of them not heard of"),
        };
        let (kind, waiters) = (&lock.kind, lock.waiters);
        let text = format!("{wait}{name}: {kind}, {waiters} waiting{silent}");
        report.line(depth, &text);
        let holders = live_holders(lock).map(|holder| (holder, self.waits(lock, holder)));
        let mut holders: Vec<(&Party, Vec<Wait>)> = holders.collect();
        holders.sort_by_key(|(holder, waits)| (waits.is_empty(), holder.since));
        if holders.is_empty() {
            report.line(depth + 1, &format!("nobody holds it: {lock}"));
        }
        for (at, (holder, waits)) in holders.iter().enumerate() {
            if waits.is_empty() && at >= MOST_HOLDERS {
                let more = holders.len() - at;
                return report.line(depth + 1, &format!("and {more} more holders"));
            }
            let (held, fence) = (times::held(lock, holder), fence_of(lock, holder));
            let text = format!("held for {} by {holder}, fence {fence}", age::short(held));
            report.line(depth + 1, &text);
            if waits.is_empty() {
                report.line(depth + 2, &self.end(holder));
            }
            for wait in waits {
                report.waits.push(wait.clone());
                self.walk(report, wait.waits_for, &wait.text(), depth + 2);
            }
        }
    }

    /// Why a chain ends at this holder.
    fn end(&self, holder: &Party) -> String {
        let host = &holder.host;
        if holder.thread == run::THREAD && self.process(holder).is_none() {
            format!("which waits for no lock itself; only {host} shows whether its command waits")
        } else if holder.keeps {
            "which lets go of it as soon as no guard has it".to_owned()
        } else {
            "which waits for no lock".to_owned()
        }
    }

    /// The places in queues where a holder waits.
    fn waits(&self, holds: &'a LockInfo, holder: &'a Party) -> Vec<Wait<'a>> {
        let mut waits = Vec::new();
        for waits_for in self.locks.values() {
            for (waiter, position) in waits_for.queue.iter().zip(1..) {
                let is_other = holder.thread_id != waiter.thread_id;
                // A process lets go of a lock that it keeps, also for another thread of its own.
                let is_behind_itself = holder.keeps && is_other && holds.name == waits_for.name;
                let own = is_same_thread(holder, waiter).filter(|_| !is_behind_itself);
                let certain = own.or_else(|| self.awaits_process(holder, waiter));
                waits.extend(certain.map(|certain| Wait {
                    holds,
                    waits_for,
                    position,
                    waited: times::waited(waits_for, waiter).as_secs_f64(),
                    certain,
                    holder,
                    through: own.is_none().then_some(waiter),
                    waiter,
                }));
            }
        }
        waits
    }

    /// Whether the run that holds a lock waits for the waiter's process: surely, maybe (`false`),
    /// or not at all (`None`).
    fn awaits_process(&self, holder: &Party, waiter: &Party) -> Option<bool> {
        // A process of the library does other work than to wait for its children.
        (holder.thread == run::THREAD).then_some(())?;
        let (run, waiter) = (self.process(holder)?, self.process(waiter)?);
        let run = above(waiter.pid).find(|process| process.pid == run.pid)?;
        // A run waits for its command, and then for the rest of its session.
        Some(run.session == waiter.session)
    }

    /// The process of a party, if it is here and `/proc` shows it.
    fn process(&self, party: &Party) -> Option<Process> {
        (party.host == self.host).then(Process::own)??;
        Process::of(party.pid.cast_signed())
    }
}
