//! An attempt: one acquire that may not wait. It takes a lock that is free and for which nobody
//! waits.

use std::slice;
use std::sync::Arc;

use crate::engine::lease::{Lease, deadline_from_reply};
use crate::engine::request::{Request, Wait};
use crate::engine::{Engine, single_result};
use crate::error::{Error, Result, Step};
use crate::loss::LossReason;
use crate::script::{Call, Grant, Outcome, Token};
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
    /// The lease, or `None` if the lock is taken.
    Done(Option<Arc<Lease>>),
    /// The script passed over as many dead waiters as one call may. It must be sent again. If no
    /// time is left for that, the lock is not taken: Redis has answered.
    More,
    /// It must be sent again. If no time is left for that, the fault is the error.
    Again(StoreFault),
    Failed(StoreFault),
}

impl Engine {
    /// Sends one acquire that may not wait. It is sent again after a transient refusal, and after a
    /// reply that asks for it, for one command timeout but not past `until`: so the last of them
    /// has a whole timeout for its reply.
    pub(super) fn attempt(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        let started = self.now();
        let deadlines = self.deadlines(started, until);
        let token = Token::new();
        let call = request.acquire(token, Wait::No);
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
                TryOutcome::Done(lease) => return Ok(lease),
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
            if self.now() >= (started + self.config.command_timeout).min(until) {
                if attempt.doubt.in_doubt {
                    self.abandon_attempt(&attempt);
                }
                return match fault {
                    None => Ok(None),
                    // R11 (missing keys): a node answered that it cannot decide yet.
                    Some(fault) if fault.is_undecided() => Ok(None),
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
                Ok(TryOutcome::Done(Some(lease)))
            }
            Outcome::Busy { .. } => {
                attempt.request.note_taken();
                if attempt.doubt.in_doubt {
                    // R7 (late copies): the first copy may still be under way, and take the lock.
                    self.abandon_attempt(attempt);
                }
                Ok(TryOutcome::Done(None))
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
