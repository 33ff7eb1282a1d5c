//! Calls that are sent over one connection in one write, and whose replies are read later. So a node
//! that is slow delays only its own calls.

use std::collections::VecDeque;

use redis::Value;

use super::Node;
use super::connection::{Connection, fault};
use super::pipeline::{Hop, Meaning, Pending, Pipeline, Received};
use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::script::{Call, Form, split_renewals};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

/// A call to send, and its number.
#[derive(Clone)]
pub(in crate::store) struct LinkCall {
    pub(in crate::store) number: u64,
    pub(in crate::store) call: Call,
    pub(super) form: Form,
    hop: Hop,
    /// It is a renewal that goes in one command with its neighbours.
    pub(super) together: bool,
}

/// The outcome of a call.
pub(in crate::store) enum LinkReply {
    /// Its number and its result.
    Result(u64, CallResult),
    /// The node wants it in the form that it has now.
    OtherForm(LinkCall),
}

/// Calls on their way.
pub(super) struct Batch {
    calls: VecDeque<SentCall>,
    /// R18 (replica acks): a `WAIT` goes behind the calls. None of them has a result before its reply.
    acks: Option<ReplicaAcks>,
    /// The replies before that to `WAIT`.
    held: Vec<LinkReply>,
    pub(super) sent: Time,
    pub(super) reply_by: Time,
}

/// A call that was sent, and that has no reply yet.
struct SentCall {
    call: LinkCall,
    not_after: u64,
    /// One command does it together with the call before it.
    is_joined: bool,
    /// The reply to its ASKING is still to come, in front of its own.
    owes_asking: bool,
}

impl LinkCall {
    pub(in crate::store) fn new(number: u64, call: Call, (form, hop): (Form, Hop)) -> LinkCall {
        LinkCall {
            number,
            call,
            form,
            hop,
            together: false,
        }
    }

    /// Calls to the one node that there is, numbered from 0.
    pub(super) fn numbered(calls: &[Call]) -> Vec<LinkCall> {
        LinkCall::routed(calls.iter().map(Pending::undated))
    }

    /// Calls on their way to a node, numbered from 0.
    pub(super) fn routed<'a>(calls: impl Iterator<Item = Pending<'a>>) -> Vec<LinkCall> {
        let call = |(number, pending): (u64, Pending<'_>)| {
            LinkCall::new(number, pending.call.clone(), (pending.form, pending.hop))
        };
        (0..).zip(calls).map(call).collect()
    }

    /// Has renewals of mutexes that follow each other go together. A lone one is sent as ever.
    pub(super) fn join_renewals(calls: &mut [LinkCall]) {
        let neighbours = |a: &LinkCall, b: &LinkCall| a.call.is_renewed_with(&b.call);
        for renewals in calls.chunk_by_mut(neighbours) {
            let is_lone = renewals.len() == 1;
            renewals.iter_mut().for_each(|one| one.together = !is_lone);
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.hop == Hop::AskTarget
    }

    pub(super) fn pending(&self, not_after: u64) -> Pending<'_> {
        let mut pending = Pending::in_form(&self.call, not_after, self.form, self.hop);
        pending.together = self.together;
        pending
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
        |call: &LinkCall| LinkReply::Result(call.number, CallResult::not_sent(fault.clone()));
    calls.iter().map(result).collect()
}

impl Batch {
    /// Sends calls in one write, and reads no reply. Returns the results that are known already: of
    /// calls that the user has no right to, and of all if an error ends the connection.
    ///
    /// Never waits, with one exception: before an acquire it asks for the rights if they are not known.
    pub(super) fn send(
        node: &Node,
        connection: &mut Connection,
        mut calls: Vec<LinkCall>,
        (acks, reply_by): (Option<ReplicaAcks>, Time),
    ) -> (Batch, Vec<LinkReply>) {
        let sent = node.clock.now();
        let mut batch = Batch {
            calls: VecDeque::with_capacity(calls.len()),
            acks,
            held: Vec::new(),
            sent,
            reply_by,
        };
        if connection.broken {
            // The calls before have ended it.
            return (batch, not_sent(&calls, &StoreFault::timed_out(Step::Reply)));
        }
        if acks.is_some() {
            // The WAIT behind a renewal that is refused would take all its time for nothing.
            for call in &mut calls {
                call.form = connection.scripts.form_for(&call.call, call.form);
            }
        }
        let not_after = connection
            .anchor
            .server_time_at_least(reply_by.min(sent + node.config.command_timeout));
        let mut answers: Vec<Option<Result<Answer, StoreFault>>> =
            calls.iter().map(|_| None).collect();
        let mut pipeline = Pipeline {
            pending: calls.iter().map(|call| call.pending(not_after)).collect(),
            reply_by,
        };
        let behind = acks.map(ReplicaAcks::command);
        node.write_calls(connection, &mut pipeline, behind, &mut |index, answer| {
            answers[index] = Some(answer);
        });
        let mut is_joined = vec![false; calls.len()];
        for group in pipeline.groups() {
            group[1..].iter().for_each(|index| is_joined[*index] = true);
        }
        drop(pipeline);
        let mut replies = Vec::new();
        for ((call, answer), is_joined) in calls.into_iter().zip(answers).zip(is_joined) {
            match answer {
                Some(answer) => {
                    let result = CallResult { answer, not_after };
                    replies.push(LinkReply::Result(call.number, result));
                }
                None => batch.calls.push_back(SentCall {
                    owes_asking: call.is_asking(),
                    call,
                    not_after,
                    is_joined,
                }),
            }
        }
        (batch, replies)
    }

