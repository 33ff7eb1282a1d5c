//! Other processes, as Linux shows them in `/proc`.

use std::fs;
use std::iter::successors;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// One look may miss a process whose parent forked and then stopped or ended during it.
pub(crate) const SURE_LOOKS: u32 = 2;
/// The time between two looks.
const REST: Duration = Duration::from_millis(5);

/// The state of a process, a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    state: char,
    pub(crate) parent: i32,
    /// 0 if it is outside this container, as are the next two.
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// The group that has the foreground of its terminal. -1 without one.
    foreground: i32,
    threads: u32,
    /// When it started, in ticks since the start of the host: so a number that is used again, or
    /// that is of another host or container, is known.
    pub(crate) start: u64,
}

impl Process {
    /// `None` if the process is gone, or if `/proc` does not show it.
    pub(crate) fn of(pid: i32) -> Option<Process> {
        Process::read(&pid.to_string())
    }

    /// This process. `None` without `/proc`, and if it is that of another container, with other
    /// processes under these numbers.
    pub(crate) fn own() -> Option<Process> {
        Process::read("self").filter(|own| own.pid.unsigned_abs() == std::process::id())
    }

    fn read(name: &str) -> Option<Process> {
        let line = fs::read(format!("/proc/{name}/stat")).ok()?;
        // The name of a program may be any bytes.
        Process::parse(&String::from_utf8_lossy(&line))
    }

    fn parse(line: &str) -> Option<Process> {
        // The name is in brackets, and may have brackets and spaces of its own.
        let (pid, _) = line.split_once(' ')?;
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Process {
            pid: pid.parse().ok()?,
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            foreground: number(5)?,
            threads: fields.get(17)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// The process as it is now. `None` if it is gone, also if another has its number.
    pub(crate) fn now(&self) -> Option<Process> {
        Process::of(self.pid).filter(|now| now.start == self.start)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    /// Whether it is dead, and waits only for its parent to reap it.
    fn is_dead(&self) -> bool {
        // The first thread of a process may end before the others. Then it looks like this, too.
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    pub(crate) fn is_in_foreground(&self) -> bool {
        self.group > 0 && self.group == self.foreground
    }

    /// Whether it executes the file that this process does.
    pub(crate) fn is_fairlock(&self) -> bool {
        let file = |link: &str| {
            let file = fs::metadata(link).ok()?;
            Some((file.dev(), file.ino()))
        };
        let own = file("/proc/self/exe");
        own.is_some() && own == file(&format!("/proc/{}/exe", self.pid))
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or(io::Errno::SRCH)?;
        kill_process(pid, signal)
    }

    /// Whether it belongs to another user, so that no signal of ours reaches it.
    pub(crate) fn is_foreign(&self) -> bool {
        Pid::from_raw(self.pid).is_some_and(|pid| test_kill_process(pid) == Err(io::Errno::PERM))
    }
}

/// The numbers of the children of a process. `None` where the kernel does not list them.
pub(crate) fn children_of(pid: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    let mut is_listed = false;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end meanwhile: then another one of the process has its children.
        if let Ok(children) = fs::read_to_string(thread.path().join("children")) {
            is_listed = true;
            found.extend(children.split_whitespace().flat_map(str::parse::<i32>));
        }
    }
    is_listed.then_some(found)
}

/// The live processes below this one, as [`below`] finds them. `None` also if `/proc` does not show
/// this one.
pub(crate) fn below_this(command: i32, strangers: &[i32]) -> Option<Vec<Process>> {
    below(&Process::own()?, command, strangers)
}

/// The live processes below this one, parents before their children: those in its session, and the
/// command. Processes below `strangers`, children of it, do not count.
///
/// This reads one process after the other, so it can miss one that starts meanwhile, or whose
/// parent ends meanwhile: look again until nothing is found. `None` if its own children cannot be
/// read.
pub(crate) fn below(top: &Process, command: i32, strangers: &[i32]) -> Option<Vec<Process>> {
    let mut children = children_of(top.pid)?;
    let mut found: Vec<Process> = Vec::new();
    let mut looked_at = 0;
    loop {
        for child in children {
            // One that gets another parent during the look is seen at both.
            let is_new = !found.iter().any(|known| known.pid == child);
            if is_new && !strangers.contains(&child) {
                found.extend(Process::of(child));
            }
        }
        let Some(parent) = found.get(looked_at) else {
            break;
        };
        children = children_of(parent.pid).unwrap_or_default();
        looked_at += 1;
    }
    let is_ours = |process: &Process| process.session == top.session || process.pid == command;
    found.retain(|process| is_ours(process) && !process.is_dead());
    Some(found)
}

/// Looks and acts until two looks in a row have found nothing, or until the time is over. `finds`
/// gets the time since the first look.
pub(crate) fn until_quiet(at_most: Duration, mut finds: impl FnMut(Duration) -> bool) {
    let start = Instant::now();
    let mut quiet_looks = 0;
    while quiet_looks < SURE_LOOKS && start.elapsed() < at_most {
        quiet_looks = if finds(start.elapsed()) {
            0
        } else {
            quiet_looks + 1
        };
        thread::sleep(REST);
    }
}

/// The processes above one, its parent first. Without those that `/proc` does not show.
pub(crate) fn above(pid: i32) -> impl Iterator<Item = Process> {
    successors(Process::of(pid), |process| Process::of(process.parent)).skip(1)
}

/// Whether a shell is there that could continue our group if it stopped. True where `/proc` does
/// not say.
///
/// The kernel stops a group for Ctrl-Z only if one of its processes has a parent in the same
/// session, but in another group. This looks for that parent above this process, past a script in
/// the same job. Where a container begins with a program or with a script, there is none. A process
/// that stops there is never continued.
pub(crate) fn can_be_continued() -> bool {
    Process::own().is_none_or(|own| {
        above(own.pid)
            .take_while(|process| process.session == own.session)
            .any(|process| process.group != own.group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_behind_the_last_bracket_of_its_name() {
        for (state, threads, dead) in [('Z', 1, true), ('Z', 2, false), ('S', 1, false)] {
            let rest = format!("4 3 8 4194304 0 0 0 0 0 0 0 0 20 0 {threads} 0 99");
            let line = format!("12 (a) Z (b) {state} 7 5 {rest}");
            let process = Process::parse(&line).expect("a process");
            let numbers = (process.pid, process.parent, process.group, process.session);
            assert_eq!((numbers, process.start), ((12, 7, 5, 4), 99));
            assert_eq!((process.foreground, process.is_dead()), (8, dead));
        }
        assert_eq!(Process::parse("12 (cut off) S 7"), None);
    }
}
