//! Renewals that travel with one `WAIT` behind them, on whichever connection.

use redis::Value;

use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::store::node::Node;
use crate::store::node::connection::{Connection, fault};
use crate::store::node::owed::{LinkCall, LinkReply, OwedCall, fail_owed};

/// Renewals on their way. None of them has a result before the reply to `WAIT` has come.
pub(super) struct Batch {
    acks: ReplicaAcks,
    calls: Vec<OwedCall>,
    /// The replies that have come, and when.
    values: Vec<(Value, Time)>,
    /// How many replies there are to be, with that to `WAIT`.
    expected: usize,
    pub(super) sent: Time,
    pub(super) reply_by: Time,
}

impl Batch {
    /// Sends renewals in one write, and reads no reply. An error ends the connection, and is the
    /// result of all of them.
    pub(super) fn send(
        node: &Node,
        connection: &mut Connection,
        calls: Vec<LinkCall>,
        (acks, reply_by): (ReplicaAcks, Time),
    ) -> Result<Batch, Vec<LinkReply>> {
        let sent = node.clock.now();
        let owed = |mut call: LinkCall| {
            // The WAIT behind a renewal that is refused would take all its time for nothing.
            call.form = connection.scripts.form_for(&call.call, call.form);
            OwedCall::new(call, sent, reply_by)
        };
        let calls: Vec<OwedCall> = calls.into_iter().map(owed).collect();
        let mut commands = OwedCall::commands(&calls, node);
        commands.push(acks.command());
        let written = node.time_left(reply_by).and_then(|left| {
            connection.limit_writes(left)?;
            connection.send(&commands).map_err(|e| fault(e, Step::Send))
        });
        let batch = Batch {
            acks,
            calls,
            values: Vec::with_capacity(commands.len()),
            expected: commands.len(),
            sent,
            reply_by,
        };
        match written {
            Ok(()) => Ok(batch),
            Err(fault) => {
                connection.broken = true;
                Err(batch.fail(&fault))
            }
        }
    }

    /// Reads what comes until `until`. Returns the batch if more is to come. After `reply_by` the
    /// connection ends, and the renewals fail.
    pub(super) fn receive(
        mut self,
        node: &Node,
        connection: &mut Connection,
        until: Time,
    ) -> Result<Vec<LinkReply>, Batch> {
        while self.values.len() < self.expected {
            let left = until.min(self.reply_by) - node.clock.now();
            let fault = match connection.receive_within(left) {
                Ok(Some(value)) => {
                    self.values.push((value, node.clock.now()));
                    continue;
                }
                Ok(None) if node.clock.now() < self.reply_by => return Err(self),
                Ok(None) => StoreFault::timed_out(Step::Reply),
                Err(fault) => fault,
            };
            connection.broken = true;
            return Ok(self.read(node, connection, &Err(fault)));
        }
        let (count, _) = self.values.pop().unwrap_or((Value::Nil, self.sent));
        let count = node.read_count(connection, count);
        Ok(self.read(node, connection, &count))
    }

    /// Reads the replies that have come. `count` is the reply to `WAIT`, or why it has not come: then
    /// that is the result of the others.
    fn read(
        self,
        node: &Node,
        connection: &mut Connection,
        count: &Result<u32, StoreFault>,
    ) -> Vec<LinkReply> {
        let mut values = self.values.into_iter();
        let mut read = |mut owed: OwedCall| {
            if owed.takes_asking() {
                values.next();
            }
            let Some(value) = values.next() else {
                let missing = count.as_ref().err().cloned();
                return owed.fail(&missing.unwrap_or(StoreFault::NotReady));
            };
            let script = owed.sent_call.call.script_id();
            match owed.read(node, connection, value) {
                LinkReply::Result(number, mut result) => {
                    if result.answer.is_ok() {
                        connection.scripts.note(script, true);
                    }
                    let answer = result.answer;
                    result.answer = answer.and_then(|answer| self.acks.confirm(answer, count));
                    LinkReply::Result(number, result)
                }
                other => {
                    connection.scripts.note(script, false);
                    other
                }
            }
        };
        self.calls.into_iter().map(&mut read).collect()
    }

    /// Gives this fault to all of them.
    pub(super) fn fail(self, fault: &StoreFault) -> Vec<LinkReply> {
        fail_owed(self.calls.into_iter(), fault).collect()
    }
}
