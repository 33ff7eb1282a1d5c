//! How the command waits for Redis, and then for its lock.

use crate::defaults::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_OUTAGE_LIMIT};
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use fairlock::inspect::{LockInfo, LockState};
use fairlock::{Builder, DetachedLock, Error, LockManager, Misuse, Waiter};
use unicode_width::UnicodeWidthChar as _;

use super::Run;
use super::ancestors::{Ancestor, Ancestors, Verdict, verdict};
use super::lock::{Held, Permits, Share};
use super::signals::Received;
use crate::logger;
use crate::output;
use crate::printable::printable;
use crate::processes::Process;

/// How often Redis is asked for the holder, and the line counts on. The longest pause between two
/// attempts, too.
const LOOK: Duration = Duration::from_secs(1);
/// The pauses between two attempts double from this one on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const UNHEARD: &str = ", redis does not answer";

/// How a wait ended.
pub(super) enum Waited {
    Granted(Held, LockManager),
    /// A run around this one has the lock, and this one joins it.
    Joined(Ancestor),
    /// A run around this one has the lock, so this one would wait for itself.
    ForItself(Ancestor),
    /// Others have the lock. The text says who, after a comma.
    Busy(String),
}

/// Why a wait ended early.
pub(super) enum Stop {
    Error(Error),
    Signal(Received),
    /// A run around this one has died.
    Orphaned,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

/// How a wait is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    /// One line when it begins, and one if it was in vain: for a log.
    Once,
    /// A line on a terminal that counts on.
    Always,
}

/// The wait of a run.
pub(super) struct Wait {
    pub(super) run: Run,
    pub(super) ancestors: Ancestors,
    /// The lock is detached, and this takes it over.
    pub(super) attached: Option<DetachedLock>,
    pub(super) builder: Builder,
    pub(super) signals: Receiver<Received>,
    pub(super) orphaned: Receiver<()>,
    pub(super) start: Instant,
    /// Whether the line was shown.
    pub(super) is_shown: Cell<bool>,
}

impl Wait {
    /// A call to Redis blocks for at most a few command timeouts. All else ends at once by a
    /// signal.
    pub(super) fn run(&self) -> Result<Waited, Stop> {
        let ended = self.connect().and_then(|manager| {
            let ended = self.take(&manager);
            if matches!(ended, Err(Stop::Signal(_) | Stop::Orphaned)) {
                // It leaves the queue. Without an answer, the place is skipped as that of a dead
                // process.
                let _ = manager.shutdown(DEFAULT_COMMAND_TIMEOUT);
            }
            ended
        });
        if self.is_shown.get() && self.run.shown() == Shown::Always {
            // The command must not write behind it. A terminal that takes no output does not hold
            // it up for long.
            logger::print("\r\x1b[K");
            logger::flush();
        }
        ended
    }

    fn connect(&self) -> Result<LockManager, Stop> {
        self.retry(|| {
            let connected = self.builder.clone().build();
            if connected.is_err() && self.run.shown() == Shown::Always && !self.is_try() {
                self.show(UNHEARD);
            }
            Ok(connected?)
        })
    }

    /// Takes the lock, unless a run around this one has it.
    fn take(&self, manager: &LockManager) -> Result<Waited, Stop> {
        let granted = |held| Waited::Granted(held, manager.clone());
        let holding = self.retry(|| Ok(self.ancestors.holding(manager, &self.run.name)?))?;
        if let Some(detached) = &self.attached {
            let guard = self.retry(|| Ok(manager.attach(detached)?))?;
            return Ok(granted(Held::Mutex(guard)));
        }
        let mut covering = holding.iter().rev();
        if self.run.reenter
            && let Some(ancestor) = covering.find(|ancestor| ancestor.covers(self.run.share()))
        {
            return Ok(Waited::Joined(ancestor.clone()));
        }
        let try_take = || self.run.share().try_take(manager, &self.run.name);
        match verdict(&holding, self.run.share()) {
            Verdict::Never(ancestor) => return Ok(Waited::ForItself(ancestor)),
            Verdict::OnlyAtOnce(ancestor) => {
                let held = self.retry(|| Ok(try_take()?))?;
                return Ok(held.map_or(Waited::ForItself(ancestor), granted));
            }
            Verdict::Free => {}
        }
        // A lock that is free needs no subscription and no place in the queue.
        let held = match try_take() {
            Ok(Some(held)) => Some(held),
            Err(error) if self.is_try() => return Err(error.into()),
            _ if self.is_try() => None,
            // An error that ends a wait ends it below, too. A slow reply, or a failover, does not:
            // Redis may be loading, or be without a master or enough replicas.
            _ => self.retry(|| self.wait_in_line(manager))?,
        };
        match held {
            Some(held) => Ok(granted(held)),
            None => self.busy(manager),
        }
    }

