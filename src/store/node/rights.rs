//! Whether the user may run all commands of the scripts.
//!
//! A script that Redis refuses a command keeps what it wrote before. So a user without all rights
//! could take a lock that nobody can release. The node asks for the rights before the first call
//! that takes or deletes something. A user who has them all leaves no trace by that in the server's
//! log of denials and its counts of errors. It asks once for each generation of connections: again after
//! READONLY, and after the server closed a lane's connection, since it may have been replaced. After
//! NOPERM it asks again as well.
//!
//! The question goes the way of the call: over a link's connection ([`Node::check_rights`]), or over the
//! call's lane, awaited or posted. [`Node::rights_question`] makes it, and [`Node::note_rights`] reads
//! the reply.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Value};

use super::Node;
use super::age::Age;
use super::connection::Connection;
use super::pipeline::{Hop, OnAnswer, Pipeline};
use crate::error::passes_by_itself;
use crate::script::{Call, Family, QUORUM_RIGHTS, RIGHTS, rights_command};
use crate::store::StoreFault;
use crate::store::refusal::{
    Lack, Refusal, calls_unknown_command, is_of_another_node, is_unknown_command,
    lacks_unnamed_command,
};

/// The rights of its user that a node knows.
#[derive(Default)]
pub(super) struct Rights {
    /// The user was seen to have them all, and nothing has happened since that could end that.
    are_known: AtomicBool,
    /// Scripts cannot ask what the user may do, so they try it on a key of their own.
    are_tried: AtomicBool,
}

impl Rights {
    /// The user has them all, as far as could be tried.
    pub(super) fn note_all(&self, is_certain: bool) {
        self.are_known.store(is_certain, Ordering::Release);
    }

    /// They may have changed.
    pub(super) fn forget(&self) {
        self.are_known.store(false, Ordering::Release);
    }

    /// Whether scripts must try what the user may do.
    pub(super) fn note_version(&self, are_tried: bool) {
        self.are_tried.store(are_tried, Ordering::Relaxed);
    }
}

