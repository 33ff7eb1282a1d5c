//! The binary as a process: what it prints, and how it ends.

use std::borrow::BorrowMut;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::time::Duration;

use crate::support::{Server, until_some};

/// The binary, with a clean environment and the locks on this server.
pub(crate) fn fairlock(server: &Server, args: &[&str]) -> Command {
    let mut command = without_server(args);
    command.env("FAIRLOCK_URL", server.url());
    command
}

/// The binary, with a clean environment and no server.
pub(crate) fn without_server(args: &[&str]) -> Command {
    static START: Once = Once::new();
    START.call_once(|| {
        default_signals();
        leave_terminal();
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlock"));
    command.args(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("FAIRLOCK_") || name.contains("COLOR") {
            command.env_remove(&*name);
        }
    }
    command
}

/// The command behind the words of another one, such as `nohup`.
pub(crate) fn wrapped(wrapper: &[&str], command: &Command) -> Command {
    let mut other = Command::new(wrapper[0]);
    other.args(&wrapper[1..]);
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

/// A shell without job control has its background jobs ignore INT and QUIT, and so may what starts
/// the tests. The binary would go on ignoring them.
fn default_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: the default action runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// On a terminal, the binary shares it with its command. The tests must not depend on where they
/// are started.
fn leave_terminal() {
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
    Ended::from(command.borrow_mut().output().expect("the binary starts"))
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

/// The exit code of a command whose output nobody reads, as after `| true`.
pub(crate) fn code_unread(command: &mut Command) -> Option<i32> {
    code_unread_after(command, || ())
}

/// The same, where the reader ends only after this.
pub(crate) fn code_unread_after(command: &mut Command, wait: impl FnOnce()) -> Option<i32> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    wait();
    drop(child.stdout.take());
    let ended = || child.try_wait().expect("its state");
    until_some(Duration::from_secs(20), "it ends", ended).code()
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Ended {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}
