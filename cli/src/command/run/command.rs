//! The command as it is started, or as it joins the run around it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use fairlock::DetachedLock;

use super::foreground::Foreground;
use super::lock::Held;
use super::tree::Tree;
use super::{ancestors, exec, program};
use crate::connection::{Connection, Variables};
use crate::exit::Failure;
use crate::logger;

/// The variable with the text of a detached lock. It is a secret, so it is never an argument.
pub(super) const DETACHED: &str = "FAIRLOCK_DETACHED";

/// The fate of that variable in the command's environment.
pub(super) enum Handed {
    /// Nothing: a command further inside may be the one that attaches it.
    Unchanged,
    /// The command is the one.
    Over(DetachedLock),
    /// The lock is attached, and the text is of no more use.
    Spent,
}

impl Handed {
    fn give_to(&self, command: &mut Command) {
        match self {
            Handed::Unchanged => {}
            Handed::Over(lock) => _ = command.env(DETACHED, lock.secret_text()),
            Handed::Spent => _ = command.env_remove(DETACHED),
        }
    }
}

/// The environment of a command: its variables about the lock, and about Redis.
pub(super) struct Environment {
    pub(super) name: String,
    pub(super) fence: u64,
    pub(super) previous: String,
    /// The locks of all runs around the command. `None`: as they are.
    pub(super) ancestors: Option<String>,
    pub(super) connection: Variables,
    pub(super) detached: Handed,
}

impl Environment {
    /// For a command under this lock. `ancestors` has this one, too.
    pub(super) fn under(
        held: &Held,
        ancestors: String,
        connection: &Connection,
        detached: Handed,
    ) -> Result<Environment, Failure> {
        Ok(Environment {
            name: held.name().to_owned(),
            fence: held.fence(),
            previous: held.previous_holder().to_string(),
            ancestors: Some(ancestors),
            connection: connection.variables()?,
            detached,
        })
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        self.connection.give_to(&mut command);
        self.detached.give_to(&mut command);
        command
            .env("FAIRLOCK_NAME", &self.name)
            .env("FAIRLOCK_FENCE", self.fence.to_string())
            .env("FAIRLOCK_PREVIOUS", &self.previous);
        if let Some(ancestors) = &self.ancestors {
            command.env(ancestors::VARIABLE, ancestors);
        }
        command
    }
}

/// Starts the command with its environment, in a process group of its own. It dies with this
/// process. Standard input and output are ours, and the foreground is passed on.
pub(super) fn start(
    words: &[OsString],
    environment: &Environment,
    foreground: Option<&Foreground>,
) -> io::Result<Tree> {
    program::execute(words, |words| {
        let mut command = environment.command(words);
        command.process_group(0);
        exec::die_with_us(&mut command);
        if let Some(taking) = foreground.and_then(Foreground::taking_by_a_child) {
            exec::take_terminal(&mut command, taking);
        }
        exec::exactly(&mut command, program::files(&words[0]));
        Tree::start(command, foreground)
    })
}

/// Replaces this process by the command. The run around it looks after the command as after all
/// that it started. Returns only if the command cannot be executed.
pub(super) fn become_it(words: &[OsString], environment: &Environment) -> Failure {
    logger::flush();
    let executed = program::execute::<Infallible>(words, |words| {
        let mut command = environment.command(words);
        exec::exactly(&mut command, program::files(&words[0]));
        Err(command.exec())
    });
    match executed {
        Err(error) => program::failure(&words[0], &error),
    }
}
