//! The worlds that agree with all that was seen.

use std::collections::BTreeSet;
use std::fmt;

use super::op::{Attempt, ModelKind, ModelOutcome, Op};
use super::promise::Promise;
use super::world::{PossibleState, closure};

/// One name, as far as it is known: each of these worlds allows all that was seen of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PossibleStates {
    possible: BTreeSet<PossibleState>,
}

/// Whether a place can be made a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Likelihood {
    /// In no world.
    None,
    /// In some.
    Some,
    /// In all, as soon as the news arrives.
    Certain,
}

/// Something was seen that no possible world allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModelViolation {
    /// What was done.
    pub(crate) op: Op,
    /// What was seen.
    pub(crate) outcome: ModelOutcome,
    /// What that breaks, by the worlds that were possible before.
    pub(crate) broken: BTreeSet<Promise>,
    /// Those worlds.
    pub(crate) before: BTreeSet<PossibleState>,
}

impl PossibleStates {
    /// A name that nobody has used.
    pub(crate) fn new(kind: ModelKind) -> PossibleStates {
        PossibleStates {
            possible: [PossibleState::new(kind)].into(),
        }
    }

    /// Takes in what was done and what was seen of it, and keeps the worlds that allow it.
    ///
    /// # Errors
    /// A [`ModelViolation`] if there is none. The worlds stay as they were.
    pub(crate) fn observe(
        &mut self,
        op: &Op,
        outcome: &ModelOutcome,
    ) -> Result<(), Box<ModelViolation>> {
        let before = closure(self.possible.iter().cloned());
        let mut broken = BTreeSet::new();
        let mut after = BTreeSet::new();
        for world in &before {
            match world.after(op, outcome) {
                Ok(worlds) => after.extend(worlds),
                Err(promise) => {
                    broken.insert(promise);
                }
            }
        }
        if after.is_empty() {
            return Err(Box::new(ModelViolation {
                op: op.clone(),
                outcome: outcome.clone(),
                broken,
                before,
            }));
        }
        self.possible = after;
        Ok(())
    }

    /// Whether this place can be made a guard, now or when the background is through.
    pub(crate) fn chance(&self, attempt: Attempt) -> Likelihood {
        let all = closure(self.possible.iter().cloned());
        let granted = all
            .iter()
            .filter(|world| world.has_grant_for(attempt))
            .count();
        match granted {
            0 => Likelihood::None,
            n if n == all.len() => Likelihood::Certain,
            _ => Likelihood::Some,
        }
    }

    /// How many hold it, at most.
    pub(crate) fn holders(&self) -> usize {
        self.possible
            .iter()
            .map(PossibleState::holders)
            .max()
            .unwrap_or(0)
    }

    /// How many attempts the background has yet to do with, at most. Their orders multiply the worlds: whoever
    /// wants to be through soon adds to no more than a handful.
    pub(crate) fn unsettled(&self) -> usize {
        self.possible
            .iter()
            .map(PossibleState::unsettled)
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Display for ModelViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken: Vec<String> = self.broken.iter().map(Promise::to_string).collect();
        writeln!(
            f,
            "{:?} ended in {:?}, which breaks {}; possible were",
            self.op,
            self.outcome,
            broken.join(" or ")
        )?;
        self.before
            .iter()
            .try_for_each(|world| writeln!(f, "  {world:?}"))
    }
}

impl std::error::Error for ModelViolation {}
