//! Whether a program can be executed: the exit codes 126 and 127, as shells have them.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};
use crate::printable::printable;

/// It is there and cannot be executed.
const CANNOT_EXECUTE: Exit = Exit(126);
const NOT_FOUND: Exit = Exit(127);
/// Where programs are looked for without a PATH, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// How much of a file shows its interpreter.
const START: u64 = 512;

/// Looks for the program as the kernel will, so that nobody waits an hour for a typing error. An
/// error that this does not see comes when the program is started.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    let files = files(program);
    // `execvp` goes on to the next folder if a file cannot be executed.
    let Some(file) = files.iter().find(|file| is_executable(file)) else {
        let is_there = files.iter().any(|file| file.exists());
        let kind = if is_there {
            ErrorKind::PermissionDenied
        } else {
            ErrorKind::NotFound
        };
        return Err(failure(program, &kind.into()));
    };
    match interpreter(file).filter(|file| !file.exists()) {
        None => Ok(()),
        Some(file) => {
            let file = file.to_string_lossy();
            let file = printable(&file);
            let reason = format!("bad interpreter: there is no file \"{file}\"");
            Err(refused(program, CANNOT_EXECUTE, &reason))
        }
    }
}

/// Why the program cannot be started.
pub(super) fn failure(program: &OsStr, error: &Error) -> Failure {
    let is_there = files(program).iter().any(|file| is_executable(file));
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory if !is_there => {
            refused(program, NOT_FOUND, "command not found")
        }
        // The kernel says "not found" of the file that is to load the program.
        _ => refused(
            program,
            CANNOT_EXECUTE,
            &format!("cannot be executed: {error}"),
        ),
    }
}

fn refused(program: &OsStr, exit: Exit, reason: &str) -> Failure {
    let program = program.to_string_lossy();
    Failure::new(exit, format!("{}: {reason}", printable(&program)))
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

/// The file that the first line of a script names. In a script with the line ends of Windows, its
/// name ends in a carriage return.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path)
        .ok()?
        .take(START)
        .read_to_end(&mut start)
        .ok()?;
    let line = start.split(|byte| *byte == b'\n').next()?;
    let words = line.strip_prefix(b"#!")?;
    let mut words = words.split(|byte| matches!(byte, b' ' | b'\t'));
    let word = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// Whether anybody may execute it. Whether *we* may, the kernel says when it is started.
fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
