//! The end of a lease, as a reply reports it.

use std::ops::RangeInclusive;

use crate::loss::{LossReason, PreviousHolder};
use crate::script::{Mode, Outcome};

/// How a lease ended, by the reply to its release. `None`: it was held until this release.
pub(crate) fn loss_from_release(outcome: &Outcome) -> Option<LossReason> {
    match outcome {
        Outcome::Released => None,
        Outcome::Lapsed => Some(LossReason::Expired),
        Outcome::Forced => Some(LossReason::Forced),
        _ => Some(LossReason::Taken),
    }
}

/// The same for a release that may have been sent twice. "Already released" is then no loss: the
/// first copy released the lease, and its reply was lost. After the first copy of a release of
/// unfinished work, a mutex answers the next one that the lease lapsed.
pub(crate) fn loss_from_resent_release(mode: Mode, outcome: &Outcome) -> Option<LossReason> {
    match (mode, outcome) {
        (_, Outcome::Already) | (Mode::Unfinished, Outcome::Lapsed) => None,
        (_, other) => loss_from_release(other),
    }
}

/// Why a lease with these fences is gone, by the reply to a renewal. The reply names the fence of the
/// last grant that ended without a release, and how that grant ended. If it was released by force,
/// that is the fence which the caller of `force_release` named.
pub(crate) fn loss_from_renewal(
    fences: RangeInclusive<u64>,
    ended_fence: u64,
    ended_how: PreviousHolder,
) -> LossReason {
    match ended_how {
        _ if !fences.contains(&ended_fence) => LossReason::Taken,
        PreviousHolder::Forced => LossReason::Forced,
        _ => LossReason::Expired,
    }
}
