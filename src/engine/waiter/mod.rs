//! A waiter waits in the queue of one lock. `state` is its pure state machine, `registry` knows all
//! waiters of the manager, `queued` is the caller's end, and `grant_notice` is how a grant becomes
//! known. `askers` are the waiters of a store that has no queue. `nested` are the waits of threads that
//! hold locks, which may close a circle, and `circles` logs it.

mod askers;
mod circles;
mod grant_notice;
mod nested;
mod queued;
mod registry;
mod state;

pub(crate) use askers::Askers;
pub(crate) use grant_notice::GrantNotice;
pub(crate) use queued::{AtDeadline, EnqueueOutcome, QueuedWaiter};
pub(crate) use registry::{TokenOwner, WaiterEntry, WaiterRegistry, in_order, refusal};
#[cfg(all(test, feature = "memory"))]
pub(crate) use state::CircleWarning;
pub(crate) use state::{TakeGrant, WaiterAction, WaiterState};
