//! The processes of the command.

mod stopped;

use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process,
    test_kill_process_group, wait,
};

use super::foreground::Foreground;
use crate::processes::{self, Process, SignalSet};
use stopped::Stopped;

/// How long a panic waits for the end of processes that got KILL.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How many times as long as a look the time to the next one is. Each look reads all processes of
/// the host, which takes long where there are many.
const REST_PER_LOOK: u32 = 10;
/// The same after KILL, when a process that was missed may run without a lock.
const REST_PER_LOOK_AFTER_KILL: u32 = 1;

/// The command and all processes that it started, except those in a session of their own.
///
/// The command leads a group. Most of what it starts is in that group, which the kernel signals as
/// a whole. A shell with job control, `timeout` and an inner fairlock make further groups. Their
/// processes are found as those below this process: it is the subreaper, so none gets another
/// parent above it.
pub(super) struct Tree {
    /// The command. It leads its group, which has its id.
    leader: Pid,
    end: Option<End>,
    /// Children that this process had before the command: a shell may have left them to it.
    strangers: Vec<Pid>,
    /// Whether orphans of the command become our children.
    adopts: bool,
    /// No child is left, and so nothing below this process.
    is_childless: bool,
    /// How many children were reaped.
    deaths: u64,
    is_killed: bool,
    stopped: Stopped,
    /// No process is left that a signal of ours could reach.
    is_over: bool,
    /// When to look next for processes that are left.
    look_at: Option<Instant>,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

/// Whether some process of the command is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    /// All that is left belongs to another user, so no signal of ours reaches it.
    Foreign,
    Dead,
}

impl Tree {
    /// Starts the command, which makes its own group. When this returns, it has been executed. A
    /// signal before that is not lost: it waits in our channel, and the group gets it afterwards.
    pub(super) fn start(mut command: Command, foreground: Option<&Foreground>) -> io::Result<Tree> {
        let adopts = adopt_orphans();
        let strangers = processes::children();
        let child = match foreground {
            Some(foreground) => foreground.lend(
                || command.spawn(),
                |group| {
                    let found = processes::below_this(&strangers).unwrap_or_default();
                    found.iter().any(|process| is_in(process, group))
                },
            )?,
            None => command.spawn()?,
        };
        // `reap` does what `Child::wait` would. std's `Child` does nothing when it is dropped.
        Ok(Tree {
            leader: Pid::from_child(&child),
            end: None,
            strangers,
            adopts,
            is_childless: false,
            deaths: 0,
            is_killed: false,
            stopped: Stopped::default(),
            is_over: false,
            look_at: None,
        })
    }

    /// The group of the command.
    pub(super) fn group(&self) -> Pid {
        self.leader
    }

    /// How the command ended, if it has. Other processes may be alive.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether the command has received this signal and not noticed it, since it is stopped.
    pub(super) fn has_pending(&self, signal: Signal) -> bool {
        SignalSet::pending(self.leader).contains(signal.as_raw())
    }

