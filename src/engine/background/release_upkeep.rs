//! How the renewal thread sends the releases of tokens until the tokens are gone for good, and reads
//! the replies to the releases of dropped guards. A shutdown waits for both.

use std::sync::Arc;

use super::schedule::{Answered, Tasks};
use crate::engine::base::Base;
use crate::engine::releasing::Releasing;
use crate::engine::upkeep::{EndAll, ShutdownReport, Task, TokenRelease};
use crate::error::Step;
use crate::logging::Logger;
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// During an outage few releases of queued tokens are added, since no waiter is queued without a
/// connection. If there are more tasks than this, tokens older than a ttl and T are no longer
/// released: they are left to their turn, and to R13 (unwanted grants).
const MANY: usize = 1 << 14;

/// The releases that the renewal thread sends, and the shutdowns that wait for them.
pub(super) struct ReleaseUpkeep {
    base: Base,
    releasing: Arc<Releasing>,
    /// Shutdowns that have no report yet.
    shutdowns: Vec<OpenShutdown>,
    /// When this thread last read replies that nobody waits for.
    read_at: Time,
    /// When to look for such replies again; see [`ReleaseUpkeep::read_unread`].
    look_again_at: Time,
}

/// A shutdown that waits for the answers to releases.
struct OpenShutdown {
    report: ShutdownReport,
    command: EndAll,
}

impl ReleaseUpkeep {
    pub(super) fn new(base: &Base, releasing: &Arc<Releasing>) -> ReleaseUpkeep {
        ReleaseUpkeep {
            base: base.clone(),
            releasing: Arc::clone(releasing),
            shutdowns: Vec::new(),
            read_at: Time::from_nanos(0),
            look_again_at: Time::NEVER,
        }
    }

    /// When there is something to do besides the tasks.
    pub(super) fn next_due(&self) -> Time {
        self.look_again_at
            .min(self.unread_due())
            .min(self.shutdown_due())
    }

    pub(super) fn on_reply(&mut self, release: TokenRelease, result: Answered, tasks: &mut Tasks) {
        match result {
            Ok(answer) => self.on_released(release, &answer, tasks),
            Err(fault) if self.is_worth_a_retry(&release, &fault, tasks) => {
                self.retry(release, &fault, tasks);
            }
            Err(fault) => self.leave_to_ttl(&release, &fault),
        }
    }

    fn on_released(&self, mut release: TokenRelease, answer: &Answer, tasks: &mut Tasks) {
        let now = self.base.client.now();
        self.releasing.note_release_answered();
        self.base.grants.wake_asker(&release.call.key);
        release.report(&answer.reply.outcome, self.base.client.meter());
        if answer.reply.more {
            // The script stopped at its limit of work for one call.
            return tasks.put(now, Task::ReleaseToken(release));
        }
        // R7 (late copies): a delayed acquire could take the token again. Not every reply has the
        // server's time. A reply to a late enough release is enough, too.
        if !answer.excludes_late_copies(release.not_after)
            && self.may_have_lease(&release, answer.sent)
        {
            let next = now + self.base.client.config().command_timeout;
            return tasks.put(next, Task::ReleaseToken(release));
        }
        self.forget_released(&release);
        if release.resent {
            // The reply that was lost may have carried the grant of a waiter of this process.
            self.base.grants.sync_now(&release.call.key);
        }
    }

    /// R7 (late copies): whether a lease of the token can be alive at this time. A copy of its
    /// acquire may take the lock for up to T after the release began, and such a lease lapses as
    /// much later.
    fn may_have_lease(&self, release: &TokenRelease, at: Time) -> bool {
        at < release.expires + self.base.client.config().command_timeout
    }

    /// R7 (late copies): without a reply, the release of a lease is tried for one ttl and T. By
    /// then the lease has lapsed. The release of a queued token is tried until there is a reply:
    /// nothing else ends the place of that token.
    fn is_worth_a_retry(&self, release: &TokenRelease, fault: &StoreFault, tasks: &Tasks) -> bool {
        let may_have_lease = self.may_have_lease(release, self.base.client.now());
        fault.is_transient() && (may_have_lease || release.may_be_queued && tasks.len() < MANY)
    }

