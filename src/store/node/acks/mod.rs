//! R18 (replica acks): renewals that count only when enough replicas have acknowledged them.
//!
//! `WAIT` counts the replicas that have received all that its own connection has written. As the
//! first command of a connection, it counts all replicas. So a renewal, which always writes, goes
//! directly before it. One `WAIT` is for all renewals before it in one write.
//!
//! `WAIT` blocks what follows on its connection. So these connections carry nothing else. All callers
//! share one ([`Confirmer`]), and the renewal thread has the other, beside its own in [`AckedLink`] if
//! there is only this node.

mod confirmer;
mod link;

use super::Node;
use super::age::Age;
use super::connection::refusal;
use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::script::{Call, Outcome, value_text};
use crate::store::{Answer, CallResult, StoreFault};

use redis::{Cmd, Value};

pub(super) use confirmer::Confirmer;
pub(in crate::store) use link::AckedLink;

impl ReplicaAcks {
    pub(super) fn command(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted).arg(self.timeout.as_millis() as u64);
        wait
    }
}

impl ReplicaAcks {
    /// The answer to a renewal, with the count of the `WAIT` behind it. Only a renewal that took
    /// effect needs replicas.
    pub(super) fn confirm(
        self,
        answer: Answer,
        count: &Result<u32, StoreFault>,
    ) -> Result<Answer, StoreFault> {
        if !matches!(answer.reply.outcome, Outcome::Renewed { .. }) {
            return Ok(answer);
        }
        match count {
            Ok(acknowledged) if *acknowledged >= self.wanted => Ok(answer),
            Ok(acknowledged) => Err(StoreFault::NotReplicated {
                wanted: self.wanted,
                acknowledged: *acknowledged,
                server: None,
            }),
            Err(fault) => Err(fault.clone()),
        }
    }
}

/// Confirms each grant among the results of these calls: its token is renewed, and enough replicas
/// must acknowledge that. Otherwise the result becomes a fault, and the grant stays to be released.
pub(in crate::store) fn confirm_grants(
    calls: &[Call],
    results: &mut [CallResult],
    renew: impl FnOnce(&[Call]) -> Vec<CallResult>,
) {
    let mut granted = Vec::new();
    let mut renewals = Vec::new();
    for (call, result) in calls.iter().zip(results) {
        if let Ok(Answer { reply, .. }) = &result.answer
            && let Outcome::Granted(grant) = reply.outcome
        {
            renewals.push(call.renewal(grant.token));
            granted.push((grant.fence, result));
        }
    }
    if granted.is_empty() {
        return;
    }
    for ((fence, result), renewed) in granted.into_iter().zip(renew(&renewals)) {
        if let Some(fault) = not_confirmed(fence, renewed) {
            result.answer = Err(fault);
        }
    }
}

/// Why a grant with this fence does not count, given the result of its renewal.
fn not_confirmed(fence: u64, renewed: CallResult) -> Option<StoreFault> {
    match renewed.answer.map(|answer| answer.reply.outcome) {
        Ok(Outcome::Renewed { fence: now, .. }) if now == fence => None,
        Ok(_) => {
            let gone = "redis lost the grant before its replicas acknowledged it";
            let fault = StoreFault::unavailable(Step::Reply, gone);
            Some(StoreFault::InDoubt(Box::new(fault)))
        }
        // The grant may stand, with or without the renewal.
        Err(fault) if fault.is_ambiguous() => Some(fault),
        Err(fault) => Some(StoreFault::InDoubt(Box::new(fault))),
    }
}

impl Node {
    /// The count in the reply to `WAIT`, or why nobody knows it.
    pub(super) fn read_count(&self, age: Age, reply: Value) -> Result<u32, StoreFault> {
        match refusal(reply) {
            Ok(Value::Int(count)) if count >= 0 => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
            Ok(other) => Err(StoreFault::protocol(format!(
                "expected a number as the reply to WAIT; got {}",
                value_text(&other)
            ))),
            Err(refused) => {
                // The server became a replica while it waited. Nobody knows which replicas have
                // the renewals before it, and no connection to this server is of use any more.
                if refused.code() == Some("UNBLOCKED") {
                    self.retire(age);
                }
                Err(StoreFault::InDoubt(Box::new(refused)))
            }
        }
    }
}
