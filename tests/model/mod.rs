//! The reference model: what fairlock promises, as a plain value that each operation changes.
//!
//! The model is pure. It has no clock, no network, no Redis, and it uses nothing of the crate. A
//! test does something with a lock, sees what comes of it, and asks the model: is that allowed? The
//! answer is either the next state of the model or the promise that is broken.
//!
//! # One lock at the server: [`ModelLock`]
//!
//! A [`ModelLock`] is one lock name as the server has it: its holders, its queue, and the processes
//! that count as dead. A test describes each step in three values:
//!
//! | value | says |
//! |---|---|
//! | [`Op`] | what is done: `Enqueue`, `Renew`, `Unlock`, ..., for one [`Attempt`] to get the lock |
//! | [`ModelOutcome`] | what the caller saw of it: `Granted` with a fence, `Waiting`, `Lost`, ... |
//! | [`Observation`] | who holds the lock and who waits for it, if the test looked |
//!
//! Time decides some steps: has a lease expired, has a process been silent for too long? The model
//! has no clock, so the test supplies these answers, as a [`ServerView`] with each request.
//!
//! # One lock as its clients see it: [`PossibleStates`]
//!
//! A test that sees only what clients see does not know everything. A dropped guard is released in
//! the background: at once, or a moment later. So this side of the model guesses. A
//! [`PossibleState`] is a [`ModelLock`] and the work that is still under way in the clients'
//! background threads. [`PossibleStates`] keeps every such state that agrees with all observations
//! so far. Each observation removes the states that it contradicts. If none is left, a promise is
//! broken, and the [`ModelViolation`] names it.
//!
//! ```text
//! let mut states = PossibleStates::new(ModelKind::Mutex);
//! states.observe(&Op::TryLock(a), &ModelOutcome::Granted { fence: 10 })?;
//! states.observe(&Op::TryLock(b), &ModelOutcome::Granted { fence: 11 })?; // breaks P1
//! ```
//!
//! # Who uses it
//!
//! - The property test (`tests/it/property.rs`) runs random operations on real managers and uses
//!   [`PossibleStates`].
//! - The simulator and the search of small worlds (`tests/sim`) see every request at the server and
//!   use [`ModelLock`] alone.

mod grant;
mod lock;
mod op;
mod possible_state;
mod possible_states;
mod promise;

pub(crate) use lock::{FoundHolder, ModelLock};
pub(crate) use op::{
    Attempt, DataLoss, LeaseTerm, ModelKind, ModelOutcome, Observation, Op, ServerView,
};
pub(crate) use possible_state::PossibleState;
pub(crate) use possible_states::{Likelihood, ModelViolation, PossibleStates};
pub(crate) use promise::Promise;
