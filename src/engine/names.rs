//! How a name becomes another kind of lock. The two families of scripts keep their data in
//! different forms. So an acquire that finds the other form vacates the name first, if nobody uses
//! it. The renewal thread does the same for a waiter that it enqueues again. A name that is to be
//! deleted is vacated first, too.

use std::slice;
use std::sync::Arc;

use crate::engine::base::Base;
use crate::engine::client::{Client, single_result};
use crate::engine::grants::Grants;
use crate::engine::life::Life;
use crate::engine::upkeep::abandon_call;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::Kind;
use crate::script::{Call, Family, LockSpec, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, Deadlines, StoreFault};

/// Calls about names: acquires, and what vacates, deletes or inspects a name.
pub(crate) struct Names {
    life: Arc<Life>,
    client: Arc<Client>,
    grants: Arc<Grants>,
}

impl Names {
    pub(super) fn new(base: &Base) -> Names {
        Names {
            life: Arc::clone(&base.life),
            client: Arc::clone(&base.client),
            grants: Arc::clone(&base.grants),
        }
    }

    /// Runs calls that take no lock, each on its name's lane. Blocks for at most two command
    /// timeouts.
    pub(crate) fn ask(&self, calls: &[Call]) -> Result<Vec<Result<Answer>>> {
        self.life.check_fork()?;
        let started = self.client.now();
        let results = self
            .client
            .store()
            .run(calls, self.client.deadlines(started, Time::NEVER));
        self.client.publish_traffic();
        let read = calls.iter().zip(results).map(|(call, result)| {
            match result.answer.and_then(Answer::in_time) {
                Ok(answer) => {
                    self.grants.deliver_all(call, &answer);
                    match &answer.reply.outcome {
                        outcome @ Outcome::Kind(_) => {
                            Err(self.client.unexpected_reply(call, outcome))
                        }
                        _ => Ok(answer),
                    }
                }
                Err(fault) => Err(self.client.error_since(started, fault, &call.key)),
            }
        });
        Ok(read.collect())
    }

    /// Sends acquires. If the name of one is a kind of lock of the other family, this vacates the
    /// name and sends the acquire again, all by the same deadlines. If somebody uses the name, the
    /// acquire keeps the answer that names its kind. If there is no answer to that, the acquire has
    /// the same fault.
    pub(super) fn send_acquires(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let results = self.acquire_or_vacate(calls, deadlines);
        self.release_unacknowledged(calls, &results);
        results
    }

    /// R18 (replica acks): releases what was granted and too few replicas have acknowledged, so that
    /// the lock is free when the caller learns of it. Blocks for at most one command timeout.
    ///
    /// This is a try only. The caller abandons the token as well, since the acquire is in doubt.
    fn release_unacknowledged(&self, calls: &[Call], results: &[CallResult]) {
        let is_granted =
            |result: &CallResult| matches!(result.answer, Err(StoreFault::NotReplicated { .. }));
        let granted = calls.iter().zip(results).filter(|(_, r)| is_granted(r));
        let release = |(call, _): (&Call, _)| match call.verb {
            Verb::Acquire { token, .. } | Verb::Pass { to: token, .. } => {
                Some(abandon_call(call, token))
            }
            _ => None,
        };
        let releases: Vec<Call> = granted.filter_map(release).collect();
        if releases.is_empty() {
            return;
        }
        let released = self
            .client
            .store()
            .run(&releases, self.client.at_once(self.client.now()));
        for (call, result) in releases.iter().zip(released) {
            if let Ok(answer) = result.answer {
                self.grants.deliver_all(call, &answer);
            }
        }
    }

