//! How a lease is kept: a caller hands it to the renewal thread, and may renew it itself.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::background::ScheduledLease;
use crate::engine::lease::{Due, Lease, deadline_from_reply, first_lost, loss_from_renewal};
use crate::error::{Error, Result};
use crate::loss::LossReason;
use crate::script::{Call, Outcome};
use crate::store::Answer;
use crate::store::clock::Time;

/// With this many new leases, the renewal thread is woken to take them in.
const WAKE_FROM: usize = 4096;
/// With more new leases than this, a caller that adds one drops some that have ended.
const DROP_ENDED_FROM: usize = 64;

impl Engine {
    /// Keeps a lease renewed from now on. It wakes the renewal thread only if that would wake too
    /// late by itself: most leases are released before their first renewal is due.
    pub(super) fn keep_renewed(&self, lease: &Arc<Lease>) {
        let renew_at = lease.first_renewal(self.now());
        let due = lease.next_due(renew_at);
        let (sender, new_leases) = &self.new_leases;
        // The engine itself has a receiver, so this never fails.
        let _ = sender.send(ScheduledLease {
            lease: Arc::clone(lease),
            renew_at,
            due_at: renew_at,
        });
        if new_leases.len() > DROP_ENDED_FROM {
            self.drop_ended_leases();
        }
        if new_leases.len() >= WAKE_FROM {
            self.waker.wake();
        } else {
            self.waker.wake_if_late_for(due);
        }
    }

    /// Looks at two new leases for each one added, and drops those that have ended. So their number
    /// stays small, and the renewal thread need not wake for them. It also does not free in one go
    /// the leases that other threads have allocated: threads that meet in the allocator put each
    /// other to sleep.
    fn drop_ended_leases(&self) {
        let (sender, new_leases) = &self.new_leases;
        // The renewal thread holds this mutex while it takes the leases in: otherwise it could miss
        // the two that this thread has taken out for a moment.
        let Some(_dropping) = self.dropping_ended.try_lock() else {
            return;
        };
        let now = self.now();
        for new in new_leases.try_iter().take(2) {
            if new.lease.due(now, Time::NEVER) != Due::Drop {
                let due = new.lease.next_due(new.renew_at);
                let _ = sender.send(new);
                self.waker.wake_if_late_for(due);
            }
        }
    }

    /// Renews the leases of a guard now. Blocks for at most two command timeouts.
    pub(crate) fn renew(&self, leases: &[Arc<Lease>]) -> Result<()> {
        self.check_fork()?;
        let started = self.now();
        if let Some(loss) = first_lost(leases, started) {
            return Err(Error::Lost { loss });
        }
        let renewal = |lease: &Arc<Lease>| {
            let renewed = lease.renewed_lease();
            renewed.request.renew(renewed.token, renewed.fence)
        };
        let calls: Vec<Call> = leases.iter().map(renewal).collect();
        let results = self.store.run(&calls, self.deadlines(started, Time::NEVER));
        let mut first_error = Ok(());
        for ((lease, call), result) in leases.iter().zip(&calls).zip(results) {
            let renewed = match result.answer {
                Ok(answer) => self.on_renew_reply(lease, &answer),
                Err(fault) => Err(self.error(fault, Some(&call.key), self.now() - started)),
            };
            first_error = first_error.and(renewed);
        }
        first_error
    }

    /// Applies the reply to a renewal that a guard's owner asked for.
    pub(super) fn on_renew_reply(&self, lease: &Arc<Lease>, answer: &Answer) -> Result<()> {
        let renewed = lease.renewed_lease();
        let reason = match answer.reply.outcome {
            // A failover went back to older data, and the token was granted again: others may
            // have held the lock in between.
            Outcome::Renewed { fence, .. } if fence != renewed.fence => LossReason::Taken,
            Outcome::Renewed { left, .. }
                if renewed.extend(
                    self.now(),
                    deadline_from_reply(&renewed.request, answer.sent, left),
                ) =>
            {
                self.meter.renewed.add(1);
                return Ok(());
            }
            // Too late. P6 (a loss stays): the lease was seen past its deadline, and is never held
            // again.
            Outcome::Renewed { .. } => LossReason::Expired,
            Outcome::Gone { ended, how, .. } => loss_from_renewal(renewed.fences(), ended, how),
            _ => LossReason::Taken,
        };
        Err(self.lose(lease, reason))
    }
}
