//! The locks that the runs around this one hold, as the environment says.
//!
//! A run that waits for a lock of its own ancestor waits for ever. The variable is only a hint:
//! the ancestor may have ended, or be on another Redis. So Redis is asked whether the lock is held
//! under the fence that the variable has.

use crate::defaults::DEFAULT_PREFIX;
use std::os::fd::OwnedFd;
use std::process;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, never};
use fairlock::{
    Error, LockManager,
    inspect::{LockInfo, LockState, Party},
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::label;
use super::lock::{Held, Share};
use crate::connection::variable;
use crate::exit::Failure;
use crate::job;
use crate::processes::{self, Stat};

/// A JSON list, the outermost run first.
pub(super) const VARIABLE: &str = "FAIRLOCK_HELD";

/// A lock that a run around this one holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ancestor {
    name: String,
    prefix: String,
    access: Access,
    pub(super) fence: u64,
    /// The process of the run, on whichever host.
    pid: u32,
    /// When that process started. `None` where the system does not say.
    start: Option<u64>,
    /// How long its command may take to end, in milliseconds. Its lock outlives it for longer.
    grace: u64,
    /// How the holder before it ended.
    pub(super) previous: String,
}

/// How much of its lock a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Access {
    Mutex,
    Reader,
    Writer,
    Permits(u32),
}

/// The locks of all runs around this one.
#[derive(Debug, Clone, Default)]
pub(super) struct Ancestors(Vec<Ancestor>);

/// Whether a run can wait for a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No run around this one is in its way.
    Free,
    /// It can have the lock only if it is free for it now: whoever waits before it may wait for a
    /// run around this one.
    OnlyAtOnce(Ancestor),
    /// It would wait for itself.
    Never(Ancestor),
}

impl Ancestors {
    pub(super) fn read() -> Result<Ancestors, Failure> {
        let Some(text) = variable(VARIABLE)? else {
            return Ok(Ancestors::default());
        };
        let list = serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!(
                "{VARIABLE} is not as fairlock wrote it ({error}); unset it"
            ))
        })?;
        Ok(Ancestors(list))
    }

    /// The value of the variable for a command under this lock.
    pub(super) fn and(
        &self,
        held: &Held,
        prefix: Option<&str>,
        share: Share,
        grace: Duration,
    ) -> String {
        let mut all = self.0.clone();
        all.push(Ancestor {
            name: held.name().to_owned(),
            prefix: prefix.unwrap_or(DEFAULT_PREFIX).to_owned(),
            access: Access::of(share),
            fence: held.fence(),
            pid: process::id(),
            start: Stat::start_of(process::id()),
            grace: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            previous: held.previous_holder().to_string(),
        });
        serde_json::to_string(&all).unwrap_or_default()
    }

    /// The label of a run inside these, which says where it is: so `why-waiting` and people can
    /// follow it.
    pub(super) fn label(&self, label: String) -> String {
        match self.0.last() {
            Some(innermost) => label::inside(label, &innermost.name, innermost.fence),
            None => label,
        }
    }

    /// Watches the runs that this one is below. If one of them is killed, so that it cannot end
    /// this one, a message comes.
    pub(super) fn watch(&self) -> Orphaned {
        let watched = self.0.iter().filter(|ancestor| ancestor.reaches_us());
        let grace = watched.clone().map(|ancestor| ancestor.grace).min();
        Orphaned {
            received: deaths_of(watched.filter_map(|ancestor| ancestor.process())),
            grace: Duration::from_millis(grace.unwrap_or(u64::MAX)),
        }
    }

    /// Those of the name that hold it now. Asks Redis if there may be one. The innermost is last.
    pub(super) fn holding(
        &self,
        manager: &LockManager,
        name: &str,
        prefix: Option<&str>,
    ) -> Result<Vec<Ancestor>, Error> {
        let prefix = prefix.unwrap_or(DEFAULT_PREFIX);
        let mut holding: Vec<Ancestor> = self.0.clone();
        holding.retain(|ancestor| ancestor.name == name && ancestor.prefix == prefix);
        if !holding.is_empty() {
            let info = manager.inspect(name)?;
            holding.retain(|ancestor| info.as_ref().is_some_and(|info| ancestor.is_in(info)));
        }
        Ok(holding)
    }
}

/// The death of a run around this one. Its lock ends with its ttl.
pub(super) struct Orphaned {
    pub(super) received: Receiver<()>,
    /// Within this time, all that it started must be dead.
    pub(super) grace: Duration,
}

/// A message when one of the processes ends. Linux alone has this.
#[cfg(target_os = "linux")]
fn deaths_of(processes: impl Iterator<Item = OwnedFd>) -> Receiver<()> {
    let processes: Vec<OwnedFd> = processes.collect();
    if processes.is_empty() {
        return never();
    }
    let (sender, received) = bounded(1);
    // Without the thread nobody watches, as on other systems.
    let started = thread::Builder::new()
        .name("ancestors".into())
        .spawn(move || {
            let ended = |process| PollFd::new(process, PollFlags::IN);
            let mut polled: Vec<PollFd<'_>> = processes.iter().map(ended).collect();
            while poll(&mut polled, None) == Err(Errno::INTR) {}
            let _ = sender.send(());
        });
    if started.is_ok() { received } else { never() }
}

#[cfg(not(target_os = "linux"))]
fn deaths_of(_: impl Iterator<Item = OwnedFd>) -> Receiver<()> {
    never()
}

