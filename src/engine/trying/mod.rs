//! An attempt: one acquire that may not wait. It takes a lock that is free and for which nobody
//! waits. `group` attempts several locks at once.

mod group;

use std::slice;
use std::sync::Arc;

use crate::engine::base::Base;
use crate::engine::client::{Client, single_result};
use crate::engine::grants::Grants;
use crate::engine::holding::Holding;
use crate::engine::lease::{HeldLease, deadline_from_reply};
use crate::engine::names::Names;
use crate::engine::releasing::{Releasing, pass_refused};
use crate::engine::request::Request;
use crate::engine::upkeep::Upkeep;
use crate::error::{Error, Result, Step};
use crate::key::Key;
use crate::loss::{Loss, LossReason};
use crate::script::{Call, Grant, Outcome, Token, Wait};
use crate::stats::Count;
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

pub(crate) use group::GroupOutcome;

/// An acquire that may not wait.
pub(crate) struct TryAcquire<'a, 'c> {
    pub(crate) request: &'a Arc<Request>,
    pub(crate) token: Token,
    pub(crate) call: &'c Call,
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

/// How an attempt ends.
pub(crate) enum Attempted {
    Granted(Arc<HeldLease>),
    Taken,
    /// It is taken, and its owner may let go of it at once: it was told that somebody wants it.
    Told,
    /// R22 (tries among the dead): the lock is taken, but perhaps by the dead alone. The script has
    /// called the processes that wait. Those that are alive come within one command timeout.
    Silent,
}

impl Attempted {
    /// The lease, if the lock was taken.
    pub(crate) fn lease(self) -> Option<Arc<HeldLease>> {
        match self {
            Attempted::Granted(lease) => Some(lease),
            Attempted::Taken | Attempted::Told | Attempted::Silent => None,
        }
    }
}

/// The result of one request that may not wait.
pub(super) enum Tried<'a, T> {
    Done(T),
    /// The script passed over as many dead waiters as one call may. It must be sent again. If no
    /// time is left for that, the lock is not taken: Redis has answered.
    More,
    /// It must be sent again. If no time is left for that, this fault is the error.
    Again(StoreFault, &'a Key),
    /// A server refused it for now.
    Refused(StoreFault, &'a Key),
    Failed(StoreFault, &'a Key),
}

/// Trying at locks: requests that may not wait.
pub(crate) struct Trying {
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    holding: Arc<Holding>,
    grants: Arc<Grants>,
    names: Arc<Names>,
    releasing: Arc<Releasing>,
}

impl Trying {
    pub(super) fn new(base: &Base, names: &Arc<Names>, releasing: &Arc<Releasing>) -> Trying {
        Trying {
            client: Arc::clone(&base.client),
            upkeep: Arc::clone(&base.upkeep),
            holding: Arc::clone(&base.holding),
            grants: Arc::clone(&base.grants),
            names: Arc::clone(names),
            releasing: Arc::clone(releasing),
        }
    }

    /// Takes the lock if no live process holds it or waits for it. Blocks for at most two command
    /// timeouts.
    pub(crate) fn try_acquire(&self, request: &Arc<Request>) -> Result<Attempted> {
        self.holding.prepare(request)?;
        let started = self.client.now();
        let timeout = self.client.config().command_timeout;
        let first = self.attempt_as(request, Wait::No, Time::NEVER, started + timeout)?;
        if !matches!(first, Attempted::Silent) {
            return Ok(first);
        }
        let Some(until) = self.await_called(started) else {
            return Ok(Attempted::Taken);
        };
        self.attempt_as(request, Wait::NoneCame, until, until + timeout * 3 / 4)
    }

    /// R22 (tries among the dead): waits until one and a half command timeouts after `started`, when
    /// the try began. In that time the processes answer that were called. `None`, at once: that is
    /// less than one command timeout.
    ///
    /// Returns until when the next request may be sent. Its reply has one command timeout more, which
    /// is the rest of two since the start. A thread that was not run for longer has half of one all
    /// the same.
    pub(super) fn await_called(&self, started: Time) -> Option<Time> {
        let timeout = self.client.config().command_timeout;
        let ask_at = started + timeout * 3 / 2;
        if self.client.now() + timeout > ask_at {
            return None;
        }
        self.client.clock().sleep_until(ask_at);
        Some((started + timeout).max(self.client.now() - timeout / 2))
    }

    /// Takes over a lock that was detached, as the request says. Blocks for at most two command
    /// timeouts.
    pub(crate) fn attach(&self, request: &Arc<Request>) -> Result<Arc<HeldLease>> {
        self.holding.prepare(request)?;
        let started = self.client.now();
        let ends = started + self.client.config().command_timeout;
        let attempted = self.attempt_as(request, Wait::No, Time::NEVER, ends)?;
        attempted.lease().ok_or_else(|| {
            let fault = StoreFault::unavailable(Step::Reply, "no server could decide in time");
            self.client.error_since(started, fault, &request.key)
        })
    }

    /// One attempt of a caller that waits if the lock is taken.
    pub(super) fn attempt(
        &self,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        let ends = (self.client.now() + self.client.config().command_timeout).min(until);
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
        let started = self.client.now();
        let deadlines = self.client.deadlines(started, until);
        let token = Token::new();
        let call = request.enter(token, wait);
        let mut attempt = TryAcquire {
            request,
            token,
            call: &call,
            doubt: Doubt::default(),
        };
        let decided = self.repeat(started, ends, || {
            let calls = slice::from_ref(&call);
            let result = single_result(self.names.send_acquires(calls, deadlines));
            Ok(match self.on_try_reply(&mut attempt, result)? {
                Tried::Failed(fault @ StoreFault::Server { .. }, key)
                    if fault.is_transient() && !fault.is_ambiguous() =>
                {
                    Tried::Refused(fault, key)
                }
                tried => tried,
            })
        });
        if attempt.doubt.in_doubt {
            self.abandon_attempt(&mut attempt);
        }
        decided.map(|decided| decided.unwrap_or(Attempted::Taken))
    }

    /// THE LOOP of every attempt, at one lock or at several: sends until there is a decision. `None`:
    /// no time is left, and the lock is not taken, since Redis has answered.
    fn repeat<'a, T>(
        &self,
        started: Time,
        ends: Time,
        mut send: impl FnMut() -> Result<Tried<'a, T>>,
    ) -> Result<Option<T>> {
        let error = |(fault, key)| self.client.error_since(started, fault, key);
        let mut refused = None;
        loop {
            let failed = match send()? {
                Tried::Done(decided) => return Ok(Some(decided)),
                Tried::More => None,
                Tried::Again(fault, key) => Some((fault, key)),
                Tried::Refused(fault, key) => {
                    let pause = self.client.config().back_off / 10;
                    self.client.clock().sleep_until(self.client.now() + pause);
                    refused = Some((fault.clone(), key));
                    Some((fault, key))
                }
                Tried::Failed(fault, key) => {
                    // The server's last refusal explains more than the lack of a connection to ask
                    // it again.
                    let never_sent = fault.is_transient() && !fault.is_ambiguous();
                    let failed = refused.filter(|_| never_sent).unwrap_or((fault, key));
                    return Err(error(failed));
                }
            };
            if self.client.now() >= ends {
                return match failed {
                    // R11 (missing keys): a node answered that it cannot decide yet.
                    Some(failed) if !failed.0.is_undecided() => Err(error(failed)),
                    _ => Ok(None),
                };
            }
            if failed.is_some() {
                self.client.meter().count(Count::Retries);
            }
        }
    }

    /// Applies the reply to an acquire that may not wait.
    pub(super) fn on_try_reply<'a>(
        &self,
        attempt: &mut TryAcquire<'a, '_>,
        result: CallResult,
    ) -> Result<Tried<'a, Attempted>> {
        let key = &attempt.request.key;
        let doubt = &mut attempt.doubt;
        doubt.not_after = doubt.not_after.max(result.not_after);
        let answer = match result.answer {
            Ok(answer) => answer,
            Err(fault) => {
                if fault.is_ambiguous() {
                    self.abandon_attempt(attempt);
                }
                return Ok(Tried::Failed(fault, key));
            }
        };
        doubt.in_doubt |= answer.resent;
        self.grants.deliver_all(attempt.call, &answer);
        match answer.reply.outcome {
            Outcome::Granted(grant) => {
                let lease = self.accept_grant(attempt, &grant, answer.sent)?;
                Ok(Tried::Done(Attempted::Granted(lease)))
            }
            outcome @ (Outcome::Busy { .. } | Outcome::Silent) => {
                attempt.request.note_taken();
                if attempt.doubt.in_doubt {
                    // R7 (late copies): the first copy may still be under way, and take the lock.
                    self.abandon_attempt(attempt);
                }
                Ok(Tried::Done(match outcome {
                    Outcome::Silent => Attempted::Silent,
                    Outcome::Busy { told: true, .. } => Attempted::Told,
                    _ => Attempted::Taken,
                }))
            }
            Outcome::More => Ok(Tried::More),
            // R5 (dated requests): the connection has a new anchor now.
            Outcome::Late => {
                let message = "no time is left to send the acquire again";
                Ok(Tried::Again(
                    StoreFault::unavailable(Step::Reply, message),
                    key,
                ))
            }
            outcome => {
                if attempt.doubt.in_doubt {
                    // R7 (late copies): the name may become this kind before the first copy comes.
                    self.abandon_attempt(attempt);
                }
                Err(self.refused(attempt, &outcome))
            }
        }
    }

