//! The last steps of a command's process before its program: what only that process can do.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Command};
use std::ptr;

use rustix::io::Errno;
use rustix::process::getpid;

use super::foreground::Taking;

/// Variables by which systemd says for which process its sockets and its watchdog are. A program
/// that finds the number of another process there leaves them alone.
const LISTEN_PID: &str = "LISTEN_PID";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// The process of `LISTEN_PID` by another number, which programs check only if it is there.
const LISTEN_PIDFDID: &str = "LISTEN_PIDFDID";
/// Digits of a process id.
const MOST_DIGITS: usize = 10;

/// Has the kernel send KILL to the command when this process dies: nobody is left then that could
/// end it before others have the lock. TERM would let it go on for as long as it likes.
///
/// The kernel watches the thread that starts the command, which must be the main one.
#[allow(unsafe_code, reason = "only the child itself can ask for this")]
pub(super) fn die_with_us(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        let this = getpid();
        let ask = move || {
            // A sandbox may refuse it. Then the command runs all the same.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            // The process may have died before: then no signal comes.
            if getppid() == Some(this) {
                Ok(())
            } else {
                Err(Errno::SRCH.into())
            }
        };
        // SAFETY: after the fork, the closure only makes system calls.
        unsafe { command.pre_exec(ask) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Has the command's group take the foreground before the program begins. The program would find
/// itself in the background until its parent gives it, and stop if it reads from the terminal by
/// then.
#[allow(unsafe_code, reason = "only the child itself comes before its program")]
pub(super) fn take_terminal(command: &mut Command, taking: Taking) {
    let take = move || {
        taking.take();
        Ok(())
    };
    // SAFETY: after the fork, the closure only makes system calls.
    unsafe { command.pre_exec(take) };
}

/// Executes the first of these files that is there, with the arguments and the environment of the
/// command. A file that the kernel does not know how to execute is an error.
///
/// The `execvp` that the standard library calls would have the shell run such a file, whatever is
/// in it.
#[allow(unsafe_code, reason = "only the child itself can do this")]
pub(super) fn exactly(command: &mut Command, files: impl Iterator<Item = PathBuf>) {
    // Without it, the standard library refuses the same NUL in a word.
    if let Some(mut image) = Image::of(command, files) {
        let execute = move || Err(image.execute());
        // SAFETY: after the fork, the closure only makes system calls.
        unsafe { command.pre_exec(execute) };
    }
}

/// The words that the kernel executes. They are made before the fork: the child of a process with
/// threads must not allocate memory.
struct Image {
    files: Vec<CString>,
    arguments: Pointers,
    environment: Pointers,
    own_ids: Vec<OwnId>,
}

/// A variable that has the number of the process that executes the image.
struct OwnId {
    /// Its place in the environment.
    at: usize,
    /// `NAME=`, and room for the number and a NUL.
    text: Vec<u8>,
}

/// Strings as C has a list of them: pointers, the last one null.
struct Pointers {
    pointers: Vec<*const c_char>,
    /// They own what the pointers point to.
    _strings: Vec<CString>,
}

// SAFETY: the pointers point to what the same value owns, and nobody writes through them.
#[allow(unsafe_code, reason = "pointers are not Send")]
unsafe impl Send for Pointers {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "pointers are not Sync")]
unsafe impl Sync for Pointers {}

impl Image {
    /// `None` if a word has a NUL.
    fn of(command: &Command, files: impl Iterator<Item = PathBuf>) -> Option<Image> {
        let program = command.get_program().to_owned();
        let words = command.get_args().map(ToOwned::to_owned);
        let mut variables: BTreeMap<OsString, OsString> = env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => variables.insert(name.to_owned(), value.to_owned()),
                None => variables.remove(name),
            };
        }
        let own_ids = OwnId::all(&mut variables);
        let settings = variables.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        });
        Some(Image {
            files: files
                .map(|file| string(file.into_os_string()))
                .collect::<Option<_>>()?,
            arguments: Pointers::to([program].into_iter().chain(words))?,
            environment: Pointers::to(settings)?,
            own_ids,
        })
    }

    /// Returns only if none of the files can be executed, and then why.
    #[allow(unsafe_code, reason = "the safe ways go through execvp")]
    fn execute(&mut self) -> io::Error {
        for own_id in &mut self.own_ids {
            own_id.write();
            self.environment.pointers[own_id.at] = own_id.text.as_ptr().cast();
        }
        let mut error = Errno::NOENT;
        for file in &self.files {
            // SAFETY: all pointers are to strings that end in NUL, and both lists end in null.
            unsafe {
                libc::execve(
                    file.as_ptr(),
                    self.arguments.pointers.as_ptr(),
                    self.environment.pointers.as_ptr(),
                );
            }
            match Errno::from_io_error(&io::Error::last_os_error()) {
                // Like `execvp`: another folder may have one that can be executed.
                Some(Errno::ACCESS) => error = Errno::ACCESS,
                Some(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV) => {}
                other => return other.unwrap_or(error).into(),
            }
        }
        error.into()
    }
}

impl OwnId {
    /// Those that name this process. They are meant for the command: fairlock uses neither.
    fn all(variables: &mut BTreeMap<OsString, OsString>) -> Vec<OwnId> {
        let this = process::id();
        let id = |name: &str| variables.get(OsStr::new(name))?.to_str()?.parse().ok();
        let named = [LISTEN_PID, WATCHDOG_PID].map(|name| (id(name) == Some(this)).then_some(name));
        if named.contains(&Some(LISTEN_PID)) {
            variables.remove(OsStr::new(LISTEN_PIDFDID));
        }
        let places = variables.keys().enumerate();
        let places = places.filter(|(_, name)| named.contains(&name.to_str()));
        places
            .map(|(at, name)| OwnId {
                at,
                text: [name.as_encoded_bytes(), b"=", &[0; MOST_DIGITS + 1]].concat(),
            })
            .collect()
    }

    /// Allocates no memory.
    fn write(&mut self) {
        let room = self.text.len() - MOST_DIGITS - 1;
        let _ = write!(&mut self.text[room..], "{}", getpid());
    }
}

impl Pointers {
    fn to(strings: impl Iterator<Item = OsString>) -> Option<Pointers> {
        let strings: Vec<CString> = strings.map(string).collect::<Option<_>>()?;
        let pointers = strings.iter().map(|string| string.as_ptr());
        Some(Pointers {
            pointers: pointers.chain([ptr::null()]).collect(),
            _strings: strings,
        })
    }
}

fn string(text: OsString) -> Option<CString> {
    CString::new(text.into_vec()).ok()
}
