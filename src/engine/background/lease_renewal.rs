//! How the renewal thread renews leases, and reports their losses.

use std::sync::Arc;
use std::time::Duration;

use super::task::Task;
use super::thread::{PIPELINE, RenewalThread};
use crate::engine::lease::{Due, Lease, deadline_from_reply, loss_from_renewal};
use crate::engine::upkeep::{ScheduledLease, TokenRelease};
use crate::engine::waiter::{TokenOwner, WaiterAction};
use crate::loss::LossReason;
use crate::script::{Call, Family, Mode, Outcome};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

impl RenewalThread {
    pub(super) fn schedule(&mut self, scheduled: ScheduledLease) {
        let next = scheduled.lease.next_due(scheduled.renew_at);
        self.leases.put(next, scheduled);
    }

    pub(super) fn collect_renewals(&mut self, now: Time) -> Vec<(Task, Call)> {
        // Renewals that are due soon go along, so that many leases do not cause many wake-ups.
        let horizon = if self.leases.next() <= now {
            now + self.client.config().back_off
        } else {
            now
        };
        let mut batch = Vec::new();
        let mut early = Vec::new();
        while batch.len() < PIPELINE / 2
            && let Some(scheduled) = self.leases.take_due(horizon)
        {
            self.in_hand.push(Arc::clone(&scheduled.lease));
            let renew_at = if scheduled.renew_at <= horizon {
                now
            } else {
                scheduled.renew_at
            };
            match scheduled.lease.due(now, renew_at) {
                Due::Drop => {}
                Due::Lose(reason) => self.report_loss(&scheduled.lease, reason),
                Due::Renew => batch.extend(self.with_call(Task::Renew(scheduled), now)),
                // Its deadline is near, and its renewal is not.
                Due::Nothing => early.push(scheduled),
            }
        }
        early.into_iter().for_each(|s| self.schedule(s));
        // Renewals of mutexes go together where they are neighbours.
        batch.sort_by_key(|(_, call)| call.spec.family != Family::Mutex);
        batch
    }

