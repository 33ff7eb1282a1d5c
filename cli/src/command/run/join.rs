//! A run that joins the run around it, in place of a lock of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::ancestors::Ancestor;
use super::{exec, program};
use crate::exit::Failure;

/// Refuses to join a run that could not end the command in time.
pub(super) fn check(name: &str, ancestor: &Ancestor) -> Result<(), Failure> {
    let where_it_is = if !ancestor.reaches_us() {
        "it is in another session or container"
    } else if !ancestor.is_above_us() {
        "it has not started this process, nor a process above this one"
    } else {
        return Ok(());
    };
    let pid = ancestor.pid();
    Err(Failure::usage(format!(
        "{name}: cannot join the run of process {pid}: {where_it_is}, so it could not end this \
         command before its lock ends"
    )))
}

/// Replaces this process by the command. The run around it looks after the command as after all
/// that it started. Returns only if the command cannot be executed.
pub(super) fn become_command(
    words: &[OsString],
    with_environment: impl Fn(&mut Command),
) -> Failure {
    let execute = |words: &[OsString]| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        with_environment(&mut command);
        exec::exactly(&mut command, program::files(&words[0]));
        command.exec()
    };
    let mut error = execute(words);
    if error.raw_os_error() == Some(libc::ENOEXEC)
        && let Some(script) = program::as_script(words)
    {
        error = execute(&script);
    }
    program::failure(&words[0], &error)
}
