//! The processes of the command that are stopped together with this one.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::is_in;
use crate::processes::{self, Process};

/// The time from one look at the processes to the next one.
const REST: Duration = Duration::from_millis(5);
/// One look may miss a process whose parent forked and then stopped during it.
const QUIET_LOOKS: usize = 2;
/// The most looks once the patience is over.
const LATE_LOOKS: usize = 10;

/// Processes outside the command's group that ran until they were stopped from here, parents before
/// their children. The group is signalled as a whole.
#[derive(Debug, Default)]
pub(super) struct Stopped(Vec<Process>);

impl Stopped {
    /// Stops all that a look finds running, until no look finds more. False if nobody can look.
    ///
    /// Another fairlock gets TSTP: it stops its own command and then itself, and looks at its own
    /// lock before the command goes on. Its command may ignore TSTP. So when the patience is over,
    /// all that still runs gets STOP, but not a fairlock that has a command: it renews its lock.
    pub(super) fn stop(
        &mut self,
        patience: Duration,
        group: Pid,
        look: impl Fn() -> Option<Vec<Process>>,
    ) -> bool {
        let late_at = Instant::now() + patience;
        let mut sent = Sent::default();
        let (mut quiet_looks, mut late_looks) = (0, 0);
        let mut can_look = true;
        while quiet_looks < QUIET_LOOKS && late_looks < LATE_LOOKS {
            if quiet_looks + late_looks + sent.signals.len() > 0 {
                thread::sleep(REST);
            }
            let Some(found) = look() else {
                can_look = false;
                break;
            };
            let is_late = Instant::now() >= late_at;
            let is_quiet = sent.to(&found, is_late);
            quiet_looks = if is_quiet { quiet_looks + 1 } else { 0 };
            late_looks += usize::from(is_late);
        }
        let outside = sent.reached.into_iter();
        self.0
            .extend(outside.filter(|process| !is_in(process, group)));
        can_look
    }

    /// Continues those outside the group. A process that was stopped before stays so.
    ///
    /// Children come first: a shell with job control that finds a child stopped gives it up.
    pub(super) fn go_on(&mut self) {
        for process in mem::take(&mut self.0).iter().rev() {
            if process.now().is_some() {
                let _ = kill_process(process.pid, Signal::CONT);
            }
        }
    }
}

/// The signals of one stop.
#[derive(Default)]
struct Sent {
    signals: Vec<(Process, Signal)>,
    /// Each process that has got one of them, once.
    reached: Vec<Process>,
    /// Processes of another user.
    refused: Vec<Process>,
}

impl Sent {
    /// Sends to those of the processes that run. True if none of them is to be waited for.
    fn to(&mut self, found: &[Process], is_late: bool) -> bool {
        let mut running = found.to_vec();
        running.retain(|process| !process.stat.is_stopped() && !self.is_done_with(process));
        let runs = processes::runs_of_others(&running);
        // All below them is theirs to stop.
        let patient_with: &[Process] = if is_late { &[] } else { &runs };
        let mut ours = processes::without_those_below(patient_with, found);
        ours.retain(|process| has(&running, process));
        let mut is_quiet = is_late || running.is_empty();
        for process in ours {
            let stops_itself = has(&runs, &process) && (!is_late || has_command(&process, found));
            let signal = if stops_itself {
                Signal::TSTP
            } else {
                Signal::STOP
            };
            is_quiet &= !self.once(process, signal);
        }
        is_quiet
    }

    /// Whether a process need not be waited for, although it is not stopped.
    fn is_done_with(&self, process: &Process) -> bool {
        // A parent after `vfork` waits in the kernel until its child continues.
        has(&self.refused, process)
            || process.stat.is_in_the_kernel() && self.has_sent(process, Signal::STOP)
    }

    fn has_sent(&self, process: &Process, signal: Signal) -> bool {
        let mut before = self.signals.iter();
        before.any(|(other, sent)| other.is(process) && *sent == signal)
    }

    /// False if this process got this signal before.
    fn once(&mut self, process: Process, signal: Signal) -> bool {
        if self.has_sent(&process, signal) {
            return false;
        }
        self.signals.push((process, signal));
        if kill_process(process.pid, signal) == Err(Errno::PERM) {
            self.refused.push(process);
        } else if !has(&self.reached, &process) {
            self.reached.push(process);
        }
        true
    }
}

/// Whether a fairlock has a command: a child that leads a group.
fn has_command(run: &Process, found: &[Process]) -> bool {
    let mut children = found
        .iter()
        .filter(|process| process.stat.parent == run.pid.as_raw_nonzero().get());
    children.any(|child| is_in(child, child.pid))
}

fn has(all: &[Process], process: &Process) -> bool {
    all.iter().any(|other| other.is(process))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{WaitOptions, waitpid};

    use super::*;
    use crate::processes::tests::alone_with_children;

    fn sleeping() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().expect("starts");
        let found = processes::below_this(&[]).expect("Linux");
        let pid = Pid::from_child(&child);
        let process = found.into_iter().find(|process| process.pid == pid);
        (child, process.expect("alive"))
    }

    fn wait_stopped(process: &Process) {
        let status = waitpid(Some(process.pid), WaitOptions::UNTRACED);
        assert!(matches!(status, Ok(Some((_, status))) if status.stopped()));
    }

    fn is_stopped(process: &Process) -> bool {
        let now = process.now().expect("alive");
        now.stat.is_stopped()
    }

    #[test]
    fn process_with_the_number_of_a_stopped_one_gets_no_signal() {
        let _alone = alone_with_children();
        let (mut child, process) = sleeping();
        kill_process(process.pid, Signal::STOP).expect("it is ours");
        wait_stopped(&process);
        let mut stopped = Stopped(vec![process.started_before()]);
        stopped.go_on();
        let is_left = is_stopped(&process);
        stopped.0.push(process);
        stopped.go_on();
        let goes_on = !is_stopped(&process);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(is_left && goes_on);
    }
}
