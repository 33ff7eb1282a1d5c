//! Other processes, as Linux shows them in `/proc`.

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, getpid};

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    state: char,
    pub(crate) parent: i32,
    group: i32,
    threads: u32,
}

/// Why there is no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoStat {
    /// The process is gone, or `/proc` hides it (`hidepid=2`), or this system has no `/proc`.
    Gone,
    /// The process may be alive. With `hidepid=1` it belongs to another user.
    Unreadable,
}

impl From<io::Error> for NoStat {
    fn from(error: io::Error) -> NoStat {
        // A process that goes between the open and the read is an ESRCH.
        let is_gone = error.kind() == io::ErrorKind::NotFound
            || Errno::from_io_error(&error) == Some(Errno::SRCH);
        if is_gone {
            NoStat::Gone
        } else {
            NoStat::Unreadable
        }
    }
}

impl Stat {
    pub(crate) fn of(pid: i32) -> Result<Stat, NoStat> {
        let line = fs::read(format!("/proc/{pid}/stat"))?;
        // The name of a program may be any bytes.
        Stat::parse(&String::from_utf8_lossy(&line)).ok_or(NoStat::Unreadable)
    }

    fn parse(line: &str) -> Option<Stat> {
        // The name is in brackets, and may have brackets and spaces of its own.
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
        })
    }

    /// Whether it is dead, and waits only for its parent to reap it.
    fn is_dead(self) -> bool {
        // The first thread of a process may end before the others. Then it looks like this, too.
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// Whether all processes that are left of a group are dead. False where `/proc` does not say so.
///
/// This reads one process after the other, so a live one must not be able to start another one
/// meanwhile: the group must have got KILL. Where `/proc` is mounted with `hidepid=2`, it does not
/// show the processes of other users. One of them may be left of the group, and KILL of ours does
/// not reach it.
pub(crate) fn are_all_dead(group: Pid) -> bool {
    // It may be that of another container, with other processes under these numbers.
    let this = getpid().as_raw_nonzero().to_string();
    if fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() != &*this) {
        return false;
    }
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let stats = entries.filter_map(|entry| match entry {
        Ok(entry) => Some(Stat::of(entry.file_name().to_str()?.parse().ok()?)),
        Err(_) => Some(Err(NoStat::Unreadable)),
    });
    are_dead_in(group.as_raw_nonzero().get(), stats)
}

/// Whether the group has processes among these, and all of them are dead.
fn are_dead_in(group: i32, stats: impl Iterator<Item = Result<Stat, NoStat>>) -> bool {
    let mut found = false;
    for stat in stats {
        match stat {
            Ok(stat) if stat.group != group => {}
            Ok(stat) if stat.is_dead() => found = true,
            // One that has gone since is dead.
            Err(NoStat::Gone) => {}
            // One that cannot be read may be of the group, and alive.
            Ok(_) | Err(NoStat::Unreadable) => return false,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    const REST: &str = "4 3 -1 4194304 0 0 0 0 0 0 0 0 20 0";

    #[test]
    fn stat_is_read_behind_the_last_bracket_of_the_name() {
        let line = format!("12 (a) Z (b) S 7 5 {REST} 3 0 99");
        let expected = Stat {
            state: 'S',
            parent: 7,
            group: 5,
            threads: 3,
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

    #[test]
    fn group_is_dead_only_if_each_process_is_known_not_to_live() {
        let stat = |state: char, group: i32| {
            let line = format!("12 (sh) {state} 7 {group} {REST} 1 0 99");
            Stat::parse(&line).ok_or(NoStat::Unreadable)
        };
        let (dead, alive, other) = (stat('Z', 5), stat('S', 5), stat('S', 6));
        for (stats, expected) in [
            (vec![other, dead], true),
            (vec![other, dead, Err(NoStat::Gone)], true),
            (vec![dead, alive], false),
            (vec![dead, Err(NoStat::Unreadable)], false),
            (vec![other], false),
        ] {
            assert_eq!(
                are_dead_in(5, stats.clone().into_iter()),
                expected,
                "{stats:?}"
            );
        }
    }

    #[test]
    fn process_is_gone_only_if_the_error_says_so() {
        for (error, expected) in [
            (Errno::NOENT, NoStat::Gone),
            (Errno::SRCH, NoStat::Gone),
            (Errno::ACCESS, NoStat::Unreadable),
            (Errno::PERM, NoStat::Unreadable),
            (Errno::MFILE, NoStat::Unreadable),
            (Errno::NOMEM, NoStat::Unreadable),
        ] {
            assert_eq!(NoStat::from(io::Error::from(error)), expected, "{error}");
        }
        assert_eq!(Stat::of(i32::MAX), Err(NoStat::Gone));
        assert!(Stat::of(getpid().as_raw_nonzero().get()).is_ok());
    }

    #[test]
    fn group_of_a_process_lives() {
        let mut process = Command::new("cat")
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let is_dead = are_all_dead(Pid::from_child(&process));
        drop(process.stdin.take());
        process.wait().unwrap();
        assert!(!is_dead);
    }
}
