//! Giving a lock back, and asking for more time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, bounded};

use crate::engine::background::{Command, ReportTo, TokenRelease, excludes_late_copies};
use crate::engine::lease::{
    deadline_from_reply, loss_from_release, loss_from_renewal, loss_from_resent_release,
};
use crate::engine::{Engine, Lease};
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// Whether the caller wants to know how a release went.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WantResult {
    /// `unlock`
    Yes,
    /// `Drop`
    No,
}

impl Engine {
    /// Ends a lease. A free connection is used at once, else the renewal thread's (P9): nothing here waits
    /// for the pool. Blocks for at most one command timeout.
    pub(crate) fn release(&self, lease: &Lease, tell: WantResult) -> Result<()> {
        let started = self.now();
        let call = self.begin_release(lease, Mode::Used, started)?;
        let answer = self.run_one(&call, self.at_once(started)).answer;
        match self.on_release_reply(lease, &call, started, answer) {
            ReleaseOutcome::Answered(reason) => loss_result(lease, reason),
            ReleaseOutcome::Open(fault, release) => {
                let answer = self.release_in_background(*release, &fault, tell);
                self.await_background_release(lease, &call, started, fault, answer, tell)
            }
        }
    }

    /// Has the renewal thread send a release; where its answer will come, if that is to be awaited. Who drops a guard
    /// waits too, or the thread's next call could overtake the release; but only for what comes of it at first, and not
    /// while releases have no answers.
    pub(super) fn release_in_background(
        &self,
        release: TokenRelease,
        fault: &Option<StoreFault>,
        tell: WantResult,
    ) -> Option<Receiver<Option<LossReason>>> {
        let in_vain = fault.is_some() || self.unanswered_since.load(Ordering::Acquire) != 0;
        if tell == WantResult::No && in_vain {
            self.in_background(release);
            return None;
        }
        let (sender, receiver) = bounded(1);
        let report_to = match tell {
            WantResult::No => ReportTo::UntilFirstAttempt(sender),
            WantResult::Yes => ReportTo::UntilReply(sender),
        };
        self.in_background(TokenRelease {
            report_to,
            ..release
        });
        Some(receiver)
    }

    /// What came of a release that the renewal thread sends, after this fault, if any.
    pub(super) fn await_background_release(
        &self,
        lease: &Lease,
        call: &Call,
        started: Time,
        fault: Option<StoreFault>,
        answer: Option<Receiver<Option<LossReason>>>,
        tell: WantResult,
    ) -> Result<()> {
        let Some(receiver) = answer else {
            return fault.map_or(Ok(()), |f| {
                Err(f.into_error(Some(&call.key), self.now() - started))
            });
        };
        // Whoever has waited for a reply in vain has no time left to wait for another.
        let until = started + self.config.command_timeout;
        let in_vain = fault.is_some() && self.now() >= started + self.config.command_timeout / 2;
        let outcome = if in_vain {
            None
        } else {
            self.clock.receive(&receiver, until)
        };
        match outcome {
            Some(_) => self.note_release_answered(),
            None => self.note_release_unanswered(started),
        }
        match outcome {
            Some(reason) => loss_result(lease, reason),
            // It goes on in the background, which says so if it comes to nothing.
            None if tell == WantResult::No => Ok(()),
            None => {
                // The renewal thread has sent it on a connection of its own, and has no reply either.
                let fault = fault.unwrap_or_else(|| {
                    StoreFault::unavailable(Step::Reply, "redis was silent to the background too")
                });
                Err(fault.into_error(Some(&call.key), self.now() - started))
            }
        }
    }

    /// Ends a lease here; the call ends it in Redis.
    pub(super) fn begin_release(&self, lease: &Lease, mode: Mode, now: Time) -> Result<Call> {
        // A token that was lost is given up, and forgotten, by the renewal thread.
        lease.release(now).map_err(|loss| Error::Lost { loss })?;
        Ok(lease.request.call(Verb::Release {
            token: lease.token,
            fence: lease.fence,
            mode,
        }))
    }

