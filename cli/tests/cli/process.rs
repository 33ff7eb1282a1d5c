//! The binary as a process: what it prints, and how it ends.

use std::borrow::BorrowMut;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Once;

use crate::*;

/// How long anything may take that has no bound of its own.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// `fairlock LINE`, with a clean environment, in which `$BINARY` is fairlock. As in a shell,
/// variables may stand before the line, and words with spaces are in quotes.
pub(crate) fn bare(line: &str) -> Command {
    static START: Once = Once::new();
    START.call_once(leave_what_started_the_tests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlock"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("FAIRLOCK_") || name.contains("COLOR") {
            command.env_remove(&*name);
        }
    }
    command.env("BINARY", env!("CARGO_BIN_EXE_fairlock"));
    for word in shlex::split(line).expect("words") {
        match word.split_once('=') {
            Some((name, value)) if name.starts_with("FAIRLOCK_") => command.env(name, value),
            _ => command.arg(word),
        };
    }
    command
}

/// `fairlock LINE`, with the locks at this URL.
pub(crate) fn at(url: &str, line: &str) -> Command {
    bare(&format!("'FAIRLOCK_URL={url}' {line}"))
}

/// `fairlock LINE` with the locks on this server. On a busy machine the server may be slow, so it
/// has a long time, or for a run as much as fits the default ttl.
pub(crate) fn fairlock(server: &Server, line: &str) -> Command {
    let timeout = match line {
        run if run.starts_with("run ") && run.contains("--ttl") => None,
        run if run.starts_with("run ") => Some("1333ms"),
        _ => Some("5s"),
    };
    let mut command = at(&server.url(), line);
    command.envs(timeout.map(|timeout| ("FAIRLOCK_COMMAND_TIMEOUT", timeout)));
    command
}

/// The command behind the words of another one, such as `nohup`.
pub(crate) fn wrapped(wrapper: &str, command: &Command) -> Command {
    let words = shlex::split(wrapper).expect("words");
    let mut other = Command::new(&words[0]);
    other.args(&words[1..]);
    other.arg(command.get_program()).args(command.get_args());
    give_environment(&mut other, command);
    other
}

/// The variables that are set for one command, for another one too.
pub(crate) fn give_environment(other: &mut Command, command: &Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
}

/// A shell without job control has its background jobs ignore INT and QUIT, and the binary would go
/// on ignoring them. On a terminal, the binary would share it with its command.
fn leave_what_started_the_tests() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: the default action runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    if let Ok(terminal) = File::open("/dev/tty") {
        // SAFETY: the call reads and writes no memory.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// The output of a process, and its exit code, after it has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn end(mut command: impl BorrowMut<Command>) -> Ended {
    let output = command.borrow_mut().output().expect("the binary starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Runs a command to its end, which has this code.
#[track_caller]
pub(crate) fn exits(command: impl BorrowMut<Command>, code: i32) -> Ended {
    let args: Vec<_> = command.borrow().get_args().map(OsStr::to_owned).collect();
    let ended = end(command);
    assert_eq!(ended.code, Some(code), "{ended:?} of {args:?}");
    ended
}

/// The same, and compares what it printed.
#[track_caller]
pub(crate) fn gives(command: impl BorrowMut<Command>, code: i32, stdout: &str) -> Ended {
    let ended = exits(command, code);
    assert_eq!(ended.stdout, stdout, "{ended:?}");
    ended
}

/// The output of a command that ends with 0, and has nothing else to say.
#[track_caller]
pub(crate) fn printed(command: impl BorrowMut<Command>) -> String {
    let ended = exits(command, 0);
    assert_eq!(ended.stderr, "", "{ended:?}");
    ended.stdout
}

impl Ended {
    /// Standard error has this text.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        assert!(self.stderr.contains(text), "{text}: {self:?}");
    }

    /// Standard output has this text.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        assert!(self.stdout.contains(text), "{text}: {self:?}");
    }
}

/// The exit code of a command whose reader ends after this wait, as that of `| true` does.
pub(crate) fn code_unread(command: &mut Command, wait: impl FnOnce()) -> Option<i32> {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary starts");
    wait();
    drop(child.stdout.take());
    until_some(LONG, "it ends", || child.try_wait().unwrap()).code()
}
