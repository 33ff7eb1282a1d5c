//! How a lease ends: a guard releases it or some of its permits, nobody wants it, or it is lost.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::engine::background::{Command, ReportTo, TokenRelease, excludes_late_copies};
use crate::engine::lease::{Lease, loss_from_release, loss_from_resent_release};
use crate::engine::request::Request;
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result, Step};
use crate::loss::{Loss, LossReason};
use crate::script::{Call, Mode, Token, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// Whether the caller wants the result of a release.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WantResult {
    /// `unlock`
    Yes,
    /// `Drop`
    No,
}

/// The result of a release on an open connection.
pub(super) enum ReleaseOutcome {
    /// How the lease ended: `None` is a clean release.
    Answered(Option<LossReason>),
    Open(Box<OpenRelease>),
}

/// A release without a reply. The renewal thread sends it next.
pub(super) struct OpenRelease {
    /// Why there was no reply. `None` if no connection was open.
    pub(super) fault: Option<StoreFault>,
    pub(super) release: TokenRelease,
}

/// A release that the renewal thread sends, and for whose result a caller may wait.
pub(super) struct BackgroundRelease<'a> {
    lease: &'a Lease,
    /// When the caller began.
    started: Time,
    fault: Option<StoreFault>,
    want: WantResult,
    /// `None` if the caller does not wait.
    result: Option<Receiver<Option<LossReason>>>,
}

impl Engine {
    /// Ends a guard's lease, as used or unfinished. P9 (nothing starves): the release goes out on an
    /// open connection at once, else by the renewal thread, so the caller never waits for one.
    /// Blocks for at most one command timeout. A drop returns when the release is written, if it may
    /// leave the reply to others.
    pub(crate) fn release(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        if lease.tenure().is_some() {
            return self.release_turn(lease, mode, want);
        }
        let started = self.now();
        let call = self.begin_release(lease, mode, started)?;
        let mut results = self.send_releases(&[lease], slice::from_ref(&call), started, want);
        let Some(result) = results.pop().flatten() else {
            return Ok(());
        };
        match self.on_release_reply(lease, &call, started, result.answer) {
            ReleaseOutcome::Answered(reason) => loss_result(lease, reason),
            ReleaseOutcome::Open(open) => {
                let sent = self.release_in_background(lease, started, *open, want);
                self.await_background_release(sent)
            }
        }
    }

    /// Ends a lease in this process. The returned call ends it in Redis.
    ///
    /// R14 (release first, then send): the renewal thread must not renew the lease after its
    /// release was sent.
    pub(super) fn begin_release(&self, lease: &Lease, mode: Mode, now: Time) -> Result<Call> {
        // If the lease is lost, the renewal thread abandons its token.
        lease.release(now).map_err(|loss| Error::Lost { loss })?;
        // A lease that nobody used was no guard's.
        if mode != Mode::Unused {
            self.meter.on_released(lease.held_for(now));
        }
        Ok(release_call(lease, mode))
    }

