//! What is sent to the renewal thread.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::lease::Lease;
use super::places::Waiting;
use crate::loss::LossReason;
use crate::script::{Call, Mode, Token, Verb};
use crate::store::clock::Time;

/// A lease that the renewal thread has not seen yet.
pub(super) struct Fresh {
    pub(super) lease: Arc<Lease>,
    /// It is to be renewed at this time, and then each period.
    pub(super) renew_at: Time,
}

/// What is sent to the renewal thread.
pub(super) enum Work {
    /// Lost, and not told yet.
    Lost(Arc<Lease>),
    Background(Job),
    Confirm(Arc<Waiting>),
    Requeue(Arc<Waiting>),
    /// Messages may have been missed: every awaited name is looked after at once, token by token.
    Resync,
    /// Shut down: end all leases and answer their names.
    EndAll(Sender<Vec<Arc<str>>>),
    /// Let go of this when nothing is due any more.
    Settle(Sender<Infallible>),
    Stop,
}

/// A token to be given back in the background.
pub(super) struct Job {
    pub(super) call: Call,
    pub(super) token: Token,
    /// A reply must show a later server time, or a delayed acquire could still take the token (R7).
    pub(super) not_after: u64,
    /// Past this the token has lapsed by itself.
    pub(super) expires: Time,
    pub(super) resent: bool,
    pub(super) tell: Option<Sender<Option<LossReason>>>,
}

impl Job {
    pub(super) fn new(about: &Call, token: Token, fence: u64, mode: Mode, expires: Time) -> Job {
        let call = Call { family: about.family, key: about.key.clone(), verb: Verb::Release { token, fence, mode } };
        Job { call, token, not_after: 0, expires, resent: false, tell: None }
    }

    pub(super) fn until(self, not_after: u64) -> Job {
        Job { not_after, ..self }
    }

    pub(super) fn resent(self) -> Job {
        Job { resent: true, ..self }
    }

    pub(super) fn telling(self, tell: Sender<Option<LossReason>>) -> Job {
        Job { tell: Some(tell), ..self }
    }
}
