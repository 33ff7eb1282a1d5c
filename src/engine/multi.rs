//! Several locks at once, all or none, over the same steps as for one.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::{check_group_held, is_transient};
use crate::engine::attempt::{Attempted, Doubt, TryAcquire, TryOutcome};
use crate::engine::lease::Lease;
use crate::engine::release::{ReleaseOutcome, WantResult, loss_result};
use crate::engine::request::Request;
use crate::error::{Error, Result, Step};
use crate::script::{Call, Mode, Token, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// The result of one try for all of a group.
pub(super) enum GroupOutcome {
    Granted(Vec<Arc<Lease>>),
    /// Another caller has one of them, or waits for it.
    Taken,
    /// R22 (tries among the dead): the others are free, and for these the processes that wait were
    /// called. In the order of the requests.
    Silent(Vec<bool>),
    /// All must be tried again, to pass over more dead waiters of one of them.
    More,
    /// R5 (dated requests): all must be tried again.
    Again,
}

impl Engine {
    /// Takes all locks, if no live process holds one of them or waits for it. Blocks for at most two
    /// command timeouts, and for one more to release those it got.
    pub(crate) fn try_acquire_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
    ) -> Result<Option<Vec<Arc<Lease>>>> {
        let started = self.now();
        let timeout = self.config.command_timeout;
        let mut waits = vec![Wait::No; requests.len()];
        let mut until = Time::NEVER;
        let mut ends = started + timeout;
        loop {
            let silent = match self.attempt_group(requests, &waits, until, ends)? {
                GroupOutcome::Granted(leases) => return Ok(Some(leases)),
                GroupOutcome::Silent(silent) => silent,
                _ => return Ok(None),
            };
            let Some(next) = self.await_called(started) else {
                return Ok(None);
            };
            for (wait, is_silent) in waits.iter_mut().zip(silent) {
                if is_silent {
                    *wait = Wait::NoneCame;
                }
            }
            until = next;
            ends = next + timeout * 3 / 4;
        }
    }

    /// Takes all locks that are free, in one round trip, for a caller that waits if one of them is
    /// not. Blocks for at most two command timeouts, at most one of them past `until`, and for one
    /// more to release those it got.
    pub(crate) fn attempt_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<Lease>>>> {
        let waits = vec![Wait::No; requests.len()];
        let ends = (self.now() + self.config.command_timeout).min(until);
        match self.attempt_group(requests, &waits, until, ends)? {
            GroupOutcome::Granted(leases) => Ok(Some(leases)),
            _ => Ok(None),
        }
    }

    /// Sends the acquires of a group, which may not wait. They are sent again after a transient
    /// refusal, and after a reply that asks for it, until `ends`.
    fn attempt_group(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        waits: &[Wait],
        until: Time,
        ends: Time,
    ) -> Result<GroupOutcome> {
        let started = self.now();
        let mut refused = None;
        loop {
            let failed = match self.send_group(requests, waits, started, until) {
                Ok(GroupOutcome::Again) => {
                    let fault = StoreFault::unavailable(
                        Step::Reply,
                        "no time is left to send the acquires again",
                    );
                    let first = requests.first().map(|request| &request.key);
                    Some(self.error(fault, first, self.now() - started))
                }
                Ok(GroupOutcome::More) => None,
                Ok(decided) => return Ok(decided),
                // A transient refusal is retried, as for one lock.
                Err(error @ Error::Server { .. }) if is_transient(&error) => {
                    self.clock
                        .sleep_until(self.now() + self.config.back_off / 10);
                    refused = Some(error.clone());
                    // R11 (missing keys): a node answered that it cannot decide yet.
                    Some(error).filter(|error| !is_undecided(error))
                }
                // The server's last refusal explains more than the lack of a connection to ask it
                // again.
                Err(Error::Unavailable {
                    step: Step::Connect,
                    ..
                }) if refused.is_some() => return refused.map_or(Ok(GroupOutcome::Taken), Err),
                Err(error) => return Err(error),
            };
            if self.now() >= ends {
                return failed.map_or(Ok(GroupOutcome::Taken), Err);
            }
            if failed.is_some() {
                self.meter.retries.add(1);
            }
        }
    }

    /// Takes all locks, one after the other. `None` if some were not free until `until`. If one
    /// that is held already is lost, the result is that loss. After `None` and after an error none
    /// is kept.
    ///
    /// The requests must be in the same order for all callers. Otherwise two callers could each
    /// hold a lock that the other waits for. Blocks for at most two command timeouts longer than
    /// `until`, the second to release those it got.
    pub(crate) fn acquire_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<Lease>>>> {
        let mut taken = PartOfGroup {
            engine: self,
            leases: Vec::with_capacity(requests.len()),
        };
        for request in requests {
            let Some(lease) = self.acquire(request, &taken.leases, until)? else {
                return Ok(None);
            };
            taken.leases.push(lease);
            check_group_held(&taken.leases, self.now())?;
        }
        Ok(Some(std::mem::take(&mut taken.leases)))
    }

    fn send_group(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        waits: &[Wait],
        started: Time,
        until: Time,
    ) -> Result<GroupOutcome> {
        for request in requests {
            self.prepare(request)?;
        }
        let tokens: Vec<Token> = requests.iter().map(|_| Token::new()).collect();
        let calls: Vec<Call> = requests
            .iter()
            .zip(&tokens)
            .zip(waits)
            .map(|((request, token), wait)| request.acquire(*token, *wait))
            .collect();
        let results = self.send_acquires(&calls, self.deadlines(started, until));
        let attempts = requests.iter().zip(tokens).zip(&calls);
        let attempts = attempts.map(|((request, token), call)| TryAcquire {
            request,
            token,
            call,
            doubt: Doubt::default(),
        });
        self.on_try_replies(requests.len(), attempts.zip(results), started)
    }

    /// Applies the replies to a try for a group of `size` locks. If not all are granted, it
    /// releases those that are.
    pub(super) fn on_try_replies<'a>(
        self: &Arc<Self>,
        size: usize,
        replies: impl Iterator<Item = (TryAcquire<'a>, CallResult)>,
        started: Time,
    ) -> Result<GroupOutcome> {
        let mut leases = Vec::new();
        let mut failed = None;
        let mut is_taken = false;
        let mut silent = vec![false; size];
        let mut more = false;
        let mut again = false;
        for (place, (mut attempt, result)) in replies.enumerate() {
            match self.on_try_reply(&mut attempt, result) {
                Ok(TryOutcome::Done(Attempted::Granted(lease))) => leases.push(lease),
                Ok(TryOutcome::Done(Attempted::Taken)) => is_taken = true,
                Ok(TryOutcome::Done(Attempted::Silent)) => silent[place] = true,
                Ok(outcome @ (TryOutcome::More | TryOutcome::Again(_))) => {
                    match outcome {
                        TryOutcome::More => more = true,
                        _ => again = true,
                    }
                    if attempt.doubt.in_doubt {
                        // R7 (late copies): the next try has another token, but a first copy of
                        // this one may still be under way.
                        self.abandon_attempt(&attempt);
                    }
                }
                Ok(TryOutcome::Failed(fault)) => {
                    let waited = self.now() - started;
                    failed
                        .get_or_insert_with(|| self.error(fault, Some(&attempt.call.key), waited));
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        if leases.len() == size {
            return Ok(GroupOutcome::Granted(leases));
        }
        self.abandon_all(&leases);
        match failed {
            Some(error) => Err(error),
            None if is_taken => Ok(GroupOutcome::Taken),
            None if again => Ok(GroupOutcome::Again),
            None if more => Ok(GroupOutcome::More),
            None if silent.contains(&true) => Ok(GroupOutcome::Silent(silent)),
            None => Ok(GroupOutcome::Taken),
        }
    }

    /// Releases leases that nobody has used. The renewal thread abandons the tokens of lost ones.
    pub(crate) fn abandon_all(self: &Arc<Self>, leases: &[Arc<Lease>]) {
        let _ = self.release_all(leases, Mode::Unused, WantResult::No);
    }

    /// Releases several leases like [`Engine::release`], all in one round trip. Returns what went
    /// wrong. Blocks for at most one command timeout.
    pub(crate) fn release_all(
        self: &Arc<Self>,
        leases: &[Arc<Lease>],
        mode: Mode,
        want: WantResult,
    ) -> Vec<Error> {
        let started = self.now();
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
            let mut in_background = Vec::new();
            for ((lease, call), reply) in ending.into_iter().zip(&calls).zip(replies) {
                let Some(reply) = reply else { continue };
                match self.on_release_reply(lease, call, started, reply.answer) {
                    ReleaseOutcome::Answered(reason) => results.push(loss_result(lease, reason)),
                    ReleaseOutcome::Open(open) => {
                        let sent = self.release_in_background(lease, started, *open, want);
                        in_background.push(sent);
                    }
                }
            }
            // All are handed over before the first is waited for, so they go in one round trip,
            // too.
            for sent in in_background {
                results.push(self.await_background_release(sent));
            }
        }
        results.into_iter().filter_map(Result::err).collect()
    }
}

fn is_undecided(error: &Error) -> bool {
    matches!(error, Error::Server { code, .. } if code == "TRYAGAIN")
}

/// The members of a group that are held so far. Dropping it releases them.
struct PartOfGroup<'a> {
    engine: &'a Arc<Engine>,
    leases: Vec<Arc<Lease>>,
}

impl Drop for PartOfGroup<'_> {
    fn drop(&mut self) {
        self.engine.abandon_all(&self.leases);
    }
}
