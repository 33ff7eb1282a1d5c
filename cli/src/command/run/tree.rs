//! The processes of the command.

use std::io;
use std::mem;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, kill_process_group, setsid,
    test_kill_process_group, wait,
};

use crate::processes::{self, Process};

/// How long a panic waits for the end of processes that got KILL.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// The time between two looks at processes that are to stop.
const REST: Duration = Duration::from_millis(5);
/// One look may miss a process whose parent forked and then stopped or ended during it.
const SURE_LOOKS: u32 = 2;
/// After so many looks, whatever is not stopped goes on.
const STOP_LOOKS: u32 = 100;
const LATE_LOOK: u32 = 60;
/// The script that a shell runs while this process is stopped: see [`Tree::kill_after`].
/// Where `sleep` takes no fractions, or is missing, it comes early, and never late.
const GUARD: &str = "sleep \"$0\" 2>/dev/null || sleep \"${0%.*}\" 2>/dev/null; kill -KILL \"$@\"";

/// The command and all processes that it started, except those in a session of their own.
///
/// They are found as those below this process: it is the subreaper, so none gets another parent
/// above it. Without a terminal the command leads a group, which the kernel signals as a whole.
pub(super) struct Tree {
    leader: Pid,
    /// The group of the command: ours on a terminal.
    group: i32,
    /// How the command ended, if it has. Other processes may be alive.
    pub(super) end: Option<End>,
    /// Children that are not the command's: those that this process had before it, since a shell
    /// may have left them to it, and the guard.
    strangers: Vec<i32>,
    has_children: bool,
    /// How many children have died.
    deaths: u64,
    /// Whether the kernel lists children.
    sees: bool,
    /// How many looks in a row have found nothing alive.
    quiet_looks: u32,
    pub(super) is_killed: bool,
    is_over: bool,
    /// Those that [`stop`](Self::stop) has stopped, parents before their children.
    stopped: Vec<Process>,
    guard: Option<Pid>,
    /// The guard has sent its KILL.
    has_guard_killed: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

impl Tree {
    /// Starts the command, in our own group or in one of its own. It dies with this process. When
    /// this returns, it has been executed.
    pub(super) fn start(mut command: Command, shares_group: bool) -> io::Result<Tree> {
        // The `/proc` of another namespace has another process of our number.
        let children = Process::own().and_then(|own| processes::children_of(own.pid));
        // Nobody could tell them from others that come to us.
        if children.is_some() {
            adopt_orphans();
        }
        if !shares_group {
            command.process_group(0);
        }
        before_its_program(&mut command, || {});
        // `reap` does what `Child::wait` would. std's `Child` does nothing when it is dropped.
        let leader = Pid::from_child(&command.spawn()?);
        let own_group = Process::own().map(|own| own.group).filter(|_| shares_group);
        Ok(Tree {
            leader,
            group: own_group.unwrap_or(leader.as_raw_nonzero().get()),
            end: None,
            sees: children.is_some(),
            strangers: children.unwrap_or_default(),
            has_children: true,
            deaths: 0,
            quiet_looks: 0,
            is_killed: false,
            is_over: false,
            stopped: Vec::new(),
            guard: None,
            has_guard_killed: false,
        })
    }

    /// The command itself, while it lives.
    pub(super) fn command(&self) -> Option<Process> {
        Process::of(self.leader.as_raw_nonzero().get()).filter(|_| self.end.is_none())
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

    /// Sends KILL to each process. Further looks at what is [dead](Self::is_dead) do so again, for
    /// those that start meanwhile.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        self.send(Signal::KILL, &self.below());
    }

    fn below(&self) -> Vec<Process> {
        processes::below_this(&self.strangers).unwrap_or_default()
    }

