//! How the command waits for Redis, and then for its lock.

use crate::defaults::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_OUTAGE_LIMIT};
use std::cell::RefCell;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use fairlock::inspect::LockInfo;
use fairlock::{Builder, DetachedLock, Error, LockManager, Misuse, Waiter};

use super::Run;
use super::ancestors::{Ancestor, Ancestors};
use super::lock::{Held, Permits, Share};
use super::signals::Received;
use crate::exit::Failure;
use crate::output;

/// How often Redis is asked for the holder. The longest pause between two attempts, too.
const LOOK: Duration = Duration::from_secs(1);
/// The pauses between two attempts double from this one on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const UNHEARD: &str = ", redis does not answer";

/// How a wait ended without the lock.
pub(super) enum Stop {
    Error(Error),
    Failed(Failure),
    Signal(Received),
    /// A run around this one has the lock, and this one joins it.
    Joined(Ancestor),
    /// Others have the lock. The text says who, after a comma.
    Busy(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

/// The wait of a run.
pub(super) struct Wait<'a> {
    pub(super) run: &'a Run,
    pub(super) ancestors: &'a Ancestors,
    /// The lock is detached, and this takes it over.
    pub(super) attached: Option<DetachedLock>,
    pub(super) builder: Builder,
    pub(super) signals: &'a Receiver<Received>,
    pub(super) orphaned: Receiver<()>,
    pub(super) start: Instant,
    /// Without end if it is `None`.
    pub(super) at_most: Option<Duration>,
    /// The last line about the wait.
    pub(super) said: RefCell<String>,
}

impl Wait<'_> {
    /// A call to Redis blocks for at most a few command timeouts. All else ends at once by a
    /// signal.
    pub(super) fn run(&self) -> Result<(Held, LockManager), Stop> {
        let manager = self.connect()?;
        let taken = self.take(&manager);
        if matches!(taken, Err(Stop::Signal(_) | Stop::Failed(_))) {
            // It leaves the queue. Without an answer, the place is skipped as that of a dead
            // process.
            let _ = manager.shutdown(DEFAULT_COMMAND_TIMEOUT);
        }
        Ok((taken?, manager))
    }

    fn connect(&self) -> Result<LockManager, Stop> {
        self.retry(|| {
            let connected = self.builder.clone().build();
            if connected.is_err() && !self.is_try() {
                self.say(UNHEARD);
            }
            Ok(connected?)
        })
    }

    /// Takes the lock, unless a run around this one has it.
    fn take(&self, manager: &LockManager) -> Result<Held, Stop> {
        let (run, share) = (self.run, self.run.share());
        let holding = self.retry(|| Ok(self.ancestors.holding(manager, &run.name)?))?;
        if let Some(detached) = &self.attached {
            return self.retry(|| Ok(Held::Mutex(manager.attach(detached)?)));
        }
        let mut covering = holding.iter().rev();
        if run.reenter
            && let Some(ancestor) = covering.find(|run| run.covers(share) && run.reaches_us())
        {
            return Err(Stop::Joined(ancestor.clone()));
        }
        let try_take = || Ok(share.try_take(manager, &run.name)?);
        if let Some(ancestor) = holding.last() {
            // Whoever is in its way may wait for that run, or is that run.
            let held = self.retry(try_take)?;
            return held.ok_or_else(|| Stop::Failed(run.waits_for_itself(ancestor)));
        }
        // A lock that is free needs no subscription and no place in the queue.
        let tried = try_take();
        let held = if self.is_try() || matches!(tried, Ok(Some(_))) {
            tried?
        } else {
            // An error that ends a wait ends it here, too. A slow reply, or a failover, does not:
            // Redis may be loading, or be without a master or enough replicas.
            match self.retry(|| self.wait_in_line(manager))? {
                // The time is over. A last try tells a lock that others have from a Redis that is
                // silent, or that grants nothing yet.
                None => try_take()?,
                held => held,
            }
        };
        held.ok_or_else(|| self.busy(manager))
    }

    /// The holder is only for people: the lock is taken all the same.
    fn busy(&self, manager: &LockManager) -> Stop {
        let is_told = self.run.tells();
        let info = is_told.then(|| manager.inspect(&self.run.name));
        Stop::Busy(holder_of(info.and_then(Result::ok).flatten().as_ref()))
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
                recv(self.orphaned) -> _ => {
                    let text = "the run around this one has died, so the command does not start";
                    return Err(Stop::Failed(self.run.lost(text)));
                }
                recv(ready) -> _ => return Ok(()),
                recv(end) -> _ => return Ok(()),
            }
        }
    }

    /// The time that is left to wait. `None`: without end.
    fn left(&self) -> Option<Duration> {
        Some(self.at_most?.saturating_sub(self.start.elapsed()))
    }

    fn is_try(&self) -> bool {
        self.at_most == Some(Duration::ZERO)
    }

    /// Asks Redis for the holder. Without an answer the line says so, and the wait goes on.
    fn look(&self, manager: &LockManager, position: Option<u64>) {
        if !self.run.tells() {
            return;
        }
        let info = manager.inspect(&self.run.name).ok();
        // Both are upper bounds, and only the second counts down if others leave.
        let waiters = info.iter().flatten().map(|info| info.waiters).next();
        let position = position.map(|at| at.min(waiters.unwrap_or(at)));
        let position = position.map(|at| format!(", number {at} in line"));
        let holder = info.map(|info| holder_of(info.as_ref()));
        let holder = holder.unwrap_or_else(|| UNHEARD.to_owned());
        self.say(&(position.unwrap_or_default() + &holder));
    }

    /// `deploy: waiting, number 2 in line, held by make (web1, pid 4711)`, unless that was said.
    fn say(&self, text: &str) {
        if self.run.tells() && self.said.replace(text.to_owned()) != text {
            self.run.say(&format!("waiting{text}"));
        }
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

/// `, held by make (web1, pid 4711)`, or nothing if nobody holds it. `fairlock show` has the rest.
fn holder_of(info: Option<&LockInfo>) -> String {
    let Some((info, holder)) = info.and_then(|info| Some((info, info.holder.as_ref()?))) else {
        return String::new();
    };
    let state = output::name_in_json(&info.state);
    let label = Some(&*holder.label).filter(|label| !label.is_empty());
    let label = label.unwrap_or("a process");
    let (host, pid) = (&holder.host, holder.pid);
    format!(", {state} by {label} ({host}, pid {pid})")
}
