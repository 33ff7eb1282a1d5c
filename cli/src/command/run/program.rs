//! Whether a program can be executed: the exit codes 126 and 127, as shells have them.

use std::env;
use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

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
