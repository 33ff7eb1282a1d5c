//! A waiter: its state, the registry of all of them, its end of the queue, and the notice of a grant.

mod grant_notice;
mod queued;
mod registry;
mod state;

pub(crate) use grant_notice::GrantNotice;
pub(crate) use queued::{AtDeadline, QueuedWaiter};
pub(crate) use registry::{TokenOwner, WaiterEntry, WaiterRegistry, in_order, refusal};
pub(crate) use state::{TakeGrant, WaiterAction, WaiterState};
