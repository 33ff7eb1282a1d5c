//! The program of the command: whether it can be executed, its label, and its start. The exit codes
//! 126 and 127 are those of shells.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use super::ancestors::Ancestor;
use crate::connection::Connection;
use crate::defaults::MAX_LABEL;
use crate::exit::{Exit, Failure};
use crate::logger;

/// The variable with the text of a detached lock. It is a secret, so it is never an argument.
pub(super) const DETACHED: &str = "FAIRLOCK_DETACHED";
pub(super) const FENCE: &str = "FAIRLOCK_FENCE";
/// By it systemd says which process its watchdog awaits. Without it, any process may be meant.
const WATCHDOG: &str = "WATCHDOG_PID";

/// It is there and cannot be executed.
const CANNOT_EXECUTE: Exit = Exit(126);
const NOT_FOUND: Exit = Exit(127);
/// Where programs are looked for without a PATH, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Looks for the program as the kernel will, so that nobody waits an hour for a typing error. An
/// error that this does not see comes when the program is started.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    let files = files(program);
    // `execvp` goes on to the next folder if a file cannot be executed.
    if files.iter().any(|file| is_executable(file)) {
        return Ok(());
    }
    Err(failure(program, &ErrorKind::PermissionDenied.into()))
}

/// Why the program cannot be started.
pub(super) fn failure(program: &OsStr, error: &Error) -> Failure {
    // If the file is there, the kernel says "not found" of the one that is to load it.
    let is_there = files(program).iter().any(|file| file.exists());
    let (exit, reason) = match is_there {
        true => (CANNOT_EXECUTE, format!("cannot be executed: {error}")),
        false => (NOT_FOUND, "command not found".to_owned()),
    };
    Failure::new(exit, format!("{}: {reason}", program.to_string_lossy()))
}

/// The files that may be the program, in the order in which they are tried.
fn files(program: &OsStr) -> Vec<PathBuf> {
    if program.is_empty() {
        return Vec::new();
    }
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .collect()
}

/// Whether anybody may execute it. Whether *we* may, the kernel says when it is started.
fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The name of a program, without its folders, as a label that the library takes.
pub(super) fn label(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    let mut name = name.to_string_lossy().replace(char::is_control, "?");
    while name.len() > MAX_LABEL {
        name.pop();
    }
    name
}

/// The words as a command under this lock, with its variables about the lock, and about Redis. The
/// C library has the shell run a script without `#!`.
pub(super) fn under(lock: &Ancestor, words: &[OsString], connection: &Connection) -> Command {
    let mut command = Command::new(&words[0]);
    if env::var(WATCHDOG).is_ok_and(|pid| pid == process::id().to_string()) {
        command.env_remove(WATCHDOG);
    }
    command.args(&words[1..]);
    connection.give_to(&mut command);
    command
        .env("FAIRLOCK_NAME", &lock.name)
        .env(FENCE, lock.fence.to_string())
        .env("FAIRLOCK_PREVIOUS", &lock.previous);
    command
}

/// Replaces this process by the command. The run around it looks after the command as after all
/// that it started. Returns only if the program cannot be executed.
pub(super) fn become_command(mut command: Command, program: &OsStr) -> Failure {
    logger::flush();
    failure(program, &command.exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_the_last_part_of_a_path_as_the_library_takes_it() {
        for (program, label) in [
            ("/usr/bin/make", "make"),
            ("make", "make"),
            ("..", ".."),
            ("a\nb\u{1b}c", "a?b?c"),
            (&"ü".repeat(300), &"ü".repeat(MAX_LABEL / 2)),
        ] {
            assert_eq!(super::label(OsStr::new(program)), label);
        }
    }
}
