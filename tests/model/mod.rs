//! The reference model: what fairlock promises, as a plain value that each operation changes. It has no clock, no
//! network and no Redis. The property test compares clients with it, and the simulator each request.

mod grant;
mod lock;
mod op;
mod promise;
mod world;
mod worlds;

pub(crate) use lock::{FoundHolder, ModelLock};
pub(crate) use op::{
    Attempt, DataLoss, LeaseTerm, ModelKind, ModelOutcome, Observation, Op, ServerView,
};
pub(crate) use promise::Promise;
pub(crate) use world::PossibleState;
pub(crate) use worlds::{Likelihood, ModelViolation, PossibleStates};
