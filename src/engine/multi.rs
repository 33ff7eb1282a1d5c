//! Taking several locks, all or none, and giving them back together.

use std::sync::Arc;

use crate::engine::acquire::{Doubt, Entered, TryOutcome, Wait, acquire_call, is_transient};
use crate::engine::release::{ReleaseOutcome, WantResult, loss_result};
use crate::engine::request::Request;
use crate::engine::waiter::AtDeadline;
use crate::engine::{Engine, Lease};
use crate::error::{Error, Result, Step};
use crate::loss::{Loss, LossReason};
use crate::script::{Call, Mode, Token};
use crate::store::StoreFault;
use crate::store::clock::Time;

/// What became of a try for all.
enum All {
    Granted(Vec<Arc<Lease>>),
    /// Somebody has one of them, or waits for it.
    Taken,
    /// It is to be tried again (R5).
    Again,
}

impl Engine {
    /// Takes all that are free, in one round trip; `None` if one of them is not. Blocks for at most two command timeouts,
    /// one past `until`, and one more for giving some back.
    pub(crate) fn try_acquire_all(
        &self,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<Lease>>>> {
        let started = self.now();
        loop {
            let error = match self.attempt_all(requests, started, until) {
                Ok(All::Granted(leases)) => return Ok(Some(leases)),
                Ok(All::Taken) => return Ok(None),
                Ok(All::Again) => {
                    let fault = StoreFault::unavailable(Step::Reply, "no time left to ask again");
                    fault.into_error(
                        requests.first().map(|request| &request.key),
                        self.now() - started,
                    )
                }
                // What passes by itself, as for one lock.
                Err(error @ Error::Server { .. }) if is_transient(&error) => {
                    self.clock
                        .sleep_until(self.now() + self.config.back_off / 10);
                    error
                }
                Err(error) => return Err(error),
            };
            if self.now() >= (started + self.config.command_timeout).min(until) {
                return Err(error);
            }
        }
    }

    /// Takes all, one after the other in the order in which they stand, which must be the same for everybody, so that no
    /// two wait for each other; `None` if they were not to be had until `until`. An error, and none is kept, if one is lost
    /// meanwhile. Blocks for at most two command timeouts longer, the second for giving some back.
    pub(crate) fn acquire_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<Lease>>>> {
        let mut taken = Taken {
            engine: self,
            leases: Vec::with_capacity(requests.len()),
        };
        for request in requests {
            let Some(lease) = self.acquire_beside(&taken.leases, request, until)? else {
                return Ok(None);
            };
            taken.leases.push(lease);
            if let Some(loss) = first_lost(&taken.leases, self.now()) {
                return lost(loss);
            }
        }
        Ok(Some(std::mem::take(&mut taken.leases)))
    }

    /// Takes one more lock. While it waits it looks after the others once per check period.
    pub(super) fn acquire_beside(
        self: &Arc<Self>,
        held: &[Arc<Lease>],
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<Lease>>> {
        let started = self.now();
        let queued = loop {
            let now = self.now();
            // No longer than the others last if they are not renewed any more.
            let left = held.iter().map(|lease| lease.remaining(now)).min();
            let look = left.map_or(until, |left| until.min(now + left));
            match self.enter(request, look) {
                Ok(Entered::Granted(lease)) => return Ok(Some(lease)),
                Ok(Entered::Queued(queued)) => break queued,
                Err(error) => {
                    let now = self.now();
                    if let Some(loss) = first_lost(held, now) {
                        return lost(loss);
                    }
                    let limit = until.min(started + self.config.outage_limit);
                    if look == until || now >= limit || !is_transient(&error) {
                        return Err(error);
                    }
                }
            }
        };
        loop {
            if let Some(loss) = first_lost(held, self.now()) {
                return lost(loss);
            }
            let look = if held.is_empty() {
                until
            } else {
                until.min(self.now() + self.config.check_period)
            };
            let at_deadline = if look == until {
                AtDeadline::Cancel
            } else {
                AtDeadline::Keep
            };
            match queued.wait(look, at_deadline) {
                Ok(Some(lease)) => return Ok(Some(lease)),
                Ok(None) if at_deadline == AtDeadline::Cancel => return queued.cancel(until),
                Ok(None) => {}
                Err(error) => {
                    // Its time is up, and whoever does not answer would not answer a release either (P8).
                    queued.cancel_in_background_now();
                    return first_lost(held, self.now()).map_or(Err(error), lost);
                }
            }
        }
    }

    fn attempt_all(&self, requests: &[Arc<Request>], started: Time, until: Time) -> Result<All> {
        for request in requests {
            self.check(request)?;
        }
        let specs: Vec<(Token, Call)> = requests
            .iter()
            .map(|request| {
                let token = Token::new();
                (token, acquire_call(request, token, Wait::No))
            })
            .collect();
        let (tokens, calls): (Vec<_>, Vec<_>) = specs.into_iter().unzip();
        let results = self.store.run(&calls, self.deadlines(started, until));
        let (mut leases, mut failed, mut taken, mut again) = (Vec::new(), None, false, false);
        for (((request, token), call), result) in
            requests.iter().zip(tokens).zip(&calls).zip(results)
        {
            let mut doubt = Doubt::default();
            match self.on_try_reply(request, token, call, &mut doubt, result) {
                Ok(TryOutcome::Done(Some(lease))) => leases.push(lease),
                Ok(TryOutcome::Done(None)) => taken = true,
                Ok(TryOutcome::Again(_)) => {
                    again = true;
                    if doubt.in_doubt {
                        // Another token is sent next, and a first copy of this one may still be on its way (R7).
                        self.abandon_in_background(call, token, doubt.not_after, request.longest());
                    }
                }
                Ok(TryOutcome::Failed(fault)) => {
                    failed.get_or_insert_with(|| {
                        fault.into_error(Some(&call.key), self.now() - started)
                    });
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        if leases.len() == requests.len() {
            return Ok(All::Granted(leases));
        }
        self.abandon_all(&leases);
        match failed {
            Some(error) => Err(error),
            None if taken || !again => Ok(All::Taken),
            None => Ok(All::Again),
        }
    }

    /// Gives back what nobody has used. What is lost already is the renewal thread's.
    pub(crate) fn abandon_all(&self, leases: &[Arc<Lease>]) {
        let _ = self.release_together(leases, Mode::Unused, WantResult::No);
    }

    /// Ends several leases in one round trip, if a connection is free, else by the renewal thread; the first of what
    /// went wrong. Blocks for at most one command timeout.
    pub(crate) fn release_all(&self, leases: &[Arc<Lease>], tell: WantResult) -> Result<()> {
        self.release_together(leases, Mode::Used, tell)
    }

    fn release_together(&self, leases: &[Arc<Lease>], mode: Mode, tell: WantResult) -> Result<()> {
        let started = self.now();
        let mut first = None;
        let (mut ending, mut calls) = (Vec::new(), Vec::new());
        for lease in leases {
            match self.begin_release(lease, mode, started) {
                Ok(call) => {
                    ending.push(lease);
                    calls.push(call);
                }
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        if calls.is_empty() {
            return first.map_or(Ok(()), Err);
        }
        let results = self.store.run(&calls, self.at_once(started));
        let mut open = Vec::new();
        for ((lease, call), result) in ending.into_iter().zip(&calls).zip(results) {
            match self.on_release_reply(lease, call, started, result.answer) {
                ReleaseOutcome::Answered(reason) => {
                    if let Err(error) = loss_result(lease, reason) {
                        first.get_or_insert(error);
                    }
                }
                ReleaseOutcome::Open(fault, release) => {
                    let answer = self.release_in_background(*release, &fault, tell);
                    open.push((lease, call, fault, answer));
                }
            }
        }
        for (lease, call, fault, answer) in open {
            if let Err(error) =
                self.await_background_release(lease, call, started, fault, answer, tell)
            {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Locks that are given back unless all are taken.
struct Taken<'a> {
    engine: &'a Engine,
    leases: Vec<Arc<Lease>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.engine.abandon_all(&self.leases);
    }
}

pub(crate) fn first_lost(held: &[Arc<Lease>], now: Time) -> Option<Loss> {
    let lease = held.iter().find(|lease| !lease.is_held(now))?;
    Some(
        lease
            .loss()
            .unwrap_or_else(|| lease.loss_for(LossReason::Expired)),
    )
}

fn lost<T>(loss: Loss) -> Result<T> {
    Err(Error::Lost { loss })
}
