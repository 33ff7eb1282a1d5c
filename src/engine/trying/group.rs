//! Trying at several locks at once: all or none, by the same steps as for one.

use std::sync::Arc;

use super::{Attempted, Doubt, Tried, TryAcquire, Trying};
use crate::engine::lease::HeldLease;
use crate::engine::request::Request;
use crate::error::Result;
use crate::script::{Call, Token, Wait};
use crate::store::CallResult;
use crate::store::clock::Time;

/// How an attempt at a group ends.
pub(crate) enum GroupOutcome {
    Granted(Vec<Arc<HeldLease>>),
    /// Another caller has one of them, or waits for it.
    Taken,
    /// The others are free, and the owners of these may let go of them at once: they were told.
    Told,
    /// R22 (tries among the dead): the others are free, and for these the processes that wait were
    /// called. In the order of the requests.
    Silent(Vec<bool>),
}

impl Trying {
    /// Takes all locks, if no live process holds one of them or waits for it. Blocks for at most two
    /// command timeouts, and for one more to release those it got.
    pub(crate) fn try_acquire_all(&self, requests: &[Arc<Request>]) -> Result<GroupOutcome> {
        let started = self.client.now();
        let timeout = self.client.config().command_timeout;
        let mut waits = vec![Wait::No; requests.len()];
        let mut until = Time::NEVER;
        let mut ends = started + timeout;
        loop {
            let silent = match self.attempt_group(requests, &waits, until, ends)? {
                GroupOutcome::Silent(silent) => silent,
                decided => return Ok(decided),
            };
            let Some(next) = self.await_called(started) else {
                return Ok(GroupOutcome::Taken);
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
        &self,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        let waits = vec![Wait::No; requests.len()];
        let ends = (self.client.now() + self.client.config().command_timeout).min(until);
        match self.attempt_group(requests, &waits, until, ends)? {
            GroupOutcome::Granted(leases) => Ok(Some(leases)),
            _ => Ok(None),
        }
    }

    /// Sends the acquires of a group, which may not wait. They are sent again after a transient
    /// refusal, and after a reply that asks for it, until `ends`.
    fn attempt_group(
        &self,
        requests: &[Arc<Request>],
        waits: &[Wait],
        until: Time,
        ends: Time,
    ) -> Result<GroupOutcome> {
        let started = self.client.now();
        let decided = self.repeat(started, ends, || {
            self.send_group(requests, waits, started, until)
        })?;
        Ok(decided.unwrap_or(GroupOutcome::Taken))
    }

    fn send_group<'a>(
        &self,
        requests: &'a [Arc<Request>],
        waits: &[Wait],
        started: Time,
        until: Time,
    ) -> Result<Tried<'a, GroupOutcome>> {
        for request in requests {
            self.holding.prepare(request)?;
        }
        let tokens: Vec<Token> = requests.iter().map(|_| Token::new()).collect();
        let calls: Vec<Call> = requests
            .iter()
            .zip(&tokens)
            .zip(waits)
            .map(|((request, token), wait)| request.acquire(*token, *wait))
            .collect();
        let deadlines = self.client.deadlines(started, until);
        let results = self.names.send_acquires(&calls, deadlines);
        let attempts = requests.iter().zip(tokens).zip(&calls);
        let attempts = attempts.map(|((request, token), call)| TryAcquire {
            request,
            token,
            call,
            doubt: Doubt::default(),
        });
        self.on_try_replies(requests, attempts.zip(results))
    }

    /// Applies the replies to a try for a group of locks. If not all are granted, it releases those
    /// that are.
    pub(in crate::engine) fn on_try_replies<'a, 'c>(
        &self,
        requests: &'a [Arc<Request>],
        replies: impl Iterator<Item = (TryAcquire<'a, 'c>, CallResult)>,
    ) -> Result<Tried<'a, GroupOutcome>> {
        let mut leases = Vec::new();
        let mut failed = None;
        let (mut is_taken, mut was_told) = (false, false);
        let mut silent = vec![false; requests.len()];
        let mut more = false;
        let mut again = None;
        for (place, (mut attempt, result)) in replies.enumerate() {
            match self.on_try_reply(&mut attempt, result) {
                Ok(Tried::Done(Attempted::Granted(lease))) => leases.push(lease),
                Ok(Tried::Done(Attempted::Taken)) => is_taken = true,
                Ok(Tried::Done(Attempted::Told)) => was_told = true,
                Ok(Tried::Done(Attempted::Silent)) => silent[place] = true,
                Ok(Tried::More) => more = true,
                Ok(Tried::Again(fault, key)) => again = Some((fault, key)),
                Ok(Tried::Failed(fault, key) | Tried::Refused(fault, key)) => {
                    failed.get_or_insert(Ok((fault, key)));
                }
                Err(error) => {
                    failed.get_or_insert(Err(error));
                }
            }
            if attempt.doubt.in_doubt {
                // R7 (late copies): the next try has another token, but a first copy of this one
                // may still be under way.
                self.abandon_attempt(&mut attempt);
            }
        }
        if leases.len() == requests.len() {
            return Ok(Tried::Done(GroupOutcome::Granted(leases)));
        }
        self.releasing.abandon_all(&leases);
        if let Some(failed) = failed {
            let (fault, key) = failed?;
            return Ok(if fault.code().is_some() && fault.is_transient() {
                Tried::Refused(fault, key)
            } else {
                Tried::Failed(fault, key)
            });
        }
        Ok(match again {
            _ if is_taken => Tried::Done(GroupOutcome::Taken),
            Some((fault, key)) => Tried::Again(fault, key),
            None if more => Tried::More,
            None if silent.contains(&true) => Tried::Done(GroupOutcome::Silent(silent)),
            None if was_told => Tried::Done(GroupOutcome::Told),
            None => Tried::Done(GroupOutcome::Taken),
        })
    }
}
