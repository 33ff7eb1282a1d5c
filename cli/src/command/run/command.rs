//! The command as it is started, or as it takes the place of this process.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use super::ancestors::Ancestor;
use super::program;
use crate::connection::{Connection, Variables};
use crate::exit::Failure;
use crate::logger;

/// The variable with the text of a detached lock. It is a secret, so it is never an argument.
pub(super) const DETACHED: &str = "FAIRLOCK_DETACHED";
pub(super) const FENCE: &str = "FAIRLOCK_FENCE";
/// Variables by which systemd says for which process its sockets and its watchdog are. A program
/// that finds the number of another process there leaves them alone.
const OF_SYSTEMD: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];

/// The environment of a command: its variables about the lock, and about Redis.
pub(super) struct Environment {
    connection: Variables,
    /// `None`: the variable is removed.
    others: Vec<(&'static str, Option<String>)>,
}

impl Environment {
    /// For a command under this lock.
    pub(super) fn new(lock: &Ancestor, connection: &Connection) -> Result<Environment, Failure> {
        Ok(Environment {
            connection: connection.variables()?,
            others: vec![
                ("FAIRLOCK_NAME", Some(lock.name.clone())),
                (FENCE, Some(lock.fence.to_string())),
                ("FAIRLOCK_PREVIOUS", Some(lock.previous.clone())),
            ],
        })
    }

    pub(super) fn with(mut self, name: &'static str, value: Option<String>) -> Environment {
        self.others.push((name, value));
        self
    }

    /// The words as a command. The C library has the shell run a script without `#!`.
    pub(super) fn command(&self, words: &[OsString]) -> Command {
        let this = process::id().to_string();
        let is_own = |name: &&str| env::var(name).is_ok_and(|value| value == this);
        let own: String = OF_SYSTEMD
            .into_iter()
            .filter(is_own)
            .map(|name| format!("{name}=$$ "))
            .collect();
        let mut command = Command::new(&words[0]);
        if !own.is_empty() {
            // They are meant for the command, and only its own process knows its number.
            command = Command::new("/bin/sh");
            command
                .args(["-c", &format!("export {own}; exec \"$@\""), "sh"])
                .arg(&words[0]);
            // The number of the process in another form. Programs check it only if it is there.
            command.env_remove("LISTEN_PIDFDID");
        }
        command.args(&words[1..]);
        self.connection.give_to(&mut command);
        for (name, value) in &self.others {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Replaces this process by the command. The run around it looks after the command as after all
    /// that it started. Returns only if the command cannot be executed.
    pub(super) fn become_command(&self, words: &[OsString]) -> Failure {
        logger::flush();
        let error = self.command(words).exec();
        program::failure(&words[0], &error)
    }
}
