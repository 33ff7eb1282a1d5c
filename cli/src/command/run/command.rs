//! The command as it is started, or as it takes the place of this process.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use super::ancestors::Ancestor;
use super::program;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::logger;

/// The variable with the text of a detached lock. It is a secret, so it is never an argument.
pub(super) const DETACHED: &str = "FAIRLOCK_DETACHED";
pub(super) const FENCE: &str = "FAIRLOCK_FENCE";
/// Variables by which systemd says for which process its sockets and its watchdog are. A program
/// that finds the number of another process there leaves them alone.
const OF_SYSTEMD: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];

/// The words as a command under this lock, with its variables about the lock, and about Redis. The
/// C library has the shell run a script without `#!`.
pub(super) fn under(
    lock: &Ancestor,
    words: &[OsString],
    connection: &Connection,
) -> Result<Command, Failure> {
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
    connection.variables()?.give_to(&mut command);
    command
        .env("FAIRLOCK_NAME", &lock.name)
        .env(FENCE, lock.fence.to_string())
        .env("FAIRLOCK_PREVIOUS", &lock.previous);
    Ok(command)
}

/// Replaces this process by the command. The run around it looks after the command as after all
/// that it started. Returns only if the program cannot be executed.
pub(super) fn become_command(mut command: Command, program: &OsStr) -> Failure {
    logger::flush();
    program::failure(program, &command.exec())
}
