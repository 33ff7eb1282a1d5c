//! Requests whose replies nobody waits for: a call whose caller has left, and a command.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::age::Age;
use super::connection::refusal;
use super::lane::Unread;
use super::pipeline::{Hop, Meaning, Pending, Received};
use super::{Counts, Node};
use crate::script::{Call, Form};
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::{CallResult, OnResult, StoreFault};

pub(super) struct UnreadCall {
    node: Arc<Node>,
    call: Call,
    hop: Hop,
    form: Form,
    not_after: u64,
    sent: Time,
    age: Age,
    attempts: Attempts,
    /// It was sent again after a connection was closed before it had a reply.
    resent: bool,
    /// Its caller waits, for several nodes. So its reply is read as soon as it comes.
    is_posted: bool,
    on_result: OnResult,
}

impl UnreadCall {
    pub(super) fn new(
        node: &Arc<Node>,
        pending: &Pending<'_>,
        sent: Time,
        age: Age,
        on_result: OnResult,
    ) -> UnreadCall {
        UnreadCall {
            node: Arc::clone(node),
            call: pending.call.clone(),
            hop: pending.hop,
            form: pending.form,
            not_after: pending.not_after,
            sent,
            age,
            attempts: Attempts::default(),
            resent: false,
            is_posted: false,
            on_result,
        }
    }

    /// A call that a caller puts on the lanes of several nodes, and waits for them all. If its
    /// connection is closed, the caller decides whether it is sent again.
    pub(super) fn posted(self) -> UnreadCall {
        UnreadCall {
            is_posted: true,
            attempts: Attempts::on_one_connection(),
            ..self
        }
    }

    fn pending(&self) -> Pending<'_> {
        Pending::in_form(&self.call, self.not_after, self.form, self.hop)
    }
}

impl Unread for UnreadCall {
    fn is_to_resend(&mut self, refused: &Value) -> bool {
        let Value::ServerError(_) = refused else {
            return false;
        };
        let Err(fault) = refusal(refused.clone()) else {
            return false;
        };
        // Otherwise it goes to the background.
        if self.attempts.after(Ending::Refused) == Next::Done {
            return false;
        }
        let mut pending = self.pending();
        let has_changed = pending.change_form(&fault);
        self.form = pending.form;
        // A master that was demoted refuses until its connections are replaced. A node that does
        // not serve the slot refuses until it does: another node is to be asked.
        let may_pass = fault.is_transient() && !fault.is_ambiguous() && !fault.is_redirect();
        let may_pass = may_pass && (self.hop == Hop::Only || fault.code() != Some("TRYAGAIN"));
        let may_pass = may_pass && fault.code() != Some("READONLY");
        // Another form of the call is no retry.
        self.node
            .note_retries(usize::from(may_pass && !has_changed));
        has_changed || may_pass
    }

    fn is_asking(&self) -> bool {
        self.hop == Hop::AskTarget
    }

    fn may_resend(&mut self) -> bool {
        let may_resend = self.attempts.after(Ending::Closed) == Next::Again;
        self.node.note_retries(usize::from(may_resend));
        may_resend
    }

    fn write(&mut self, bytes: &mut Vec<u8>) {
        self.resent |= !self.attempts.was_never_closed() && !self.is_posted;
        self.pending().write(&self.node, bytes);
    }

    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>) {
        let answer = match outcome {
            Err(fault) => Err(fault),
            Ok(value) => {
                let received = Received {
                    value,
                    sent: self.sent,
                    received: self.node.clock.now(),
                    age: self.age,
                };
                let read = self.node.read_reply(&mut self.pending(), received);
                // Nobody knows how long ago the reply of a caller that has left came, so it is no
                // anchor.
                if self.is_posted
                    && let Some(anchor) = read.anchor
                {
                    self.node.note_posted_anchor(anchor);
                }
                match read.meaning {
                    Meaning::Answer(answer) => answer,
                    Meaning::OtherForm => Err(StoreFault::NotReady),
                }
            }
        };
        let not_after = self.not_after;
        let mut result = CallResult { answer, not_after };
        if self.resent {
            let mut first = CallResult::not_sent(StoreFault::NotReady);
            first.take_resent(result);
            result = first;
        }
        (self.on_result)(result.at(self.node.name()));
    }
}

/// A command that is no script. It is sent once.
pub(super) struct PostedCommand {
    command: Cmd,
    counts: Arc<Counts>,
    on_reply: OnReply,
}

type OnReply = Box<dyn FnOnce(Result<Value, StoreFault>) + Send>;

impl PostedCommand {
    /// The handler gets the reply, on the thread that reads it.
    pub(super) fn new(
        command: Cmd,
        counts: &Arc<Counts>,
        on_reply: impl FnOnce(Result<Value, StoreFault>) + Send + 'static,
    ) -> Box<PostedCommand> {
        Box::new(PostedCommand {
            command,
            counts: Arc::clone(counts),
            on_reply: Box::new(on_reply),
        })
    }
}

impl Unread for PostedCommand {
    fn write(&mut self, bytes: &mut Vec<u8>) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.command.write_packed_command(bytes);
    }

    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>) {
        (self.on_reply)(outcome);
    }
}
