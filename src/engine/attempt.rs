//! An attempt: one acquire that may not wait. It takes a lock that is free and for which nobody
//! waits.

use std::slice;
use std::sync::Arc;

use crate::engine::lease::{Lease, deadline_from_reply};
use crate::engine::request::Request;
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Call, Grant, Outcome, Token, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// An acquire that may not wait.
pub(crate) struct TryAcquire<'a> {
    pub(crate) request: &'a Arc<Request>,
    pub(crate) token: Token,
    pub(crate) call: &'a Call,
    pub(crate) doubt: Doubt,
}

/// R7 (late copies): what is known of the copies of an acquire.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Doubt {
    /// A copy may still be under way.
    pub(crate) in_doubt: bool,
    /// The server refuses every copy from this server time on.
    pub(crate) not_after: u64,
}

/// The result of an acquire that may not wait.
pub(super) enum TryOutcome {
    Done(Attempted),
    /// The script passed over as many dead waiters as one call may. It must be sent again. If no
    /// time is left for that, the lock is not taken: Redis has answered.
    More,
    /// It must be sent again. If no time is left for that, the fault is the error.
    Again(StoreFault),
    Failed(StoreFault),
}

/// How an attempt ends.
pub(crate) enum Attempted {
    Granted(Arc<Lease>),
    Taken,
    /// R22 (tries among the dead): the lock is taken, but perhaps by the dead alone. The script has
    /// called the processes that wait. Those that are alive come within one command timeout.
    Silent,
}

impl Attempted {
    /// The lease, if the lock was taken.
    pub(crate) fn lease(self) -> Option<Arc<Lease>> {
        match self {
            Attempted::Granted(lease) => Some(lease),
            Attempted::Taken | Attempted::Silent => None,
        }
    }
}

impl Engine {
    /// Takes the lock if no live process holds it or waits for it. Blocks for at most two command
    /// timeouts.
    pub(crate) fn try_acquire(&self, request: &Arc<Request>) -> Result<Option<Arc<Lease>>> {
        self.prepare(request)?;
        let started = self.now();
        let timeout = self.config.command_timeout;
        let first = self.attempt_as(request, Wait::No, Time::NEVER, started + timeout)?;
        if !matches!(first, Attempted::Silent) {
            return Ok(first.lease());
        }
        let Some(until) = self.await_called(started) else {
            return Ok(None);
        };
        self.attempt_as(request, Wait::NoneCame, until, until + timeout * 3 / 4)
            .map(Attempted::lease)
    }

    /// R22 (tries among the dead): waits until one and a half command timeouts after `started`, when
    /// the try began. In that time the processes answer that were called. `None`, at once: that is
    /// less than one command timeout.
    ///
    /// Returns until when the next request may be sent. Its reply has one command timeout more, which
    /// is the rest of two since the start. A thread that was not run for longer has half of one all
    /// the same.
    pub(super) fn await_called(&self, started: Time) -> Option<Time> {
        let timeout = self.config.command_timeout;
        let ask_at = started + timeout * 3 / 2;
        if self.now() + timeout > ask_at {
            return None;
        }
        self.clock.sleep_until(ask_at);
        Some((started + timeout).max(self.now() - timeout / 2))
    }

    /// One attempt of a caller that waits if the lock is taken.
    pub(super) fn attempt(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        let ends = (self.now() + self.config.command_timeout).min(until);
        self.attempt_as(request, Wait::No, until, ends)
            .map(Attempted::lease)
    }

