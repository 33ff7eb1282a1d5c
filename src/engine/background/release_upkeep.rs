//! How the renewal thread sends the releases of tokens, until the tokens are gone for good.

use std::sync::Arc;

use super::task::{OpenShutdown, Task};
use super::thread::RenewalThread;
use crate::engine::upkeep::TokenRelease;
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// During an outage few releases of queued tokens are added, since no waiter is queued without a
/// connection. If there are more tasks than this, tokens older than a ttl and T are no longer
/// released: they are left to their turn, and to R13 (unwanted grants).
const MANY: usize = 1 << 14;

impl RenewalThread {
    pub(super) fn on_token_release_reply(
        &mut self,
        release: TokenRelease,
        result: Result<Answer, StoreFault>,
    ) {
        match result {
            Ok(answer) => self.on_token_released(release, &answer),
            Err(fault) if self.is_worth_a_retry(&release, &fault) => {
                self.retry_release(release, &fault);
            }
            Err(fault) => self.leave_to_ttl(&release, &fault),
        }
    }

    fn on_token_released(&mut self, mut release: TokenRelease, answer: &Answer) {
        let now = self.client.now();
        self.releasing.note_release_answered();
        self.grants.wake_asker(&release.call.key);
        release.report(&answer.reply.outcome, self.client.meter());
        if answer.reply.more {
            // The script stopped at its limit of work for one call.
            return self.tasks.put(now, Task::ReleaseToken(release));
        }
        // R7 (late copies): a delayed acquire could take the token again. Not every reply has the
        // server's time. A reply to a late enough release is enough, too.
        if !answer.excludes_late_copies(release.not_after)
            && self.may_have_lease(&release, answer.sent)
        {
            let next = now + self.client.config().command_timeout;
            return self.tasks.put(next, Task::ReleaseToken(release));
        }
        self.forget_released(&release);
        if release.resent {
            // The reply that was lost may have carried the grant of a waiter of this process.
            self.grants.sync_now(&release.call.key);
        }
    }

    /// R7 (late copies): whether a lease of the token can be alive at this time. A copy of its
    /// acquire may take the lock for up to T after the release began, and such a lease lapses as
    /// much later.
    fn may_have_lease(&self, release: &TokenRelease, at: Time) -> bool {
        at < release.expires + self.client.config().command_timeout
    }

    /// R7 (late copies): without a reply, the release of a lease is tried for one ttl and T. By
    /// then the lease has lapsed. The release of a queued token is tried until there is a reply:
    /// nothing else ends the place of that token.
    fn is_worth_a_retry(&self, release: &TokenRelease, fault: &StoreFault) -> bool {
        let may_have_lease = self.may_have_lease(release, self.client.now());
        fault.is_transient() && (may_have_lease || release.may_be_queued && self.tasks.len() < MANY)
    }

    fn retry_release(&mut self, mut release: TokenRelease, fault: &StoreFault) {
        let now = self.client.now();
        release.resent |= fault.is_ambiguous();
        if !fault.is_no_outage() {
            release.end_first_attempt();
        }
        // A long outage may leave many of the lapsed ones, and none of them is in a hurry.
        let next = if self.may_have_lease(&release, now) {
            self.retry_at(fault)
        } else {
            now + self.client.config().check_period
        };
        self.tasks.put(next, Task::ReleaseToken(release));
    }

    fn leave_to_ttl(&mut self, release: &TokenRelease, fault: &StoreFault) {
        self.forget_released(release);
        if release.answered {
            // It was repeated to catch late copies (R7), or to serve waiters.
            return;
        }
        let name = &release.call.key.name;
        for shutdown in &mut self.shutdowns {
            shutdown.report.unreleased.push(Arc::clone(name));
        }
        if release.is_guards {
            log::warn!("{name:?} could not be released and is left to its ttl: {fault}");
        } else {
            // No guard has a lock by this token, or its loss was reported.
            log::debug!(
                "a token of {name:?} could not be released and is left to its ttl or its turn: {fault}"
            );
        }
    }

