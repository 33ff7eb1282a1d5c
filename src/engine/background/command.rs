//! What is sent to the renewal thread.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::background::Job;
use crate::engine::lease::Lease;
use crate::engine::waiter::WaiterEntry;
use crate::store::clock::Time;

/// A lease that the renewal thread has not seen yet.
pub(crate) struct Fresh {
    pub(crate) lease: Arc<Lease>,
    /// It is to be renewed at this time, and then each period.
    pub(crate) renew_at: Time,
}

/// What is sent to the renewal thread.
pub(crate) enum Command {
    /// Lost, and not told yet.
    Lost(Arc<Lease>),
    Background(Job),
    Confirm(Arc<WaiterEntry>),
    Requeue(Arc<WaiterEntry>),
    /// Messages may have been missed: every awaited name is looked after at once, token by token.
    Resync,
    /// Shut down: end all leases and answer their names.
    EndAll(Sender<Vec<Arc<str>>>),
    /// Let go of this when nothing is due any more.
    Settle(Sender<Infallible>),
    Stop,
}