    /// Sends one acquire that may not wait. It is sent again after a transient refusal, and after a
    /// reply that asks for it, until `ends`. Each may take two command timeouts, and one past
    /// `until`.
    fn attempt_as(
        &self,
        request: &Arc<Request>,
        wait: Wait,
        until: Time,
        ends: Time,
    ) -> Result<Attempted> {
        let started = self.now();
        let deadlines = self.deadlines(started, until);
        let token = Token::new();
        let call = request.acquire(token, wait);
        let mut attempt = TryAcquire {
            request,
            token,
            call: &call,
            doubt: Doubt::default(),
        };
        let mut refused = None;
        loop {
            let result = single_result(self.send_acquires(slice::from_ref(&call), deadlines));
            let fault = match self.on_try_reply(&mut attempt, result)? {
                TryOutcome::Done(attempted) => return Ok(attempted),
                TryOutcome::More => None,
                TryOutcome::Again(fault) => Some(fault),
                TryOutcome::Failed(fault @ StoreFault::Server { .. })
                    if fault.is_transient() && !fault.is_ambiguous() =>
                {
                    self.clock
                        .sleep_until(self.now() + self.config.back_off / 10);
                    refused = Some(fault.clone());
                    Some(fault)
                }
                TryOutcome::Failed(fault) => {
                    // The server's last refusal explains more than the lack of a connection to ask
                    // it again.
                    let never_sent = fault.is_transient() && !fault.is_ambiguous();
                    let fault = refused.filter(|_| never_sent).unwrap_or(fault);
                    return Err(self.error(fault, Some(&call.key), self.now() - started));
                }
            };
            if self.now() >= ends {
                if attempt.doubt.in_doubt {
                    self.abandon_attempt(&attempt);
                }
                return match fault {
                    None => Ok(Attempted::Taken),
                    // R11 (missing keys): a node answered that it cannot decide yet.
                    Some(fault) if fault.is_undecided() => Ok(Attempted::Taken),
                    Some(fault) => Err(self.error(fault, Some(&call.key), self.now() - started)),
                };
            }
            if fault.is_some() {
                self.meter.retries.add(1);
            }
        }
    }

    /// Applies the reply to an acquire that may not wait.
    pub(super) fn on_try_reply(
        &self,
        attempt: &mut TryAcquire<'_>,
        result: CallResult,
    ) -> Result<TryOutcome> {
        let doubt = &mut attempt.doubt;
        doubt.not_after = doubt.not_after.max(result.not_after);
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => {
                if fault.is_ambiguous() {
                    self.abandon_attempt(attempt);
                }
                return Ok(TryOutcome::Failed(fault));
            }
        };
        doubt.in_doubt |= answer.resent;
        self.deliver_all(attempt.call, &answer);
        match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let lease = self.accept_grant(attempt, &grant, answer.sent)?;
                Ok(TryOutcome::Done(Attempted::Granted(lease)))
            }
            outcome @ (Outcome::Busy { .. } | Outcome::Silent) => {
                attempt.request.note_taken();
                if attempt.doubt.in_doubt {
                    // R7 (late copies): the first copy may still be under way, and take the lock.
                    self.abandon_attempt(attempt);
                }
                Ok(TryOutcome::Done(match outcome {
                    Outcome::Silent => Attempted::Silent,
                    _ => Attempted::Taken,
                }))
            }
            Outcome::More => Ok(TryOutcome::More),
            // R5 (dated requests): the connection has a new anchor now.
            Outcome::Late => Ok(TryOutcome::Again(StoreFault::unavailable(
                Step::Reply,
                "no time is left to send the acquire again",
            ))),
            outcome => {
                if attempt.doubt.in_doubt {
                    // R7 (late copies): the name may become this kind before the first copy comes.
                    self.abandon_attempt(attempt);
                }
                Err(self.unexpected_reply(attempt.call, &outcome))
            }
        }
    }

    /// Makes the lease of a lock that was free.
    fn accept_grant(
        &self,
        attempt: &TryAcquire<'_>,
        grant: &Grant,
        sent: Time,
    ) -> Result<Arc<Lease>> {
        let deadline = deadline_from_reply(attempt.request, sent, grant.left);
        let now = self.now();
        let mut lease = Lease::new(Arc::clone(attempt.request), grant, sent, deadline).noticed(now);
        if attempt.doubt.in_doubt {
            lease = lease.with_not_after(attempt.doubt.not_after);
        }
        let lease = Arc::new(lease);
        if !lease.is_held(now) {
            // The lease is shorter than its reply took.
            self.abandon_lease(&lease);
            return Err(Error::Lost {
                loss: lease.loss_for(LossReason::Expired),
            });
        }
        self.keep_renewed(&lease);
        self.give_to_caller(lease)
    }

    /// R13 (unwanted grants): nobody wants what the attempt may have taken, or may still take (R7).
    pub(super) fn abandon_attempt(&self, attempt: &TryAcquire<'_>) {
        self.abandon_token(
            attempt.call,
            attempt.token,
            attempt.doubt.not_after,
            attempt.request.longest(),
        );
    }
}
