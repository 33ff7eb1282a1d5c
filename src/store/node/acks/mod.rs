//! R18 (replica acks): renewals that count only when enough replicas have acknowledged them.
//!
//! `WAIT` counts the replicas that have received all that its own connection has written. As the
//! first command of a connection, it counts all replicas. So a renewal, which always writes, goes
//! directly before it. One `WAIT` is for all renewals before it in one write.
//!
//! `WAIT` blocks what follows on its connection. So these connections carry nothing else. All callers
//! share one ([`Confirmer`]), and the renewal thread has the other: in [`AckedLink`], or in
//! [`AckedPeer`] if the node is one of several.

mod confirmer;
mod link;
mod peer;

use super::Node;
use super::connection::{Connection, fault, refusal};
use super::pipeline::{Hop, Pending, Pipeline};
use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::script::{Call, Form, Outcome, value_text};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

use redis::{Cmd, Value};

pub(super) use confirmer::Confirmer;
pub(super) use link::AckedLink;
pub(in crate::store) use peer::AckedPeer;

/// A renewal, and how it was routed to the node.
#[derive(Clone)]
pub(super) struct Renewal {
    call: Call,
    form: Form,
    hop: Hop,
}

/// Renewals that go over one connection, each time with one `WAIT` behind them.
struct AckedExchange<'a> {
    pipeline: Pipeline<'a>,
    acks: ReplicaAcks,
    answers: Vec<Option<Result<Answer, StoreFault>>>,
    /// When they were sent last.
    sent: Time,
}

impl ReplicaAcks {
    fn command(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted).arg(self.timeout.as_millis() as u64);
        wait
    }
}

impl<'a> AckedExchange<'a> {
    /// Sends the renewals. Their replies are awaited until `reply_by`.
    fn begin(
        node: &Node,
        connection: &mut Connection,
        renewals: &'a [Renewal],
        acks: ReplicaAcks,
        reply_by: Time,
    ) -> AckedExchange<'a> {
        let date = |renewal: &'a Renewal| {
            // The WAIT behind a renewal that is refused would take all its time for nothing.
            let form = connection.scripts.form_for(&renewal.call, renewal.form);
            // A renewal needs no date.
            Pending::in_form(&renewal.call, 0, form, renewal.hop)
        };
        let mut exchange = AckedExchange {
            pipeline: Pipeline {
                pending: renewals.iter().map(date).collect(),
                reply_by,
            },
            acks,
            answers: renewals.iter().map(|_| None).collect(),
            sent: node.clock.now(),
        };
        exchange.send(node, connection);
        exchange
    }

    /// Sends all renewals that have no answer yet.
    fn send(&mut self, node: &Node, connection: &mut Connection) {
        self.sent = node.clock.now();
        let mut commands = self.pipeline.commands(node);
        commands.push(self.acks.command());
        let sent = node.time_left(self.pipeline.reply_by).and_then(|left| {
            connection.limit_writes(left)?;
            connection.send(&commands).map_err(|e| fault(e, Step::Send))
        });
        if let Err(fault) = sent {
            self.fail(connection, &fault);
        }
    }

    /// Receives the replies. Renewals that the server refused only for their form are sent again.
    fn finish(mut self, node: &Node, connection: &mut Connection) -> Vec<CallResult> {
        while self.pipeline.has_unanswered() {
            self.receive(node, connection);
            if self.pipeline.has_unanswered() {
                self.send(node, connection);
            }
        }
        node.note_anchor(connection.anchor);
        let results = self.answers.into_iter().zip(self.pipeline.pending);
        results
            .map(|(answer, pending)| CallResult {
                answer: answer.unwrap_or_else(|| Err(StoreFault::timed_out(Step::Reply))),
                not_after: pending.not_after,
            })
            .collect()
    }

    /// Gives this fault to the renewals that have no answer.
    fn end(mut self, fault: &StoreFault) -> Vec<CallResult> {
        let answers = &mut self.answers;
        self.pipeline.fail(fault, &mut |index, answer| {
            answers[index] = Some(answer);
        });
        let answers = self.answers.into_iter();
        let failed = answers.map(|answer| answer.unwrap_or_else(|| Err(fault.clone())));
        failed
            .map(|answer| CallResult {
                answer,
                not_after: 0,
            })
            .collect()
    }

    fn receive(&mut self, node: &Node, connection: &mut Connection) {
        let reply_by = self.pipeline.reply_by;
        let mut answered = Vec::new();
        let received = node
            .receive_replies(
                connection,
                &mut self.pipeline,
                self.sent,
                reply_by,
                &mut |index, answer| answered.push((index, answer)),
            )
            .and_then(|()| node.receive_count(connection, reply_by));
        let count = match received {
            Ok(count) => count,
            Err(fault) => {
                self.fail(connection, &fault);
                Err(fault)
            }
        };
        for (index, answer) in answered {
            if answer.is_ok() {
                let call = self.pipeline.pending[index].call;
                connection.scripts.note(call.script_id(), true);
            }
            self.answers[index] = Some(answer.and_then(|answer| self.acks.confirm(answer, &count)));
        }
    }

    /// Replies are awaited until this moment at least.
    fn allow_until(&mut self, moment: Time) {
        self.pipeline.reply_by = self.pipeline.reply_by.max(moment);
    }

    /// The connection is of no use any more.
    fn fail(&mut self, connection: &mut Connection, fault: &StoreFault) {
        connection.broken = true;
        let answers = &mut self.answers;
        self.pipeline.fail(fault, &mut |index, answer| {
            answers[index] = Some(answer);
        });
    }
}

impl ReplicaAcks {
    /// The answer to a renewal, with the count of the `WAIT` behind it. Only a renewal that took
    /// effect needs replicas.
    fn confirm(
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

impl Renewal {
    /// To the one node that there is.
    fn of(call: &Call) -> Renewal {
        Renewal {
            call: call.clone(),
            form: Form::default(),
            hop: Hop::Only,
        }
    }

    pub(super) fn routed(pending: &Pending<'_>) -> Renewal {
        Renewal {
            call: pending.call.clone(),
            form: pending.form,
            hop: pending.hop,
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
    /// The reply to `WAIT`. The outer error ends the connection. The inner one says why nobody knows
    /// the count.
    fn receive_count(
        &self,
        connection: &mut Connection,
        reply_by: Time,
    ) -> Result<Result<u32, StoreFault>, StoreFault> {
        connection.limit_reads(self.time_left(reply_by)?)?;
        let reply = connection.receive().map_err(|e| fault(e, Step::Reply))?;
        Ok(self.read_count(connection, reply))
    }

    fn read_count(&self, connection: &Connection, reply: Value) -> Result<u32, StoreFault> {
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
                    self.retire(connection.generation);
                }
                Err(StoreFault::InDoubt(Box::new(refused)))
            }
        }
    }
}
