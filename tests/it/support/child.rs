//! Worker processes: the test binary, started again for one role.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Read, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{self, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, unbounded};
use rustix::process::{Pid, Signal};

use super::{freeze, signal, until_some};

/// A worker process that plays a role of `child_roles.rs`. The two sides exchange lines.
pub(crate) struct Child {
    role: String,
    process: process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All its output, including that of the test harness and its standard error, for the message
    /// of a failed test.
    transcript: Arc<Mutex<Vec<String>>>,
}

/// A role: what the worker does with the arguments that [`Child::spawn`] was given.
pub(crate) type Role = fn(&[String]);

const ROLE: &str = "FAIRLOCK_CHILD";
const ARGS: &str = "FAIRLOCK_CHILD_ARGS";
const MARK: &str = "child: ";

/// For the kernel, to end a process that has done its part. It frees the memory of one process after
/// the other if they run the same binary. On a machine that is overloaded this took 50 to 100 s.
const LAST_STEP: Duration = Duration::from_secs(150);

impl Child {
    /// Starts a worker in the role of this name.
    pub(crate) fn spawn(role: &str, args: &[&str]) -> Self {
        let this = env::current_exe().expect("a running test has a binary");
        Self::spawn_by(Command::new(this), role, args)
    }

    /// As [`spawn`](Self::spawn), by a command that ends with the path of this binary.
    pub(crate) fn spawn_by(mut command: Command, role: &str, args: &[&str]) -> Self {
        let mut process = command
            .args([
                "--exact",
                "child_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(ARGS, args.join("\x1f"))
            // On a busy machine, a panic that prints one takes longer than a loss may take.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test binary can be started again");
        let (sender, lines) = unbounded();
        let transcript = Arc::default();
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        record(stdout, &transcript, move |line| {
            if let Some(sent) = line.strip_prefix(MARK) {
                // The receiver may already be gone.
                let _ = sender.send(sent.to_owned());
            }
        });
        record(stderr, &transcript, |_| {});
        Self {
            role: role.to_owned(),
            process,
            stdin,
            lines,
            transcript,
        }
    }

    /// Sends the worker a line, which it reads by [`receive`].
    #[track_caller]
    pub(crate) fn send(&mut self, line: &str) {
        let stdin = self
            .stdin
            .as_mut()
            .expect("close_stdin() ended the conversation");
        if let Err(e) = stdin.write_all(format!("{line}\n").as_bytes()) {
            panic!("cannot send to {self}: {e}");
        }
    }

    /// Closes the worker's standard input: its [`receive`] then returns `None`.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for a line that begins with `prefix` and skips others. Returns the rest of that line,
    /// trimmed.
    #[track_caller]
    pub(crate) fn expect(&self, prefix: &str, within: Duration) -> String {
        let deadline = Instant::now() + within;
        loop {
            match self.lines.recv_deadline(deadline) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return rest.trim().to_owned();
                    }
                }
                Err(e) if e.is_timeout() => {
                    panic!("no {prefix:?} within {within:?} from {self}")
                }
                Err(_) => panic!("no {prefix:?}, and no more lines to come, from {self}"),
            }
        }
    }

    /// The lines that have arrived and that no [`expect`](Self::expect) has taken.
    pub(crate) fn pending_lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops the worker with SIGSTOP.
    pub(crate) fn stop(&self) {
        freeze(Pid::from_child(&self.process));
    }

    /// Resumes a stopped worker.
    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends any signal.
    pub(crate) fn signal(&self, which: Signal) {
        signal(Pid::from_child(&self.process), which);
    }

    /// Kills the worker with SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits for the worker to end by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self, within: Duration) -> ExitStatus {
        let what = format!("the end of {self}");
        until_some(within, &what, || self.process.try_wait().ok().flatten())
    }

    /// True if the worker has ended, for any reason.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits for the worker to end by itself. If it does not end within the time, it is killed and
    /// the result is `None`.
    pub(crate) fn end_within(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if Instant::now() >= deadline => break,
                // A pause between two polls.
                _ => thread::sleep(Duration::from_millis(2)),
            }
        }
        self.kill();
        None
    }

    /// Waits for a worker that has done its part, and panics unless it ended successfully.
    #[track_caller]
    pub(crate) fn join(&mut self) {
        let status = self.wait(LAST_STEP);
        if !status.success() {
            panic!("{status} (signal {:?}) from {self}", status.signal());
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

impl std::fmt::Display for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the child {:?}, with the output:", self.role)?;
        for line in self.transcript.lock().unwrap().iter() {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// In a worker: plays the role that the parent asked for. In any other process it returns at once,
/// so the test that calls it passes.
pub(crate) fn play(roles: &[(&str, Role)]) {
    let Ok(wanted) = env::var(ROLE) else { return };
    // The harness has not ended its line yet; our lines start on a new one.
    println!();
    let args = env::var(ARGS).unwrap_or_default();
    let args: Vec<String> = match args.as_str() {
        "" => Vec::new(),
        some => some.split('\x1f').map(str::to_owned).collect(),
    };
    // A worker that outlives its parent would disturb the tests of the next run.
    let _ = parent_lines();
    match roles.iter().find(|(name, _)| *name == wanted) {
        Some((_, role)) => role(&args),
        None => panic!("child_roles.rs has no role {wanted:?}"),
    }
}

/// In a worker: sends a line to the parent.
pub(crate) fn report(line: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    // The parent may be gone; then this worker ends soon as well.
    let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
}

/// In a worker: waits for a line from the parent. `None` once the parent has closed its end.
pub(crate) fn receive() -> Option<String> {
    parent_lines().recv().ok()
}

/// The lines from the parent. A thread reads them from the start, so the parent's end is noticed
/// even by a role that never receives.
fn parent_lines() -> &'static Receiver<String> {
    static LINES: OnceLock<Receiver<String>> = OnceLock::new();
    LINES.get_or_init(|| {
        let (sender, lines) = unbounded();
        let parent = rustix::process::getppid();
        thread::spawn(move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
            drop(sender);
            while rustix::process::getppid() == parent {
                // A pause between two polls.
                thread::sleep(Duration::from_millis(200));
            }
            process::exit(3);
        });
        lines
    })
}

fn record(
    from: impl Read + Send + 'static,
    transcript: &Arc<Mutex<Vec<String>>>,
    mut each: impl FnMut(&str) + Send + 'static,
) {
    let transcript = Arc::clone(transcript);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Recorded before it is passed on: a message about a line quotes that line.
            transcript.lock().unwrap().push(line.clone());
            each(&line);
        }
    });
}
