//! A kept grant that has ended here, and whose release was not answered yet.

use std::sync::Arc;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::engine::HeldLease;
use crate::loss::LossReason;

/// The renewal thread sends its release. Until that is answered, a caller of this manager that asks for
/// the name sends it once more, in front of its own request.
pub(super) struct EndedGrant {
    pub(super) lease: Arc<HeldLease>,
    /// How it ended, once Redis has answered. `None`: the release is not sent yet.
    answered: Option<Receiver<Option<LossReason>>>,
}

/// The state of the release.
pub(super) enum KeptEnd {
    Unanswered,
    Released,
    Lost(LossReason),
}

impl EndedGrant {
    pub(super) fn new(lease: Arc<HeldLease>) -> EndedGrant {
        EndedGrant {
            lease,
            answered: None,
        }
    }

    /// The release is sent. Its result will come here.
    pub(super) fn set_sent(&mut self, answered: Receiver<Option<LossReason>>) {
        self.answered = Some(answered);
    }

    pub(super) fn is_answered(&self) -> bool {
        let answered = self.answered.as_ref();
        answered.is_some_and(|answered| !answered.is_empty())
    }

    /// Takes the result, if it has come.
    pub(super) fn take_result(&self) -> KeptEnd {
        let Some(answered) = &self.answered else {
            return KeptEnd::Unanswered;
        };
        match answered.try_recv() {
            Ok(Some(reason)) => KeptEnd::Lost(reason),
            Ok(None) | Err(TryRecvError::Disconnected) => KeptEnd::Released,
            Err(TryRecvError::Empty) => KeptEnd::Unanswered,
        }
    }
}
