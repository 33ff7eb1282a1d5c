//! The reference model: what fairlock promises, as a plain value that each operation changes. It has no clock, no
//! network and no Redis. The property test compares clients with it, and the simulator each request.

mod grant;
mod lock;
mod op;
mod promise;
mod world;
mod worlds;

pub(crate) use lock::{Found, Lock};
pub(crate) use op::{Attempt, Kind, Lease, Loss, Moment, Op, Outcome, Sight};
pub(crate) use promise::Promise;
pub(crate) use world::World;
pub(crate) use worlds::{Chance, Violation, Worlds};
