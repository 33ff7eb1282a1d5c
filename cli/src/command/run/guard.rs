//! The guard of a run that is stopped: a process that kills the command before its lock can end.
//!
//! While the run is stopped, nobody else would do so: the kernel continues both at once, and
//! somebody may continue the command alone. The guard is this program again. It looks for the
//! processes when it kills them, so it finds those that started meanwhile, too.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, getppid, getsid, setsid};
use rustix::time::{ClockId, clock_gettime};

use super::tree::before_its_program;
use crate::exit::Exit;
use crate::processes::{self, Process};

/// The first word of its command line, which no help shows.
const WORD: &str = "__guard-of-a-stopped-run";
/// The longest sleep: a host that wakes from its own sleep finds it soon.
const NAP: Duration = Duration::from_secs(1);
/// How long it tries to kill processes that go on, or go on to start others.
const LONGEST_KILL: Duration = Duration::from_secs(10);

pub(super) struct Guard {
    process: Child,
    /// By the clock of [`since_boot`].
    kills_at: Duration,
}

impl Guard {
    /// Has a process send KILL to the command and all processes below this one after this time, but
    /// for those below the strangers. `None` if it cannot start.
    pub(super) fn start(after: Duration, command: i32, strangers: &[i32]) -> Option<Guard> {
        let kills_at = since_boot() + after;
        let mut guard = Command::new("/proc/self/exe");
        guard
            .arg(WORD)
            .args([kills_at.as_nanos().to_string(), command.to_string()])
            .args(strangers.iter().map(i32::to_string))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // In a session of its own, so that a run around this one does not stop it.
        before_its_program(&mut guard, || _ = setsid());
        let process = guard.spawn().ok()?;
        let mut guard = Guard { process, kills_at };
        // The program may have been executed, and have failed all the same.
        let is_ready = guard.process.stdout.as_mut()?.read_exact(&mut [0]).is_ok();
        if !is_ready {
            guard.call_off();
            return None;
        }
        Some(guard)
    }

    /// Ends the guard. True if it may have sent a KILL.
    pub(super) fn call_off(mut self) -> bool {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // It is dead, so it does not kill after this look at the clock.
        since_boot() >= self.kills_at
    }
}

/// The guard itself, if this process is to be one.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut words = env::args_os().skip(1);
    words.next().filter(|word| word == WORD)?;
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    let kills_at = words.next().and_then(|word| word.parse().ok());
    let command = words.next().and_then(|word| word.parse().ok());
    let parent = getppid().and_then(|pid| Process::of(pid.as_raw_nonzero().get()));
    // Only a run starts it so.
    let leads_session = getsid(None) == Ok(getpid());
    let run = parent.filter(|_| leads_session);
    let (Some(kills_at), Some(command), Some(run)) = (kills_at, command, run) else {
        return Some(Exit::USAGE.into());
    };
    let _ = io::stdout().write_all(b"\n");
    let strangers: Vec<i32> = words.flat_map(|word| word.parse()).collect();
    let left = || Duration::from_nanos(kills_at).saturating_sub(since_boot());
    while !left().is_zero() {
        thread::sleep(left().min(NAP));
    }
    processes::until_quiet(LONGEST_KILL, |_| {
        let mut found = processes::below(&run, command, &strangers).unwrap_or_default();
        found.retain(|process| process.signal(Signal::KILL).is_ok());
        !found.is_empty()
    });
    Some(ExitCode::SUCCESS)
}

/// A clock that goes on while the host sleeps, as the lease does.
fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    // No run can be stopped there.
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
