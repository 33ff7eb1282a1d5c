//! Other processes, as Linux shows them in `/proc`.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Pid, getpid};

/// How often to look for a process above this one.
const LOOKS_UP: u32 = 3;

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    session: i32,
    threads: u32,
    /// When it started, in ticks since the start of the host.
    start: u64,
}

impl Stat {
    /// `None` if the process is gone, or if `/proc` does not show it.
    pub(crate) fn of(pid: i32) -> Option<Stat> {
        let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name of a program may be any bytes.
        Stat::parse(&String::from_utf8_lossy(&line))
    }

    fn parse(line: &str) -> Option<Stat> {
        // The name is in brackets, and may have brackets and spaces of its own.
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// When the process of this number started: so a number that is used again, or that is of
    /// another host or container, is known. `None` where `/proc` does not show it.
    pub(crate) fn start_of(pid: u32) -> Option<u64> {
        Some(Stat::of(i32::try_from(pid).ok()?)?.start)
    }

    pub(crate) fn is_stopped(self) -> bool {
        self.state == 'T'
    }

    /// Whether it sees no signal before the kernel has done what it waits for.
    pub(crate) fn is_in_the_kernel(self) -> bool {
        self.state == 'D'
    }

    /// Whether it is dead, and waits only for its parent to reap it.
    fn is_dead(self) -> bool {
        // The first thread of a process may end before the others. Then it looks like this, too.
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// A process that was alive a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) stat: Stat,
}

impl Process {
    /// Whether this is the same process as the other. Its state, parent and group may differ.
    pub(crate) fn is(&self, other: &Process) -> bool {
        (self.pid, self.stat.start) == (other.pid, other.stat.start)
    }

    /// The process as it is now. `None` if it is gone, also if another has its number.
    pub(crate) fn now(&self) -> Option<Process> {
        let stat = Stat::of(self.pid.as_raw_nonzero().get())?;
        let now = Process { stat, ..*self };
        now.is(self).then_some(now)
    }
}

/// The live processes below this one, in its session. `None` where `/proc` does not show them.
///
/// Processes below `strangers`, children of this process, do not count. This reads one process
/// after the other, so it can miss one that starts meanwhile, or whose parent ends meanwhile: look
/// again until nothing is found. Where `/proc` is mounted with `hidepid`, it shows no process of
/// another user.
pub(crate) fn below_this(strangers: &[Pid]) -> Option<Vec<Process>> {
    let this = getpid();
    let all = all()?;
    let session = all.iter().find(|process| process.pid == this)?.stat.session;
    let mut found = below(this, &all, &|process| !strangers.contains(&process.pid));
    found.retain(|process| process.stat.session == session && !process.stat.is_dead());
    Some(found)
}

/// The children of this process.
pub(crate) fn children() -> Vec<Pid> {
    let this = getpid().as_raw_nonzero().get();
    let all = all().unwrap_or_default();
    let children = all.iter().filter(|process| process.stat.parent == this);
    children.map(|process| process.pid).collect()
}

/// Those of these processes that are another fairlock.
pub(crate) fn runs_of_others(found: &[Process]) -> Vec<Process> {
    let runs = found
        .iter()
        .filter(|process| runs_this_program(process.pid));
    runs.copied().collect()
}

/// These processes without those below one of the tops.
pub(crate) fn without_those_below(tops: &[Process], found: &[Process]) -> Vec<Process> {
    let below_tops = tops.iter().flat_map(|top| below(top.pid, found, &|_| true));
    let below_tops: Vec<Process> = below_tops.collect();
    let others = found.iter().filter(|process| !below_tops.contains(process));
    others.copied().collect()
}

/// Which processes are below which, as they were a moment ago.
#[derive(Debug)]
pub(crate) struct Descent(HashMap<i32, Stat>);

impl Descent {
    /// `None` where `/proc` does not show them.
    pub(crate) fn read() -> Option<Descent> {
        let stats = all()?.into_iter();
        let stats = stats.map(|process| (process.pid.as_raw_nonzero().get(), process.stat));
        Some(Descent(stats.collect()))
    }

    /// The processes above one, its parent first, and whether each is in its session. Without those
    /// that `/proc` does not show.
    pub(crate) fn above(&self, pid: u32) -> Vec<(u32, bool)> {
        let mut found = Vec::new();
        let Some(of_child) = i32::try_from(pid).ok().and_then(|pid| self.0.get(&pid)) else {
            return found;
        };
        let mut parent = of_child.parent;
        // A table that changed while it was read may have a circle.
        while found.len() < self.0.len()
            && let Some(stat) = self.0.get(&parent)
        {
            found.push((parent.unsigned_abs(), stat.session == of_child.session));
            parent = stat.parent;
        }
        found
    }

    /// Whether the process is one of these.
    pub(crate) fn has(&self, pid: u32) -> bool {
        i32::try_from(pid).is_ok_and(|pid| self.0.contains_key(&pid))
    }
}

/// Whether this process is below another one. True where `/proc` does not show it.
pub(crate) fn is_above_this(pid: u32) -> bool {
    // A look reads one process after the other. So it can lose the way up where a process between
    // the two ends meanwhile.
    (0..LOOKS_UP).any(|_| {
        Descent::read().is_none_or(|all| {
            let above = all.above(std::process::id());
            above.iter().any(|(found, _)| *found == pid)
        })
    })
}

/// The processes below one, those nearest to it first. `follows` says which ones count, together
/// with what is below them.
fn below(top: Pid, all: &[Process], follows: &dyn Fn(&Process) -> bool) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all.iter().filter(|process| follows(process)) {
        children
            .entry(process.stat.parent)
            .or_default()
            .push(*process);
    }
    let mut found = Vec::new();
    let mut parents = vec![top];
    while let Some(parent) = parents.pop() {
        // Each list is taken once, so a table that changed while it was read makes no circle.
        let next = children.remove(&parent.as_raw_nonzero().get());
        for process in next.unwrap_or_default() {
            found.push(process);
            parents.push(process.pid);
        }
    }
    found
}

/// Whether a process executes the file that this one does.
fn runs_this_program(pid: Pid) -> bool {
    let file = |link: String| {
        let file = fs::metadata(link).ok()?;
        Some((file.dev(), file.ino()))
    };
    let own = file("/proc/self/exe".to_owned());
    own.is_some() && own == file(format!("/proc/{}/exe", pid.as_raw_nonzero()))
}

/// Signals of a process, as Linux lists them in a line of its status. Empty elsewhere: no safe call
/// of the standard library or of a crate here asks for them.
pub(crate) struct SignalSet(u64);

impl SignalSet {
    /// Those that this process ignores.
    pub(crate) fn ignored() -> SignalSet {
        SignalSet::read("self", "SigIgn:")
    }

