//! All states of one name that agree with everything that clients saw.

use std::collections::BTreeSet;
use std::fmt;

use super::op::{Attempt, ModelKind, ModelOutcome, Op};
use super::possible_state::{PossibleState, closure};
use super::promise::Promise;

/// One name, as far as its clients can know it. Each of these states allows all observations so
/// far.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PossibleStates {
    possible: BTreeSet<PossibleState>,
}

/// Whether a waiter can become a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Likelihood {
    /// In no possible state.
    Impossible,
    /// In some possible states.
    Possible,
    /// In all possible states, as soon as the message of the grant arrives.
    Certain,
}

/// An observation that no possible state allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModelViolation {
    pub(crate) op: Op,
    pub(crate) outcome: ModelOutcome,
    /// The promises that this breaks, one or more: each possible state may name its own.
    pub(crate) broken: BTreeSet<Promise>,
    /// The states that were possible before.
    pub(crate) before: BTreeSet<PossibleState>,
}

impl PossibleStates {
    /// A name that nobody has used.
    pub(crate) fn new(kind: ModelKind) -> PossibleStates {
        PossibleStates {
            possible: [PossibleState::new(kind)].into(),
        }
    }

    /// Takes in what was done and what was seen of it. Keeps the states that allow it.
    ///
    /// # Errors
    /// A [`ModelViolation`] if no state allows it. The states then stay as they were.
    pub(crate) fn observe(
        &mut self,
        op: &Op,
        outcome: &ModelOutcome,
    ) -> Result<(), Box<ModelViolation>> {
        let before = closure(self.possible.iter().cloned());
        let mut broken = BTreeSet::new();
        let mut after = BTreeSet::new();
        for state in &before {
            match state.after(op, outcome) {
                Ok(states) => after.extend(states),
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

    /// Whether this waiter can become a guard, now or when the background work is done.
    pub(crate) fn likelihood(&self, attempt: Attempt) -> Likelihood {
        let all = closure(self.possible.iter().cloned());
        let granted = all
            .iter()
            .filter(|state| state.has_grant_for(attempt))
            .count();
        match granted {
            0 => Likelihood::Impossible,
            n if n == all.len() => Likelihood::Certain,
            _ => Likelihood::Possible,
        }
    }

    /// The largest number of holders in any possible state.
    pub(crate) fn most_holders(&self) -> usize {
        self.possible
            .iter()
            .map(PossibleState::holders)
            .max()
            .unwrap_or(0)
    }

    /// The release of this attempt has run, whatever else is under way.
    pub(crate) fn on_released(&mut self, attempt: Attempt) {
        let all = closure(self.possible.iter().cloned());
        let is_over = |state: &PossibleState| !state.is_releasing(attempt);
        self.possible = all.into_iter().filter(is_over).collect();
    }

    /// The largest number of attempts that still have background work in any possible state. The
    /// orders of that work multiply the states, so a test that must be fast keeps this small.
    pub(crate) fn most_at_work(&self) -> usize {
        self.possible
            .iter()
            .map(PossibleState::at_work)
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Display for ModelViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken: Vec<String> = self.broken.iter().map(Promise::to_string).collect();
        writeln!(
            f,
            "{:?} ended in {:?}, which breaks {}; the states that were possible before:",
            self.op,
            self.outcome,
            broken.join(" or ")
        )?;
        self.before
            .iter()
            .try_for_each(|state| writeln!(f, "  {state:?}"))
    }
}

impl std::error::Error for ModelViolation {}