    /// What came of that call, which was sent at `started`.
    pub(super) fn on_release_reply(
        &self,
        lease: &Lease,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> ReleaseOutcome {
        let Verb::Release { mode, .. } = call.verb else {
            unreachable!("a lease is ended by a release")
        };
        let release = TokenRelease::of_lease(lease, mode, started);
        match answer {
            Ok(answer) => {
                // Not sooner: late news of the grant must not bring about a release that overtakes this one.
                self.note_release_answered();
                if lease.was_queued {
                    self.waiters.forget_guarded(lease.token);
                }
                self.deliver_all(call, &answer);
                if answer.resent {
                    // The reply that was lost may have had the grant of a waiter of ours.
                    self.sync_now(&call.key);
                }
                // R7: a copy of the acquire that is still under way must not take the lock again.
                if answer.reply.more || !excludes_late_copies(&answer, lease.not_after) {
                    self.send_to_background(Command::Abandon(release));
                }
                ReleaseOutcome::Answered(if answer.resent {
                    loss_from_resent_release(&answer.reply.outcome)
                } else {
                    loss_from_release(&answer.reply.outcome)
                })
            }
            Err(StoreFault::NotReady) => ReleaseOutcome::Open(None, Box::new(release)),
            // A connection that was closed while idle costs no more than this second way.
            Err(fault) => {
                self.note_release_fault(started, &fault);
                let resent = true;
                let release = TokenRelease { resent, ..release };
                ReleaseOutcome::Open(Some(fault), Box::new(release))
            }
        }
    }

    /// Gives back all permits of a lease but one. A free connection is used at once, else the renewal thread's, without
    /// waiting for its answer: as long as Redis has not heard of it, nobody else has the permits. Blocks for at most one
    /// command timeout.
    pub(crate) fn downgrade(&self, lease: &Arc<Lease>) -> Result<()> {
        let started = self.now();
        let call = self.begin_downgrade(lease, started)?;
        let answer = self.run_one(&call, self.at_once(started)).answer;
        self.on_downgrade_reply(lease, &call, started, answer)
    }

    /// The call with which a guard that is held gives back all but one.
    pub(super) fn begin_downgrade(&self, lease: &Lease, now: Time) -> Result<Call> {
        if !lease.is_held(now) {
            return Err(Error::Lost {
                loss: lease
                    .loss()
                    .unwrap_or_else(|| lease.loss_for(LossReason::Expired)),
            });
        }
        Ok(lease.request.call(Verb::Release {
            token: lease.token,
            fence: lease.fence,
            mode: Mode::Downgrade,
        }))
    }

    /// What came of that call, which was sent at `started`.
    pub(super) fn on_downgrade_reply(
        &self,
        lease: &Arc<Lease>,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> Result<()> {
        // The token keeps a permit. Its last release waits until no late copy can take it (R7).
        let release = TokenRelease {
            not_after: 0,
            ..TokenRelease::of_lease(lease, Mode::Downgrade, started)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                self.note_release_fault(started, &fault);
                if !fault.is_transient() {
                    // Nobody would be let in for as long as the guard lives.
                    return Err(fault.into_error(Some(&call.key), self.now() - started));
                }
                self.send_to_background(Command::Abandon(TokenRelease {
                    resent: fault.is_ambiguous(),
                    ..release
                }));
                return Ok(());
            }
        };
        self.note_release_answered();
        self.deliver_all(call, &answer);
        if answer.resent {
            // The reply that was lost may have had the grant of a waiter of ours.
            self.sync_now(&call.key);
        }
        let Some(reason) = loss_from_release(&answer.reply.outcome) else {
            if answer.reply.more {
                self.send_to_background(Command::Abandon(release));
            }
            return Ok(());
        };
        Err(self.lost(lease, reason))
    }

    /// A lease of a guard turned out to be over.
    fn lost(&self, lease: &Arc<Lease>, reason: LossReason) -> Error {
        lease.lose(reason);
        let loss = lease.loss().unwrap_or_else(|| lease.loss_for(reason));
        // The renewal thread tells of it and gives the token up.
        self.send_to_background(Command::ReportLoss(Arc::clone(lease)));
        Error::Lost { loss }
    }

    /// Releases get no answers: the stop of the engine and later releases wait less for one.
    pub(super) fn note_release_unanswered(&self, started: Time) {
        self.unanswered_since
            .store(started.as_nanos(), Ordering::Release);
    }

    pub(super) fn note_release_answered(&self) {
        self.unanswered_since.store(0, Ordering::Release);
    }

    pub(super) fn note_release_fault(&self, started: Time, fault: &StoreFault) {
        if fault.is_ambiguous() {
            self.note_release_unanswered(started);
        } else {
            self.note_release_answered();
        }
    }

    /// Renews a lease now. Blocks for at most two command timeouts.
    pub(crate) fn renew(&self, lease: &Arc<Lease>) -> Result<()> {
        if !lease.is_held(self.now()) {
            let loss = lease
                .loss()
                .unwrap_or_else(|| lease.loss_for(LossReason::Expired));
            return Err(Error::Lost { loss });
        }
        let answer = self.run_renewal(lease)?;
        self.on_renew_reply(lease, &answer)
    }

    /// What the answer to a renewal that a guard's owner asked for says.
    pub(super) fn on_renew_reply(&self, lease: &Arc<Lease>, answer: &Answer) -> Result<()> {
        let reason = match answer.reply.outcome {
            Outcome::Renewed { fence, .. } if fence != lease.fence => LossReason::Taken,
            Outcome::Renewed { left, .. }
                if lease.extend(self.now(), deadline_from_reply(answer.sent, left)) =>
            {
                self.counters.renewed.add(1);
                return Ok(());
            }
            Outcome::Renewed { .. } => LossReason::Expired,
            Outcome::Gone { ended, how, .. } => loss_from_renewal(lease.fence, ended, how),
            _ => LossReason::Taken,
        };
        Err(self.lost(lease, reason))
    }

    fn run_renewal(&self, lease: &Lease) -> Result<Answer> {
        self.check_fork()?;
        let call = lease.request.call(Verb::Renew { token: lease.token });
        let started = self.now();
        let deadlines = self.deadlines(started, Time::NEVER);
        self.run_one(&call, deadlines)
            .answer
            .map_err(|fault| fault.into_error(Some(&call.key), self.now() - started))
    }

    pub(super) fn check_fork(&self) -> Result<()> {
        if self.is_forked() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

/// What came of a release on a free connection.
pub(super) enum ReleaseOutcome {
    /// How the lease ended: `None` is a clean release.
    Answered(Option<LossReason>),
    /// It is for the renewal thread to send.
    Open(Option<StoreFault>, Box<TokenRelease>),
}

pub(super) fn loss_result(lease: &Lease, reason: Option<LossReason>) -> Result<()> {
    match reason {
        None => Ok(()),
        Some(reason) => Err(Error::Lost {
            loss: lease.loss_for(reason),
        }),
    }
}
