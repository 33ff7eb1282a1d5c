//! Facts about one server, or about all of them, as plain text by name.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use fairlock::servers::Deployment;

use crate::duration::measured;

/// The subject of the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All servers together.
    All,
    Sentinel,
    /// A node of a cluster that is asked for the masters.
    Seed,
    /// It must be a master: it keeps locks.
    Master,
    /// It may take the place of its master.
    Replica,
}

/// The facts about one server, or about all.
///
/// A fact has the name that `INFO`, `CONFIG GET` or `SENTINEL MASTER` has for it, with `_` for `-`.
/// So a setting that two commands tell is known from either.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) deployment: Deployment,
    /// Host and port, or the path of the socket. `None`: all servers, or one that is not named.
    pub(super) server: Option<String>,
    /// Each, or why it is not known. A command that tells many has its own name here.
    known: BTreeMap<String, Result<String, String>>,
}

impl Facts {
    pub(super) fn new(deployment: Deployment) -> Facts {
        Facts {
            kind: Kind::All,
            deployment,
            server: None,
            known: BTreeMap::new(),
        }
    }

    /// A number that is not known is no fact.
    pub(super) fn set(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        if value != "NaN" {
            self.known.insert(name.replace('-', "_"), Ok(value));
        }
    }

    pub(super) fn set_time(&mut self, name: &str, time: Duration) {
        self.set(name, time.as_secs_f64() * 1000.0);
    }

    /// Adds a word to a list, unless that has it.
    pub(super) fn add(&mut self, name: &str, word: &str) {
        if !self.words(name).any(|known| known == word) {
            let list = format!("{} {word}", self.text(name));
            self.set(name, list.trim());
        }
    }

    pub(super) fn set_unknown(&mut self, name: &str, why: impl Into<String>) {
        self.known.insert(name.replace('-', "_"), Err(why.into()));
    }

    /// The message of a step that failed, and what to do.
    pub(super) fn set_error(&mut self, step: &str, (message, remedy): (String, String)) {
        self.set(step, message);
        self.set(&format!("{step}_remedy"), remedy);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        matches!(self.known.get(name), Some(Ok(_)))
    }

    /// Empty if it is not known.
    pub(super) fn text(&self, name: &str) -> &str {
        let known = self.known.get(name).and_then(|fact| fact.as_ref().ok());
        known.map_or("", String::as_str)
    }

    pub(super) fn words(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).split_whitespace()
    }

    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.has(name) && self.text(name) == value
    }

    /// Not a number if it is not known. No comparison with that is true, so no rule complains.
    pub(super) fn num(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(f64::NAN)
    }

    pub(super) fn time(&self, name: &str) -> Duration {
        Duration::try_from_secs_f64(self.num(name) / 1000.0).unwrap_or_default()
    }

    /// Why it is not known. Empty if there is no reason.
    pub(super) fn why(&self, name: &str) -> &str {
        let why = self.known.get(name).and_then(|fact| fact.as_ref().err());
        why.map_or("", String::as_str)
    }

    pub(super) fn is_refused(&self, name: &str) -> bool {
        self.why(name).starts_with("no right")
    }

    /// The text with each fact in the place of its name in braces; or why one is not known.
    pub(super) fn fill(&self, text: &str) -> String {
        let mut filled = String::new();
        for part in text.split_inclusive('}') {
            let (before, name) = part.split_once('{').unwrap_or((part, ""));
            filled += before;
            let name = name.trim_end_matches('}');
            match (self.why(name), self.why("INFO")) {
                _ if name.is_empty() => {}
                _ if self.has(name) && name.ends_with("_ms") => {
                    filled += &measured(self.time(name))
                }
                _ if self.has(name) => filled += self.text(name),
                ("", "") => return format!("not known: the server does not say {name}"),
                ("", why) | (why, _) => return format!("not known: {why}"),
            }
        }
        filled
    }
}
