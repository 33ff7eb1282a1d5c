//! How a lease ends: a guard releases it, or some of its permits. `unread` are the releases of dropped
//! guards whose replies others read, `ahead` are those with an acquire in front of them. `detach` passes
//! the lock on.

mod ahead;
mod detach;
mod unread;

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, bounded};

use crate::engine::base::Base;
use crate::engine::client::{Client, single_result};
use crate::engine::grants::Grants;
use crate::engine::holding::Holding;
use crate::engine::lease::{HeldLease, loss_from_release};
use crate::engine::names::Names;
use crate::engine::upkeep::{ReportTo, Task, TokenRelease, Upkeep};
use crate::engine::waiter::WaiterRegistry;
use crate::engine::waiting::Waiting;
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Call, Mode, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

pub(super) use detach::pass_refused;

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

/// Why a release that the renewal thread sends had no reply, and its result. `None` if the caller does
/// not wait.
type BackgroundRelease = (Option<StoreFault>, Option<Receiver<Option<LossReason>>>);

/// The releases of one manager, until their tokens are gone.
pub(crate) struct Releasing {
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    holding: Arc<Holding>,
    registry: Arc<WaiterRegistry>,
    grants: Arc<Grants>,
    waiting: Arc<Waiting>,
    names: Arc<Names>,
    /// When the last release was sent, in ns, if it got no reply. Else 0.
    unanswered_since: AtomicU64,
    /// Callers have left replies to others since the renewal thread looked.
    replies_left: AtomicBool,
}

impl Releasing {
    pub(super) fn new(base: &Base, names: &Arc<Names>) -> Releasing {
        Releasing {
            client: Arc::clone(&base.client),
            upkeep: Arc::clone(&base.upkeep),
            holding: Arc::clone(&base.holding),
            registry: Arc::clone(&base.registry),
            grants: Arc::clone(&base.grants),
            waiting: Arc::clone(&base.waiting),
            names: Arc::clone(names),
            unanswered_since: AtomicU64::new(0),
            replies_left: AtomicBool::new(false),
        }
    }

    /// Ends a guard's lease, as used or unfinished. P9 (nothing starves): the release goes out on an
    /// open connection at once, else by the renewal thread, so the caller never waits for one.
    /// Blocks for at most one command timeout. A drop returns when the release is written, if it may
    /// leave the reply to others.
    pub(crate) fn release(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        let started = self.client.now();
        let call = self.begin_release(lease, mode, started)?;
        let mut results = self.send_releases(&[lease], slice::from_ref(&call), started, want);
        let Some(result) = results.pop().flatten() else {
            return Ok(());
        };
        self.finish_release(lease, &call, started, result.answer, want)()
    }

