//! The leases that the renewal thread renews, and their losses.

use std::sync::Arc;
use std::time::Duration;

use super::link::Replied;
use super::schedule::{Answered, PIPELINE, Schedule, Tasks};
use crate::engine::base::Base;
use crate::engine::lease::{Due, HeldLease, renewed_until};
use crate::engine::request::LostBy;
use crate::engine::upkeep::{ScheduledLease, Task, TokenRelease};
use crate::engine::waiter::{TokenOwner, WaiterAction};
use crate::logging::Logger;
use crate::loss::LossReason;
use crate::script::{Call, Family, Mode};
use crate::stats::Count;
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// All leases of the manager from their first renewal to their end.
pub(super) struct LeaseRenewal {
    base: Base,
    leases: Schedule<ScheduledLease>,
    /// Leases that are out of the schedule for the moment. After a panic they are lost like the
    /// scheduled ones, so that none is forgotten.
    in_hand: Vec<Arc<HeldLease>>,
    /// When to look for new leases although none is due; see [`LeaseRenewal::take_in`].
    look_again_at: Time,
    /// Renewals fail. The log says when that begins and when it ends, not for each lock.
    renewals_fail: bool,
}

impl LeaseRenewal {
    pub(super) fn new(base: &Base) -> LeaseRenewal {
        LeaseRenewal {
            base: base.clone(),
            leases: Schedule::new(),
            in_hand: Vec::new(),
            look_again_at: Time::NEVER,
            renewals_fail: false,
        }
    }

    /// These tasks are out of the link, and their results are not handled yet.
    pub(super) fn keep_in_hand(&mut self, replied: &[Replied]) {
        for (task, ..) in replied {
            if let Task::Renew(scheduled) = task {
                self.in_hand.push(Arc::clone(&scheduled.lease));
            }
        }
    }

    /// A round of the main loop begins. All leases of the last one are scheduled, or have ended.
    pub(super) fn begin_round(&mut self) {
        self.in_hand.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.next() == Time::NEVER
    }

    pub(super) fn next_due(&self) -> Time {
        self.leases.next().min(self.look_again_at)
    }

    /// Since when the oldest of the leases has been held by one guard.
    pub(super) fn oldest_hold(&self, now: Time) -> Option<Time> {
        let leases = self.leases.iter().map(|scheduled| &scheduled.lease);
        let held = leases.filter(|lease| lease.is_held(now));
        held.map(|lease| lease.held_by_one_guard_since()).min()
    }

    /// Takes in the new leases.
    pub(super) fn take_in(&mut self, now: Time, tasks: &mut Tasks) {
        if self.look_again_at <= now {
            self.look_again_at = Time::NEVER;
        }
        let new = self.base.holding.take_new();
        self.in_hand
            .extend(new.iter().map(|s| Arc::clone(&s.lease)));
        for scheduled in new {
            let lease = &scheduled.lease;
            match lease.due(now, scheduled.renew_at) {
                // The lock was taken and released again. More leases of the same request are
                // likely. Each would wake this thread, if it slept past the time when they are due.
                Due::Drop => {
                    self.look_again_at = self.look_again_at.min(now + lease.request.soonest_due());
                }
                Due::Lose(reason) => {
                    self.lose(lease, reason, tasks);
                }
                Due::Nothing | Due::Renew => self.schedule(scheduled),
            }
        }
    }

    /// Has these leases renewed at once, if they are renewed at all.
    pub(super) fn renew_now(&mut self, now: Time, is_wanted: impl Fn(&HeldLease) -> bool) {
        for mut scheduled in self.leases.take_all() {
            if scheduled.renew_at != Time::NEVER && is_wanted(&scheduled.lease) {
                scheduled.renew_at = now;
                scheduled.due_at = scheduled.due_at.min(now);
            }
            self.schedule(scheduled);
        }
    }

    fn schedule(&mut self, scheduled: ScheduledLease) {
        let next = scheduled.lease.next_due(scheduled.renew_at);
        self.leases.put(next, scheduled);
    }

