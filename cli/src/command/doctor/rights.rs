//! The rights that a user lacks for locks, as the library's own question finds them out.

use fairlock::servers::redis::{self, Cmd, Value};

use super::fault::{Fault, Lack, is_unknown_command, lack_in_script};
use super::link::command;

/// The script that managers send before their first lock.
const QUESTION: &str = include_str!("user_rights.lua");

/// The keys and channels of locks with a prefix, and a name that nobody locks.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
    number: u32,
}

impl Names {
    pub(super) fn new(prefix: &str, number: u32) -> Names {
        Names {
            prefix: prefix.to_owned(),
            number,
        }
    }

    /// The key of a name that is tried, and never locked.
    pub(super) fn key(&self) -> String {
        format!("{}:{{{}}}", self.prefix, self.tag())
    }

    /// The part of the key that decides its slot.
    pub(super) fn tag(&self) -> String {
        format!("fairlock-diagnosis-{}", self.number)
    }

    /// A channel beside those of managers.
    pub(super) fn channel(&self) -> String {
        format!("{}:grants:diagnosis-{}", self.prefix, std::process::id())
    }

    /// The rule that gives what the user lacks, for all names of the prefix.
    fn rule(&self, command: &str, lack: Lack) -> String {
        let prefix = &self.prefix;
        match lack {
            Lack::Command => format!("+{}", command.to_lowercase()),
            Lack::Key => format!("~{prefix}:*"),
            Lack::Channel => format!("&{prefix}:grants:*"),
        }
    }
}

/// The rules that a user lacks, each once.
pub(super) struct Lacking<'a> {
    names: &'a Names,
    pub(super) rules: Vec<String>,
    /// Commands that the server does not have, in upper case.
    pub(super) absent: Vec<String>,
}

impl<'a> Lacking<'a> {
    pub(super) fn new(names: &'a Names) -> Lacking<'a> {
        Lacking {
            names,
            rules: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// The question for the rights of the scripts. A server before 7.0 tries them on a key of their
    /// own; a node of a cluster may refuse two keys while their slot moves.
    pub(super) fn question(&self, is_quorum: bool, on_own_key: bool) -> Cmd {
        let (key, channel) = (self.names.key(), self.names.channel());
        let own = format!("{key}:x");
        let keys: &[&str] = match on_own_key {
            true => &["2", &key, &own],
            false => &["1", &key],
        };
        let scripts = if is_quorum { "quorum" } else { "queue" };
        command(&[&["EVAL", QUESTION], keys, &[&channel, scripts]].concat())
    }

    /// Reads the answer: what is lacking, and the error of each.
    pub(super) fn read(&mut self, reply: Value) -> Result<(), Fault> {
        let errors: Vec<(String, String)> =
            redis::from_redis_value(reply).map_err(|_| Fault::protocol("a list of errors"))?;
        let (mut commands, mut later, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (command, error) in errors {
            match &*command {
                "~" => others.push(self.names.rule("", Lack::Key)),
                "&" => others.push(self.names.rule("", Lack::Channel)),
                // The user lacks the commands with which that would be found out.
                "&?" => {}
                "+evalsha" => commands.push(command),
                rule if rule.starts_with('+') => later.push(command),
                rule if rule.starts_with('-') => self.note_absent(&rule[1..]),
                name => match lack_in_script(&error) {
                    Some(Lack::Command) => commands.push(self.names.rule(name, Lack::Command)),
                    Some(lack) => others.push(self.names.rule(name, lack)),
                    None if is_unknown_command(&error) => self.note_absent(name),
                    None => {}
                },
            }
        }
        commands.sort_unstable();
        // Keys before channels.
        others.sort_unstable_by(|one, other| other.cmp(one));
        commands.extend(later);
        commands.extend(others);
        commands.into_iter().for_each(|rule| self.add(rule));
        Ok(())
    }

    /// The server refused this command for want of a right.
    pub(super) fn note(&mut self, command: &str, lack: Lack) {
        self.add(self.names.rule(command, lack));
    }

    /// The server does not have this command.
    pub(super) fn note_absent(&mut self, command: &str) {
        let command = command.to_uppercase();
        if !self.absent.contains(&command) {
            self.absent.push(command);
        }
    }

    pub(super) fn add(&mut self, rule: String) {
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }
}