    /// Applies the reply to a release. Without one, the renewal thread sends the release next. The
    /// returned step waits for that, if the caller does.
    pub(super) fn finish_release<'a>(
        &'a self,
        lease: &'a HeldLease,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
        want: WantResult,
    ) -> impl FnOnce() -> Result<()> + use<'a> {
        let (reason, sent) = match self.on_release_reply(lease, call, started, answer) {
            ReleaseOutcome::Answered(reason) => (reason, None),
            ReleaseOutcome::Open(open) => (None, Some(self.release_in_background(*open, want))),
        };
        move || match sent {
            None => loss_result(lease, reason),
            Some(sent) => self.await_background_release(lease, started, sent, want),
        }
    }

    /// Ends a lease in this process. The returned call ends it in Redis.
    ///
    /// R14 (release first, then send): the renewal thread must not renew the lease after its
    /// release was sent.
    pub(super) fn begin_release(&self, lease: &HeldLease, mode: Mode, now: Time) -> Result<Call> {
        // If the lease is lost, the renewal thread abandons its token.
        lease.release(now).map_err(|loss| Error::Lost { loss })?;
        self.release_doubtful_pass(lease);
        // A lease that nobody used was no guard's.
        if mode != Mode::Unused {
            self.client.meter().on_released(lease.held_for(now));
        }
        Ok(release_call(lease, mode))
    }

    /// Applies the reply to that call, which was sent at `started`.
    pub(super) fn on_release_reply(
        &self,
        lease: &HeldLease,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> ReleaseOutcome {
        let mode = call.release_mode();
        let release = TokenRelease::of_lease(lease, mode, started);
        match answer {
            Ok(answer) => {
                self.note_release_answered();
                // Forget the token only after the reply. Otherwise a late grant notice would find
                // it unknown and send an abandon that could overtake this release.
                if lease.was_queued {
                    self.registry.forget_guarded(lease.token);
                }
                self.on_released(call, &answer);
                // R7 (late copies): a copy of the acquire that is under way must not take the lock
                // again.
                if answer.reply.more || !answer.excludes_late_copies(lease.not_after) {
                    self.upkeep.ask(Task::ReleaseToken(TokenRelease {
                        answered: true,
                        ..release
                    }));
                }
                let loss = loss_from_release(mode, &answer.reply.outcome, answer.resent);
                if let Some(reason) = loss.filter(|_| mode.is_guards()) {
                    self.client.meter().on_found_lost(reason);
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
        self.grants.deliver_all(call, answer);
        self.grants.wake_asker(&call.key);
        if answer.resent {
            // The first reply, which was lost, may have carried the grant of a waiter of this
            // process.
            self.grants.sync_now(&call.key);
        }
    }

    /// Hands a release to the renewal thread, and arranges for its result.
    ///
    /// The drop of a guard waits for the first attempt too. Otherwise the thread's next acquire
    /// could overtake the release. It does not wait while releases get no replies.
    fn release_in_background(&self, open: OpenRelease, want: WantResult) -> BackgroundRelease {
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
        self.upkeep.abandon(release);
        (fault, result)
    }

    /// Waits for the result of a release that the renewal thread sends, if the caller wants it.
    fn await_background_release(
        &self,
        lease: &HeldLease,
        started: Time,
        (fault, result): BackgroundRelease,
        want: WantResult,
    ) -> Result<()> {
        let key = &lease.request.key;
        let Some(receiver) = result else {
            return fault.map_or(Ok(()), |f| Err(self.client.error_since(started, f, key)));
        };
        let timeout = self.client.config().command_timeout;
        // If the caller already spent its time waiting for a reply, do not wait again.
        let no_time_left = fault.is_some() && self.client.now() >= started + timeout / 2;
        let reported = if no_time_left {
            None
        } else {
            self.client.clock().receive(&receiver, started + timeout)
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
                Err(self.client.error_since(started, fault, key))
            }
        }
    }

    /// Releases all permits of a lease but `to`, on an open connection at once, else by the renewal
    /// thread. Does not wait for that thread: until Redis handles the release, nobody else can get
    /// the permits, so it is safe to return. Blocks for at most one command timeout.
    pub(crate) fn reduce(&self, lease: &Arc<HeldLease>, to: u32) -> Result<()> {
        let started = self.client.now();
        let call = self.begin_reduce(lease, to, started)?;
        let deadlines = self.client.at_once(started);
        let result = single_result(self.client.store().run(slice::from_ref(&call), deadlines));
        self.on_reduce_reply(lease, &call, started, result.answer)?;
        lease.keep_permits(to);
        Ok(())
    }

    /// The call that releases all permits of a held lease but `to`.
    pub(super) fn begin_reduce(&self, lease: &HeldLease, to: u32, now: Time) -> Result<Call> {
        if let Some(loss) = lease.loss_at(now) {
            return Err(Error::Lost { loss });
        }
        Ok(release_call(lease, Mode::Reduce { to }))
    }

    /// Applies the reply to that call, which was sent at `started`.
    pub(super) fn on_reduce_reply(
        &self,
        lease: &Arc<HeldLease>,
        call: &Call,
        started: Time,
        answer: std::result::Result<Answer, StoreFault>,
    ) -> Result<()> {
        let mode = call.release_mode();
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
                    return Err(self.client.error_since(started, fault, &call.key));
                }
                self.upkeep.ask(Task::ReleaseToken(TokenRelease {
                    resent: fault.is_ambiguous(),
                    ..release
                }));
                return Ok(());
            }
        };
        self.note_release_answered();
        self.on_released(call, &answer);
        if let Some(reason) = loss_from_release(mode, &answer.reply.outcome, false) {
            return Err(self.holding.lose(lease, reason));
        }
        if answer.reply.more {
            self.upkeep.ask(Task::ReleaseToken(release));
        }
        Ok(())
    }

    /// When the stop of the engine, which begins `now`, has waited for a command timeout.
    pub(super) fn stop_by(&self, now: Time) -> Time {
        let timeout = self.client.config().command_timeout;
        let since = match Time::from_nanos(self.unanswered_since.load(Ordering::Acquire)) {
            // A server that does not answer a release will not let the threads end in time either.
            since if now < since + timeout * 2 => since,
            // Every release was answered, or Redis may be back since. The renewal thread needs time
            // for the releases that are open.
            _ => now,
        };
        since + timeout
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

    /// Releases leases that nobody has used. The renewal thread abandons the tokens of lost ones.
    pub(crate) fn abandon_all(self: &Arc<Self>, leases: &[Arc<HeldLease>]) {
        let _ = self.release_all(leases, Mode::Unused, WantResult::No);
    }

    /// Releases several leases like [`Releasing::release`], all in one round trip. Returns what went
    /// wrong, losses first: an outage says less. Blocks for at most one command timeout.
    pub(crate) fn release_all(
        self: &Arc<Self>,
        leases: &[Arc<HeldLease>],
        mode: Mode,
        want: WantResult,
    ) -> Vec<Error> {
        let started = self.client.now();
        let mut results = Vec::new();
        let mut ending = Vec::new();
        let mut calls = Vec::new();
        for lease in leases {
            match self.begin_release(lease, mode, started) {
                Ok(call) => {
                    ending.push(lease);
                    calls.push(call);
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if !calls.is_empty() {
            let replies = self.send_releases(&ending, &calls, started, want);
            let mut finished = Vec::new();
            for ((lease, call), reply) in ending.into_iter().zip(&calls).zip(replies) {
                let Some(CallResult { answer, .. }) = reply else {
                    continue;
                };
                finished.push(self.finish_release(lease, call, started, answer, want));
            }
            // All are handed over before the first is waited for, so they go in one round trip,
            // too.
            results.extend(finished.into_iter().map(|wait| wait()));
        }
        let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
        errors.sort_by_key(|error| !matches!(error, Error::Lost { .. }));
        errors
    }
}

pub(super) fn release_call(lease: &HeldLease, mode: Mode) -> Call {
    lease.request.call(Verb::Release {
        token: lease.token,
        fence: lease.fence(),
        last: lease.last_fence(mode),
        mode,
    })
}

pub(super) fn loss_result(lease: &HeldLease, reason: Option<LossReason>) -> Result<()> {
    match reason {
        None => Ok(()),
        Some(reason) => Err(Error::Lost {
            loss: lease.loss_for(reason),
        }),
    }
}