    /// Those that were sent to a process as a whole, and that it has not received.
    pub(crate) fn pending(pid: Pid) -> SignalSet {
        SignalSet::read(&pid.as_raw_nonzero().to_string(), "ShdPnd:")
    }

    fn read(process: &str, line: &str) -> SignalSet {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|found| found.strip_prefix(line));
        SignalSet(mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0)))
    }

    pub(crate) fn contains(&self, number: i32) -> bool {
        self.0 & (1 << (number - 1)) != 0
    }
}

/// All processes that can be read.
fn all() -> Option<Vec<Process>> {
    // It may be that of another container, with other processes under these numbers.
    let this = getpid().as_raw_nonzero().to_string();
    if fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() != &*this) {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?;
    let stats = entries.filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some(Process {
            pid: Pid::from_raw(pid)?,
            stat: Stat::of(pid)?,
        })
    });
    Some(stats.collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::{Command, Stdio};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    static CHILDREN: Mutex<()> = Mutex::new(());

    /// For a test with children: the `Tree` of another test would reap them.
    pub(crate) fn alone_with_children() -> MutexGuard<'static, ()> {
        CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const REST: &str = "4 3 -1 4194304 0 0 0 0 0 0 0 0 20 0";

    #[test]
    fn stat_is_read_behind_the_last_bracket_of_the_name() {
        let line = format!("12 (a) Z (b) S 7 5 {REST} 3 0 99");
        let expected = Stat {
            state: 'S',
            parent: 7,
            group: 5,
            session: 4,
            threads: 3,
            start: 99,
        };
        assert_eq!(Stat::parse(&line), Some(expected));
        assert_eq!(Stat::parse("12 (cut off) S 7"), None);
    }

    #[test]
    fn process_is_dead_only_with_all_its_threads() {
        for (state, threads, dead) in [
            ('Z', 1, true),
            ('X', 0, true),
            ('Z', 2, false),
            ('S', 1, false),
            ('T', 1, false),
            ('D', 1, false),
        ] {
            let line = format!("12 (sh) {state} 7 5 {REST} {threads} 0 99");
            let stat = Stat::parse(&line).expect("a stat");
            assert_eq!(stat.is_dead(), dead, "{line}");
        }
    }

    impl Process {
        /// Another one, which had the same number before.
        pub(crate) fn started_before(mut self) -> Process {
            self.stat.start -= 1;
            self
        }
    }

    /// A live process of session 1 with this parent.
    fn process(pid: i32, parent: i32) -> Process {
        let line = format!("{pid} (sh) S {parent} 5 1 {REST} 1 0 99");
        Process {
            pid: Pid::from_raw(pid).expect("not zero"),
            stat: Stat::parse(&line).expect("a stat"),
        }
    }

    #[test]
    fn processes_below_one_are_found_without_those_below_strangers() {
        let all = [
            process(2, 1),
            process(3, 2),
            process(4, 2),
            process(5, 3),
            process(6, 4),
            process(7, 9),
        ];
        let top = all[0].pid;
        let pids = |found: Vec<Process>| {
            let mut pids: Vec<i32> = found
                .iter()
                .map(|process| process.pid.as_raw_nonzero().get())
                .collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(below(top, &all, &|_| true)), [3, 4, 5, 6]);
        let stranger = all[2].pid;
        let found = below(top, &all, &|process| process.pid != stranger);
        assert_eq!(pids(found), [3, 5]);
    }

    #[test]
    fn table_with_a_circle_is_walked_once() {
        let all = [process(2, 3), process(3, 2)];
        assert_eq!(below(all[0].pid, &all, &|_| true).len(), 2);
    }

    #[test]
    fn processes_above_one_are_found_with_their_sessions() {
        let mut all = [
            process(2, 1),
            process(3, 2),
            process(4, 3),
            process(7, 8),
            process(8, 7),
        ];
        all[0].stat.session = 9;
        let pairs = all.map(|process| (process.pid.as_raw_nonzero().get(), process.stat));
        let descent = Descent(HashMap::from(pairs));
        assert_eq!(descent.above(4), [(3, true), (2, false)]);
        assert_eq!(descent.above(99), []);
        assert_eq!(descent.above(7).len(), all.len());
        assert!(descent.has(4) && !descent.has(1));
    }

    #[test]
    fn child_is_found_while_it_lives_and_is_no_other_fairlock() {
        let _alone = alone_with_children();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let finds = || {
            let found = below_this(&[]).expect("Linux");
            found.iter().any(|process| process.pid == pid)
        };
        let is_found = finds() && children().contains(&pid);
        let is_hidden = below_this(&[pid]).expect("Linux");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(is_found && !finds());
        assert!(!is_hidden.iter().any(|process| process.pid == pid));
        assert!(runs_this_program(getpid()) && !runs_this_program(pid));
    }
}