    /// Whether replies are still to come.
    pub(super) fn is_open(&self) -> bool {
        !self.calls.is_empty() || !self.held.is_empty()
    }

    /// Reads the replies that come until `until`. After `reply_by` the connection ends, and all calls
    /// without a reply fail.
    pub(super) fn receive(
        &mut self,
        node: &Node,
        connection: &mut Connection,
        until: Time,
    ) -> Vec<LinkReply> {
        let mut replies = Vec::new();
        while self.is_open() {
            let left = until.min(self.reply_by) - node.clock.now();
            let fault = match connection.receive_within(left) {
                Ok(Some(value)) => {
                    self.take(node, connection, value, &mut replies);
                    continue;
                }
                Ok(None) if node.clock.now() < self.reply_by => break,
                Ok(None) => StoreFault::timed_out(Step::Reply),
                Err(fault) => fault,
            };
            connection.broken = true;
            replies.extend(self.fail(&fault));
        }
        replies
    }

    /// Takes the next reply.
    fn take(
        &mut self,
        node: &Node,
        connection: &mut Connection,
        value: Value,
        replies: &mut Vec<LinkReply>,
    ) {
        let received = node.clock.now();
        let Some(first) = self.calls.front_mut() else {
            let count = node.read_count(connection.age, value);
            return replies.extend(self.confirm(&count));
        };
        if std::mem::take(&mut first.owes_asking) {
            return;
        }
        // A proxy may hide a cluster. It would refuse each further command, too.
        connection.refuses_several_slots |= matches!(
            &value, Value::ServerError(refused) if refused.code() == "CROSSSLOT");
        let others = self.calls.iter().skip(1);
        let count = 1 + others.take_while(|next| next.is_joined).count();
        let mut group: Vec<SentCall> = self.calls.drain(..count).collect();
        let values = split_reply(&mut group, value);
        let to = match self.acks {
            Some(_) => &mut self.held,
            None => replies,
        };
        for (sent, value) in group.into_iter().zip(values) {
            let script = sent.call.call.script_id();
            let reply = match value {
                Some(value) => sent.read(node, connection, (value, self.sent, received)),
                None => LinkReply::OtherForm(sent.call),
            };
            match &reply {
                LinkReply::OtherForm(_) => connection.scripts.note(script, false),
                LinkReply::Result(_, result) if result.answer.is_ok() => {
                    connection.scripts.note(script, true);
                }
                LinkReply::Result(..) => {}
            }
            to.push(reply);
        }
    }

    /// Gives this fault to all calls without a result.
    pub(super) fn fail(&mut self, fault: &StoreFault) -> Vec<LinkReply> {
        let mut replies = self.confirm(&Err(fault.clone()));
        let fail = |SentCall {
                        call, not_after, ..
                    }: SentCall| {
            let answer = Err(fault.clone());
            LinkReply::Result(call.number, CallResult { answer, not_after })
        };
        replies.extend(self.calls.drain(..).map(fail));
        replies
    }

    /// The results of the renewals that have a reply, given the reply to `WAIT`.
    fn confirm(&mut self, count: &Result<u32, StoreFault>) -> Vec<LinkReply> {
        let mut held = std::mem::take(&mut self.held);
        if let Some(acks) = self.acks {
            for result in held.iter_mut().filter_map(LinkReply::result) {
                let answer = std::mem::replace(&mut result.answer, Err(StoreFault::NotReady));
                result.answer = answer.and_then(|answer| acks.confirm(answer, count));
            }
        }
        held
    }
}

/// The replies to the calls of a group, which one command did. A call without one is sent alone next,
/// unless the server only lacks the script: the script did nothing about its name, or the reply is a
/// refusal or malformed. One name alone may be the reason.
fn split_reply(group: &mut [SentCall], reply: Value) -> Vec<Option<Value>> {
    if !group[0].call.together {
        return vec![Some(reply)];
    }
    let is_unknown_script =
        matches!(&reply, Value::ServerError(refused) if refused.code() == "NOSCRIPT");
    for SentCall { call, .. } in group.iter_mut() {
        call.form.by_source = is_unknown_script;
        call.together = is_unknown_script;
    }
    // Otherwise it is refused, or not a reply to so many renewals.
    let replies = split_renewals(group.len(), &reply);
    replies.unwrap_or_else(|| vec![None; group.len()])
}

impl SentCall {
    /// Reads the reply, with the times of its request and its own.
    fn read(
        self,
        node: &Node,
        connection: &mut Connection,
        (value, sent, received): (Value, Time, Time),
    ) -> LinkReply {
        let mut call = self.call;
        let mut pending = call.pending(self.not_after);
        let read = node.read_reply(
            &mut pending,
            Received {
                value,
                sent,
                received,
                age: connection.age,
            },
        );
        let form = pending.form;
        if let Some(anchor) = read.anchor {
            connection.anchor = anchor;
            node.note_anchor(anchor);
        }
        match read.meaning {
            Meaning::OtherForm => {
                call.form = form;
                LinkReply::OtherForm(call)
            }
            Meaning::Answer(answer) => {
                let not_after = self.not_after;
                LinkReply::Result(call.number, CallResult { answer, not_after })
            }
        }
    }
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
