//! A waiter waits in the queue of one lock. `entry` is one waiter, `state` its pure state machine,
//! `registry` knows all of the manager, and `grant_notice` is how a grant becomes known. `askers` are the waiters
//! of a store that has no queue.

mod askers;
mod entry;
mod grant_notice;
mod registry;
mod state;

pub(crate) use askers::{Askers, Asking};
pub(crate) use entry::{WaiterEntry, WaiterOwner, refusal};
pub(crate) use grant_notice::GrantNotice;
pub(crate) use registry::{TokenOwner, WaiterRegistry};
pub(crate) use state::{TakeGrant, WaiterAction, WaiterState};
