//! Whether a program can be executed: the exit codes 126 and 127, as shells have them.

use std::env;
use std::ffi::{OsStr, OsString};
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

/// How much of a file shows whether it is text, as shells look at it.
const START: u64 = 512;

/// Looks for the program as the kernel will, so that nobody waits an hour for a typing error. An
/// error that this does not see comes when the program is started.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    if program.as_bytes().contains(&b'/') {
        return match is_executable(Path::new(program)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(failure(program, &ErrorKind::PermissionDenied.into())),
            Err(error) => Err(failure(program, &error)),
        };
    }
    if program.is_empty() {
        return Err(failure(program, &ErrorKind::NotFound.into()));
    }
    // `execvp` goes on to the next folder if a file cannot be executed.
    let mut found = in_path(program).filter_map(|path| is_executable(&path).ok());
    match found.next() {
        Some(first) if first || found.any(|executable| executable) => Ok(()),
        Some(_) => Err(failure(program, &ErrorKind::PermissionDenied.into())),
        None => Err(failure(program, &ErrorKind::NotFound.into())),
    }
}

/// The words that run a script without `#!` by the shell. `None` if it is no text: a program for
/// another kind of processor, say.
pub(super) fn as_script(words: &[OsString]) -> Option<Vec<OsString>> {
    let program = &words[0];
    let mut found = in_path(program).filter(|path| is_executable(path).unwrap_or(false));
    let script = if program.as_bytes().contains(&b'/') {
        None
    } else {
        found.next()
    };
    let script = script.map_or_else(|| program.clone(), PathBuf::into_os_string);
    let mut start = Vec::new();
    let file = File::open(&script).ok()?;
    file.take(START).read_to_end(&mut start).ok()?;
    if start.contains(&0) {
        return None;
    }
    let words = words[1..].iter().cloned();
    Some(
        [OsString::from("/bin/sh"), script]
            .into_iter()
            .chain(words)
            .collect(),
    )
}

/// Where the program may be.
fn in_path(program: &OsStr) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.into_iter().map(move |folder| folder.join(program))
}

/// Why the program cannot be started.
pub(super) fn failure(program: &OsStr, error: &Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    };
    let program = program.to_string_lossy();
    let program = printable(&program);
    let reason = match exit {
        NOT_FOUND => "command not found".to_owned(),
        _ => format!("cannot be executed: {error}"),
    };
    Failure::new(exit, format!("{program}: {reason}"))
}

/// Whether anybody may execute it. Whether *we* may, the kernel says when it is started.
fn is_executable(path: &Path) -> Result<bool, Error> {
    let file = path.metadata()?;
    Ok(file.is_file() && file.permissions().mode() & 0o111 != 0)
}
