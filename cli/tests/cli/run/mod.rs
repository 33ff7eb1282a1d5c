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
mod signals;

use std::borrow::BorrowMut;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Child;

use crossbeam_channel::{Receiver, unbounded};
use fairlock::inspect::Party;
use rustix::process::{kill_process_group, test_kill_process, test_kill_process_group};

use crate::*;

/// A short ttl, for locks that are to be lost.
const TTL: Duration = Duration::from_secs(2);

/// A process in the background, mostly `fairlock run`. Its end takes the command with it.
pub(crate) struct Run {
    pub(crate) process: Child,
    /// What it prints, line by line.
    lines: Receiver<String>,
}

/// `fairlock run ARGS --`.
fn run(server: &Server, args: &str) -> Command {
    fairlock(server, &format!("run {args} --"))
}

/// `fairlock run ARGS -- sh -c SCRIPT`.
fn run_script(server: &Server, args: &str, script: &str) -> Command {
    let mut command = run(server, args);
    command.args(["sh", "-c", script]);
    command
}

impl Run {
    pub(crate) fn start(command: impl BorrowMut<Command>) -> Run {
        Run::start_with(command, Stdio::null(), Stdio::piped())
    }

    fn start_with(mut command: impl BorrowMut<Command>, input: Stdio, errors: Stdio) -> Run {
        let command = command.borrow_mut().stdin(input).stderr(errors);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = unbounded();
        thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).is_ok_and(|count| count > 0) {
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Run { process, lines }
    }

    fn script(server: &Server, args: &str, script: &str) -> Run {
        Run::start(run_script(server, args, script))
    }

    /// A command that sleeps, and has begun.
    #[track_caller]
    pub(crate) fn asleep(server: &Server, args: &str) -> Run {
        let mut run = Run::script(server, args, "echo up; exec sleep 60");
        assert_eq!(run.line(), "up");
        run
    }

    /// A script that may read its input until [`end_input`](Self::end_input).
    fn reading(server: &Server, args: &str, script: &str) -> Run {
        let command = run_script(server, args, script);
        Run::start_with(command, Stdio::piped(), Stdio::piped())
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
        until(LONG, "fairlock ends", || !self.is_running());
        let stdout = self.lines.iter().collect();
        let mut stderr = String::new();
        if let Some(errors) = &mut self.process.stderr {
            errors.read_to_string(&mut stderr).expect("text");
        }
        Ended {
            code: self.process.wait().expect("ended").code(),
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
        if self.is_running() {
            self.signal(Signal::CONT);
            self.signal(Signal::TERM);
        }
        let start = Instant::now();
        while self.is_running() && start.elapsed() < TTL {
            // A pause between two polls. `until` panics, and a drop must not.
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The holder of the lock.
#[track_caller]
fn holder(server: &Server, name: &str) -> Party {
    info(server, name)
        .and_then(|info| info.holder)
        .expect("held")
}

/// Waits until the holder renews the lock.
#[track_caller]
fn until_renewed(server: &Server, name: &str) {
    let left = || info(server, name).expect("held").time_left;
    let mut before = left();
    until(LONG, "renewed", || {
        let now = left();
        now > std::mem::replace(&mut before, now)
    });
}

/// Whether some process of the group is left, also a dead one that nobody has reaped.
fn is_alive(group: Pid) -> bool {
    test_kill_process_group(group).is_ok()
}

/// What `/proc` has of a process, from its state on.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// The state of a process: `T` if it is stopped, and `Z` if it is dead.
fn state(pid: Pid) -> String {
    stat(pid).map_or("Z".to_owned(), |fields| fields[0].clone())
}

/// Waits until these processes have stopped, or until none of them is stopped.
fn until_stopped(pids: &[Pid], are_stopped: bool) {
    until(LONG, "stopped, or continued", || {
        pids.iter().all(|pid| (state(*pid) == "T") == are_stopped)
    });
}

/// A file with this text that may be executed.
fn executable(folder: &TempDir, text: &str) -> PathBuf {
    let program = folder.path().join("program");
    fs::write(&program, text).expect("written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("executable");
    program
}

/// A program that looks as if it could be executed, and cannot.
fn broken_program(folder: &TempDir) -> PathBuf {
    // Its interpreter is there, and can be executed by nobody.
    executable(folder, "#!/etc/passwd\n")
}

/// Runs a command on the lock, and returns what its environment says about the holder before.
fn previous(server: &Server, args: &str) -> String {
    let ended = exits(run_script(server, args, "echo $FAIRLOCK_PREVIOUS"), 0);
    ended.stdout.trim_end().to_owned()
}

/// The exit code of a script, and what it printed, under a lock.
#[track_caller]
fn script_gives(server: &Server, args: &str, script: &str, code: i32, stdout: &str) -> Ended {
    gives(run_script(server, args, script), code, stdout)
}