    pub(super) fn on_renew_reply(
        &mut self,
        scheduled: ScheduledLease,
        result: Result<Answer, StoreFault>,
    ) {
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) => return self.on_renew_fault(scheduled, &fault),
        };
        if std::mem::take(&mut self.renewals_fail) {
            log::info!("renewals are answered again");
        }
        let lease = &scheduled.lease;
        match answer.reply.outcome {
            Outcome::Renewed { left, fence } if fence == lease.fence => {
                let deadline = deadline_from_reply(&lease.request, answer.sent, left);
                self.on_renewed(scheduled, deadline);
            }
            // Redis went back to an older copy of its data, in which the token was still queued,
            // and granted it again. Others may have held the lock in between.
            Outcome::Renewed { .. } => self.report_loss(lease, LossReason::Taken),
            Outcome::Gone { ended, how, .. } => {
                self.report_loss(lease, loss_from_renewal(lease.fences(), ended, how));
            }
            outcome => {
                log::warn!(
                    "renewing {:?}: redis sent an unexpected reply: {}",
                    lease.request.key.name,
                    outcome.word()
                );
                self.report_loss(lease, LossReason::Taken);
            }
        }
    }

    fn on_renewed(&mut self, scheduled: ScheduledLease, deadline: Time) {
        let now = self.client.now();
        let ScheduledLease {
            lease,
            renew_at,
            due_at,
        } = scheduled;
        lease.note_renewal_fault(None);
        if lease.extend(now, deadline) {
            self.client.meter().renewed.add(1);
            self.client.meter().renewal_lateness.record(now - due_at);
            let period = lease.request.renewal_period().unwrap_or(Duration::MAX);
            // Renewals keep their rhythm. After a long pause it starts again from now.
            let next = renew_at + period;
            let renew_at = if next > now { next } else { now + period };
            self.schedule(ScheduledLease {
                lease,
                renew_at,
                due_at: renew_at,
            });
        } else if let Some(loss) = lease.loss() {
            // The reply came too late. Some thread has seen the lease lost, and a lost lease is
            // never held again (P6).
            self.report_loss(&lease, loss.reason);
        }
    }

    fn on_renew_fault(&mut self, scheduled: ScheduledLease, fault: &StoreFault) {
        // The first renewal opens the thread's connection, and the server may close it while it is
        // idle. The next attempt shows whether renewals fail.
        if !fault.is_no_outage() {
            self.client.meter().renewal_failures.add(1);
            let name = &scheduled.lease.request.key.name;
            if self.renewals_fail {
                log::debug!("renewing {name:?} failed again: {fault}");
            } else {
                log::warn!("renewing {name:?} failed and will be tried again: {fault}");
            }
            self.renewals_fail = true;
            scheduled.lease.note_renewal_fault(Some(fault));
        }
        self.schedule(ScheduledLease {
            renew_at: self.retry_at(fault),
            ..scheduled
        });
    }

    /// Reports the loss of a lease, once, and abandons its token.
    pub(super) fn report_loss(&mut self, lease: &Arc<Lease>, reason: LossReason) {
        if let Some(tenure) = lease.tenure() {
            // `max_hold` ends a turn, and its tenure with it. A turn that its guard has ended has
            // passed the tenure on.
            lease.lose(reason);
            if let Some(loss) = lease.loss() {
                self.report_loss(tenure, loss.reason);
            }
            return;
        }
        lease.lose(reason);
        // R14 (release first, then send): a lease that its guard has released is not lost.
        let Some(loss) = lease.loss() else { return };
        // No guard has this grant yet, so its waiter decides what to do about it.
        if let TokenOwner::Waiter(waiter) = self.registry.owner_of(lease.token) {
            let action = waiter.state.lock().on_lease_lost(lease);
            if !matches!(action, WaiterAction::Nothing) {
                return self.grants.apply(&waiter, action);
            }
        }
        let mode = if lease.request.is_place {
            if !lease.report_loss(&loss) {
                return;
            }
            self.report_lost_tenure(lease, reason)
        } else {
            // A lock of a group has no guard before all of the group are granted. Its caller finds
            // it lost, and has not used it.
            let guarded = lease.request.is_guarded();
            let reported = if guarded {
                self.holding.report_loss(lease, &loss)
            } else {
                lease.report_loss(&loss)
            };
            if !reported {
                return;
            }
            if guarded { Mode::Lost } else { Mode::Unused }
        };
        if self.leases.next() == Time::NEVER {
            // No lease is left whose renewal could end the outage in the log. The next failure is
            // the beginning of another one.
            self.renewals_fail = false;
        }
        if lease.was_queued {
            self.registry.forget_guarded(lease.token);
        }
        // The next holder learns whether the last guard ended well. The loss is counted.
        let now = self.client.now();
        let release = TokenRelease {
            is_guards: false,
            ..TokenRelease::of_lease(lease, mode, now)
        };
        self.tasks.put(now, Task::ReleaseToken(release));
    }

    /// Reports the loss of a line's grant to the guard of its current turn, and queues the waiting
    /// members again. Returns how the grant is released.
    fn report_lost_tenure(&mut self, tenure: &Arc<Lease>, reason: LossReason) -> Mode {
        let lost = self.lines.on_tenure_lost(tenure, self.client.now());
        if let Some(turn) = &lost.turn {
            let loss = turn.loss().unwrap_or_else(|| turn.loss_for(reason));
            self.holding.report_loss(turn, &loss);
        }
        if let Some(place) = lost.place {
            self.tasks.put(self.client.now(), Task::Requeue(place));
        }
        lost.mode
    }

    /// At the end of the thread: no guard is left. One that was dropped a moment ago may have found its
    /// lock lost, and its drop left the report to this thread.
    pub(super) fn report_last_losses(&mut self) {
        for ScheduledLease { lease, .. } in self.leases.take_all() {
            if let Some(loss) = lease.loss() {
                self.report_loss(&lease, loss.reason);
            }
        }
    }

    /// Ends all leases, for a shutdown. Returns the names of the locks that guards lost by it.
    pub(super) fn end_all(&mut self) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        let mut all: Vec<Arc<Lease>> = self
            .leases
            .take_all()
            .into_iter()
            .map(|s| s.lease)
            .collect();
        let is_renewal = |_: &u64, (task, _): &mut (Task, Call)| matches!(task, Task::Renew(_));
        let owed = self.owed.extract_if(.., is_renewal);
        all.extend(owed.filter_map(|(_, (task, _))| task.into_lease()));
        self.in_hand.extend(all.iter().cloned());
        // A turn ends with its tenure, which is among them.
        for lease in all.into_iter().filter(|lease| lease.tenure().is_none()) {
            if lease.is_held(self.client.now()) {
                if lease.request.is_guarded() {
                    names.push(Arc::clone(&lease.request.key.name));
                }
                self.report_loss(&lease, LossReason::Shutdown);
            } else if let Some(loss) = lease.loss() {
                self.report_loss(&lease, loss.reason);
            }
        }
        names.sort();
        names
    }
}
