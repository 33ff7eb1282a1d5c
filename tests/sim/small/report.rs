//! The report of a search, and the trace of a violation.

use std::fmt;

use super::event::{SmallAction, SmallEvent};
use super::record_state::CLIENTS;
use super::world::SmallWorld;

/// The result of a search.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// How many worlds were reached.
    pub(crate) worlds: usize,
    /// How many steps lead from one of them to another.
    pub(crate) steps: usize,
    /// How many different pairs of record and request the interpreter ran.
    pub(crate) scripts: usize,
    /// The number of steps to the world that is furthest from the start.
    pub(crate) depth: usize,
    /// Whether the search reached every world that can be reached. If not, the limit came first.
    pub(crate) is_complete: bool,
    /// The first violation.
    pub(crate) violation: Option<SmallViolation>,
}

/// The broken promise, and a shortest trace that leads there.
#[derive(Debug, Clone)]
pub(crate) struct SmallViolation {
    /// The broken promise.
    pub(crate) what: String,
    /// One line for each step.
    pub(crate) trace: Vec<String>,
}

/// The steps through several worlds. Renumbering swaps clients from world to world, but here each
/// client keeps the name that it began with.
pub(super) struct Trace {
    names: [char; CLIENTS as usize],
    lines: Vec<String>,
}

impl Trace {
    pub(super) fn new() -> Trace {
        Trace {
            names: ['A', 'B', 'C'],
            lines: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, event: &SmallEvent, world: &SmallWorld) {
        let line = self.line(event, world);
        self.lines.push(line);
    }

    /// Adds a step of the run in peace that follows the trace.
    pub(super) fn add_in_peace(&mut self, event: &SmallEvent, world: &SmallWorld) {
        let line = self.line(event, world);
        self.lines.push(format!("in peace, {line}"));
    }

    fn line(&self, event: &SmallEvent, world: &SmallWorld) -> String {
        let client = match event.action {
            SmallAction::Deliver(at) => Some(world.messages[at].to.client),
            SmallAction::DeliverWanted(at) => Some(world.wanted[at].client),
            action => action.client(),
        };
        match client {
            Some(c) => format!("{}: {event}", self.names[usize::from(c)]),
            None => event.to_string(),
        }
    }

    /// Renumbering gave each client this new number.
    pub(super) fn rename(&mut self, became: [u8; CLIENTS as usize]) {
        let before = self.names;
        for (from, to) in became.into_iter().enumerate() {
            self.names[usize::from(to)] = before[from];
        }
    }

    /// The violation at the end of this trace. `what` calls clients by their last numbers.
    pub(super) fn into_violation(self, what: &str) -> SmallViolation {
        let name_client = |what: String, c: u8| {
            what.replace(&format!("@{c}"), &self.names[usize::from(c)].to_string())
        };
        SmallViolation {
            what: (0..CLIENTS).fold(what.to_owned(), name_client),
            trace: self.lines,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            worlds,
            steps,
            scripts,
            depth,
            ..
        } = self;
        let all = if self.is_complete { "all" } else { "the first" };
        write!(
            f,
            "{all} {worlds} worlds, {steps} steps, {depth} deep, {scripts} script calls"
        )?;
        match &self.violation {
            Some(violation) => write!(f, "\n{violation}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SmallViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after", self.what)?;
        self.trace
            .iter()
            .try_for_each(|step| writeln!(f, "  {step}"))
    }
}
