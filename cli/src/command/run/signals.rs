//! The signals that this process receives, in a channel.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use libc::{
    SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGQUIT, SIGSEGV, SIGSTOP, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGURG, SIGUSR1, SIGUSR2, SIGWINCH,
};
use rustix::process::{Signal, getpid};
use signal_hook::flag::register_usize;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::{emulate_default_handler, raise};

use crate::exit::{Exit, Failure};
use crate::logger;

/// They do nothing before the command runs.
const HARMLESS_IN_A_WAIT: [i32; 4] = [SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD];
/// The terminal sends them to a whole job, which stops.
const STOPPING: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];
/// Nobody can handle the first two. A process with one of the next four faults cannot go on. The
/// last two do nothing by themselves.
const NOT_RECEIVED: [i32; 8] = [
    SIGKILL, SIGSTOP, SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGURG, SIGWINCH,
];

/// A signal that this process has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    number: i32,
    /// The kernel has sent it, and not a process.
    is_from_kernel: bool,
}

impl Received {
    /// Whether a wait for the lock ends with it.
    pub(super) fn ends_a_wait(self) -> bool {
        !HARMLESS_IN_A_WAIT.contains(&self.number) && !self.stops_a_job()
    }

    pub(super) fn stops_a_job(self) -> bool {
        STOPPING.contains(&self.number)
    }

    /// Whether it is Ctrl-C or Ctrl-\, which the terminal sends to a whole group.
    pub(super) fn is_typed(self) -> bool {
        self.is_from_kernel && matches!(self.number, SIGINT | SIGQUIT)
    }

    /// The signal, if a command gets it from here.
    #[allow(unsafe_code, reason = "no safe call makes a real-time signal")]
    pub(super) fn for_the_command(self) -> Option<Signal> {
        // SAFETY: this process has a handler for it, so it is no signal of the C library itself.
        (self.number != SIGCHLD).then(|| unsafe { Signal::from_raw_unchecked(self.number) })
    }
}

/// All signals. Those of the C library itself are between the two ranges.
fn all() -> impl Iterator<Item = i32> {
    #[cfg(target_os = "linux")]
    return (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    #[cfg(not(target_os = "linux"))]
    return 1..32;
}

/// The signals that this process receives from now on. None of them ends the process any more.
pub(super) struct Signals {
    pub(super) received: Receiver<Received>,
    handle: Handle,
    /// They were ignored when this process began, and stay so. The command ignores them too: so
    /// `nohup` and a script's `&` keep their meaning.
    ignored: u64,
    is_continued: Arc<AtomicUsize>,
}

impl Signals {
    pub(super) fn start() -> Result<Signals, Failure> {
        let failed = |error| Failure::internal(format!("cannot receive signals: {error}"));
        let ignored = ignored();
        let is_wanted = |number: &i32| {
            let is_ignored = contains(ignored, *number) && ![SIGCONT, SIGCHLD].contains(number);
            !is_ignored && !NOT_RECEIVED.contains(number) && !STOPPING.contains(number)
        };
        let wanted = all().filter(is_wanted);
        let mut incoming = SignalsInfo::<WithRawSiginfo>::new(wanted).map_err(failed)?;
        let handle = incoming.handle();
        let (sender, received) = unbounded();
        let forward = move || {
            for info in incoming.forever() {
                let _ = sender.send(Received {
                    number: info.si_signo,
                    is_from_kernel: info.si_code > 0,
                });
            }
        };
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(forward).map_err(failed)?;
        Ok(Signals {
            received,
            handle,
            ignored,
            is_continued: Arc::default(),
        })
    }

    /// Receives the signals that stop a job, too, for the command. Without a command, they just
    /// stop this process.
    pub(super) fn receive_stops(&self) {
        let is_ignored = |number: &i32| contains(self.ignored, *number);
        for number in STOPPING.into_iter().filter(|number| !is_ignored(number)) {
            // The number comes before the message, so whoever has the message sees it. An error
            // would leave the signal as it is.
            let _ = register_usize(number, Arc::clone(&self.is_continued), 0);
            let _ = self.handle.add_signal(number);
        }
        let _ = register_usize(SIGCONT, Arc::clone(&self.is_continued), 1);
    }

    /// Looks at the signals that came between the grant and the start of the command. `Err`: one of
    /// them ends the run before it.
    ///
    /// All others are dropped, as during the wait. A program that has just begun has no handler for
    /// them yet, and they would end it.
    pub(super) fn early(&self) -> Result<(), Received> {
        let mut all = self.received.try_iter();
        all.find(|signal| signal.ends_a_wait()).map_or(Ok(()), Err)
    }

    /// A stop begins that no signal to this process has asked for.
    pub(super) fn expect_stop(&self) {
        self.is_continued.store(0, Ordering::SeqCst);
    }

    /// Whether CONT came last, and not a signal that stops a job: the channel has signals by their
    /// numbers, not by their times. So a Ctrl-Z of before is known.
    pub(super) fn is_continued(&self) -> bool {
        self.is_continued.load(Ordering::SeqCst) != 0
    }

    /// Stops this process until somebody continues it.
    pub(super) fn stop_here(&self) {
        // A shell may have continued the job by now.
        if !self.is_continued() {
            // It reaches this thread, so it takes effect before the call returns.
            let _ = raise(SIGSTOP);
        }
    }
}

/// The end of a run that this signal has ended: 128 + n.
///
/// After Ctrl-C on a terminal, the process ends by the signal itself, which shells show as 130,
/// too. Only then does a shell end its loop or its script.
pub(super) fn end_by(received: Received) -> Exit {
    if received.is_typed() && received.number == SIGINT {
        end_by_ctrl_c();
    }
    Exit::of_signal(received.number)
}

/// Returns if the signal cannot end this process, as the first one of a container.
pub(super) fn end_by_ctrl_c() {
    logger::flush();
    if !getpid().is_init() {
        let _ = emulate_default_handler(SIGINT);
    }
}

/// The signals that this process ignores, as Linux lists them. Empty elsewhere: no safe call of
/// the standard library or of a crate here asks for them.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn contains(mask: u64, number: i32) -> bool {
    mask & (1 << (number - 1)) != 0
}