    /// An error means that a process has ended meanwhile, or that it belongs to another user.
    fn send(&self, signal: Signal, to: &[Process]) {
        let leader = self.leader.as_raw_nonzero().get();
        // A group gets it at once, so that no process that is just starting is missed. Once the
        // command is reaped and its group is empty, another group may get the same id.
        let is_left = self.end.is_none() || to.iter().any(|process| process.group == leader);
        let leads_group = self.group == leader;
        if leads_group && is_left {
            let _ = kill_process_group(self.leader, signal);
        } else if self.end.is_none() {
            let _ = kill_process(self.leader, signal);
        }
        for process in to {
            let has_it = process.pid == leader || leads_group && process.group == leader;
            if !has_it {
                let _ = process.signal(signal);
            }
        }
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
                    self.deaths += u64::from(!status.stopped());
                    if Some(pid) == self.guard && status.exited() {
                        self.has_guard_killed = true;
                    }
                    // Its number is free again.
                    let pid = pid.as_raw_nonzero().get();
                    self.strangers
                        .retain(|other| status.stopped() || *other != pid);
                }
                Ok(None) => return stopped,
                Err(error) => {
                    self.has_children = error != Errno::CHILD;
                    return stopped;
                }
            }
        }
    }

    /// Whether the command and all of its processes are dead. Those of another user do not count:
    /// no signal of ours reaches them.
    pub(super) fn is_dead(&mut self) -> bool {
        if self.is_killed && self.has_children {
            self.send(Signal::KILL, &self.below());
        }
        if self.end.is_none() {
            return false;
        }
        let deaths = self.deaths;
        let is_alive = match processes::below_this(&self.strangers) {
            Some(found) => found.iter().any(|process| !process.is_foreign()),
            // Nobody knows.
            None => self.sees,
        };
        // Where the kernel lists no children, it still says whether there is one, or a group. A
        // child that outlives the KILL is none of the group, and nobody can find it.
        let group = || test_kill_process_group(self.leader).is_ok();
        let may_hide_one = !self.sees && (self.has_children && !self.is_killed || group());
        // An orphan may have come to us after the look began. Only while none of our own children
        // dies, a look misses nothing.
        self.reap();
        let is_quiet = !is_alive && !may_hide_one && self.deaths == deaths;
        self.quiet_looks = if is_quiet { self.quiet_looks + 1 } else { 0 };
        let has_nothing_below = self.sees && !self.has_children;
        if !has_nothing_below && self.quiet_looks < SURE_LOOKS {
            return false;
        }
        // The look passes over the dead, and some of them may be ours to reap.
        self.reap();
        self.is_over = true;
        true
    }

    /// Stops each process, until no look finds one that runs. Another fairlock gets TSTP: it stops
    /// its own command and then itself, and looks at its own lock before the command goes on. It
    /// may ignore TSTP, and only if it still waits for its lock, STOP does as well.
    pub(super) fn stop(&mut self) {
        let mut quiet_looks = 0;
        for look in 0..STOP_LOOKS {
            let found = self.below();
            let mut running = without_those_below_runs(found.clone());
            running.retain(|process| !process.is_stopped() && !process.is_foreign());
            quiet_looks = if running.is_empty() {
                quiet_looks + 1
            } else {
                0
            };
            if quiet_looks == SURE_LOOKS {
                return;
            }
            for process in running {
                let has_command = || found.iter().any(|other| other.parent == process.pid);
                let stops_itself = process.is_fairlock() && (look < LATE_LOOK || has_command());
                let signal = if stops_itself {
                    Signal::TSTP
                } else {
                    Signal::STOP
                };
                let _ = process.signal(signal);
                if !self.stopped.iter().any(|other| other.pid == process.pid) {
                    self.stopped.push(process);
                }
            }
            thread::sleep(REST);
        }
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

    /// Has a shell send KILL to each process after this time, unless it is called off.
    ///
    /// While this process is stopped, nobody else would end the command before its lock ends: the
    /// kernel continues both at once, and somebody may continue the command alone. All processes
    /// are stopped, so none of them starts another, and their numbers stay theirs. False if nobody
    /// would send it.
    #[must_use]
    pub(super) fn kill_after(&mut self, time: Duration) -> bool {
        let Some(pids) = processes::below_this(&self.strangers) else {
            return false;
        };
        self.has_guard_killed = false;
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", GUARD, &format!("{:.3}", time.as_secs_f64())])
            .args(pids.iter().map(|process| process.pid.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // In a session of its own, so that a run around this one does not stop it.
        before_its_program(&mut shell, || _ = setsid());
        let Ok(child) = shell.spawn() else {
            return false;
        };
        self.strangers.push(child.id().cast_signed());
        self.guard = Some(Pid::from_child(&child));
        true
    }

    /// Calls off [`kill_after`](Self::kill_after). True if it has killed the command.
    pub(super) fn call_off_kill(&mut self) -> bool {
        self.reap();
        let Some(guard) = self.guard.take() else {
            return false;
        };
        if self.strangers.contains(&guard.as_raw_nonzero().get()) {
            let _ = kill_process_group(guard, Signal::KILL);
            return false;
        }
        self.has_guard_killed
    }
}

/// After a panic, the lock is released. No command may go on without it.
impl Drop for Tree {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.kill();
        let deadline = Instant::now() + LAST_WAIT;
        while !self.is_dead() && Instant::now() < deadline {
            self.reap();
            thread::sleep(REST);
        }
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
/// on for as long as it likes. The kernel watches the thread that starts the child, which must be
/// the main one.
#[allow(unsafe_code, reason = "only the child itself can ask for this")]
fn before_its_program(command: &mut Command, call: fn()) {
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
    use crate::processes::tests::alone_with_children;

    #[test]
    fn panic_kills_the_command() {
        let _alone = alone_with_children();
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
