//! Calls of a link that is one of several. It sends them now and reads their replies later, so that
//! a node that is slow delays only its own.

use super::Node;
use super::connection::{Connection, fault};
use super::pipeline::{Hop, Meaning, Pending, Pipeline, Received};
use crate::error::Step;
use crate::script::{Call, Form};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

/// A call to send, and its number.
#[derive(Clone)]
pub(in crate::store) struct LinkCall {
    pub(in crate::store) number: u64,
    pub(in crate::store) call: Call,
    pub(in crate::store) form: Form,
    pub(in crate::store) hop: Hop,
}

impl LinkCall {
    /// Calls to the one node that there is, numbered from 0.
    pub(super) fn numbered(calls: &[Call]) -> Vec<LinkCall> {
        let pending = calls.iter().map(Pending::undated);
        LinkCall::routed(pending)
    }

    /// Calls on their way to a node, numbered from 0.
    pub(super) fn routed<'a>(calls: impl Iterator<Item = Pending<'a>>) -> Vec<LinkCall> {
        let call = |(number, pending): (u64, Pending<'_>)| LinkCall {
            number,
            call: pending.call.clone(),
            form: pending.form,
            hop: pending.hop,
        };
        (0..).zip(calls).map(call).collect()
    }
}

/// The outcome of a call.
pub(in crate::store) enum LinkReply {
    /// Its number and its result.
    Result(u64, CallResult),
    /// The node wants it in the form that it has now.
    OtherForm(LinkCall),
}

/// A call that was sent, and that has no reply yet.
pub(in crate::store::node) struct OwedCall {
    pub(super) sent_call: LinkCall,
    pub(super) not_after: u64,
    pub(super) sent: Time,
    pub(super) reply_by: Time,
    /// The reply to its ASKING is still to come, in front of its own.
    pub(super) owes_asking: bool,
}

impl OwedCall {
    /// A renewal, which needs no date.
    pub(super) fn new(sent_call: LinkCall, sent: Time, reply_by: Time) -> OwedCall {
        OwedCall {
            owes_asking: sent_call.hop == Hop::AskTarget,
            sent_call,
            not_after: 0,
            sent,
            reply_by,
        }
    }

    /// The commands of all of them, one for each, and ASKING in front of some.
    pub(super) fn commands<'a>(all: &'a [OwedCall], node: &Node) -> Vec<redis::Cmd> {
        let pending = |owed: &'a OwedCall| {
            let sent = &owed.sent_call;
            Pending::in_form(&sent.call, 0, sent.form, sent.hop)
        };
        let pipeline = Pipeline {
            pending: all.iter().map(pending).collect(),
            reply_by: Time::NEVER,
        };
        pipeline.commands(node)
    }

    /// Whether the next reply is that to its ASKING.
    pub(super) fn takes_asking(&mut self) -> bool {
        std::mem::take(&mut self.owes_asking)
    }

    pub(super) fn fail(self, fault: &StoreFault) -> LinkReply {
        let result = CallResult {
            answer: Err(fault.clone()),
            not_after: self.not_after,
        };
        LinkReply::Result(self.sent_call.number, result)
    }

    /// Reads the reply, which came at `received`.
    pub(super) fn read(
        self,
        node: &Node,
        connection: &mut Connection,
        (value, received): (redis::Value, Time),
    ) -> LinkReply {
        let mut sent_call = self.sent_call;
        let call = &sent_call.call;
        let mut pending = Pending::in_form(call, self.not_after, sent_call.form, sent_call.hop);
        let read = node.read_reply(
            &mut pending,
            Received {
                value,
                sent: self.sent,
                received,
                generation: connection.generation,
            },
        );
        if let Some(anchor) = read.anchor {
            connection.anchor = anchor;
            node.note_anchor(anchor);
        }
        let form = pending.form;
        match read.meaning {
            Meaning::OtherForm => {
                sent_call.form = form;
                LinkReply::OtherForm(sent_call)
            }
            Meaning::Answer(answer) => {
                let not_after = self.not_after;
                let result = CallResult { answer, not_after };
                LinkReply::Result(sent_call.number, result)
            }
        }
    }
}

/// Runs calls until each has a result. `round` sends calls and reads all their replies. Those that the
/// server refused only for their form go into the next round.
pub(super) fn run_in_rounds(
    calls: Vec<LinkCall>,
    mut round: impl FnMut(Vec<LinkCall>) -> Vec<LinkReply>,
) -> Vec<CallResult> {
    let mut results: Vec<Option<CallResult>> = calls.iter().map(|_| None).collect();
    let mut open = calls;
    while !open.is_empty() {
        let replies = round(std::mem::take(&mut open));
        for reply in replies {
            match reply {
                LinkReply::Result(number, result) => results[number as usize] = Some(result),
                LinkReply::OtherForm(call) => open.push(call),
            }
        }
    }
    let late = || CallResult::not_sent(StoreFault::timed_out(Step::Reply));
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(late))
        .collect()
}

impl LinkReply {
    /// The result, if it is one.
    pub(super) fn result(&mut self) -> Option<&mut CallResult> {
        match self {
            LinkReply::Result(_, result) => Some(result),
            LinkReply::OtherForm(_) => None,
        }
    }
}

pub(super) fn not_sent(calls: &[LinkCall], fault: &StoreFault) -> Vec<LinkReply> {
    let result =
        |sent: &LinkCall| LinkReply::Result(sent.number, CallResult::not_sent(fault.clone()));
    calls.iter().map(result).collect()
}

pub(super) fn fail_owed(
    owed: impl Iterator<Item = OwedCall>,
    fault: &StoreFault,
) -> impl Iterator<Item = LinkReply> {
    owed.map(|owed| owed.fail(fault))
}

impl Connection {
    /// The next reply, as it is. `None` if it has not come within `timeout`: then the next call
    /// goes on with it. With no timeout it takes what has arrived.
    pub(super) fn receive_within(
        &mut self,
        timeout: std::time::Duration,
    ) -> Result<Option<redis::Value>, StoreFault> {
        let received = if timeout.is_zero() {
            self.socket.receive_arrived()
        } else {
            self.limit_reads(timeout)?;
            self.socket.receive()
        };
        match received {
            Ok(value) => match self.of_requests(value) {
                None => self.receive_within(timeout),
                value => Ok(value),
            },
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => {
                self.broken = true;
                Err(fault(error, Step::Reply))
            }
        }
    }
}
