//! Calls that travel over one connection together, and what lanes share with them: how a call is
//! dated, written, and sent in another form, and how its reply is read.
//!
//! A server that cannot run a call in the form in which it was sent refuses it unchanged. Then that call
//! is sent in another form: with the script's source if the server forgot the script (R20, write order),
//! or with one key if the slot is in migration (R11, missing keys).

use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::Node;
use super::age::Age;
use super::connection::{Connection, fault, refusal};
use super::scripts::ScriptSet;
use crate::error::Step;
use crate::script::{
    Call, Form, Outcome, RENEWALS_LIMIT, ScriptReply, renewals_command, renewals_script_id,
};
use crate::store::clock::Time;
use crate::store::{Anchor, Answer, StoreFault};

/// The calls that go over one connection together.
pub(super) struct Pipeline<'a> {
    pub(super) pending: Vec<Pending<'a>>,
    /// After this nothing is awaited or sent again.
    pub(super) reply_by: Time,
}

/// A call on its way to an answer.
pub(in crate::store) struct Pending<'a> {
    pub(super) call: &'a Call,
    pub(super) hop: Hop,
    /// R5 (dated requests). All copies on one connection carry the same bound, so that a caller who
    /// stops waiting knows it: R7 (late copies).
    pub(super) not_after: u64,
    pub(super) form: Form,
    /// It is a renewal that goes in one command with its neighbours.
    pub(super) together: bool,
    /// Which call of its lane it was when it was sent last. 0: it was not sent on a lane yet.
    pub(super) number: u64,
    /// The connection of its lane that it was sent on last. 0: none.
    connection: u64,
    pub(super) is_answered: bool,
}

/// How a call was routed to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Hop {
    /// There is only this node.
    Only,
    /// The node owns the call's slot.
    Owner,
    /// The slot's owner answered ASK. The node serves the call only behind ASKING.
    AskTarget,
}

/// A reply to a call, and when it came.
pub(super) struct Received {
    pub(super) value: Value,
    pub(super) sent: Time,
    pub(super) received: Time,
    /// The age of its connection.
    pub(super) age: Age,
}

/// A reply that was read.
pub(super) struct ReadReply {
    pub(super) meaning: Meaning,
    pub(super) anchor: Option<Anchor>,
}

pub(super) enum Meaning {
    Answer(Result<Answer, StoreFault>),
    /// The call must be sent in the form that it has now, or with another date.
    OtherForm,
}

/// Receives each answer as it comes, by the index of its call.
pub(super) type OnAnswer<'a> = dyn FnMut(usize, Result<Answer, StoreFault>) + 'a;