    /// Redis did not grant the lock. If it was to be attached, it is lost, and Redis says how.
    fn refused(&self, attempt: &TryAcquire<'_, '_>, outcome: &Outcome) -> Error {
        let request = attempt.request;
        match (request.attached_fence(), pass_refused(outcome)) {
            (Some(fence), Some(reason)) => Error::Lost {
                loss: Loss {
                    lock: Arc::clone(&request.key.name),
                    fence,
                    reason,
                },
            },
            _ => self.client.unexpected_reply(attempt.call, outcome),
        }
    }

    /// Makes the lease of a lock that was free, or detached.
    fn accept_grant(
        &self,
        attempt: &mut TryAcquire<'_, '_>,
        grant: &Grant,
        sent: Time,
    ) -> Result<Arc<HeldLease>> {
        let deadline = deadline_from_reply(attempt.request, sent, grant.left);
        let now = self.client.now();
        let mut lease =
            HeldLease::new(Arc::clone(attempt.request), grant, sent, deadline).noticed(now);
        // R7 (late copies): from now on the release of the lease sees to them.
        if std::mem::take(&mut attempt.doubt.in_doubt) {
            lease = lease.with_not_after(attempt.doubt.not_after);
        }
        let lease = Arc::new(lease);
        if !lease.is_held(now) {
            // The lease is shorter than its reply took.
            self.grants.abandon_lease(&lease);
            return Err(Error::Lost {
                loss: lease.loss_for(LossReason::Expired),
            });
        }
        self.holding.keep_renewed(&lease);
        self.grants.give_to_caller(lease)
    }

    /// R13 (unwanted grants): nobody wants what the attempt may have taken, or may still take (R7).
    fn abandon_attempt(&self, attempt: &mut TryAcquire<'_, '_>) {
        attempt.doubt.in_doubt = false;
        self.upkeep.abandon_token(
            attempt.call,
            attempt.token,
            attempt.doubt.not_after,
            attempt.request.longest(),
        );
    }
}
