//! A waiter waits in the queue of one lock. `state` is its pure state machine, `registry` knows all
//! waiters of the manager, and `grant_notice` is how a grant becomes known. `askers` are the waiters
//! of a store that has no queue. `nested` are the waits of threads that hold locks, which may close a
//! `circle`.

mod askers;
mod circle;
mod grant_notice;
mod nested;
mod registry;
mod state;

pub(crate) use askers::{Askers, Asking};
pub(crate) use circle::{Circle, WaitEnds};
pub(crate) use grant_notice::GrantNotice;
pub(crate) use nested::{NestedWait, circle_of};
pub(crate) use registry::{TokenOwner, WaiterEntry, WaiterOwner, WaiterRegistry, refusal};
pub(crate) use state::{CircleWarning, TakeGrant, WaiterAction, WaiterState};