    /// Sends a signal to each process of the command's group.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.end.is_none() {
            return self.signal_group(signal);
        }
        match processes::below_this(&self.strangers) {
            Some(found) if !self.is_in_group(&found) => Ok(()),
            _ => self.signal_group(signal),
        }
    }

    /// Stops each process. Another fairlock has this long to stop what is below it.
    pub(super) fn stop(&mut self, patience: Duration) -> io::Result<()> {
        let look = || processes::below_this(&self.strangers);
        if self.stopped.stop(patience, self.leader, look) {
            return Ok(());
        }
        self.signal(Signal::STOP)
    }

    /// Continues the group of the command, and each other process that [`stop`](Self::stop) has
    /// stopped.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.stopped.go_on();
        self.signal(Signal::CONT)
    }

    /// Sends TERM to each process, except those that get it from another fairlock.
    pub(super) fn terminate(&self) -> io::Result<()> {
        let found = processes::below_this(&self.strangers);
        let found = found.map(|found| {
            let runs = processes::runs_of_others(&found);
            processes::without_those_below(&runs, &found)
        });
        self.signal_all(Signal::TERM, found.as_deref())
    }

    /// Sends KILL to each process. Further looks at what is [alive](Self::life) do so again, for
    /// those that start meanwhile.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.is_killed = true;
        self.look_at = None;
        if self.end.is_none() {
            // It reaches the group before the look at the others, which may take a moment.
            self.signal_group(Signal::KILL)?;
        }
        self.signal_all(
            Signal::KILL,
            processes::below_this(&self.strangers).as_deref(),
        )
    }

    fn signal_all(&self, signal: Signal, found: Option<&[Process]>) -> io::Result<()> {
        // Once the command is reaped and its group is empty, another group may get the same id.
        if self.end.is_none() || found.is_none_or(|found| self.is_in_group(found)) {
            self.signal_group(signal)?;
        }
        let outside = found.unwrap_or_default().iter();
        for process in outside.filter(|process| !self.is_member(process)) {
            // It has ended meanwhile, or it belongs to another user, which `life` notices.
            let _ = kill_process(process.pid, signal);
        }
        Ok(())
    }

    fn signal_group(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.leader, signal) {
            // All are dead.
            Err(Errno::SRCH) => Ok(()),
            result => Ok(result?),
        }
    }

    fn is_in_group(&self, found: &[Process]) -> bool {
        found.iter().any(|process| self.is_member(process))
    }

    fn is_member(&self, process: &Process) -> bool {
        is_in(process, self.leader)
    }

    /// Reaps what has died. Returns the signal that stopped the command, if one did.
    pub(super) fn reap(&mut self) -> Option<Signal> {
        let mut stopped = None;
        // Everything that is ours to reap: orphans of the command come to us, too.
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.leader => {
                    self.deaths += u64::from(!status.stopped());
                    if let Some(signal) = status.stopping_signal() {
                        stopped = Signal::from_named_raw(signal);
                    } else if let Some(code) = status.exit_status() {
                        self.end = Some(End::Code(code));
                    } else if let Some(signal) = status.terminating_signal() {
                        self.end = Some(End::Signal(signal));
                    }
                }
                Ok(Some((pid, status))) => {
                    // Its number is free again.
                    if !status.stopped() {
                        self.deaths += 1;
                        self.strangers.retain(|stranger| *stranger != pid);
                    }
                }
                Ok(None) => return stopped,
                Err(error) => {
                    self.is_childless = error == Errno::CHILD;
                    return stopped;
                }
            }
        }
    }

    /// Whether some process is alive.
    pub(super) fn life(&mut self) -> Life {
        if self.end.is_none() && !self.is_killed {
            return Life::Alive;
        }
        let life = if self.is_childless && self.adopts {
            Life::Dead
        } else {
            self.look()
        };
        if self.end.is_none() {
            return Life::Alive;
        }
        if life != Life::Alive {
            // The look passes over the dead, and some of them may be ours to reap.
            self.reap();
        }
        self.is_over |= life != Life::Alive;
        life
    }

    fn look(&mut self) -> Life {
        let start = Instant::now();
        if self.look_at.is_some_and(|at| start < at) {
            return Life::Alive;
        }
        self.reap();
        let deaths = self.deaths;
        let mut life = self.look_now();
        if life != Life::Alive && !self.adopts {
            // The first look may have missed one whose parent ended during it.
            life = self.look_now();
        }
        // A look can miss a child of ours that ended during it, and with it what this child had
        // just started. Only a look during which no child ended is sure.
        self.reap();
        if self.adopts && self.deaths > deaths {
            life = Life::Alive;
        }
        let rest = if self.is_killed {
            REST_PER_LOOK_AFTER_KILL
        } else {
            REST_PER_LOOK
        };
        let end = Instant::now();
        self.look_at = Some(end + (end - start) * rest);
        life
    }

    fn look_now(&self) -> Life {
        let group = || test_kill_process_group(self.leader);
        let Some(found) = processes::below_this(&self.strangers) else {
            return match group() {
                Ok(()) => Life::Alive,
                Err(Errno::PERM) => Life::Foreign,
                Err(_) => Life::Dead,
            };
        };
        let reached = found.iter().map(|process| {
            if self.is_killed {
                kill_process(process.pid, Signal::KILL)
            } else {
                test_kill_process(process.pid)
            }
        });
        let reached: Vec<_> = reached.collect();
        if reached.contains(&Ok(())) {
            Life::Alive
        } else if reached.contains(&Err(Errno::PERM)) || group() == Err(Errno::PERM) {
            // Where `/proc` hides the processes of others, the group may have one.
            Life::Foreign
        } else {
            Life::Dead
        }
    }
}

/// After a panic, the lock is released. No command may go on without it.
impl Drop for Tree {
    fn drop(&mut self) {
        if self.is_over || self.kill().is_err() {
            return;
        }
        let deadline = Instant::now() + LAST_WAIT;
        while self.life() == Life::Alive && Instant::now() < deadline {
            self.reap();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_in(process: &Process, group: Pid) -> bool {
    process.stat.group == group.as_raw_nonzero().get()
}

/// Makes orphans of the command our children, so that we find and reap them. In a container, it may
/// be that nobody else reaps them. False where the system cannot do it: then the init process gets
/// them.
fn adopt_orphans() -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, set_child_subreaper};
        set_child_subreaper(Some(getpid())).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::waitpid;

    use super::*;
    use crate::processes::tests::alone_with_children;

    fn sleeping() -> Tree {
        let mut command = Command::new("sleep");
        command.arg("60").process_group(0);
        Tree::start(command, None).expect("starts")
    }

    #[test]
    fn stop_that_a_stopped_command_cannot_notice_is_seen() {
        let _alone = alone_with_children();
        let tree = sleeping();
        tree.signal(Signal::STOP).expect("it is ours");
        wait_stopped(&tree);
        assert!(!tree.has_pending(Signal::TSTP));
        tree.signal(Signal::TSTP).expect("it is ours");
        assert!(tree.has_pending(Signal::TSTP));
    }

    fn wait_stopped(tree: &Tree) {
        let status = waitpid(Some(tree.leader), WaitOptions::UNTRACED);
        assert!(matches!(status, Ok(Some((_, status))) if status.stopped()));
    }

    #[test]
    fn panic_kills_the_command() {
        let _alone = alone_with_children();
        let tree = sleeping();
        let leader = tree.group();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _tree = tree;
            panic!("on purpose");
        }));
        assert!(panic.is_err());
        assert_eq!(test_kill_process_group(leader), Err(Errno::SRCH));
    }
}