    /// Waits in the queue, from its end to its head. `None` when the time is over.
    fn wait_in_line(&self, manager: &LockManager) -> Result<Option<Held>, Stop> {
        let name = &self.run.name;
        let rw_lock = manager.rw_lock(name);
        match self.run.share() {
            Share::Alone => self.wait_with(manager.enqueue(name)?, manager, Held::Mutex),
            Share::Permits(Permits { take, of }) => {
                let waiter = manager.semaphore(name, of).enqueue(take)?;
                self.wait_with(waiter, manager, Held::Permits)
            }
            Share::Reader => self.wait_with(rw_lock.enqueue_read()?, manager, Held::Reader),
            Share::Writer => self.wait_with(rw_lock.enqueue_write()?, manager, Held::Writer),
        }
    }

    /// Dropping the waiter leaves the queue.
    fn wait_with<G>(
        &self,
        mut waiter: Waiter<G>,
        manager: &LockManager,
        held: fn(G) -> Held,
    ) -> Result<Option<Held>, Stop> {
        loop {
            if let Some(guard) = waiter.wait_for(Duration::ZERO)? {
                return Ok(Some(held(guard)));
            }
            let left = self.left().unwrap_or(Duration::MAX);
            if left.is_zero() {
                return Ok(None);
            }
            self.look(manager, waiter.position());
            self.sleep(waiter.ready(), left.min(LOOK))?;
        }
    }

    /// A wait ends in the same way whether others have the lock or Redis is silent. This tells
    /// them apart.
    fn busy(&self, manager: &LockManager) -> Result<Waited, Stop> {
        let is_try = self.is_try();
        if is_try && self.run.shown() == Shown::Nothing {
            return Ok(Waited::Busy(String::new()));
        }
        match manager.inspect(&self.run.name) {
            // Nobody has it. A last try says why it was not granted, as when the servers of a
            // quorum have not run for long enough.
            Ok(None) if !is_try => {
                Ok(match self.run.share().try_take(manager, &self.run.name)? {
                    Some(held) => Waited::Granted(held, manager.clone()),
                    None => Waited::Busy(String::new()),
                })
            }
            Ok(info) => Ok(Waited::Busy(holder_of(info.as_ref()))),
            Err(error)
                if !is_try
                    && (passes(&error)
                        || matches!(&error, Error::Refused { code, .. } if code == "TLS")) =>
            {
                Err(error.into())
            }
            // It answers, or it has just said so: the lock is taken.
            Err(_) => Ok(Waited::Busy(String::new())),
        }
    }

