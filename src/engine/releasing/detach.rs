//! How a guard detaches its lock: Redis passes the lock on to a token that is nobody's. The bearer of
//! its secret attaches the lock, in whichever process: that is a try, see `trying`.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::Releasing;
use crate::config::margin;
use crate::engine::client::single_result;
use crate::engine::lease::{DoubtfulPass, HeldLease, loss_from_release};
use crate::engine::upkeep::{Task, TokenRelease};
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Mode, Outcome, Token};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

impl Releasing {
    /// Passes the lock of a held lease on to this token, for this time. Returns the fence of the new
    /// grant. Then the lease has ended here, like a released one. After an error the guard has it as
    /// before, for as long as it is held. Blocks for at most two command timeouts.
    ///
    /// If there is no answer, the token may own the lock. Then the end of the lease releases both.
    pub(crate) fn detach(
        &self,
        lease: &Arc<HeldLease>,
        to: Token,
        valid_for: Duration,
    ) -> Result<u64> {
        let started = self.client.now();
        if let Some(loss) = lease.loss_at(started) {
            return Err(Error::Lost { loss });
        }
        let request = &lease.request;
        // After an error the guard has the lock as before, and may take the next fence.
        let fences = (lease.fence(), lease.last_fence(Mode::Lost));
        let call = request.detach(lease.token, fences, to, valid_for);
        lease.begin_pass();
        let deadlines = self.client.deadlines(started, Time::NEVER);
        let result = single_result(self.client.store().run(slice::from_ref(&call), deadlines));
        self.client.publish_traffic();
        let doubtful = DoubtfulPass {
            to,
            not_after: result.not_after,
            expires: self.client.now() + valid_for.max(request.hold_at_least),
        };
        // P1 (one holder): the other lease begins no sooner than the request was sent.
        let until = started + valid_for.saturating_sub(margin(valid_for, Duration::ZERO));
        let fault = match result.answer {
            Ok(Answer { reply, .. }) if matches!(reply.outcome, Outcome::Granted(_)) => {
                let Outcome::Granted(grant) = reply.outcome else {
                    unreachable!("it was just looked at")
                };
                return self.finish_detach(lease, grant.fence, doubtful, until);
            }
            Ok(answer) => {
                if answer.resent {
                    self.doubt_detach(lease, doubtful, until);
                } else {
                    lease.end_pass();
                }
                let outcome = &answer.reply.outcome;
                if let Some(reason) = pass_refused(outcome) {
                    return Err(self.holding.lose(lease, reason));
                }
                if *outcome != Outcome::Late {
                    return Err(self.client.unexpected_reply(&call, outcome));
                }
                StoreFault::unavailable(Step::Reply, "no time is left to send the request again")
            }
            Err(fault) => {
                if fault.is_ambiguous() {
                    self.doubt_detach(lease, doubtful, until);
                } else {
                    lease.end_pass();
                }
                fault
            }
        };
        Err(self.client.error_since(started, fault, &request.key))
    }

    /// The lock was passed on. P6 (a loss stays): if the guard has lost it meanwhile, that counts.
    fn finish_detach(
        &self,
        lease: &Arc<HeldLease>,
        fence: u64,
        doubtful: DoubtfulPass,
        until: Time,
    ) -> Result<u64> {
        let now = self.client.now();
        // R14 (release first, then send): a renewal that is under way cannot report a loss any more.
        if let Err(loss) = lease.release(now) {
            self.doubt_detach(lease, doubtful, until);
            return Err(Error::Lost { loss });
        }
        self.client.meter().on_released(lease.held_for(now));
        if lease.was_queued {
            self.registry.forget_guarded(lease.token);
        }
        // R7 (late copies): a copy of the acquire must not queue for the lock again.
        if lease.not_after != 0 {
            self.upkeep.ask(Task::ReleaseToken(TokenRelease {
                answered: true,
                ..TokenRelease::of_lease(lease, Mode::Used, now)
            }));
        }
        Ok(fence)
    }

    /// Either token may own the lock. If the lease has ended already, its end has not seen that.
    fn doubt_detach(&self, lease: &Arc<HeldLease>, doubtful: DoubtfulPass, until: Time) {
        lease.doubt_pass(doubtful, until);
        if lease.is_over() {
            self.release_doubtful_pass(lease);
        } else {
            self.holding.watch(lease);
        }
    }

    /// The lease has ended, so the other tokens are released, too, if there are any.
    pub(super) fn release_doubtful_pass(&self, lease: &HeldLease) {
        for release in TokenRelease::of_doubtful_passes(lease) {
            self.upkeep.abandon(release);
        }
    }
}

/// Why Redis did not pass a lock on: what became of the lease from which it was to be passed. `None`
/// if the answer does not say that.
pub(in crate::engine) fn pass_refused(outcome: &Outcome) -> Option<LossReason> {
    match outcome {
        Outcome::Already | Outcome::Lapsed | Outcome::Forced | Outcome::Lost | Outcome::Unknown => {
            loss_from_release(Mode::Used, outcome, false)
        }
        // The lock is gone, since the name is another kind of lock now.
        Outcome::Kind(_) => Some(LossReason::NotOwner),
        _ => None,
    }
}