    fn retry(&self, mut release: TokenRelease, fault: &StoreFault, tasks: &mut Tasks) {
        let now = self.base.client.now();
        release.resent |= fault.is_ambiguous();
        if !fault.is_no_outage() {
            release.end_first_attempt();
        }
        // A long outage may leave many of the lapsed ones, and none of them is in a hurry.
        let next = if self.may_have_lease(&release, now) {
            tasks.retry_at(fault)
        } else {
            now + self.base.client.config().check_period
        };
        tasks.put(next, Task::ReleaseToken(release));
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
            log::warn!(
                logger: Logger,
                "{name:?} could not be released and is left to its ttl: {fault}"
            );
        } else {
            // No guard has a lock by this token, or its loss was reported.
            log::debug!(
                logger: Logger,
                "a token of {name:?} could not be released and is left to its ttl or its turn: {fault}"
            );
        }
    }

    fn forget_released(&self, release: &TokenRelease) {
        if release.ends_token() {
            self.base.registry.forget_guarded(release.token);
        }
    }

    /// A shutdown has ended the leases of these locks. Reads the replies to the releases of guards
    /// that were dropped before it. The releases that fail are in its report.
    ///
    /// Each of them has one command timeout. So this ends one after the command was sent, and
    /// leaves the shutdown its time for the releases that are still to be sent.
    pub(super) fn begin_shutdown(&mut self, command: EndAll, ended: Vec<Arc<str>>) {
        let store = self.base.client.store();
        store.read_all_unread(command.report_by - self.base.client.config().command_timeout);
        store.read_unread();
        let report = ShutdownReport {
            ended,
            unreleased: Vec::new(),
        };
        self.shutdowns.push(OpenShutdown { report, command });
    }

    /// When the next shutdown gives up.
    fn shutdown_due(&self) -> Time {
        let due = self.shutdowns.iter().map(|open| open.command.report_by);
        due.min().unwrap_or(Time::NEVER)
    }

    /// Reports to the shutdowns whose time is over at `now`, and to all if every release of these tasks
    /// is answered.
    ///
    /// A process may exit as soon as its shutdown returns. So an answer counts, not the sending of
    /// the release. The repetitions that catch late copies (R7) are not waited for: they can last a
    /// ttl, and the lock is free during that time.
    pub(super) fn report_to_shutdowns<'a>(
        &mut self,
        tasks: impl Iterator<Item = &'a Task>,
        now: Time,
    ) {
        if self.shutdowns.is_empty() {
            return;
        }
        let mut open = tasks
            .filter_map(|task| match task {
                Task::ReleaseToken(release) if !release.answered => Some(&release.call.key.name),
                _ => None,
            })
            .peekable();
        if open.peek().is_some() && now < self.shutdown_due() {
            return;
        }
        let names: Vec<Arc<str>> = open.cloned().collect();
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

    /// At the end of the thread: these releases have no answer.
    pub(super) fn leave_at_end(&mut self, open: &[TokenRelease]) {
        let fault = StoreFault::unavailable(Step::Reply, "the manager ended first");
        for release in open {
            self.leave_to_ttl(release, &fault);
        }
    }

    /// When to read replies that nobody has read until then.
    pub(super) fn unread_due(&self) -> Time {
        // A caller may be reading just now, and reads them all. Then they are overdue for a moment,
        // and this thread must not spin.
        let pause = self.base.client.config().command_timeout / 8;
        self.base
            .client
            .store()
            .unread_due()
            .max(self.read_at + pause)
    }

    /// Reads the replies that are due. Most of them are read by the next caller on the same lane.
    pub(super) fn read_unread(&mut self, now: Time) {
        if self.look_again_at <= now {
            self.look_again_at = Time::NEVER;
        }
        if self.unread_due() <= now {
            self.releasing.take_replies_left();
            self.base.client.store().read_unread();
            self.read_at = now;
        } else if self.base.client.store().unread_due() == Time::NEVER
            && self.releasing.take_replies_left()
        {
            // Callers have left replies, and other callers have read them. More are likely. The
            // first of them would wake this thread, if it slept for longer than they may lie.
            let next = now + self.base.client.config().command_timeout;
            self.look_again_at = self.look_again_at.min(next);
        }
    }
}