impl Node {
    /// Asks for the rights if a call of the pipeline needs them and they are not known. Such calls
    /// are answered if the user lacks a right. Returns whether any call is left to send.
    pub(super) fn check_rights(
        &self,
        connection: &mut Connection,
        pipeline: &mut Pipeline<'_>,
        on_answer: &mut OnAnswer<'_>,
    ) -> bool {
        while let Some((call, hop)) = pipeline.first_that_needs_rights() {
            let Some(command) = self.rights_question(call) else {
                return true;
            };
            let refused = self.time_left(pipeline.reply_by).and_then(|left| {
                if hop == Hop::AskTarget {
                    connection
                        .request(&redis::cmd("ASKING"), left.min(self.config.command_timeout))?;
                }
                let reply = connection.request(&command, left.min(self.config.command_timeout));
                self.note_rights(call, reply)
            });
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

    /// The question that must have its reply before a call is sent. `None`: there is none.
    pub(super) fn rights_question(&self, call: &Call) -> Option<Cmd> {
        let is_due = call.needs_rights() && !self.rights.are_known.load(Ordering::Acquire);
        is_due.then(|| self.rights_command(call))
    }

    /// The question for the rights that a call of this family needs.
    pub(super) fn rights_command(&self, call: &Call) -> Cmd {
        let on_own_key = self.rights.are_tried.load(Ordering::Relaxed);
        rights_command(call, &self.caller_id, on_own_key)
    }

    /// Reads the reply. An error if a call that needs the rights must not be sent.
    pub(super) fn note_rights(
        &self,
        call: &Call,
        reply: Result<Value, StoreFault>,
    ) -> Result<(), StoreFault> {
        let lacks = match reply {
            Ok(reply) => Lacks::read(reply)?,
            Err(fault) => return Err(self.refused_question(call, fault)),
        };
        if !lacks.absent.is_empty() {
            let absent = lacks.absent.join(" and no ");
            let message = format!("this server has no {absent}, which every lock needs");
            return Err(StoreFault::server("ERR", message));
        }
        // R17 (subscription): a free lock needs no channel. A waiter learns of the lack.
        if lacks.commands.is_empty() && !lacks.key {
            self.rights.note_all(lacks.is_certain);
            return Ok(());
        }
        let channel = self.caller_id.channel_rule();
        let rules = lacks.rules(&key_rule(call), &channel).join(" ");
        let fault = StoreFault::lacks(self.server.login.shown_user().as_deref(), &rules);
        Err(if lacks.may_lack_channel && !lacks.channel {
            fault.with_advice(&format!("and {channel} unless the user has all channels"))
        } else {
            fault
        })
    }

    /// The server refused the question itself. Which other rights are lacking is not known then, so
    /// the error has all that are needed.
    fn refused_question(&self, call: &Call, fault: StoreFault) -> StoreFault {
        let fault = self.or_login_ended(fault, self.ages.now());
        let fault = match &fault {
            StoreFault::Server { code, message, .. }
                if Refusal::read(code, message).lack() == Some(Lack::Key) =>
            {
                StoreFault::lacks(self.server.login.shown_user().as_deref(), &key_rule(call))
            }
            _ => fault,
        };
        if !fault.is_lack_of_rights() {
            return fault.of_script();
        }
        fault.with_advice(&match call.spec.family {
            Family::Quorum => {
                format!("to lock, the user needs +eval +evalsha +scan {QUORUM_RIGHTS}")
            }
            Family::Mutex | Family::Permit => format!(
                "to lock and wait, the user needs +eval +evalsha +subscribe +ping +scan {RIGHTS} \
                 and {}",
                self.caller_id.channel_rule()
            ),
        })
    }

    /// The fault of a call whose script was refused.
    pub(super) fn refused_script(&self, call: &Call, fault: StoreFault, age: Age) -> StoreFault {
        with_rights_of_script(call, self.or_login_ended(fault, age).of_script())
    }
}

/// The same fault. If the script was refused a command which the server does not name, or if the server
/// does not have the command, this names all that the scripts of its family use.
fn with_rights_of_script(call: &Call, fault: StoreFault) -> StoreFault {
    match fault {
        // The script may have written before.
        StoreFault::InDoubt(fault) => {
            StoreFault::InDoubt(Box::new(with_rights_of_script(call, *fault)))
        }
        StoreFault::Server { ref message, .. } if lacks_unnamed_command(message) => fault
            .with_advice(&match call.spec.family {
                Family::Quorum => format!("to lock, the user needs {QUORUM_RIGHTS}"),
                Family::Mutex | Family::Permit => {
                    format!("to lock and wait, the user needs {RIGHTS}")
                }
            }),
        StoreFault::Server { ref message, .. } if calls_unknown_command(message) => {
            let rights = match call.spec.family {
                Family::Quorum => QUORUM_RIGHTS,
                Family::Mutex | Family::Permit => RIGHTS,
            };
            let commands = rights.replace('+', "").to_uppercase();
            fault.with_advice(&format!(
                "the server must have all of {commands}: one was renamed or removed"
            ))
        }
        fault => fault,
    }
}

/// The rule for all keys of a call's name.
fn key_rule(call: &Call) -> String {
    format!("~{}*", call.key.record())
}

/// The rights that the user lacks, by the reply to the question.
#[derive(Default)]
pub(super) struct Lacks {
    /// Rules for commands that every lock needs.
    commands: Vec<String>,
    key: bool,
    channel: bool,
    /// The user lacks the commands with which that would be found out.
    may_lack_channel: bool,
    /// Rules for commands that are needed to wait, or to list.
    later: Vec<String>,
    /// Commands that the server does not have.
    absent: Vec<String>,
    /// Whether every command could be tried.
    is_certain: bool,
}

impl Lacks {
    pub(super) fn read(reply: Value) -> Result<Lacks, StoreFault> {
        let errors: Vec<(String, String)> = redis::from_redis_value(reply)
            .map_err(|_| StoreFault::protocol("expected a list of errors"))?;
        let mut lacks = Lacks {
            is_certain: true,
            ..Lacks::default()
        };
        for (command, error) in errors {
            match &*command {
                "~" => lacks.key = true,
                "&" => lacks.channel = true,
                "&?" => lacks.may_lack_channel = true,
                "+evalsha" => lacks.commands.push(command),
                later if later.starts_with('+') => lacks.later.push(command),
                // A call that needs it names it, and locks do without.
                absent if absent.starts_with('-') => {}
                _ => lacks.take(command, &Refusal::read_caught(&error)),
            }
        }
        lacks.commands.sort_unstable();
        Ok(lacks)
    }

    fn take(&mut self, command: String, refusal: &Refusal) {
        match refusal.lack() {
            Some(Lack::Command) => self.commands.push(format!("+{}", command.to_lowercase())),
            Some(Lack::Key) => self.key = true,
            Some(Lack::Channel) => self.channel = true,
            // R17 (subscription): a grant is found without a message, too.
            None if is_unknown_command(&refusal.message) && command == "PUBLISH" => {}
            None if is_unknown_command(&refusal.message) => self.absent.push(command),
            // On a replica, or in a slot that is in migration, say, not every command could be tried.
            None => {
                self.is_certain &= !passes_by_itself(&refusal.code, &refusal.message)
                    && !is_of_another_node(&refusal.message);
            }
        }
    }

    /// All rules that the user lacks.
    pub(super) fn rules(&self, key: &str, channel: &str) -> Vec<String> {
        let mut rules = self.commands.clone();
        rules.extend(self.later.iter().cloned());
        rules.extend(self.key.then(|| key.to_owned()));
        rules.extend(self.channel.then(|| channel.to_owned()));
        rules
    }
}
