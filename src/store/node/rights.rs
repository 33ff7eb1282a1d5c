//! Whether the user may run all commands of the scripts.
//!
//! A script that Redis refuses a command keeps what it wrote before. So a user without all rights
//! could take a lock that nobody can release. The node asks for the rights before the first call
//! that takes or deletes something. It asks again when they may have changed: after READONLY and
//! NOPERM, and after the server closed a lane's connection, since it may have been replaced.

use std::sync::atomic::Ordering;

use redis::Value;

use super::Node;
use super::connection::Connection;
use super::pipeline::{Hop, OnAnswer, Pipeline};
use crate::error::passes_by_itself;
use crate::script::{Call, rights_command};
use crate::store::StoreFault;
use crate::store::refusal::{Lack, Refusal, is_of_another_node};

impl Node {
    /// Asks for the rights if a call of the pipeline needs them and they are not known. Such calls
    /// are answered if the user lacks a right. Returns whether any call is left to send.
    pub(super) fn check_rights(
        &self,
        connection: &mut Connection,
        pipeline: &mut Pipeline<'_>,
        on_answer: &mut OnAnswer<'_>,
    ) -> bool {
        if self.has_rights.load(Ordering::Acquire) {
            return true;
        }
        while let Some((call, hop)) = pipeline.first_that_needs_rights() {
            let refused = self
                .time_left(pipeline.reply_by)
                .and_then(|left| {
                    let command = rights_command(call, &self.caller_id);
                    if hop == Hop::AskTarget {
                        connection
                            .request(&redis::cmd("ASKING"), left.min(self.command_timeout))?;
                    }
                    connection.request(&command, left.min(self.command_timeout))
                })
                .and_then(|reply| self.note_rights(call, reply));
            match refused {
                Ok(()) => break,
                // It is about the slot of this call alone. R11 (missing keys): another call must not
                // take it for an answer to its own form.
                Err(fault) if !connection.broken && fault.is_about_migration() => {
                    pipeline.fail_call(call, &fault, on_answer);
                }
                Err(fault) if connection.broken || fault.code().is_none() => {
                    connection.broken = true;
                    pipeline.fail(&fault, on_answer);
                }
                Err(fault) => pipeline.fail_some(&fault, Call::needs_rights, on_answer),
            }
        }
        pipeline.has_unanswered()
    }

    /// Reads the reply, which has the errors of the commands that failed.
    pub(super) fn note_rights(&self, call: &Call, reply: Value) -> Result<(), StoreFault> {
        let (lacks, is_certain) = lacks(reply)?;
        let mut needed = Vec::new();
        for (command, lack) in lacks {
            let right = match lack {
                Lack::Command => format!("+{}", command.to_lowercase()),
                Lack::Key => format!("~{}*", call.key.record()),
                // R17 (subscription): a free lock needs no channel. A waiter learns of the lack.
                Lack::Channel => continue,
            };
            if !needed.contains(&right) {
                needed.push(right);
            }
        }
        if needed.is_empty() {
            self.has_rights.store(is_certain, Ordering::Release);
            return Ok(());
        }
        let user = self.server.login.shown_user();
        Err(StoreFault::lacks(user.as_deref(), &needed.join(" ")))
    }

    /// The rights may have changed.
    pub(super) fn forget_rights(&self) {
        self.has_rights.store(false, Ordering::Release);
    }
}

/// The commands that the user may not run, by the reply to the question for the rights, and what is
/// lacking for each. And whether every command could be tried.
pub(super) fn lacks(reply: Value) -> Result<(Vec<(String, Lack)>, bool), StoreFault> {
    let errors: Vec<(String, String)> = redis::from_redis_value(reply)
        .map_err(|_| StoreFault::protocol("expected a list of errors"))?;
    let mut lacks = Vec::new();
    let mut is_certain = true;
    for (command, error) in errors {
        let refusal = Refusal::read_caught(&error);
        match refusal.lack() {
            Some(lack) => lacks.push((command, lack)),
            // On a replica, or in a slot that is in migration, say, not every command could be tried.
            None => {
                is_certain &= !passes_by_itself(&refusal.code, &refusal.message)
                    && !is_of_another_node(&refusal.message);
            }
        }
    }
    Ok((lacks, is_certain))
}