    fn forget_released(&self, release: &TokenRelease) {
        if release.ends_token() {
            self.registry.forget_guarded(release.token);
        }
    }

    /// When the next shutdown gives up.
    pub(super) fn shutdown_due(&self) -> Time {
        let due = self.shutdowns.iter().map(|open| open.command.report_by);
        due.min().unwrap_or(Time::NEVER)
    }

    /// Reports to the shutdowns whose time is over at `now`, and to all if every release is
    /// answered.
    ///
    /// A process may exit as soon as its shutdown returns. So an answer counts, not the sending of
    /// the release. The repetitions that catch late copies (R7) are not waited for: they can last a
    /// ttl, and the lock is free during that time.
    pub(super) fn report_to_shutdowns(&mut self, now: Time) {
        if self.shutdowns.is_empty()
            || self.unreleased().next().is_some() && now < self.shutdown_due()
        {
            return;
        }
        let names: Vec<Arc<str>> = self.unreleased().cloned().collect();
        let is_over = |open: &mut OpenShutdown| names.is_empty() || now >= open.command.report_by;
        for OpenShutdown {
            mut report,
            command,
        } in self.shutdowns.extract_if(.., is_over)
        {
            report.unreleased.extend_from_slice(&names);
            report.unreleased.sort();
            report.unreleased.dedup();
            // The one message of this channel, which has room for it. The caller may be gone.
            let _ = command.report_to.try_send(report);
        }
    }

    /// The names of the releases that Redis has not answered.
    fn unreleased(&self) -> impl Iterator<Item = &Arc<str>> {
        let owed = self.owed.values().map(|(task, _)| task);
        self.tasks.iter().chain(owed).filter_map(|task| match task {
            Task::ReleaseToken(release) if !release.answered => Some(&release.call.key.name),
            _ => None,
        })
    }

    /// At the end of the thread: sends the releases that are still open, and reads the replies to
    /// those whose callers have left, for at most one command timeout.
    pub(super) fn send_last_releases(&mut self) {
        let until = self.client.now() + self.client.config().command_timeout;
        for (task, _) in std::mem::take(&mut self.owed).into_values() {
            // The node may have run it, and its reply is of no use any more.
            if let Task::ReleaseToken(release) = task {
                let resent = true;
                let again = TokenRelease { resent, ..release };
                self.tasks.put(until, Task::ReleaseToken(again));
            }
        }
        loop {
            let now = self.client.now();
            // At the latest when the time is up, each of them has failed or is answered.
            self.client.store().read_unread();
            self.take_in();
            let all_is_read = self.client.store().unread_due() == Time::NEVER;
            let batch: Vec<_> = self
                .tasks
                .take_all()
                .into_iter()
                .filter(|task| matches!(task, Task::ReleaseToken(_)))
                .filter_map(|task| self.with_call(task, now))
                .collect();
            if batch.is_empty() && all_is_read {
                return;
            }
            if now >= until {
                return self.leave_all_to_ttl(batch);
            }
            self.send_and_wait(batch);
            let next = self.client.now() + self.client.config().command_timeout / 8;
            if all_is_read {
                // The link wakes the thread when its connection is ready. A release that is still
                // open then is sent again, at a slower pace.
                let _ = self
                    .client
                    .clock()
                    .receive(&self.intake.woken, next.min(until));
            } else {
                self.client.store().read_all_unread(next.min(until));
            }
        }
    }

    fn leave_all_to_ttl(&mut self, batch: Vec<(Task, Call)>) {
        let fault = StoreFault::unavailable(Step::Reply, "the manager ended first");
        for (task, _) in batch {
            if let Task::ReleaseToken(release) = task {
                self.leave_to_ttl(&release, &fault);
            }
        }
    }
}