    /// Applies the reply to that call, which was sent at `started`.
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
                self.note_release_answered();
                // Forget the token only after the reply. Otherwise a late grant notice would find
                // it unknown and send an abandon that could overtake this release.
                if lease.was_queued {
                    self.waiters.forget_guarded(lease.token);
                }
                self.on_released(call, &answer);
                // R7 (late copies): a copy of the acquire that is under way must not take the lock
                // again.
                if answer.reply.more || !excludes_late_copies(&answer, lease.not_after) {
                    self.send_to_background(Command::Abandon(TokenRelease {
                        answered: true,
                        ..release
                    }));
                }
                let loss = if answer.resent {
                    loss_from_resent_release(mode, &answer.reply.outcome)
                } else {
                    loss_from_release(&answer.reply.outcome)
                };
                if let Some(reason) = loss.filter(|_| mode.is_guards()) {
                    self.meter.on_found_lost(reason);
                }
                ReleaseOutcome::Answered(loss)
            }
            Err(StoreFault::NotReady) => ReleaseOutcome::Open(Box::new(OpenRelease {
                fault: None,
                release,
            })),
            // If the connection was closed while idle, and the lane has no other yet, the renewal
            // thread sends the release again.
            Err(fault) => {
                self.note_release_fault(started, &fault);
                ReleaseOutcome::Open(Box::new(OpenRelease {
                    fault: Some(fault),
                    release: TokenRelease {
                        resent: true,
                        ..release
                    },
                }))
            }
        }
    }

    /// After the reply to a release: the next holder may be a waiter of this process.
    fn on_released(&self, call: &Call, answer: &Answer) {
        self.deliver_all(call, answer);
        self.wake_asker(&call.key);
        if answer.resent {
            // The first reply, which was lost, may have carried the grant of a waiter of this
            // process.
            self.sync_now(&call.key);
        }
    }

    /// Hands a release to the renewal thread, and arranges for its result.
    ///
    /// The drop of a guard waits for the first attempt too. Otherwise the thread's next acquire
    /// could overtake the release. It does not wait while releases get no replies.
    pub(super) fn release_in_background<'a>(
        &self,
        lease: &'a Lease,
        started: Time,
        open: OpenRelease,
        want: WantResult,
    ) -> BackgroundRelease<'a> {
        let OpenRelease { fault, mut release } = open;
        let redis_is_silent = fault.as_ref().is_some_and(|fault| !fault.is_no_outage())
            || self.unanswered_since.load(Ordering::Acquire) != 0;
        let mut result = None;
        if want == WantResult::Yes || !redis_is_silent {
            let (sender, receiver) = bounded(1);
            result = Some(receiver);
            release.report_to = match want {
                WantResult::Yes => ReportTo::UntilReply(sender),
                WantResult::No => ReportTo::UntilFirstAttempt(sender),
            };
        }
        self.abandon(release);
        BackgroundRelease {
            lease,
            started,
            fault,
            want,
            result,
        }
    }

    /// Waits for the result of a release that the renewal thread sends, if the caller wants it.
    pub(super) fn await_background_release(&self, sent: BackgroundRelease<'_>) -> Result<()> {
        let BackgroundRelease {
            lease,
            started,
            fault,
            want,
            result,
        } = sent;
        let key = Some(&lease.request.key);
        let Some(receiver) = result else {
            return fault.map_or(Ok(()), |f| Err(self.error(f, key, self.now() - started)));
        };
        let timeout = self.config.command_timeout;
        // If the caller already spent its time waiting for a reply, do not wait again.
        let no_time_left = fault.is_some() && self.now() >= started + timeout / 2;
        let reported = if no_time_left {
            None
        } else {
            self.clock.receive(&receiver, started + timeout)
        };
        match reported {
            Some(reason) => {
                self.note_release_answered();
                loss_result(lease, reason)
            }
            None => {
                self.note_release_unanswered(started);
                if want == WantResult::No && fault.is_none() {
                    // The renewal thread goes on, and logs it if the release fails.
                    return Ok(());
                }
                // The renewal thread has sent the release on its own connection, and has no reply
                // either.
                let fault = fault.unwrap_or_else(|| {
                    StoreFault::unavailable(
                        Step::Reply,
                        "redis did not confirm the release, which goes on in the background",
                    )
                });
                Err(self.error(fault, key, self.now() - started))
            }
        }
    }

    /// Releases all permits of a lease but `to`, on an open connection at once, else by the renewal
    /// thread. Does not wait for that thread: until Redis handles the release, nobody else can get
    /// the permits, so it is safe to return. Blocks for at most one command timeout.
    pub(crate) fn reduce(&self, lease: &Arc<Lease>, to: u32) -> Result<()> {
        let started = self.now();
        let call = self.begin_reduce(lease, to, started)?;
        let deadlines = self.at_once(started);
        let result = single_result(self.store.run(slice::from_ref(&call), deadlines));
        self.on_reduce_reply(lease, &call, started, result.answer)?;
        lease.keep_permits(to);
        Ok(())
    }

    /// The call that releases all permits of a held lease but `to`.
    pub(super) fn begin_reduce(&self, lease: &Lease, to: u32, now: Time) -> Result<Call> {
        if let Some(loss) = lease.loss_at(now) {
            return Err(Error::Lost { loss });
        }
        Ok(release_call(lease, Mode::Reduce { to }))
    }

    /// Applies the reply to that call, which was sent at `started`.
    pub(super) fn on_reduce_reply(
        &self,
        lease: &Arc<Lease>,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> Result<()> {
        let Verb::Release { mode, .. } = call.verb else {
            unreachable!("permits are released by a release")
        };
        // R7 (late copies): the guard keeps some permits, so this release need not outlast late
        // copies. The token's final release does.
        let release = TokenRelease {
            not_after: 0,
            ..TokenRelease::of_lease(lease, mode, started)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                self.note_release_fault(started, &fault);
                if !fault.is_transient() {
                    // A retry would be refused too, and the permits would stay taken while the
                    // guard lives. So report the error.
                    return Err(self.error(fault, Some(&call.key), self.now() - started));
                }
                self.send_to_background(Command::Abandon(TokenRelease {
                    resent: fault.is_ambiguous(),
                    ..release
                }));
                return Ok(());
            }
        };
        self.note_release_answered();
        self.on_released(call, &answer);
        if let Some(reason) = loss_from_release(&answer.reply.outcome) {
            return Err(self.lose(lease, reason));
        }
        if answer.reply.more {
            self.send_to_background(Command::Abandon(release));
        }
        Ok(())
    }

    /// A reply shows that a guard's lease is over. The renewal thread reports the loss and abandons
    /// the token.
    pub(super) fn lose(&self, lease: &Arc<Lease>, reason: LossReason) -> Error {
        lease.renewed_lease().lose(reason);
        self.send_to_background(Command::ReportLoss(Arc::clone(lease.renewed_lease())));
        let loss = lease.loss().unwrap_or_else(|| lease.loss_for(reason));
        Error::Lost { loss }
    }

    /// Reports the loss of a guard's lease to everyone watching. Only the first call reports, and
    /// returns true.
    pub(super) fn report_loss(&self, lease: &Lease, loss: &Loss) -> bool {
        if !lease.report_loss(loss) {
            return false;
        }
        self.meter.on_lost(loss.reason, lease.held_for(self.now()));
        if let Some(group) = &lease.request.group {
            group.report_loss(loss);
        }
        if let Some(callback) = &lease.request.on_lost {
            self.callbacks.call(Arc::clone(callback), loss.clone());
        }
        log::warn!(
            "lost {:?} (fence {}): {}",
            loss.lock,
            loss.fence,
            loss.reason
        );
        true
    }

    /// R13 (unwanted grants): the renewal thread releases a token that nobody wants. `about` names
    /// the lock.
    ///
    /// R7 (late copies): it goes on until a reply shows that no copy of the token's acquire can
    /// take it any more: the server's time is past `not_after`. Without a reply it goes on for
    /// `ttl`, after which a lease of the token has lapsed by itself.
    pub(super) fn abandon_token(&self, about: &Call, token: Token, not_after: u64, ttl: Duration) {
        self.abandon(TokenRelease {
            not_after,
            ..TokenRelease::abandon(about, token, self.now() + ttl)
        });
    }

    /// Like `abandon_token`, for a token that may be queued. It leaves the queue only by a release,
    /// so the renewal thread goes on until there is a reply.
    pub(super) fn abandon_queued(&self, request: &Request, token: Token, not_after: u64) {
        let about = request.renew(token, 0);
        self.abandon(TokenRelease {
            not_after,
            may_be_queued: true,
            ..TokenRelease::abandon(&about, token, self.now() + request.longest())
        });
    }

    /// Abandons the token of a lease that has no guard and never will.
    pub(super) fn abandon_lease(&self, lease: &Arc<Lease>) {
        if lease.tenure().is_some() {
            return self.pass_on(lease);
        }
        // R14 (release first, then send).
        lease.close();
        if lease.was_queued {
            self.waiters.forget_guarded(lease.token);
        }
        let about = lease.request.renew(lease.token, lease.fence);
        self.abandon_token(
            &about,
            lease.token,
            lease.not_after,
            lease.request.longest(),
        );
    }

    pub(super) fn abandon(&self, release: TokenRelease) {
        self.meter.background_releases.add(1);
        self.send_to_background(Command::Abandon(release));
    }

    /// A release got no reply. Until one does, the drop of a guard and the stop of the engine wait
    /// for less.
    pub(super) fn note_release_unanswered(&self, started: Time) {
        self.unanswered_since
            .store(started.as_nanos(), Ordering::Release);
    }

    pub(super) fn note_release_answered(&self) {
        self.unanswered_since.store(0, Ordering::Release);
    }

    /// An ambiguous fault counts as a missing reply, unless another connection may do better at
    /// once. After any other fault, the release was refused.
    pub(super) fn note_release_fault(&self, started: Time, fault: &StoreFault) {
        if fault.is_no_outage() {
            return;
        }
        if fault.is_ambiguous() {
            self.note_release_unanswered(started);
        } else {
            self.note_release_answered();
        }
    }
}

pub(super) fn release_call(lease: &Lease, mode: Mode) -> Call {
    lease.request.call(Verb::Release {
        token: lease.token,
        fence: lease.fence,
        mode: mode.up_to(lease.fence, lease.last_fence()),
    })
}

pub(super) fn loss_result(lease: &Lease, reason: Option<LossReason>) -> Result<()> {
    match reason {
        None => Ok(()),
        Some(reason) => Err(Error::Lost {
            loss: lease.loss_for(reason),
        }),
    }
}
