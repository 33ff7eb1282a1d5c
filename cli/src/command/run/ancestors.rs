//! The locks that the runs around this one hold, as the environment says.
//!
//! A run that waits for a lock of its own ancestor waits for ever. The variable is only a hint:
//! the ancestor may have ended, or be on another Redis. So Redis is asked whether the lock is held
//! under the fence that the variable has.

use std::process;
use std::time::Duration;

use crossbeam_channel::{Receiver, never};
use fairlock::{
    Error, LockManager,
    inspect::{LockInfo, LockState},
};
use serde::{Deserialize, Serialize};

use super::lock::{Held, Share};
use crate::connection::variable;
use crate::exit::Failure;
use crate::parties::fence_of;
use crate::processes::{Process, above};

/// A JSON list, the outermost run first.
pub(super) const VARIABLE: &str = "FAIRLOCK_HELD";
/// How often to look for a process above this one.
const LOOKS_UP: u32 = 3;

/// A lock that a run around this one holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ancestor {
    pub(super) name: String,
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
#[derive(Debug)]
pub(super) struct Ancestors(Vec<Ancestor>);

impl Ancestors {
    pub(super) fn read() -> Result<Ancestors, Failure> {
        let text = variable(VARIABLE)?.unwrap_or_else(|| "[]".to_owned());
        let all = serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!(
                "{VARIABLE} is not as fairlock wrote it ({error}); unset it"
            ))
        })?;
        Ok(Ancestors(all))
    }

    /// The lock of this run.
    pub(super) fn under(held: &Held, share: Share, grace: Duration) -> Ancestor {
        Ancestor {
            name: held.name().to_owned(),
            share,
            fence: held.fence(),
            pid: process::id(),
            start: Process::own().map(|own| own.start),
            grace: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            previous: held.previous_holder().to_string(),
        }
    }

    /// The value of the variable for a command inside these, and this one.
    pub(super) fn and(&self, own: Ancestor) -> String {
        let all = [&self.0[..], &[own]].concat();
        serde_json::to_string(&all).unwrap_or_default()
    }

    /// Watches the runs that this one is below. If one of them is killed, so that it cannot end
    /// this one, a message comes. Within the time, all that this one started must be dead then: the
    /// other's lock ends with its ttl.
    #[cfg(target_os = "linux")]
    pub(super) fn watch(&self) -> (Receiver<()>, Duration) {
        use rustix::event::{PollFd, PollFlags, poll};
        use rustix::process::{Pid, PidfdFlags, pidfd_open};

        let open = |run: &Ancestor| {
            let pid = Pid::from_raw(run.pid.cast_signed())?;
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // The number may have been used again before.
            let grace = Duration::from_millis(run.grace);
            run.reaches_us().then_some((process, grace))
        };
        let (processes, graces): (Vec<_>, Vec<_>) = self.0.iter().filter_map(open).unzip();
        let Some(grace) = graces.into_iter().min() else {
            return (never(), Duration::MAX);
        };
        let (sender, received) = crossbeam_channel::bounded(1);
        let watch = move || {
            let ended = |process| PollFd::new(process, PollFlags::IN);
            let mut polled: Vec<PollFd<'_>> = processes.iter().map(ended).collect();
            while poll(&mut polled, None).is_err() {}
            let _ = sender.send(());
        };
        // Without the thread nobody watches, as on other systems.
        let thread = std::thread::Builder::new().name("ancestors".into());
        let received = thread.spawn(watch).map_or_else(|_| never(), |_| received);
        (received, grace)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn watch(&self) -> (Receiver<()>, Duration) {
        (never(), Duration::MAX)
    }

    /// Those of the name that hold it now. Asks Redis if there may be one. The innermost is last.
    pub(super) fn holding(
        &self,
        manager: &LockManager,
        name: &str,
    ) -> Result<Vec<Ancestor>, Error> {
        let mut holding = self.0.clone();
        holding.retain(|ancestor| ancestor.name == name);
        if !holding.is_empty() {
            let info = manager.inspect(name)?;
            holding.retain(|ancestor| info.as_ref().is_some_and(|info| ancestor.is_in(info)));
        }
        Ok(holding)
    }
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
    /// all processes below it in its session. Somebody may have copied the variable elsewhere.
    pub(super) fn reaches_us(&self) -> bool {
        let Some(own) = Process::own() else {
            return true;
        };
        let is_run = |above: Process| {
            let is_same = above.pid == self.pid.cast_signed() && Some(above.start) == self.start;
            is_same && above.session == own.session
        };
        // The way up is lost where a process between the two ends meanwhile.
        (0..LOOKS_UP).any(|_| above(own.pid).any(is_run))
    }

    /// Whether its lock protects what a run with this share wants to do.
    pub(super) fn covers(&self, share: Share) -> bool {
        match (self.share, share) {
            (Share::Permits(held), Share::Permits(wanted)) => wanted.take <= held.take,
            (held, wanted) => held == wanted || (held, wanted) == (Share::Writer, Share::Reader),
        }
    }
}
