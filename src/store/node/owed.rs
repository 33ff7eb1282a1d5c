//! A link among others: it sends calls now and reads their replies later, so that a node that is
//! slow delays only its own.

use super::Node;
use super::connection::{Connection, fault};
use super::link::{LinkState, NodeLink};
use super::pipeline::{Hop, Meaning, Pending, Pipeline, Received};
use super::pool::script_bit;
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

/// What became of a call.
pub(in crate::store) enum LinkReply {
    /// Its number and its result.
    Result(u64, CallResult),
    /// The node wants it in the form that it has now.
    OtherForm(LinkCall),
}

/// A call that was sent, and that has no reply yet.
pub(in crate::store::node) struct OwedCall {
    sent_call: LinkCall,
    not_after: u64,
    sent: Time,
    reply_by: Time,
    /// The reply to its ASKING is still to come, in front of its own.
    owes_asking: bool,
}

impl NodeLink {
    /// Whether replies are still to come.
    pub(in crate::store) fn owes_replies(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends calls in one write, and reads no reply. Returns the calls that were not sent. A link
    /// that owes replies takes no more calls.
    ///
    /// Never blocks, with one exception: before an acquire it asks for the rights if they are not
    /// known.
    pub(in crate::store) fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        if self.owes_replies() {
            return not_sent(&calls, &StoreFault::NotReady);
        }
        let node = self.node.clone();
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(fault) => return not_sent(&calls, &fault),
        };
        let started = node.clock.now();
        let reply_by = started + node.command_timeout;
        let date = |_: &LinkCall| connection.anchor.server_time_at_least(reply_by);
        let dates: Vec<u64> = calls.iter().map(date).collect();
        let mut results: Vec<Option<CallResult>> = calls.iter().map(|_| None).collect();
        let pending = calls.iter().zip(&dates);
        let mut pipeline = Pipeline {
            pending: pending
                .map(|(sent, date)| Pending::in_form(&sent.call, *date, sent.form, sent.hop))
                .collect(),
            reply_by,
        };
        node.write_calls(connection, &mut pipeline, &mut |index, answer| {
            results[index] = Some(CallResult {
                answer,
                not_after: dates[index],
            });
        });
        drop(pipeline);
        let mut replies = Vec::new();
        for ((sent_call, not_after), result) in calls.into_iter().zip(dates).zip(results) {
            match result {
                Some(result) => replies.push((sent_call.number, result)),
                None => self.owed.push_back(OwedCall {
                    owes_asking: sent_call.hop == Hop::AskTarget,
                    sent_call,
                    not_after,
                    sent: started,
                    reply_by,
                }),
            }
        }
        self.finish(replies, started, reply_by)
    }

    /// Reads the replies that come until `until`. After the command timeout the connection ends, and
    /// all calls without a reply fail.
    pub(in crate::store) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        let mut results = Vec::new();
        let mut others = Vec::new();
        let Some((started, reply_by)) = self.owed.front().map(|owed| (owed.sent, owed.reply_by))
        else {
            return Vec::new();
        };
        let node = self.node.clone();
        while !self.owed.is_empty() {
            let LinkState::Up(connection) = &mut self.state else {
                let fault = StoreFault::NotReady;
                results.extend(fail_owed(self.owed.drain(..), &fault));
                break;
            };
            let now = node.clock.now();
            let received = connection.receive_within(until.min(reply_by) - now);
            let outcome = match received {
                Ok(Some(value)) => {
                    let Some(owed) = self.owed.front_mut() else {
                        break;
                    };
                    if std::mem::take(&mut owed.owes_asking) {
                        continue;
                    }
                    let Some(owed) = self.owed.pop_front() else {
                        break;
                    };
                    owed.read(&node, connection, value)
                }
                Ok(None) if node.clock.now() < reply_by => break,
                Ok(None) => Err(StoreFault::timed_out(Step::Reply)),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(LinkReply::Result(number, result)) => results.push((number, result)),
                Ok(other) => others.push(other),
                Err(fault) => {
                    connection.broken = true;
                    results.extend(fail_owed(self.owed.drain(..), &fault));
                }
            }
        }
        let mut replies = self.finish(results, started, reply_by);
        replies.append(&mut others);
        replies
    }

    fn finish(
        &mut self,
        replies: Vec<(u64, CallResult)>,
        started: Time,
        reply_by: Time,
    ) -> Vec<LinkReply> {
        let (numbers, mut results): (Vec<u64>, Vec<CallResult>) = replies.into_iter().unzip();
        self.after_exchange(&mut results, started, reply_by);
        let replies = numbers.into_iter().zip(results);
        replies
            .map(|(number, result)| LinkReply::Result(number, result))
            .collect()
    }
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

    /// The commands of all of them.
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

    pub(super) fn script_bit(&self) -> u64 {
        script_bit(&self.sent_call.call)
    }

    pub(super) fn fail(self, fault: &StoreFault) -> (u64, CallResult) {
        let result = CallResult {
            answer: Err(fault.clone()),
            not_after: self.not_after,
        };
        (self.sent_call.number, result)
    }

    /// Reads the reply. An error if it has no sense: nobody knows what the next replies are to.
    pub(super) fn read(
        self,
        node: &Node,
        connection: &mut Connection,
        value: redis::Value,
    ) -> Result<LinkReply, StoreFault> {
        let mut sent_call = self.sent_call;
        let call = &sent_call.call;
        let mut pending = Pending::in_form(call, self.not_after, sent_call.form, sent_call.hop);
        let read = node.read_reply(
            &mut pending,
            Received {
                value,
                sent: self.sent,
                received: node.clock.now(),
                generation: connection.generation,
            },
        );
        if let Some(anchor) = read.anchor {
            connection.anchor = anchor;
            node.note_anchor(anchor);
        }
        connection.broken |= read.is_malformed;
        let form = pending.form;
        match read.meaning {
            Meaning::OtherForm => {
                sent_call.form = form;
                Ok(LinkReply::OtherForm(sent_call))
            }
            Meaning::Answer(answer) => {
                let not_after = self.not_after;
                let result = CallResult { answer, not_after };
                Ok(LinkReply::Result(sent_call.number, result))
            }
        }
    }
}

pub(super) fn not_sent(calls: &[LinkCall], fault: &StoreFault) -> Vec<LinkReply> {
    let result =
        |sent: &LinkCall| LinkReply::Result(sent.number, CallResult::not_sent(fault.clone()));
    calls.iter().map(result).collect()
}

fn fail_owed(
    owed: impl Iterator<Item = OwedCall>,
    fault: &StoreFault,
) -> impl Iterator<Item = (u64, CallResult)> {
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
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => {
                self.broken = true;
                Err(fault(error, Step::Reply))
            }
        }
    }
}
