//! The binary as a process: what it prints, and how it ends.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Output, Stdio};
use std::sync::Once;

use crate::support::Server;

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
pub(crate) fn end(command: &mut Command) -> Ended {
    Ended::from(command.output().expect("the binary starts"))
}

/// The exit code of a command whose output nobody reads, as after `| true`.
pub(crate) fn code_unread(command: &mut Command) -> Option<i32> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    child.wait().expect("it ends").code()
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