impl Ancestor {
    /// A handle of the process, which the number alone is not.
    fn process(&self) -> Option<OwnedFd> {
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{Pid, PidfdFlags, pidfd_open};
            let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // The number may have been used again before.
            self.reaches_us().then_some(process)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    fn is_in(&self, info: &LockInfo) -> bool {
        if info.state != LockState::Held {
            return false;
        }
        let is_this = |party: &Party| {
            let fence = party.fence.unwrap_or(info.fence);
            (fence, party.pid) == (self.fence, self.pid)
        };
        info.holders.iter().any(is_this)
    }

    /// The process of the run.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether that run can end what this one starts, before its lock can be another's. It reaches
    /// all processes below it in its session.
    fn reaches_us(&self) -> bool {
        let is_here = Stat::start_of(self.pid) == self.start;
        is_here && i32::try_from(self.pid).is_ok_and(job::is_in_our_session)
    }

    fn permits(&self) -> u32 {
        match self.access {
            Access::Permits(count) => count,
            _ => 0,
        }
    }

    /// Refuses to join a run that could not end the command in time.
    pub(super) fn check_joinable(&self) -> Result<(), Failure> {
        let where_it_is = if !self.reaches_us() {
            "it is in another session or container"
        } else if !processes::is_above_this(self.pid) {
            // Somebody may have copied the variable elsewhere.
            "it has not started this process, nor a process above this one"
        } else {
            return Ok(());
        };
        let Ancestor { name, pid, .. } = self;
        Err(Failure::usage(format!(
            "{name}: cannot join the run of process {pid}: {where_it_is}, so it could not end this \
             command before its lock ends"
        )))
    }

    /// Whether its lock protects what a run with this share wants to do.
    pub(super) fn covers(&self, share: Share) -> bool {
        match (self.access, share) {
            (Access::Mutex, Share::Alone)
            | (Access::Writer, Share::Reader | Share::Writer)
            | (Access::Reader, Share::Reader) => true,
            (Access::Permits(held), Share::Permits(wanted)) => wanted.take <= held,
            _ => false,
        }
    }
}

impl Access {
    fn of(share: Share) -> Access {
        match share {
            Share::Alone => Access::Mutex,
            Share::Permits(permits) => Access::Permits(permits.take),
            Share::Reader => Access::Reader,
            Share::Writer => Access::Writer,
        }
    }
}

/// Whether a run with this share can wait, while these hold the lock.
pub(super) fn verdict(holding: &[Ancestor], share: Share) -> Verdict {
    let Some(innermost) = holding.last().cloned() else {
        return Verdict::Free;
    };
    let has = |access| holding.iter().any(|ancestor| ancestor.access == access);
    // Where the kinds differ, Redis refuses the name.
    let is_excluded = match share {
        Share::Alone => has(Access::Mutex),
        Share::Reader => has(Access::Writer),
        Share::Writer => has(Access::Reader) || has(Access::Writer),
        Share::Permits(wanted) => {
            let held: u32 = holding.iter().map(Ancestor::permits).sum();
            held > 0 && held.saturating_add(wanted.take) > wanted.of
        }
    };
    if is_excluded {
        Verdict::Never(innermost)
    } else if matches!(share, Share::Reader) && has(Access::Reader) {
        Verdict::OnlyAtOnce(innermost)
    } else {
        Verdict::Free
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::Permits;
    use super::*;

    fn holding(access: Access) -> Ancestor {
        Ancestor {
            name: "a".into(),
            prefix: "fairlock".into(),
            access,
            fence: 7,
            pid: 9,
            start: None,
            grace: 2500,
            previous: "released".into(),
        }
    }

    #[test]
    fn run_never_waits_for_a_lock_that_excludes_it() {
        let permits = |take, of| Share::Permits(Permits { take, of });
        for (access, share, waits) in [
            (Access::Mutex, Share::Alone, false),
            (Access::Writer, Share::Reader, false),
            (Access::Writer, Share::Writer, false),
            (Access::Reader, Share::Writer, false),
            (Access::Permits(2), permits(1, 2), false),
            (Access::Permits(1), permits(1, 2), true),
            // Redis refuses these: the name is another kind of lock.
            (Access::Mutex, Share::Reader, true),
            (Access::Permits(1), Share::Alone, true),
        ] {
            let ancestor = holding(access);
            let expected = if waits {
                Verdict::Free
            } else {
                Verdict::Never(ancestor.clone())
            };
            assert_eq!(verdict(&[ancestor], share), expected, "{access:?}");
        }
        let reader = holding(Access::Reader);
        let expected = Verdict::OnlyAtOnce(reader.clone());
        assert_eq!(verdict(&[reader], Share::Reader), expected);
        assert_eq!(verdict(&[], Share::Alone), Verdict::Free);
    }

    #[test]
    fn permits_of_all_ancestors_count() {
        let two = [holding(Access::Permits(1)), holding(Access::Permits(1))];
        let permits = |of| Share::Permits(Permits { take: 1, of });
        assert_eq!(verdict(&two, permits(3)), Verdict::Free);
        assert!(matches!(verdict(&two, permits(2)), Verdict::Never(_)));
    }

    #[test]
    fn list_is_read_as_it_was_written() {
        let list = vec![holding(Access::Mutex), holding(Access::Permits(3))];
        let text = serde_json::to_string(&list).expect("text");
        let read: Vec<Ancestor> = serde_json::from_str(&text).expect("a list");
        assert_eq!(read, list);
    }
}
