//! P6: what is told of a lease that ended without a release, to whoever had it.

use super::{Broken, Judge, Model, Ran};
use crate::loss::PreviousHolder;
use crate::script::{Outcome as Said, Verb};
use crate::sim::model::ModelKind;
use crate::sim::model::Promise;
use crate::sim::record::Holder;

/// What the server knows of a lease that ended without a release.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) fence: u64,
    pub(super) how: PreviousHolder,
    pub(super) ttl: u64,
    /// It is known until then, by the server's clock.
    until: u64,
    /// Of a mutex only the last one is told how it ended.
    is_last: bool,
}

impl Judge {
    /// P6: whose lease ended without a release hears how, and not that it was released before. What is told of a mutex
    /// is only of the last one.
    pub(super) fn is_told_the_end(&self, clock: u64, ran: &Ran<'_>) -> Result<(), Broken> {
        let (token, fence) = match &ran.call.verb {
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
        let Ended { how, is_last, .. } = *ended;
        let is_right = match ran.outcome {
            Said::Gone {
                ended: of,
                how: told,
                ..
            } if is_last => *told == how && *of == ended.fence,
            Said::Gone { ended: of, .. } => *of > ended.fence,
            Said::Lapsed => is_last && how == PreviousHolder::Lapsed,
            Said::Forced => is_last && how == PreviousHolder::Forced,
            Said::Unknown => !is_last,
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let said = format!(
            "the lease of {token:?} ended so: {how:?}, and its holder was told {:?}",
            ran.outcome
        );
        Err((Promise::Exclusion, said))
    }

    /// A mutex knows what it knows for as long as its record lasts.
    fn is_forgotten(&self, clock: u64, ended: &Ended) -> bool {
        self.kind != ModelKind::Mutex && ended.until <= clock
    }

    /// What a request finds to be over, the clock cannot bring back.
    pub(super) fn forget(&mut self, clock: u64) {
        let mut ended = std::mem::take(&mut self.model.ended);
        ended.retain(|_, ended| !self.is_forgotten(clock, ended));
        self.model.ended = ended;
    }
}

impl Model {
    /// A lease ended without a release, at this time of the server's clock.
    pub(super) fn has_ended(
        &mut self,
        kind: ModelKind,
        holder: &Holder,
        how: PreviousHolder,
        clock: u64,
    ) {
        if kind == ModelKind::Mutex {
            self.none_is_last();
        }
        let Holder {
            token, fence, ttl, ..
        } = *holder;
        self.ended.insert(
            token,
            Ended {
                fence,
                how,
                ttl,
                until: clock + ttl,
                is_last: true,
            },
        );
    }

    pub(super) fn none_is_last(&mut self) {
        self.ended
            .values_mut()
            .for_each(|ended| ended.is_last = false);
    }

    /// The server's clock shows this, and may have gone back: then what was to last for longer lasts a ttl from now.
    pub(super) fn clock_is(&mut self, clock: u64) {
        self.ended
            .values_mut()
            .for_each(|ended| ended.until = ended.until.min(clock + ended.ttl));
    }
}
