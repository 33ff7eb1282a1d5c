//! P6: the answer to a caller whose lease ended without a release.

use super::{Checker, ServerModel};
use crate::loss::PreviousHolder;
use crate::script::{Outcome as Reported, Verb};
use crate::sim::breach::Breach;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::ModelKind;
use crate::sim::model::Promise;
use crate::sim::record::HolderView;

/// The server's knowledge about a lease that ended without a release.
#[derive(Clone)]
pub(super) struct EndedLease {
    pub(super) fence: u64,
    pub(super) how: PreviousHolder,
    pub(super) ttl: u64,
    /// When the server forgets it, by its clock.
    known_until: u64,
    /// A mutex knows only of its last lease how it ended.
    is_last: bool,
}

impl Checker {
    /// P6: the holder of a lease that ended without a release learns how it ended. It never gets
    /// the answer that it had released before. A mutex answers so only for its last lease.
    pub(super) fn check_reported_end(
        &self,
        clock: u64,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let (token, fence) = match &executed.call.verb {
            Verb::Release { token, fence, .. } => (token, Some(*fence)),
            Verb::Renew { token } => (token, None),
            _ => return Ok(()),
        };
        let Some(ended) = self.model.ended.get(token) else {
            return Ok(());
        };
        if self.is_forgotten(clock, ended) || fence.is_some_and(|fence| fence != ended.fence) {
            return Ok(());
        }
        if ended.explains(executed.outcome) {
            return Ok(());
        }
        let said = format!(
            "the lease of {token:?} ended as {:?}, and the answer to its holder was {:?}",
            ended.how, executed.outcome
        );
        Err(Breach::new(Promise::Exclusion, said))
    }

    /// A mutex keeps what it knows as long as its record lasts.
    fn is_forgotten(&self, clock: u64, ended: &EndedLease) -> bool {
        self.kind != ModelKind::Mutex && ended.known_until <= clock
    }

    /// Forgets the leases that a request finds to be forgotten. A clock that goes back does not
    /// bring them back.
    pub(super) fn forget_expired(&mut self, clock: u64) {
        let mut ended = std::mem::take(&mut self.model.ended);
        ended.retain(|_, ended| !self.is_forgotten(clock, ended));
        self.model.ended = ended;
    }
}

impl EndedLease {
    /// Whether this is the right answer to its holder.
    fn explains(&self, outcome: &Reported) -> bool {
        match outcome {
            Reported::Gone {
                ended: fence, how, ..
            } if self.is_last => *how == self.how && *fence == self.fence,
            Reported::Gone { ended: fence, .. } => *fence > self.fence,
            Reported::Lapsed => self.is_last && self.how == PreviousHolder::Lapsed,
            Reported::Forced => self.is_last && self.how == PreviousHolder::Forced,
            Reported::Unknown => !self.is_last,
            _ => false,
        }
    }
}

impl ServerModel {
    /// A lease ended without a release, at this time of the server's clock.
    pub(super) fn lease_ended(
        &mut self,
        kind: ModelKind,
        holder: &HolderView,
        how: PreviousHolder,
        clock: u64,
    ) {
        if kind == ModelKind::Mutex {
            self.none_is_last();
        }
        self.ended.insert(
            holder.token,
            EndedLease {
                fence: holder.fence,
                how,
                ttl: holder.ttl,
                known_until: clock + holder.ttl,
                is_last: true,
            },
        );
    }

    pub(super) fn none_is_last(&mut self) {
        self.ended
            .values_mut()
            .for_each(|ended| ended.is_last = false);
    }

    /// The server's clock shows this. It may have gone back: then nothing is known for longer than
    /// a ttl from now.
    pub(super) fn on_clock(&mut self, clock: u64) {
        self.ended
            .values_mut()
            .for_each(|ended| ended.known_until = ended.known_until.min(clock + ended.ttl));
    }
}
