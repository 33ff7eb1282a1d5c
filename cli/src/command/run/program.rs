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
    let is_path = is_path(program);
    let mut error = Error::from(ErrorKind::NotFound);
    // `execvp` goes on to the next folder if a file cannot be executed.
    for file in files(program) {
        match is_executable(&file) {
            Ok(true) if is_path && interpreter(&file).is_some_and(|file| !file.exists()) => {}
            Ok(true) => return Ok(()),
            Ok(false) => error = ErrorKind::PermissionDenied.into(),
            Err(why) if is_path => error = why,
            Err(_) => {}
        }
    }
    Err(failure(program, &error))
}

/// Executes the words. A script without `#!` is run by the shell, as the C library's `execvp` has
/// it, and so `flock` and the shells.
pub(super) fn execute<T>(
    words: &[OsString],
    execute: impl Fn(&[OsString]) -> Result<T, Error>,
) -> Result<T, Error> {
    match execute(words) {
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
            as_script(words).map_or(Err(error), |words| execute(&words))
        }
        executed => executed,
    }
}

/// The words that run a script without `#!` by the shell. `None` if it is no text: a program for
/// another kind of processor, say.
fn as_script(words: &[OsString]) -> Option<Vec<OsString>> {
    let program = &words[0];
    let script = found(program).map_or_else(|| program.clone(), PathBuf::into_os_string);
    let start = start_of(Path::new(&script))?;
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

/// The files that may be the program, in the order in which they are tried.
pub(super) fn files(program: &OsStr) -> impl Iterator<Item = PathBuf> {
    let files: Vec<PathBuf> = match is_path(program) {
        _ if program.is_empty() => Vec::new(),
        true => vec![PathBuf::from(program)],
        false => {
            let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
            env::split_paths(&path)
                .map(|folder| folder.join(program))
                .collect()
        }
    };
    files.into_iter()
}

fn is_path(program: &OsStr) -> bool {
    program.as_bytes().contains(&b'/')
}

/// Why the program cannot be started.
pub(super) fn failure(program: &OsStr, error: &Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    };
    let (exit, reason) = match (exit, found(program)) {
        // The kernel says that of the file that is to run it.
        (NOT_FOUND, Some(path)) => (CANNOT_EXECUTE, missing_interpreter(&path)),
        (NOT_FOUND, None) => (NOT_FOUND, "command not found".to_owned()),
        (exit, _) => (exit, format!("cannot be executed: {error}")),
    };
    let program = program.to_string_lossy();
    let program = printable(&program);
    Failure::new(exit, format!("{program}: {reason}"))
}

/// The file that the kernel was to execute, if there is one.
fn found(program: &OsStr) -> Option<PathBuf> {
    files(program).find(|file| is_executable(file).unwrap_or(false))
}

/// Why a program that is there was not found.
fn missing_interpreter(path: &Path) -> String {
    match interpreter(path) {
        Some(file) => {
            let file = file.to_string_lossy();
            format!("bad interpreter: there is no file \"{}\"", printable(&file))
        }
        None => "cannot be executed: the program that loads it is missing, as where it was built \
                 for another C library"
            .to_owned(),
    }
}

/// The file that the first line of a script names. In a script with the line ends of Windows, its
/// name ends in a carriage return.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let start = start_of(path)?;
    let line = start.split(|byte| *byte == b'\n').next()?;
    let words = line.strip_prefix(b"#!")?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut words = words.split(is_blank).filter(|word| !word.is_empty());
    Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
}

fn start_of(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(START).read_to_end(&mut start).ok()?;
    Some(start)
}

/// Whether anybody may execute it. Whether *we* may, the kernel says when it is started.
fn is_executable(path: &Path) -> Result<bool, Error> {
    let file = path.metadata()?;
    Ok(file.is_file() && file.permissions().mode() & 0o111 != 0)
}