    /// The renewals that are due, at most half a pipeline. Losses are reported.
    pub(super) fn collect(&mut self, now: Time, tasks: &mut Tasks) -> Vec<(Task, Call)> {
        // Renewals that are due soon go along, so that many leases do not cause many wake-ups.
        let horizon = if self.leases.next() <= now {
            now + self.base.client.config().back_off
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
                Due::Lose(reason) => {
                    self.lose(&scheduled.lease, reason, tasks);
                }
                Due::Renew => {
                    let lease = &scheduled.lease;
                    let call = lease.request.renew(lease.token, lease.fence());
                    batch.push((Task::Renew(scheduled), call));
                }
                // Its deadline is near, and its renewal is not.
                Due::Nothing => early.push(scheduled),
            }
        }
        early.into_iter().for_each(|s| self.schedule(s));
        // Renewals of mutexes go together where they are neighbours.
        batch.sort_by_key(|(_, call)| call.spec.family != Family::Mutex);
        batch
    }

    pub(super) fn on_reply(
        &mut self,
        scheduled: ScheduledLease,
        result: Answered,
        tasks: &mut Tasks,
    ) {
        let answer = match result.and_then(Answer::in_time) {
            Ok(answer) => answer,
            Err(fault) => return self.on_renew_fault(scheduled, &fault, tasks),
        };
        if std::mem::take(&mut self.renewals_fail) {
            log::info!(logger: Logger, "renewals are answered again");
        }
        match renewed_until(&scheduled.lease, &answer) {
            Ok(deadline) => {
                self.base.hearing.on_renewed(&scheduled.lease, &answer);
                self.on_renewed(scheduled, (answer.sent, deadline), tasks);
            }
            // The answer to the pass, which is due, says who owns the lock now.
            Err(_) if scheduled.lease.is_being_passed() => {
                let renew_at = self.base.client.now() + self.base.client.config().back_off;
                self.schedule(ScheduledLease {
                    renew_at,
                    ..scheduled
                });
            }
            Err(reason) => {
                self.lose(&scheduled.lease, reason, tasks);
            }
        }
    }

    fn on_renewed(
        &mut self,
        scheduled: ScheduledLease,
        (sent, deadline): (Time, Time),
        tasks: &mut Tasks,
    ) {
        let now = self.base.client.now();
        let lease = scheduled.lease;
        lease.note_renewal_fault(None);
        if lease.extend(now, deadline) {
            lease.note_confirmed(sent);
            let meter = self.base.client.meter();
            meter.count(Count::RenewalsConfirmed);
            meter.renewal_lateness.record(now - scheduled.due_at);
            let period = lease.request.renewal_period().unwrap_or(Duration::MAX);
            // Renewals keep their rhythm. After a long pause it starts again from now.
            let next = scheduled.renew_at + period;
            let renew_at = if next > now { next } else { now + period };
            self.schedule(ScheduledLease {
                lease,
                renew_at,
                due_at: renew_at,
            });
        } else if let Some(loss) = lease.loss() {
            // The reply came too late. Some thread has seen the lease lost, and a lost lease is
            // never held again (P6).
            self.lose(&lease, loss.reason, tasks);
        }
    }

    fn on_renew_fault(&mut self, scheduled: ScheduledLease, fault: &StoreFault, tasks: &Tasks) {
        // The first renewal opens the thread's connection, and the server may close it while it is
        // idle. The next attempt shows whether renewals fail.
        if !fault.is_no_outage() {
            self.base.client.meter().count(Count::RenewalsFailed);
            let name = &scheduled.lease.request.key.name;
            if self.renewals_fail {
                log::debug!(logger: Logger, "renewing {name:?} failed again: {fault}");
            } else {
                log::warn!(
                    logger: Logger,
                    "renewing {name:?} failed and will be tried again: {fault}"
                );
            }
            self.renewals_fail = true;
            scheduled.lease.note_renewal_fault(Some(fault));
        }
        self.schedule(ScheduledLease {
            renew_at: tasks.retry_at(fault),
            ..scheduled
        });
    }

    /// Ends a lease as lost, unless it has ended. Reports that once, and releases its token. True if a
    /// guard has lost it.
    pub(super) fn lose(
        &mut self,
        lease: &Arc<HeldLease>,
        reason: LossReason,
        tasks: &mut Tasks,
    ) -> bool {
        if let Some(lender) = lease.lender() {
            // `max_hold` ends it, and its lender with it. If its guard has ended it, the lender is
            // lent to another by now.
            lease.lose(reason);
            let loss = lease.loss();
            return loss.is_some_and(|loss| self.lose(lender, loss.reason, tasks));
        }
        lease.lose(reason);
        // R14 (release first, then send): a lease that its guard has released is not lost.
        let Some(loss) = lease.loss() else {
            return false;
        };
        // No guard has this grant yet, so its waiter decides what to do about it.
        if let TokenOwner::Waiter(waiter) = self.base.registry.owner_of(lease.token) {
            let action = waiter.state.lock().on_lease_lost(lease);
            if !matches!(action, WaiterAction::Nothing) {
                self.base.grants.apply(&waiter, action);
                return false;
            }
        }
        let Some(watcher) = lease.report_loss() else {
            return false;
        };
        let lost_by = match &lease.request.owner {
            Some(owner) => owner.on_lost(&lease.request, lease.token, &loss),
            None => LostBy::Guard(watcher),
        };
        let mode = match lost_by {
            LostBy::Guard(watcher) => {
                self.base.holding.announce_loss(lease, &loss, watcher);
                Mode::Lost
            }
            LostBy::Owner { mode, queue_first } => {
                if let Some(token) = queue_first
                    && let TokenOwner::Waiter(waiter) = self.base.registry.owner_of(token)
                {
                    tasks.put_now(Task::Requeue(waiter));
                }
                mode
            }
        };
        if self.is_empty() {
            // No lease is left whose renewal could end the outage in the log. The next failure is
            // the beginning of another one.
            self.renewals_fail = false;
        }
        if lease.was_queued {
            self.base.registry.forget_guarded(lease.token);
        }
        // The next holder learns whether the last guard ended well. The loss is counted.
        let now = self.base.client.now();
        let release = TokenRelease {
            is_guards: false,
            ..TokenRelease::of_lease(lease, mode, now)
        };
        tasks.put(now, Task::ReleaseToken(release));
        for release in TokenRelease::of_doubtful_passes(lease) {
            tasks.put(now, Task::ReleaseToken(release));
        }
        mode == Mode::Lost
    }

    /// Another thread has seen a lease lost, and has not reported it.
    pub(super) fn report_if_lost(&mut self, lease: &Arc<HeldLease>, now: Time, tasks: &mut Tasks) {
        if let Due::Lose(reason) = lease.due(now, Time::NEVER) {
            self.lose(lease, reason, tasks);
        }
    }

    /// At the end of the thread: no guard is left. One that was dropped a moment ago may have found its
    /// lock lost, and its drop left the report to this thread.
    pub(super) fn report_last_losses(&mut self, tasks: &mut Tasks) {
        for ScheduledLease { lease, .. } in self.leases.take_all() {
            if let Some(loss) = lease.loss() {
                self.lose(&lease, loss.reason, tasks);
            }
        }
    }

    /// Ends all leases for a shutdown, with these, whose renewals have no reply yet. Returns the names
    /// of the locks that guards lost by it.
    pub(super) fn end_all(
        &mut self,
        owed: Vec<Arc<HeldLease>>,
        tasks: &mut Tasks,
    ) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        // A lent lease ends with its lender, which is among them.
        let all = self.take_all(owed).into_iter();
        for lease in all.filter(|lease| lease.lender().is_none()) {
            if lease.is_held(self.base.client.now()) {
                if self.lose(&lease, LossReason::Shutdown, tasks) {
                    names.push(Arc::clone(&lease.request.key.name));
                }
            } else if let Some(loss) = lease.loss() {
                self.lose(&lease, loss.reason, tasks);
            }
        }
        names.sort();
        names
    }

    /// Takes out all leases there are, with these, whose renewals have no reply yet. Until the round
    /// ends they are in hand, so some may come twice.
    pub(super) fn take_all(&mut self, owed: Vec<Arc<HeldLease>>) -> Vec<Arc<HeldLease>> {
        let scheduled = self.leases.take_all().map(|s| s.lease);
        self.in_hand.extend(scheduled.chain(owed));
        self.in_hand.clone()
    }
}
