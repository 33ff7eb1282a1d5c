//! The process group of the command.

use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, wait,
};

use super::foreground::Foreground;
use crate::processes;

/// How long a panic waits for the end of a group that got KILL.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How long after KILL to look whether only dead processes are left: most groups are gone before.
/// Also the shortest time between two looks.
const LOOK_AFTER_KILL: Duration = Duration::from_millis(50);
/// How many times as long as a look the time to the next one is, at least. Each look reads all
/// processes of the host, which takes long where there are many.
const REST_PER_LOOK: u32 = 10;

/// The command and all processes that it started, except those that made a group of their own.
pub(super) struct Group {
    /// The command. It leads the group, which has its id.
    leader: Pid,
    end: Option<End>,
    /// No process of the group is left that a signal of ours could reach. Its id may be that of
    /// another group by now.
    is_over: bool,
    /// After KILL: when to look whether only dead processes are left.
    look_at: Option<Instant>,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

/// Whether some process of the group is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    /// All that is left belongs to another user, so no signal of ours reaches it.
    Foreign,
    Dead,
}

impl Group {
    /// Starts the command, which makes its own group. When this returns, it has been executed. A
    /// signal before that is not lost: it waits in our channel, and the group gets it afterwards.
    pub(super) fn start(
        mut command: Command,
        foreground: Option<&Foreground>,
    ) -> io::Result<Group> {
        adopt_orphans();
        let child = command.spawn()?;
        if let Some(foreground) = foreground {
            foreground.give_at_start(Pid::from_child(&child));
        }
        // `reap` does what `Child::wait` would. std's `Child` does nothing when it is dropped.
        Ok(Group {
            leader: Pid::from_child(&child),
            end: None,
            is_over: false,
            look_at: None,
        })
    }

    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// How the command ended, if it has. Other processes of the group may be alive.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Sends a signal to each process of the group.
    pub(super) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if signal == Signal::KILL {
            self.look_at
                .get_or_insert_with(|| Instant::now() + LOOK_AFTER_KILL);
        }
        match kill_process_group(self.leader, signal) {
            // All are dead.
            Err(Errno::SRCH) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Reaps what has died. Returns the signal that stopped the command, if one did.
    pub(super) fn reap(&mut self) -> Option<Signal> {
        let mut stopped = None;
        // Everything that is ours to reap: orphans of the command come to us, too.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid != self.leader {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                stopped = Signal::from_named_raw(signal);
            } else if let Some(code) = status.exit_status() {
                self.end = Some(End::Code(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.end = Some(End::Signal(signal));
            }
        }
        stopped
    }

    /// Whether some process of the group is alive. As long as one is, the group keeps its id.
    pub(super) fn life(&mut self) -> Life {
        if self.end.is_none() {
            return Life::Alive;
        }
        let life = match test_kill_process_group(self.leader) {
            Ok(()) if self.is_unreaped() => Life::Dead,
            Ok(()) => Life::Alive,
            Err(Errno::PERM) => Life::Foreign,
            Err(_) => Life::Dead,
        };
        self.is_over |= life != Life::Alive;
        life
    }

    /// Whether the group is dead after KILL, but not gone: a process that has left the group does
    /// not reap the children that it had there.
    fn is_unreaped(&mut self) -> bool {
        let start = Instant::now();
        if self.look_at.is_none_or(|at| start < at) {
            return false;
        }
        let are_all_dead = processes::are_all_dead(self.leader);
        let end = Instant::now();
        let rest = LOOK_AFTER_KILL.max((end - start) * REST_PER_LOOK);
        self.look_at = Some(end + rest);
        are_all_dead
    }
}

/// After a panic, the lock is released. No command may go on without it.
impl Drop for Group {
    fn drop(&mut self) {
        if self.is_over || self.signal(Signal::KILL).is_err() {
            return;
        }
        let deadline = Instant::now() + LAST_WAIT;
        while self.life() == Life::Alive && Instant::now() < deadline {
            self.reap();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Orphans of the command become our children, so that we can reap them. A dead process stays in
/// its group until somebody does. In a container, it may be that nobody else does.
fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, set_child_subreaper};
        // If it fails, the init process reaps them.
        let _ = set_child_subreaper(Some(getpid()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    #[test]
    fn panic_kills_the_group() {
        let mut command = Command::new("sleep");
        command.arg("60").process_group(0);
        let group = Group::start(command, None).expect("starts");
        let leader = group.id();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _group = group;
            panic!("on purpose");
        }));
        assert!(panic.is_err());
        assert_eq!(test_kill_process_group(leader), Err(Errno::SRCH));
    }
}
