//! The processes of the command.

use std::io;
use std::mem;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, kill_process_group,
    test_kill_process_group, wait,
};

use crate::processes::{self, Process, SURE_LOOKS, until_quiet};

/// How long a panic waits for the end of processes that got KILL.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// After this time, whatever is not stopped goes on. A process that is traced, or that waits for
/// its `vfork`, never looks stopped.
const LONGEST_STOP: Duration = Duration::from_millis(500);

/// The command and all processes that it started, except those in a session of their own. The
/// command itself may be in one.
///
/// They are found as those below this process: it is the subreaper, so none gets another parent
/// above it. Without a terminal the command leads a group, which the kernel signals as a whole.
pub(super) struct Tree {
    leader: Pid,
    /// The group of the command: ours on a terminal. 0 if that is unknown.
    group: i32,
    /// How the command ended, if it has. Other processes may be alive.
    pub(super) end: Option<ExitStatus>,
    /// Children that this process had before the command, since a shell may have left them to it.
    /// `None` where the kernel does not list children.
    strangers: Option<Vec<i32>>,
    has_children: bool,
    /// How many looks in a row have found nothing alive.
    quiet_looks: u32,
    pub(super) is_killed: bool,
    /// Those that [`stop`](Self::stop) has stopped, parents before their children.
    stopped: Vec<Process>,
}

impl Tree {
    /// Starts the command, in our own group or in one of its own. It dies with this process. When
    /// this returns, it has been executed.
    pub(super) fn start(mut command: Command, shares_group: bool) -> io::Result<Tree> {
        // The `/proc` of another namespace has another process of our number.
        let own = Process::own();
        let strangers = own.and_then(|own| processes::children_of(own.pid));
        // Nobody could tell them from others that come to us.
        if strangers.is_some() {
            adopt_orphans();
        }
        if !shares_group {
            command.process_group(0);
        }
        before_its_program(&mut command, || {});
        // `reap` does what `Child::wait` would. std's `Child` does nothing when it is dropped.
        let leader = Pid::from_child(&command.spawn()?);
        let own_group = shares_group.then(|| own.map_or(0, |own| own.group));
        Ok(Tree {
            leader,
            group: own_group.unwrap_or(leader.as_raw_nonzero().get()),
            end: None,
            strangers,
            has_children: true,
            quiet_looks: 0,
            is_killed: false,
            stopped: Vec::new(),
        })
    }

    /// The number of the command, and the children of this process that are not the command's.
    /// `None` where the kernel does not list children.
    pub(super) fn children(&self) -> Option<(i32, &[i32])> {
        Some((self.number(), self.strangers.as_deref()?))
    }

    /// The command itself, if it is there and `/proc` shows it.
    pub(super) fn command(&self) -> Option<Process> {
        Process::of(self.children()?.0)
    }

    /// Whether the command has left the group in which it was started, as `timeout` does.
    pub(super) fn has_left_group(&self) -> bool {
        self.command()
            .is_some_and(|command| command.group != self.group)
    }

    fn number(&self) -> i32 {
        self.leader.as_raw_nonzero().get()
    }

    /// Sends a signal to the group of the command.
    pub(super) fn signal(&self, signal: Signal) {
        let mut members = without_those_below_runs(self.below());
        members.retain(|process| process.group == self.group);
        self.send(signal, &members);
    }

    /// Sends TERM to each process, except those that get it from another fairlock.
    pub(super) fn terminate(&self) {
        self.send(Signal::TERM, &without_those_below_runs(self.below()));
    }

