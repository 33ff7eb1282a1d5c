//! `fairlock run`.

mod chains;
mod deployed;
mod detached;
mod exit_codes;
mod job_control;
mod loss;
mod nested;
mod options;
mod redis_away;
mod reentry;
mod service_manager;
mod signals;
mod waiting;

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fairlock::{
    LockManager,
    inspect::{LockState, Party},
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
use tempfile::TempDir;

use crate::look::labelled;
use crate::process::{Ended, exits, fairlock, gives};
use crate::support::{Server, until};

/// How long anything may take that has no bound of its own.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// A short ttl, for locks that are to be lost.
const TTL: Duration = Duration::from_secs(2);
const TTL_TEXT: &str = "2s";

/// `fairlock run` in the background. Its end takes the command with it.
pub(crate) struct Run {
    pub(crate) process: Child,
    /// What it prints, line by line.
    lines: Receiver<String>,
}

/// `fairlock run ARGS --`. On a busy machine the server may be slow, so it has as much time as fits
/// the default ttl.
fn run(server: &Server, args: &[&str]) -> Command {
    let mut command = fairlock(server, &["run"]);
    if !args.contains(&"--ttl") {
        command.env("FAIRLOCK_COMMAND_TIMEOUT", "1333ms");
    }
    command.args(args).arg("--");
    command
}

/// `fairlock run ARGS -- sh -c SCRIPT`, where `$BINARY` is fairlock.
fn run_script(server: &Server, args: &[&str], script: &str) -> Command {
    let mut command = run(server, args);
    command.args(["sh", "-c", script]);
    command.env("BINARY", env!("CARGO_BIN_EXE_fairlock"));
    command
}

impl Run {
    pub(crate) fn start(command: &mut Command) -> Run {
        Run::start_with(command, Stdio::null(), Stdio::piped())
    }

    fn start_with(command: &mut Command, input: Stdio, errors: Stdio) -> Run {
        let mut process = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the binary starts");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).is_ok_and(|count| count > 0) {
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Run { process, lines }
    }

    fn script(server: &Server, args: &[&str], script: &str) -> Run {
        Run::start(&mut run_script(server, args, script))
    }

    /// A command that sleeps, and has begun.
    #[track_caller]
    fn asleep(server: &Server, args: &[&str]) -> Run {
        let mut run = Run::script(server, args, "echo up; exec sleep 60");
        assert_eq!(run.line(), "up");
        run
    }

    /// A script that may read its input until [`end_input`](Self::end_input).
    fn reading(server: &Server, args: &[&str], script: &str) -> Run {
        Run::start_with(
            &mut run_script(server, args, script),
            Stdio::piped(),
            Stdio::piped(),
        )
    }

    fn end_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// The next line that the command prints.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(LONG).expect("another line");
        line.trim_end().to_owned()
    }

    /// A process id that the command prints.
    #[track_caller]
    fn pid_line(&mut self) -> Pid {
        let pid = self.line().parse().ok().and_then(Pid::from_raw);
        pid.expect("a process id")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("sent");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("waits").is_none()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> Ended {
        until(LONG, "fairlock run ends", || !self.is_running());
        let stdout = self.lines.iter().collect();
        let mut stderr = String::new();
        if let Some(errors) = &mut self.process.stderr {
            errors.read_to_string(&mut stderr).expect("text");
        }
        let code = self.process.wait().expect("ended").code();
        Ended {
            code,
            stdout,
            stderr,
        }
    }

    /// Waits for the end, and compares the exit code, and what the command has printed since the
    /// lines that were read.
    #[track_caller]
    pub(crate) fn ends(&mut self, code: i32, stdout: &str) -> Ended {
        let ended = self.ended();
        let end = (ended.code, &*ended.stdout);
        assert_eq!(end, (Some(code), stdout), "{ended:?}");
        ended
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        // Only a failed test comes here with a command that runs.
        for signal in [Signal::CONT, Signal::TERM] {
            let _ = kill_process(self.pid(), signal);
        }
        for _ in 0..1000 {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            // A pause between two polls. `until` panics, and a drop must not.
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn manager(server: &Server) -> LockManager {
    labelled(server, "")
}

/// The holders of the lock.
#[track_caller]
fn holder(server: &Server, name: &str) -> Party {
    let info = manager(server).inspect(name).expect("answers");
    info.and_then(|info| info.holder).expect("held")
}

/// Whether somebody holds the lock.
fn is_held(server: &Server, name: &str) -> bool {
    let info = manager(server).inspect(name).expect("answers");
    info.is_some_and(|info| info.state == LockState::Held)
}

/// Waits until the holder renews the lock.
#[track_caller]
fn until_renewed(server: &Server, name: &str) {
    let left = || {
        let info = manager(server).inspect(name).expect("answers");
        info.expect("held").time_left
    };
    let mut before = left();
    until(LONG, "renewed", || {
        let now = left();
        let is_renewed = now > before;
        before = now;
        is_renewed
    });
}

/// Waits until so many wait for the lock.
#[track_caller]
fn until_queued(server: &Server, name: &str, count: u64) {
    until(LONG, "queued", || waiters(server, name) == count);
}

/// How many wait for the lock.
fn waiters(server: &Server, name: &str) -> u64 {
    let info = manager(server).inspect(name).expect("answers");
    info.map_or(0, |info| info.waiters)
}

/// Whether some process of the group is left, also a dead one that nobody has reaped.
fn is_alive(group: Pid) -> bool {
    test_kill_process_group(group).is_ok()
}

/// The state of a process: `T` if it is stopped.
#[track_caller]
fn state(pid: Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.expect("alive");
    let rest = &stat[stat.rfind(')').expect("a name") + 2..];
    rest.chars().next().expect("a state")
}

/// A file with this text that may be executed.
fn executable(folder: &TempDir, text: &str) -> PathBuf {
    let program = folder.path().join("program");
    std::fs::write(&program, text).expect("written");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("executable");
    program
}

/// A program that looks as if it could be executed, and cannot.
fn broken_program(folder: &TempDir) -> PathBuf {
    // Its interpreter is there, and can be executed by nobody.
    executable(folder, "#!/etc/passwd\n")
}

/// Runs a command on the lock, and returns what its environment says about the holder before.
fn previous(server: &Server, args: &[&str]) -> String {
    let script = "echo $FAIRLOCK_PREVIOUS";
    let ended = exits(run_script(server, args, script), 0);
    ended.stdout.trim_end().to_owned()
}

/// The exit code of a script, and what it printed, under a lock.
#[track_caller]
fn script_gives(server: &Server, args: &[&str], script: &str, code: i32, stdout: &str) -> Ended {
    gives(run_script(server, args, script), code, stdout)
}
