//! The locks that the runs around this one hold, as the environment says.
//!
//! A run that waits for a lock of its own ancestor waits for ever. The variable is only a hint:
//! the ancestor may have ended, or be on another Redis. So Redis is asked whether the lock is held
//! under the fence that the variable has.

use crate::defaults::DEFAULT_PREFIX;
use std::process;
use std::time::Duration;

use crossbeam_channel::{Receiver, never};
use fairlock::{
    Error, LockManager,
    inspect::{LockInfo, LockState},
};
use serde::{Deserialize, Serialize};

use super::label;
use super::lock::{Held, Share};
use crate::connection::variable;
use crate::exit::Failure;
use crate::parties::fence_of;
use crate::processes::{Process, is_above_this};

/// A JSON list, the outermost run first.
pub(super) const VARIABLE: &str = "FAIRLOCK_HELD";

/// A lock that a run around this one holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ancestor {
    pub(super) name: String,
    prefix: String,
    share: Share,
    pub(super) fence: u64,
    /// The process of the run, on whichever host.
    pub(super) pid: u32,
    /// When that process started. `None` where the system does not say.
    start: Option<u64>,
    /// How long its command may take to end, in milliseconds. Its lock outlives it for longer.
    grace: u64,
    /// How the holder before it ended.
    pub(super) previous: String,
}

/// The locks of all runs around this one.
#[derive(Debug, Clone)]
pub(super) struct Ancestors {
    all: Vec<Ancestor>,
    prefix: String,
}

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
    pub(super) fn read(prefix: Option<&str>) -> Result<Ancestors, Failure> {
        let text = variable(VARIABLE)?.unwrap_or_else(|| "[]".to_owned());
        let all = serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!(
                "{VARIABLE} is not as fairlock wrote it ({error}); unset it"
            ))
        })?;
        let prefix = prefix.unwrap_or(DEFAULT_PREFIX).to_owned();
        Ok(Ancestors { all, prefix })
    }

    /// The lock of this run.
    pub(super) fn under(&self, held: &Held, share: Share, grace: Duration) -> Ancestor {
        Ancestor {
            name: held.name().to_owned(),
            prefix: self.prefix.clone(),
            share,
            fence: held.fence(),
            pid: process::id(),
            start: Process::own().map(|own| own.start),
            grace: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            previous: held.previous_holder().to_string(),
        }
    }

    /// The value of the variable for a command inside these, and this one.
    pub(super) fn and(mut self, own: Ancestor) -> String {
        self.all.push(own);
        serde_json::to_string(&self.all).unwrap_or_default()
    }

    /// The label of a run inside these, which says where it is: so `why-waiting` and people can
    /// follow it.
    pub(super) fn label(&self, label: String) -> String {
        match self.all.last() {
            Some(innermost) => label::inside(label, &innermost.name, innermost.fence),
            None => label,
        }
    }

    /// Watches the runs that this one is below. If one of them is killed, so that it cannot end
    /// this one, a message comes. Within the time, all that this one started must be dead then: the
    /// other's lock ends with its ttl.
    pub(super) fn watch(&self) -> (Receiver<()>, Duration) {
        let watched: Vec<&Ancestor> = self.all.iter().filter(|run| run.reaches_us()).collect();
        let grace = watched.iter().map(|run| run.grace).min();
        let grace = Duration::from_millis(grace.unwrap_or(u64::MAX));
        (death_of_one(&watched), grace)
    }

    /// Those of the name that hold it now. Asks Redis if there may be one. The innermost is last.
    pub(super) fn holding(
        &self,
        manager: &LockManager,
        name: &str,
    ) -> Result<Vec<Ancestor>, Error> {
        let mut holding = self.all.clone();
        holding.retain(|ancestor| ancestor.name == name && ancestor.prefix == self.prefix);
        if !holding.is_empty() {
            let info = manager.inspect(name)?;
            holding.retain(|ancestor| info.as_ref().is_some_and(|info| ancestor.is_in(info)));
        }
        Ok(holding)
    }
}

