//! What fairlock's own tests judge it by: a vocabulary of what clients do and see, and a model of what the promises
//! allow. Without any promise of stability.

mod op;
mod grant;
mod model;
mod worlds;

pub use model::{Lock, Promise};
pub use op::{Attempt, Lease, Op, Outcome, Sight};
pub use worlds::{Chance, Violation, Worlds};
