//! What fairlock's own tests judge it by: a vocabulary of what clients do and see, and a model of what the promises
//! allow. Without any promise of stability.
//!
//! The model has no clock: a lease ends when it is said to. It knows nothing of the loss of data, of
//! `hold_at_least`, or of the grace that a lease may be given after an outage.

mod op;
mod grant;
mod model;
mod worlds;
mod plan;
mod process;
mod run;
mod judge;
mod defect;
mod simulation;

pub use model::{Lock, Promise};
pub use op::{Attempt, Lease, Op, Outcome, Sight};
pub use defect::Defect;
pub use simulation::{Failure, Tally, simulate};
pub use worlds::{Chance, Violation, Worlds};