/// A message when one of the processes ends. Linux alone has this.
#[cfg(target_os = "linux")]
fn death_of_one(runs: &[&Ancestor]) -> Receiver<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    let open = |run: &&Ancestor| {
        let pid = Pid::from_raw(run.pid.cast_signed())?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number may have been used again before.
        run.reaches_us().then_some(process)
    };
    let processes: Vec<_> = runs.iter().filter_map(open).collect();
    if processes.is_empty() {
        return never();
    }
    let (sender, received) = crossbeam_channel::bounded(1);
    let watch = move || {
        let ended = |process| PollFd::new(process, PollFlags::IN);
        let mut polled: Vec<PollFd<'_>> = processes.iter().map(ended).collect();
        while poll(&mut polled, None).is_err() {}
        let _ = sender.send(());
    };
    // Without the thread nobody watches, as on other systems.
    let thread = std::thread::Builder::new().name("ancestors".into());
    thread.spawn(watch).map_or_else(|_| never(), |_| received)
}

#[cfg(not(target_os = "linux"))]
fn death_of_one(_: &[&Ancestor]) -> Receiver<()> {
    never()
}

impl Ancestor {
    fn is_in(&self, info: &LockInfo) -> bool {
        info.state == LockState::Held
            && info
                .holders
                .iter()
                .any(|party| (fence_of(info, party), party.pid) == (self.fence, self.pid))
    }

    /// Whether that run can end what this one starts, before its lock can be another's. It reaches
    /// all processes below it in its session.
    fn reaches_us(&self) -> bool {
        let Some(own) = Process::own() else {
            return true;
        };
        Process::of(self.pid.cast_signed())
            .is_some_and(|run| Some(run.start) == self.start && run.session == own.session)
    }

    /// Refuses to join a run that could not end the command in time.
    pub(super) fn check_joinable(&self) -> Result<(), Failure> {
        let where_it_is = if !self.reaches_us() {
            "it is in another session or container"
        } else if !is_above_this(self.pid.cast_signed()) {
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
        match (self.share, share) {
            (Share::Alone, Share::Alone)
            | (Share::Writer, Share::Reader | Share::Writer)
            | (Share::Reader, Share::Reader) => true,
            (Share::Permits(held), Share::Permits(wanted)) => wanted.take <= held.take,
            _ => false,
        }
    }
}

/// Whether a run with this share can wait, while these hold the lock.
pub(super) fn verdict(holding: &[Ancestor], share: Share) -> Verdict {
    let Some(innermost) = holding.last().cloned() else {
        return Verdict::Free;
    };
    let has = |share| holding.iter().any(|ancestor| ancestor.share == share);
    // Where the kinds differ, Redis refuses the name.
    let is_excluded = match share {
        Share::Alone => has(Share::Alone),
        Share::Reader => has(Share::Writer),
        Share::Writer => has(Share::Reader) || has(Share::Writer),
        Share::Permits(wanted) => {
            let held = holding.iter().map(|ancestor| match ancestor.share {
                Share::Permits(held) => held.take,
                _ => 0,
            });
            let held: u32 = held.sum();
            held > 0 && held.saturating_add(wanted.take) > wanted.of
        }
    };
    if is_excluded {
        Verdict::Never(innermost)
    } else if share == Share::Reader && has(Share::Reader) {
        Verdict::OnlyAtOnce(innermost)
    } else {
        Verdict::Free
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::Permits;
    use super::*;

    fn holding(share: Share) -> Ancestor {
        Ancestor {
            name: "a".into(),
            prefix: "fairlock".into(),
            share,
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
        for (held, share, waits) in [
            (Share::Alone, Share::Alone, false),
            (Share::Writer, Share::Reader, false),
            (Share::Writer, Share::Writer, false),
            (Share::Reader, Share::Writer, false),
            (permits(2, 2), permits(1, 2), false),
            (permits(1, 2), permits(1, 2), true),
            // Redis refuses these: the name is another kind of lock.
            (Share::Alone, Share::Reader, true),
            (permits(1, 2), Share::Alone, true),
        ] {
            let ancestor = holding(held);
            let expected = match waits {
                true => Verdict::Free,
                false => Verdict::Never(ancestor.clone()),
            };
            assert_eq!(verdict(&[ancestor], share), expected, "{held:?}");
        }
        let reader = holding(Share::Reader);
        let expected = Verdict::OnlyAtOnce(reader.clone());
        assert_eq!(verdict(&[reader], Share::Reader), expected);
        assert_eq!(verdict(&[], Share::Alone), Verdict::Free);
        // The permits of all count.
        let two = [holding(permits(1, 3)), holding(permits(1, 3))];
        assert_eq!(verdict(&two, permits(1, 3)), Verdict::Free);
        assert!(matches!(verdict(&two, permits(1, 2)), Verdict::Never(_)));
    }
}
