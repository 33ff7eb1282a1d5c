//! A held lock: its lease, the atomic state of the lease, its loss, how replies end it, and which
//! thread took it.

mod end;
#[expect(
    clippy::module_inception,
    reason = "the folder is named after its main noun"
)]
mod lease;
mod lost_signal;
mod passing;
mod state;
mod taken;
mod wanted_signal;

pub(crate) use end::{loss_from_release, renewed_until};
pub(crate) use lease::{Due, HeldLease, deadline_from_reply, deadline_since, first_lost};
pub(crate) use passing::DoubtfulPass;
#[cfg(all(test, fairlock_loom))]
pub(crate) use state::LeaseState;
pub(crate) use taken::{EngineId, first_wait_for_own, note_taken};
