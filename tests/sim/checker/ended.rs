//! P6: the answer to a caller whose lease ended without a release.

use super::{Checker, ServerModel};
use crate::loss::PreviousHolder;
use crate::script::{Mode, Outcome as Reported, Token, Verb};
use crate::sim::breach::Breach;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::ModelKind;
use crate::sim::model::Promise;
use crate::sim::record::HolderView;

/// How many ends without a release a mutex remembers: the last one, and eight before it. A release by
/// force that named a later fence counts twice.
const ENDS_REMEMBERED: u32 = 9;

/// The server's knowledge about a lease that ended without a release or, for a mutex, about one
/// that a guard released.
#[derive(Clone)]
pub(super) struct EndedLease {
    pub(super) fence: u64,
    /// The fence that a release by force named, if that ended it. Else the same.
    named_fence: u64,
    pub(super) how: PreviousHolder,
    pub(super) ttl: u64,
    /// When the server forgets it, by its clock.
    known_until: u64,
    /// How many leases of a mutex ended without a release since.
    ends_since: u32,
    /// How many entries the record has got since.
    entries_since: u32,
}

impl Checker {
    /// P6: the holder of a lease that ended without a release learns how it ended. It never gets
    /// the answer that it had released before. P7: a guard that released a mutex gets that answer.
    /// After many other ends a mutex answers that it does not know.
    pub(super) fn check_reported_end(
        &self,
        clock: u64,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let (token, fence) = match &executed.call.verb {
            Verb::Release { token, fence, .. } => (token, Some(*fence)),
            Verb::Renew { token, .. } => (token, None),
            _ => return Ok(()),
        };
        let Some(ended) = self.model.ended.get(token) else {
            return Ok(());
        };
        if self.is_forgotten(clock, ended) || fence.is_some_and(|fence| fence != ended.fence) {
            return Ok(());
        }
        // R5 (dated requests): it says nothing.
        if ended.explains(executed.outcome) || *executed.outcome == Reported::Late {
            return Ok(());
        }
        let said = format!(
            "the lease of {token:?} ended as {:?}, and the answer to its holder was {:?}",
            ended.how, executed.outcome
        );
        Err(Breach::new(Promise::Exclusion, said))
    }

    /// P7: a forced release that is sent twice learns from the second answer too that it ended a
    /// lease, or its cooling.
    pub(super) fn check_repeated_force(&self, executed: &ExecutedCall<'_>) -> Result<(), Breach> {
        match executed.call.verb {
            Verb::Release { token, mode, .. }
                if self.last_forced == Some((token, mode, self.disturbances))
                    && *executed.outcome == Reported::Refused =>
            {
                let said = "a forced release was sent again and refused".to_owned();
                Err(Breach::new(Promise::OneGrant, said))
            }
            _ => Ok(()),
        }
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
            Reported::Gone { ended: fence, .. } if self.how == PreviousHolder::Released => {
                *fence != self.fence
            }
            Reported::Gone {
                ended: fence, how, ..
            } if self.ends_since == 0 => *how == self.how && *fence == self.named_fence,
            Reported::Gone { ended: fence, .. } => *fence > self.fence,
            Reported::Unknown => self.entries_since >= ENDS_REMEMBERED,
            _ if self.entries_since >= ENDS_REMEMBERED => false,
            Reported::Already => self.how == PreviousHolder::Released,
            Reported::Lapsed => self.how == PreviousHolder::Lapsed,
            Reported::Forced => self.how == PreviousHolder::Forced,
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
        named_fence: u64,
        how: PreviousHolder,
        clock: u64,
    ) {
        let more_entries = u32::from(named_fence > holder.fence);
        if kind == ModelKind::Mutex {
            self.count_end(1 + more_entries);
        }
        self.ended.insert(
            holder.token,
            EndedLease {
                fence: holder.fence,
                named_fence,
                how,
                ttl: holder.ttl,
                known_until: clock + holder.ttl,
                ends_since: 0,
                entries_since: more_entries,
            },
        );
    }

    /// A release ended a lease of a mutex.
    pub(super) fn on_mutex_released(&mut self, token: Token, fence: u64, mode: Mode) {
        match mode {
            Mode::Lost | Mode::Unfinished => self.count_end(1),
            Mode::Used => {
                let released = EndedLease {
                    fence,
                    named_fence: fence,
                    how: PreviousHolder::Released,
                    ttl: 0,
                    known_until: u64::MAX,
                    ends_since: 0,
                    entries_since: 0,
                };
                self.ended.insert(token, released);
            }
            _ => {}
        }
    }

    fn count_end(&mut self, entries: u32) {
        for ended in self.ended.values_mut() {
            ended.ends_since += 1;
            ended.entries_since += entries;
        }
    }

    /// The server's clock shows this. It may have gone back: then nothing is known for longer than
    /// a ttl from now.
    pub(super) fn on_clock(&mut self, clock: u64) {
        self.ended
            .values_mut()
            .for_each(|ended| ended.known_until = ended.known_until.min(clock + ended.ttl));
    }
}