impl<'a> Pending<'a> {
    pub(super) fn new(call: &'a Call, not_after: u64) -> Pending<'a> {
        Pending {
            call,
            hop: Hop::Only,
            not_after,
            form: Form::default(),
            together: false,
            number: 0,
            connection: 0,
            is_answered: false,
        }
    }

    /// A call that no connection has dated yet.
    pub(super) fn undated(call: &'a Call) -> Pending<'a> {
        Pending::new(call, 0)
    }

    pub(super) fn in_form(call: &'a Call, not_after: u64, form: Form, hop: Hop) -> Pending<'a> {
        Pending {
            form,
            hop,
            ..Pending::new(call, not_after)
        }
    }

    /// A call that no connection has dated yet, on its way through a cluster.
    pub(in crate::store) fn routed(call: &'a Call, form: Form, hop: Hop) -> Pending<'a> {
        Pending::in_form(call, 0, form, hop)
    }

    /// The call is about to be sent for a caller who waits until `reply_by`. Only the first copy on
    /// a connection dates it.
    pub(super) fn date(&mut self, anchor: &Anchor, reply_by: Time) {
        if self.not_after == 0 {
            self.not_after = anchor.server_time_at_least(reply_by);
        }
    }

    /// It is about to be sent on this connection of its lane, which dates it anew if it is another
    /// than before: the two may be to servers with different clocks.
    pub(super) fn undate_on(&mut self, connection: u64) {
        if std::mem::replace(&mut self.connection, connection) != connection {
            self.not_after = 0;
        }
    }

    /// Appends the call's bytes, and counts its request.
    pub(super) fn write(&self, node: &Node, bytes: &mut Vec<u8>) {
        node.counts.requests.fetch_add(1, Ordering::Relaxed);
        let form = node.form(self.form);
        let command = self.call.command(&node.caller_id, form, self.not_after);
        command.write_packed_command(bytes);
    }

    /// Chooses another form if the server refused only the form of the call.
    pub(super) fn change_form(&mut self, refused: &StoreFault) -> bool {
        match refused.code() {
            Some("NOSCRIPT") => self.form.by_source = true,
            // In a cluster the slot's owner must be asked first, in that very form.
            Some("TRYAGAIN")
                if self.hop == Hop::Only
                    && self.call.has_single_key_form()
                    && !self.form.single_key =>
            {
                self.form.single_key = true;
            }
            _ => return false,
        }
        true
    }
}

impl<'a> Pipeline<'a> {
    pub(super) fn has_unanswered(&self) -> bool {
        self.pending.iter().any(|pending| !pending.is_answered)
    }

    /// The calls without an answer, with their indices.
    fn unanswered(&mut self) -> impl Iterator<Item = (usize, &mut Pending<'a>)> {
        let all = self.pending.iter_mut().enumerate();
        all.filter(|(_, pending)| !pending.is_answered)
    }

    /// The first call without an answer that needs all rights.
    pub(super) fn first_that_needs_rights(&self) -> Option<(&'a Call, Hop)> {
        let mut unanswered = self.pending.iter().filter(|pending| !pending.is_answered);
        unanswered
            .find(|pending| pending.call.needs_rights())
            .map(|pending| (pending.call, pending.hop))
    }

    /// Ends every call that has no answer yet.
    pub(super) fn fail(&mut self, fault: &StoreFault, on_answer: &mut OnAnswer<'_>) {
        self.fail_some(fault, |_| true, on_answer);
    }

    /// Ends this call.
    pub(super) fn fail_call(
        &mut self,
        call: &Call,
        fault: &StoreFault,
        on_answer: &mut OnAnswer<'_>,
    ) {
        for (index, pending) in self.unanswered() {
            if std::ptr::eq(pending.call, call) {
                pending.is_answered = true;
                on_answer(index, Err(fault.clone()));
            }
        }
    }

    /// Ends those of these calls that have no answer yet.
    pub(super) fn fail_some(
        &mut self,
        fault: &StoreFault,
        is_one: fn(&Call) -> bool,
        on_answer: &mut OnAnswer<'_>,
    ) {
        for (index, pending) in self.unanswered().filter(|(_, p)| is_one(p.call)) {
            pending.is_answered = true;
            on_answer(index, Err(fault.clone()));
        }
    }
}

impl Pipeline<'_> {
    /// The calls without an answer, by their indices: one group for each command.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        let is_unanswered = |index: &usize| !self.pending[*index].is_answered;
        let unanswered: Vec<usize> = (0..self.pending.len()).filter(is_unanswered).collect();
        unanswered
            .chunk_by(|a, b| self.pending[*a].together && self.pending[*b].together)
            .flat_map(|run| run.chunks(RENEWALS_LIMIT))
            .map(<[usize]>::to_vec)
            .collect()
    }

    /// The commands of the calls without an answer, one for each of their groups.
    pub(super) fn commands(&self, node: &Node) -> Vec<Cmd> {
        let mut with_source = ScriptSet::default();
        let mut command = |group: &[usize]| {
            let pending = &self.pending[group[0]];
            // An acquire that the server refuses with NOSCRIPT would be sent again behind the others.
            // R4 (lost places): other acquires would be enqueued before it. And the release of a
            // line's tenure would come before the line's new place.
            let wants_source = pending.form.by_source || pending.call.is_acquire();
            let script = if pending.together {
                Some(renewals_script_id())
            } else {
                pending.call.script_id()
            };
            // One source restores the script for all calls that follow it in the pipeline.
            let script = script.filter(|_| wants_source);
            let by_source = script.is_some_and(|id| with_source.add(id))
                || node.form(Form::default()).by_source;
            if pending.together {
                let calls = group.iter().map(|index| self.pending[*index].call);
                return renewals_command(calls, &node.caller_id, by_source, pending.not_after);
            }
            let form = Form {
                by_source,
                ..pending.form
            };
            let not_after = pending.not_after;
            pending.call.command(&node.caller_id, form, not_after)
        };
        let mut commands = Vec::with_capacity(self.pending.len());
        for group in self.groups() {
            if self.pending[group[0]].hop == Hop::AskTarget {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(command(&group));
        }
        commands
    }
}

impl Node {
    /// Sends all calls that have no answer yet, and reads no reply. Those that the user has no right
    /// to are answered. An error ends the connection, and is the answer to all. `behind` follows them.
    pub(super) fn write_calls(
        &self,
        connection: &mut Connection,
        pipeline: &mut Pipeline<'_>,
        behind: Option<Cmd>,
        on_answer: &mut OnAnswer<'_>,
    ) {
        if !self.check_rights(connection, pipeline, on_answer) {
            return;
        }
        let mut commands = pipeline.commands(self);
        commands.extend(behind);
        let written = self.time_left(pipeline.reply_by).and_then(|left| {
            connection.limit_writes(left)?;
            connection.send(&commands).map_err(|e| fault(e, Step::Send))
        });
        if let Err(fault) = written {
            connection.broken = true;
            pipeline.fail(&fault, on_answer);
        }
    }
}

impl Node {
    /// Reads a reply, for its call and for what it says about the node.
    ///
    /// A reply that no script gives is the matter of its call alone. A record that was damaged by hand
    /// may cause it, each time. The replies behind it are good, since RESP says where each one ends.
    pub(super) fn read_reply(&self, pending: &mut Pending<'_>, received: Received) -> ReadReply {
        let Received {
            value,
            sent,
            received,
            age,
        } = received;
        let mut anchor = None;
        let answer = match refusal(value).map(|value| ScriptReply::parse(pending.call, &value)) {
            Ok(Ok(reply)) => {
                anchor = reply.now.map(|server| Anchor {
                    server,
                    sent,
                    received,
                });
                // R5 (dated requests): it did nothing. The next copy is dated by this reply.
                if reply.outcome == Outcome::Late && pending.call.is_dated_anew() {
                    pending.not_after = 0;
                    return ReadReply {
                        meaning: Meaning::OtherForm,
                        anchor,
                    };
                }
                answer_of(reply, sent)
            }
            Ok(Err(malformed)) => Err(malformed.into()),
            Err(refused) if pending.change_form(&refused) || self.learn_form(pending, &refused) => {
                return ReadReply {
                    meaning: Meaning::OtherForm,
                    anchor,
                };
            }
            Err(refused) => {
                match refused.code() {
                    // R17 (subscription): this node is a replica now, so no connection to it is
                    // of use, nor is the subscription.
                    Some("READONLY") => self.retire(age),
                    // A right was taken away.
                    Some("NOPERM") => self.rights.forget(),
                    _ => {}
                }
                // Without ASKING, the node sends the call back to the slot's owner.
                let is_sent_back = pending.hop == Hop::AskTarget && refused.code() == Some("MOVED");
                let asking = is_sent_back.then(|| self.asking_refused.lock().clone());
                let refused = asking.flatten().unwrap_or(refused);
                Err(self.refused_script(pending.call, refused, age))
            }
        };
        ReadReply {
            meaning: Meaning::Answer(answer),
            anchor,
        }
    }
}

impl Node {
    /// The form in which the server takes a call that is to have this form.
    pub(super) fn form(&self, form: Form) -> Form {
        Form {
            by_source: form.by_source || self.refuses_digests.load(Ordering::Relaxed),
            ..form
        }
    }

    /// Chooses another form, also for later calls, if the server has no EVALSHA.
    fn learn_form(&self, pending: &mut Pending<'_>, refused: &StoreFault) -> bool {
        let is_unknown = !self.form(pending.form).by_source && refused.names_command("EVALSHA");
        if is_unknown {
            self.refuses_digests.store(true, Ordering::Relaxed);
            pending.form.by_source = true;
        }
        is_unknown
    }
}

/// R11 (missing keys): a script that was given one key alone and finds a queue can do nothing yet.
fn answer_of(reply: ScriptReply, sent: Time) -> Result<Answer, StoreFault> {
    if reply.outcome == Outcome::Queued {
        return Err(StoreFault::server("TRYAGAIN", "the slot is in migration"));
    }
    Ok(Answer {
        reply,
        sent,
        resent: false,
    })
}