    /// Sends KILL to each process. [`over`](Self::over) does so again, for those that start
    /// meanwhile.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        self.send(Signal::KILL, &self.below());
    }

    fn below(&self) -> Vec<Process> {
        self.look().unwrap_or_default()
    }

    fn look(&self) -> Option<Vec<Process>> {
        let (command, strangers) = self.children()?;
        processes::below_this(command, strangers)
    }

    /// An error means that a process has ended meanwhile, or that it belongs to another user.
    fn send(&self, signal: Signal, to: &[Process]) {
        let leader = self.number();
        // A group gets it at once, so that no process that is just starting is missed. Once the
        // command is reaped and its group is empty, another group may get the same id.
        let in_group = |process: &&Process| self.group == leader && process.group == leader;
        if self.group == leader && (self.end.is_none() || to.iter().any(|it| in_group(&it))) {
            let _ = kill_process_group(self.leader, signal);
        } else if self.end.is_none() {
            let _ = kill_process(self.leader, signal);
        }
        for process in to.iter().filter(|it| it.pid != leader && !in_group(it)) {
            let _ = process.signal(signal);
        }
    }

    /// Reaps what has died. Returns the signal that stopped the command, if one did.
    pub(super) fn reap(&mut self) -> Option<Signal> {
        let mut stopped = None;
        // Everything that is ours to reap: orphans of the command come to us, too.
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(child)) => child,
                Ok(None) => return stopped,
                Err(error) => {
                    self.has_children = error != Errno::CHILD;
                    return stopped;
                }
            };
            if let Some(signal) = status.stopping_signal() {
                let is_command = pid == self.leader;
                stopped = stopped.or(Signal::from_named_raw(signal).filter(|_| is_command));
                continue;
            }
            self.quiet_looks = 0;
            if pid == self.leader {
                self.end = Some(ExitStatus::from_raw(status.as_raw()));
            }
            // Its number is free again.
            let strangers = self.strangers.iter_mut();
            strangers.for_each(|all| all.retain(|other| *other != pid.as_raw_nonzero().get()));
        }
    }

    /// How the command ended, once it and all of its processes are dead. Those of another user do
    /// not count: no signal of ours reaches them.
    pub(super) fn over(&mut self) -> Option<ExitStatus> {
        if self.is_killed {
            self.send(Signal::KILL, &self.below());
        }
        let end = self.end?;
        let is_alive = match self.look() {
            Some(found) => found.iter().any(|process| !process.is_foreign()),
            // Where the kernel lists no children, it still says whether there is a group.
            None => self.strangers.is_some() || test_kill_process_group(self.leader).is_ok(),
        };
        self.quiet_looks = if is_alive { 0 } else { self.quiet_looks + 1 };
        // An orphan may have come to us after the look began. Then a child of ours has died, and
        // the look does not count.
        self.reap();
        let has_nothing_below = self.strangers.is_some() && !self.has_children;
        (has_nothing_below || self.quiet_looks >= SURE_LOOKS).then_some(end)
    }

    /// Stops each process, until no look finds one that runs. Another fairlock gets TSTP: it stops
    /// its own command and then itself, and looks at its own lock before the command goes on. It
    /// may ignore TSTP, and only if it still waits for its lock, STOP does as well.
    pub(super) fn stop(&mut self) {
        until_quiet(LONGEST_STOP, |elapsed| {
            let found = self.below();
            let mut running = without_those_below_runs(found.clone());
            running.retain(|process| !process.is_stopped() && !process.is_foreign());
            for process in &running {
                let has_command = || found.iter().any(|other| other.parent == process.pid);
                let stops_itself =
                    process.is_fairlock() && (elapsed < LONGEST_STOP / 2 || has_command());
                let signal = if stops_itself {
                    Signal::TSTP
                } else {
                    Signal::STOP
                };
                let _ = process.signal(signal);
                if !self.stopped.iter().any(|other| other.pid == process.pid) {
                    self.stopped.push(*process);
                }
            }
            !running.is_empty()
        });
    }

    /// Continues the group of the command, and each other process that [`stop`](Self::stop) has
    /// stopped. A process that was stopped before stays so.
    pub(super) fn go_on(&mut self) {
        // Children come first: a shell with job control that finds a child stopped gives it up.
        for process in mem::take(&mut self.stopped).iter().rev() {
            if process.now().is_some() {
                let _ = process.signal(Signal::CONT);
            }
        }
        self.signal(Signal::CONT);
    }
}

/// After a panic, the lock is released. No command may go on without it.
impl Drop for Tree {
    fn drop(&mut self) {
        if self.over().is_some() {
            return;
        }
        self.kill();
        until_quiet(LAST_WAIT, |_| {
            self.reap();
            self.over().is_none()
        });
    }
}

/// These processes without those below another fairlock, which looks after them.
fn without_those_below_runs(mut found: Vec<Process>) -> Vec<Process> {
    let runs = found.iter().filter(|process| process.is_fairlock());
    let mut above: Vec<i32> = runs.map(|run| run.pid).collect();
    // Parents come before their children.
    found.retain(|process| {
        let is_below = above.contains(&process.parent);
        if is_below {
            above.push(process.pid);
        }
        !is_below
    });
    found
}

/// Makes orphans of the command our children, so that we find and reap them. In a container, it may
/// be that nobody else reaps them.
fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Has the kernel send KILL to a child when this process dies, and has the child make a call.
///
/// Nobody is left then that could end the command before others have the lock. TERM would let it go
/// on for as long as it likes. The kernel watches the thread that starts the child, which must live
/// as long as the run.
#[allow(unsafe_code, reason = "only the child itself can ask for this")]
pub(super) fn before_its_program(command: &mut Command, call: fn()) {
    let this = getpid();
    let ask = move || {
        call();
        #[cfg(target_os = "linux")]
        {
            // A sandbox may refuse it. Then the command runs all the same.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // The process may have died before: then no signal comes.
            if getppid() != Some(this) {
                return Err(Errno::SRCH.into());
            }
        }
        Ok(())
    };
    // SAFETY: after the fork, the closure only makes system calls.
    unsafe { command.pre_exec(ask) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_kills_the_command() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let tree = Tree::start(command, false).expect("starts");
        let leader = tree.leader;
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _tree = tree;
            panic!("on purpose");
        }));
        assert!(panic.is_err());
        assert_eq!(test_kill_process_group(leader), Err(Errno::SRCH));
    }
}