    /// Sends acquires as [`Names::send_acquires`], all by these deadlines, and releases nothing. Other
    /// calls for the same names may be among them: they are sent again as well.
    pub(super) fn acquire_or_vacate(
        &self,
        calls: &[Call],
        deadlines: Deadlines,
    ) -> Vec<CallResult> {
        let mut results = self.client.store().run(calls, deadlines);
        let mut refused = Vec::new();
        let mut vacates = Vec::new();
        for (at, (call, result)) in calls.iter().zip(&results).enumerate() {
            let Ok(answer) = &result.answer else {
                continue;
            };
            // A lock that was detached is gone if its name is another kind by now.
            if call.is_pass() {
                continue;
            }
            if let Some(family) = answer.reply.outcome.other_family(call.spec.family) {
                refused.push(at);
                vacates.push(call.vacate(family));
            }
        }
        // The loop ends early for nearly all calls: their names are of their kind.
        let mut again = Vec::new();
        while !vacates.is_empty() {
            let answers = self.client.store().run(&vacates, deadlines);
            let mut unfinished = (Vec::new(), Vec::new());
            for ((at, vacate), vacated) in refused.into_iter().zip(vacates).zip(answers) {
                match vacated.answer {
                    Ok(answer) => {
                        self.grants.deliver_all(&vacate, &answer);
                        if answer.reply.outcome == Outcome::Vacated {
                            again.push(at);
                        } else if answer.reply.more && self.client.now() < deadlines.reply_by {
                            unfinished.0.push(at);
                            unfinished.1.push(vacate);
                        }
                    }
                    Err(fault) => results[at].answer = Err(fault),
                }
            }
            (refused, vacates) = unfinished;
        }
        if again.is_empty() {
            return results;
        }
        let repeated: Vec<Call> = again.iter().map(|at| calls[*at].clone()).collect();
        for (at, next) in again
            .into_iter()
            .zip(self.client.store().run(&repeated, deadlines))
        {
            results[at].take_next(next);
        }
        results
    }

    /// Deletes all that the store keeps about a name that nobody uses. `false` if somebody uses it,
    /// or if its newest fence is ahead of the server's clock.
    ///
    /// [`Error::Misused`] on a quorum. There a node that forgot a name could grant it under a smaller
    /// fence (P2), and a holder that lost the name could take it again by a renewal.
    ///
    /// Blocks for at most four command timeouts, and for two more each time that Redis says that
    /// there is more to do.
    pub(crate) fn delete(&self, key: &Key) -> Result<bool> {
        let call = |spec, verb| Call {
            spec,
            key: key.clone(),
            verb,
        };
        let permits = LockSpec::any(Family::Permit);
        if !self.client.keeps(permits.family) {
            let message = "a quorum deletes no names; it forgets a name by itself, an hour after its \
                           last use";
            return Err(Error::setting("delete", message).about(&key.name));
        }
        // A vacated mutex leaves its fence in the record. The scripts of permits know that field,
        // and all keys of the name.
        let vacate = call(LockSpec::MUTEX, Verb::Vacate);
        Ok(self.vacate_until_done(&vacate)?
            && self.vacate_until_done(&call(permits, Verb::Delete))?)
    }

    /// Sends a vacate or a delete, again for as long as there is more to do. `true`: no lock of the
    /// call's family is in the way. `false`: one is in use, or its fence must be kept.
    fn vacate_until_done(&self, call: &Call) -> Result<bool> {
        loop {
            self.life.check_fork()?;
            let started = self.client.now();
            let deadlines = self.client.deadlines(started, Time::NEVER);
            let result = single_result(self.client.store().run(slice::from_ref(call), deadlines));
            self.client.publish_traffic();
            let error = |fault| self.client.error_since(started, fault, &call.key);
            let answer = result.answer.map_err(error)?;
            self.grants.deliver_all(call, &answer);
            if answer.reply.more {
                continue;
            }
            return match &answer.reply.outcome {
                Outcome::Vacated => Ok(true),
                Outcome::Refused => Ok(false),
                Outcome::Kind(kind) => self.check_kind(call, kind),
                outcome => Err(self.client.unexpected_reply(call, outcome)),
            };
        }
    }

    /// A name was not vacated, because it is of this kind. `true` if it is a lock of another family
    /// than the call's, so that nothing of the call's family is in the way.
    fn check_kind(&self, call: &Call, kind: &str) -> Result<bool> {
        let is_known = !matches!(Kind::from_record(kind), Kind::Other(_));
        let Some(family) = Family::of_kind(kind).filter(|_| is_known) else {
            return Err(self.client.wrong_kind(call, kind));
        };
        // A delete comes behind a vacate. If it finds another family, somebody has taken the name
        // in between.
        Ok(family != call.spec.family && matches!(call.verb, Verb::Vacate))
    }
}