    /// Calls until something else comes than an error that passes by itself, or until the time is
    /// over.
    fn retry<T>(&self, mut call: impl FnMut() -> Result<T, Stop>) -> Result<T, Stop> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match call() {
                Err(Stop::Error(error)) if passes(&error) => error,
                ended => return ended,
            };
            let without_end = || DEFAULT_OUTAGE_LIMIT.saturating_sub(start.elapsed());
            let left = self.left().unwrap_or_else(without_end);
            self.sleep(&never(), pause.min(left))?;
            if left <= pause {
                // No time is left for another attempt after the pause.
                return Err(error.into());
            }
            pause = (pause * 2).min(LOOK);
        }
    }

    /// Sleeps for this time, or until a message comes.
    fn sleep(&self, ready: &Receiver<()>, time: Duration) -> Result<(), Stop> {
        let end = after(time);
        loop {
            select! {
                recv(self.signals) -> signal => {
                    if let Some(signal) = signal.ok().filter(|signal| signal.ends_a_wait()) {
                        return Err(Stop::Signal(signal));
                    }
                }
                recv(self.orphaned) -> _ => return Err(Stop::Orphaned),
                recv(ready) -> _ => return Ok(()),
                recv(end) -> _ => return Ok(()),
            }
        }
    }

    /// The time that is left to wait. `None`: without end.
    fn left(&self) -> Option<Duration> {
        let at_most = if self.run.no_wait {
            Some(Duration::ZERO)
        } else {
            self.run.wait
        };
        Some(at_most?.saturating_sub(self.start.elapsed()))
    }

    fn is_try(&self) -> bool {
        self.run.no_wait || self.run.wait == Some(Duration::ZERO)
    }

    /// Asks Redis for the holder. Without an answer the line says so, and the wait goes on.
    fn look(&self, manager: &LockManager, position: Option<u64>) {
        let shown = self.run.shown();
        if shown == Shown::Nothing || shown == Shown::Once && self.is_shown.get() {
            return;
        }
        let info = manager.inspect(&self.run.name).ok();
        // Both are upper bounds, and only the second counts down if others leave.
        let waiters = info.iter().flatten().map(|info| info.waiters).next();
        let position = position.map(|at| at.min(waiters.unwrap_or(at)));
        let position = position.map(|at| format!(", number {at} in line"));
        let holder = info.map(|info| holder_of(info.as_ref()));
        let holder = holder.unwrap_or_else(|| UNHEARD.to_owned());
        self.show(&(position.unwrap_or_default() + &holder));
    }

    /// `deploy: waiting, number 2 in line, held by make (web1, pid 4711), 12s waited, 48s left`
    fn show(&self, text: &str) {
        let waited = seconds(self.start.elapsed());
        let left = self.left().map(|left| format!(", {} left", seconds(left)));
        let left = left.unwrap_or_default();
        let line = format!("waiting{text}, {waited} waited{left}");
        if self.run.shown() == Shown::Once {
            self.run.say(&line);
        // A background job must not draw over the prompt of the shell.
        } else if !Process::own().is_some_and(|own| own.is_in_background()) {
            let line = format!("{}: {line}", self.run.name);
            let line = fit(&line, output::columns(io::stderr()));
            logger::print(&format!("\r{line}\x1b[K"));
        }
        self.is_shown.set(true);
    }
}

/// Whether the same call may succeed later, though nobody changes a setting.
pub(super) fn passes(error: &Error) -> bool {
    match error {
        // Behind a name that moves to the new master, it is the old one until then.
        Error::Misused {
            misuse: Misuse::Server,
            message,
            ..
        } => message.contains("is a replica"),
        error => error.is_temporary(),
    }
}

/// `, held by make (web1, pid 4711)`, or nothing if nobody holds it.
fn holder_of(info: Option<&LockInfo>) -> String {
    let Some((info, holder)) = info.and_then(|info| Some((info, info.holder.as_ref()?))) else {
        return String::new();
    };
    let state = match info.state {
        LockState::Detached => "detached by",
        LockState::Cooling => "kept by",
        LockState::Lapsed => "lapsed, last held by",
        _ if holder.keeps => "held or kept by",
        _ => "held by",
    };
    let (host, pid) = (&holder.host, holder.pid);
    let party = match &*holder.label {
        "" => format!("{host}, pid {pid}"),
        label => format!("{label} ({host}, pid {pid})"),
    };
    let others = match info.holders.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    // Anybody can write into Redis.
    format!(", {state} {}{others}", printable(&party))
}

/// Whole seconds. A line that changes more often is hard to read.
fn seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

/// The beginning of a line that fits into this many columns. A line that wraps cannot be erased.
fn fit(line: &str, columns: usize) -> String {
    let mut width = 0;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width < columns
    };
    printable(line).chars().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_never_wraps() {
        assert_eq!(fit("abcdef", 4), "abc");
        assert_eq!(fit("数据库", 6), "数据");
        assert_eq!(fit("a\nb", 80), "a\\nb");
        assert_eq!(fit("abc", 0), "");
    }
}
