//! A chain of waits and its deadlock, as text and as JSON. The form of the JSON is in
//! docs/COMMAND_LINE.md.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fairlock::inspect::{Kind, LockInfo, Party};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::age;
use crate::parties::fence_of;
use crate::printable::printable;

/// Deeper lines would be wider than any window.
const MOST_INDENTS: usize = 30;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    /// The locks of the chain, the first name first. Each once.
    pub(super) locks: Vec<&'a LockInfo>,
    pub(super) waits: Vec<Wait<'a>>,
    /// One, or none: the circle, and whether it is certain.
    pub(super) deadlocks: Vec<Value>,
    /// Waits of which each is for a lock that the next one holds, and the last for that of the
    /// first.
    #[serde(skip)]
    pub(super) circle: Vec<Wait<'a>>,
    /// Whether it cannot end without help.
    #[serde(skip)]
    pub(super) is_certain: bool,
    /// All of this for people.
    #[serde(skip)]
    pub(super) lines: Vec<String>,
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
    #[serde(skip)]
    pub(super) waiter: &'a Party,
}

fn name<S: Serializer>(lock: &LockInfo, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&lock.name)
}

impl<'a> Report<'a> {
    pub(super) fn line(&mut self, depth: usize, text: &str) {
        let indent = "  ".repeat(depth.min(MOST_INDENTS));
        self.lines.push(format!("{indent}{}", printable(text)));
    }

    /// The waits in the deadlock: the name and the fence that is held, and when the wait began.
    pub(super) fn deadlocked(mut self) -> Vec<(Arc<str>, u64, SystemTime)> {
        self.find_deadlock();
        let id = |wait: &Wait| (wait.holds.name.clone(), wait.fence(), wait.waiter.since);
        self.circle.iter().map(id).collect()
    }

    /// A circle that may end without help is of no interest beside one that cannot.
    pub(super) fn find_deadlock(&mut self) {
        for certain in [true, false] {
            if let Some(circle) = self.circle(certain) {
                let held = |wait: &Wait| json!({"name": wait.holds.name, "fence": wait.fence()});
                let locks: Vec<Value> = circle.iter().map(held).collect();
                self.deadlocks = vec![json!({"certain": certain, "locks": locks})];
                (self.circle, self.is_certain) = (circle, certain);
                let lines = self.explanation();
                lines.iter().for_each(|line| self.line(0, line));
                return;
            }
        }
    }

    /// The first circle of waits. In a certain one, each wait lasts for as long as the next one.
    fn circle(&self, certain: bool) -> Option<Vec<Wait<'a>>> {
        let leads = |at: usize, next: usize| {
            let (wait, next) = (&self.waits[at], &self.waits[next]);
            let lasts = wait.certain && next.holder.permits > wait.free();
            wait.waits_for.name == next.holds.name && (lasts || !certain)
        };
        // Without the waits that lead to an end, every way runs into a circle.
        let (mut left, mut before): (Vec<usize>, _) = ((0..self.waits.len()).collect(), vec![]);
        while left.len() != before.len() {
            before = left.clone();
            left.retain(|at| before.iter().any(|next| leads(*at, *next)));
        }
        let mut path = vec![*left.first()?];
        loop {
            let last = path[path.len() - 1];
            let next = left.iter().find(|next| leads(last, **next))?;
            if let Some(start) = path.iter().position(|at| at == next) {
                let circle = path[start..].iter().map(|at| self.waits[*at].clone());
                return Some(circle.collect());
            }
            path.push(*next);
        }
    }

    fn explanation(&self) -> Vec<String> {
        let what = match (self.is_certain, &self.circle[..]) {
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
        let mut lines = vec![String::new(), what.to_owned()];
        lines.extend(self.circle.iter().map(|wait| {
            let (name, next) = (&wait.holds.name, &wait.waits_for.name);
            format!("  {}, holds {name} and waits for {next}", wait.holder)
        }));
        lines.push("End one of the processes, or take a lock away from its holder:".to_owned());
        lines.extend(self.circle.iter().map(Wait::remedy));
        lines
    }
}

impl Wait<'_> {
    fn fence(&self) -> u64 {
        fence_of(self.holds, self.holder)
    }

    /// How the holder waits, up to the name of the lock.
    pub(super) fn text(&self) -> String {
        let waited = age::short(Duration::from_secs_f64(self.waited));
        let waits = if self.certain { "waits" } else { "may wait" };
        let process = |of: &Party| format!("process {} on {}, which waits for ", of.pid, of.host);
        let through = self.through.map(process).unwrap_or_default();
        let position = self.position;
        format!("which {waits} for {through}{waited}, position {position}, for ")
    }

    /// The wait may end while one holder has no more permits than these. A second reader waits only
    /// behind a writer, and that writer waits for the first.
    fn free(&self) -> u32 {
        match self.waits_for.kind {
            Kind::Semaphore { permits, .. } => permits.saturating_sub(self.waiter.permits),
            _ => 0,
        }
    }

    /// The command that takes the lock away from its holder. Control characters in a name are shown
    /// escaped: no shell takes them for more, and such a command finds no lock.
    fn remedy(&self) -> String {
        let (name, fence) = (&*self.holds.name, self.fence());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
        let word = match name.chars().all(is_plain) {
            true => name.to_owned(),
            false => format!("'{}'", name.replace('\'', r"'\''")),
        };
        match name.starts_with('-') {
            true => format!("  fairlock release --fence {fence} -- {word}"),
            false => format!("  fairlock release {word} --fence {fence}"),
        }
    }
}
