//! The end of a lease, as a reply reports it.

use super::lease::{HeldLease, deadline_from_reply};
use crate::logging::Logger;
use crate::loss::{LossReason, PreviousHolder};
use crate::script::{Mode, Outcome};
use crate::store::Answer;
use crate::store::clock::Time;

/// How a lease ended, by the reply to its release. `None`: it was held until this release.
///
/// If the release may have been sent twice, "already released" is no loss: the first copy released
/// the lease, and its reply was lost. After the first copy of a release of unfinished work, a mutex
/// answers the next one that the lease lapsed.
pub(crate) fn loss_from_release(
    mode: Mode,
    outcome: &Outcome,
    may_be_second: bool,
) -> Option<LossReason> {
    match (mode, outcome) {
        (_, Outcome::Released) => None,
        (_, Outcome::Already) | (Mode::Unfinished, Outcome::Lapsed) if may_be_second => None,
        (_, Outcome::Lapsed) => Some(LossReason::Expired),
        (_, Outcome::Forced) => Some(LossReason::Forced),
        _ => Some(LossReason::NotOwner),
    }
}

/// The new deadline of a lease, if it is later than the last one, by the reply to its renewal. Or why
/// the lease is lost.
///
/// A reply that the token is gone names the fence of the last grant that ended without a release, and
/// how that grant ended. If it was released by force, that is the fence which the caller of
/// `force_release` named.
pub(crate) fn renewed_until(lease: &HeldLease, answer: &Answer) -> Result<Time, LossReason> {
    match &answer.reply.outcome {
        // P1 (one holder): a copy of a pass can still run, after which others can get the lock sooner.
        Outcome::Renewed { fence, .. }
            if *fence == lease.fence() && !answer.excludes_late_copies(lease.pass_not_after()) =>
        {
            Ok(Time::from_nanos(0))
        }
        Outcome::Renewed { left, fence, .. } if *fence == lease.fence() => {
            Ok(deadline_from_reply(&lease.request, answer.sent, *left))
        }
        // Redis went back to an older copy of its data, in which the token was still queued, and
        // granted it again. Others may have held the lock in between.
        Outcome::Renewed { .. } => Err(LossReason::NotOwner),
        Outcome::Gone { ended, how, .. } => Err(match how {
            _ if !lease.fences().contains(ended) => LossReason::NotOwner,
            PreviousHolder::Forced => LossReason::Forced,
            _ => LossReason::Expired,
        }),
        outcome => {
            let name = &lease.request.key.name;
            let word = outcome.word();
            log::warn!(logger: Logger, "renewing {name:?}: redis sent an unexpected reply: {word}");
            Err(LossReason::NotOwner)
        }
    }
}
