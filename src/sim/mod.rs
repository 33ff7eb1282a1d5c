//! What fairlock's own tests judge it by: a vocabulary of what clients do and see, and a model of what the promises
//! allow. Without any promise of stability.
//!
//! That model has no clock: a lease ends when it is said to. It knows nothing of the loss of data, of
//! `hold_at_least`, or of the grace that a lease may be given after an outage. [`small`] has another, of processes
//! rather than of what they see, and searches all that can happen to three of them.

mod op;
mod grant;
mod model;
mod worlds;
pub mod small;

pub use model::{Lock, Promise};
pub use op::{Attempt, Lease, Op, Outcome, Sight};
pub use worlds::{Chance, Violation, Worlds};
