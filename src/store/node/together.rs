//! Renewals that one command does together: which of a pipeline's calls a command serves, and what
//! its reply says to each of them.

use redis::{Cmd, Value};

use super::Node;
use super::pipeline::{Hop, Pending, Pipeline};
use super::scripts::ScriptSet;
use crate::script::{Form, RENEWALS_LIMIT, renewals_command, renewals_script_id, split_renewals};

impl Pipeline<'_> {
    /// Has renewals of mutexes that follow each other go together. A lone one is sent as ever.
    pub(super) fn join_renewals(&mut self) {
        let neighbours = |a: &Pending<'_>, b: &Pending<'_>| a.call.is_renewed_with(b.call);
        for renewals in self.pending.chunk_by_mut(neighbours) {
            let is_lone = renewals.len() == 1;
            renewals.iter_mut().for_each(|one| one.together = !is_lone);
        }
    }

    /// Whether calls without an answer go together.
    pub(super) fn is_joined(&self) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|pending| pending.together && !pending.is_answered)
    }

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
                return renewals_command(calls, &node.caller_id, by_source);
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

    /// The replies to the calls of a group, with their indices. A call without one is sent alone next,
    /// unless the server only lacks the script: the script did nothing about its name, or the reply is a
    /// refusal or malformed. One name alone may be the reason.
    pub(super) fn split_reply(&mut self, group: &[usize], reply: Value) -> Vec<(usize, Value)> {
        if !self.pending[group[0]].together {
            return vec![(group[0], reply)];
        }
        let is_unknown_script =
            matches!(&reply, Value::ServerError(refused) if refused.code() == "NOSCRIPT");
        let replies = match split_renewals(group.len(), &reply) {
            Some(replies) => replies,
            // It is refused, or not a reply to so many renewals.
            None => vec![None; group.len()],
        };
        let mut answered = Vec::with_capacity(group.len());
        for (index, reply) in group.iter().zip(replies) {
            let pending = &mut self.pending[*index];
            pending.form.by_source = is_unknown_script;
            pending.together = is_unknown_script;
            answered.extend(reply.map(|reply| (*index, reply)));
        }
        answered
    }
}
