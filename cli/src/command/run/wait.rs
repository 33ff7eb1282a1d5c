//! How the command waits for its lock.

use crate::defaults::DEFAULT_OUTAGE_LIMIT;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never, select, tick, unbounded};
use fairlock::{Builder, DetachedLock, Error, LockManager};

use super::ancestors::{Ancestor, Ancestors, Verdict, verdict};
use super::connect::{Connecting, passes_by_itself, retry};
use super::foreground::Foreground;
use super::label;
use super::lock::{Held, Lock, Share};
use super::messages::Messages;
use super::signals::{Received, Signals};
use super::waiting_line::{Progress, Shown, fit, holder_of};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::signal_mask::without_ttou;

/// How often Redis is asked for the holder while the line is shown.
const LOOK: Duration = Duration::from_secs(2);
/// How often the line counts on.
const REDRAW: Duration = Duration::from_secs(1);

/// How a wait ended.
pub(super) enum Waited {
    Granted(Granted),
    /// A run around this one has the lock, and this one joins it.
    Joined(Ancestor),
    /// A run around this one has the lock, so this one would wait for itself.
    ForItself(Ancestor),
    /// Others have the lock. The text says who, after a comma.
    Busy(String),
    Signal(Received),
}

/// The lock that is wanted, and where it is.
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) share: Share,
    pub(super) prefix: Option<String>,
    pub(super) ancestors: Ancestors,
    /// The death of a run around this one, which ends the wait.
    pub(super) orphaned: Receiver<()>,
    /// Whether to join a run around this one that has the lock.
    pub(super) reenters: bool,
    /// The lock is detached, and this takes it over.
    pub(super) attached: Option<DetachedLock>,
    pub(super) builder: Builder,
    pub(super) connect_timeout: Duration,
}

/// For how long to wait, and what to show meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitSettings {
    /// `None`: without end. Zero: not at all.
    pub(super) at_most: Option<Duration>,
    pub(super) shown: Shown,
}

impl WaitSettings {
    /// When the line counts on.
    fn redraw(&self) -> Receiver<Instant> {
        match self.shown {
            Shown::Always => tick(REDRAW),
            Shown::Nothing | Shown::Once => never(),
        }
    }

    fn is_zero(&self) -> bool {
        self.at_most == Some(Duration::ZERO)
    }

    /// The time that is left after this time.
    fn left(&self, waited: Duration) -> Option<Duration> {
        Some(self.at_most?.saturating_sub(waited))
    }

    /// For how long Redis may be away, after this time.
    fn left_for_redis(&self, waited: Duration) -> Duration {
        self.left(waited).unwrap_or(DEFAULT_OUTAGE_LIMIT)
    }
}

/// Connects and waits for the lock on a thread of its own, so that a signal is noticed at once,
/// whatever that thread waits for. `explain` puts an error into the words of the command line.
pub(super) fn wait_for(
    wanted: Wanted,
    settings: WaitSettings,
    signals: &Signals,
    messages: &Messages,
    explain: impl Fn(Error) -> Failure,
) -> Result<Waited, Failure> {
    let name = wanted.name.clone();
    let orphaned = wanted.orphaned.clone();
    let start = Instant::now();
    let connecting = Connecting::new();
    let reports = Start::on_a_thread(wanted, settings, start, connecting.clone())?;
    let mut progress: Option<Progress> = None;
    let foreground = Foreground::find();
    let redraw = settings.redraw();
    let ended = loop {
        select! {
            recv(reports) -> report => match report {
                Ok(Report::Progress(newest)) => progress = Some(newest),
                Ok(Report::Ended(Ok(waited))) => break Ok(waited),
                Ok(Report::Ended(Err(error))) => break Err(explain(error)),
                Err(_) => break Err(Failure::internal("the wait ended without a result")),
            },
            recv(signals.received) -> signal => {
                if let Some(signal) = signal.ok().filter(|signal| signal.ends_a_wait()) {
                    leave(reports, &connecting);
                    break Ok(Waited::Signal(signal));
                }
            }
            recv(orphaned) -> _ => {
                leave(reports, &connecting);
                let text = "the run around this one has died, so the command does not start";
                break Err(Failure::new(Exit::LOST, format!("{name}: {text}")));
            }
            recv(redraw) -> _ => {}
        }
        let line = |at: &Progress| at.line(&name, start.elapsed(), settings.left(start.elapsed()));
        match settings.shown {
            Shown::Once => progress.take().iter().for_each(|at| messages.say(line(at))),
            // A background job must not draw over the prompt of the shell.
            _ if !foreground.as_ref().is_none_or(Foreground::is_ours) => {}
            _ => progress.iter().for_each(|at| draw(&line(at), messages)),
        }
    };
    if progress.is_some() {
        erase(messages);
    }
    ended
}

fn draw(line: &str, messages: &Messages) {
    messages.show_line(fit(line, output::columns(io::stderr())));
}

/// Ends the other thread's wait.
fn leave(reports: Receiver<Report>, connecting: &Connecting) {
    // A grant that comes now is released by its report, which nobody receives.
    drop(reports);
    connecting.cancel();
}

/// Erases the line: the command must not write behind it. A terminal that takes no output does not
/// hold it up for long.
fn erase(messages: &Messages) {
    messages.erase_line();
    messages.flush();
}

/// The waiting thread's reports: how it goes, and how it ended.
enum Report {
    Progress(Progress),
    Ended(Result<Waited, Error>),
}

/// A lock that no command runs under yet. Dropping it releases it.
pub(super) struct Granted {
    held: Option<Held>,
    manager: LockManager,
}

impl Granted {
    pub(super) fn take(mut self) -> (Held, LockManager) {
        let held = self.held.take().expect("it is taken once");
        (held, self.manager.clone())
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.release_unused(&self.manager);
        }
    }
}

/// The waiting thread before it has a connection.
struct Start {
    wanted: Wanted,
    settings: WaitSettings,
    start: Instant,
    connecting: Connecting,
    reports: Sender<Report>,
}

impl Start {
    /// Starts the thread. Its reports come through the channel.
    fn on_a_thread(
        wanted: Wanted,
        settings: WaitSettings,
        start: Instant,
        connecting: Connecting,
    ) -> Result<Receiver<Report>, Failure> {
        let (sender, reports) = unbounded();
        let start = Start {
            wanted,
            settings,
            start,
            connecting,
            reports: sender,
        };
        thread::Builder::new()
            .name(label::THREAD.into())
            // It starts threads of the library, which log.
            .spawn(move || without_ttou(|| start.run()))
            .map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?;
        Ok(reports)
    }

    fn run(self) {
        let end = match self.connect() {
            // Nobody waits for the end.
            Ok(None) => return,
            Ok(Some(manager)) => self.take(manager),
            Err(error) => Err(error),
        };
        // After a signal nobody receives it.
        if self.reports.send(Report::Ended(end)).is_ok() {
            label::stay();
        }
    }

    /// Takes the lock, unless a run around this one has it.
    fn take(&self, manager: LockManager) -> Result<Waited, Error> {
        let Wanted {
            name,
            share,
            prefix,
            ancestors,
            ..
        } = &self.wanted;
        let at_most = self.settings.left_for_redis(self.start.elapsed());
        let holding = retry(at_most, |_| {
            ancestors.holding(&manager, name, prefix.as_deref())
        })?;
        if let Some(detached) = &self.wanted.attached {
            let guard = retry(at_most, |_| manager.attach(detached))?;
            return Ok(Waited::Granted(Granted {
                held: Some(Held::Mutex(guard)),
                manager,
            }));
        }
        let mut covering = holding.iter().rev();
        if self.wanted.reenters
            && let Some(ancestor) = covering.find(|ancestor| ancestor.covers(*share))
        {
            return Ok(Waited::Joined(ancestor.clone()));
        }
        let wait = Wait {
            lock: Lock::new(&manager, name, *share),
            manager,
            settings: self.settings,
            start: self.start,
            reports: self.reports.clone(),
        };
        match verdict(&holding, *share) {
            Verdict::Free => wait.run(),
            Verdict::Never(ancestor) => Ok(Waited::ForItself(ancestor)),
            Verdict::OnlyAtOnce(ancestor) => Ok(match retry(at_most, |_| wait.lock.try_take())? {
                Some(held) => wait.granted(held),
                None => Waited::ForItself(ancestor),
            }),
        }
    }

    fn connect(&self) -> Result<Option<LockManager>, Error> {
        let at_most = self.settings.left_for_redis(Duration::ZERO);
        let Wanted {
            builder,
            connect_timeout,
            ..
        } = &self.wanted;
        self.connecting
            .connect(builder, *connect_timeout, at_most, || {
                if self.settings.shown == Shown::Always && !self.settings.is_zero() {
                    let _ = self.reports.send(Report::Progress(Progress::default()));
                }
            })
    }
}

/// The waiting thread, connected.
struct Wait {
    lock: Lock,
    manager: LockManager,
    settings: WaitSettings,
    start: Instant,
    reports: Sender<Report>,
}

impl Wait {
    fn run(self) -> Result<Waited, Error> {
        match self.take()? {
            Some(held) => Ok(self.granted(held)),
            None => self.busy(),
        }
    }

    fn granted(&self, held: Held) -> Waited {
        Waited::Granted(Granted {
            held: Some(held),
            manager: self.manager.clone(),
        })
    }

    /// `None` when the time is over.
    fn take(&self) -> Result<Option<Held>, Error> {
        // A lock that is free needs no subscription and no place in the queue.
        match self.lock.try_take() {
            Ok(Some(held)) => return Ok(Some(held)),
            Ok(None) if self.settings.is_zero() => return Ok(None),
            Ok(None) => {}
            Err(error) if self.settings.is_zero() => return Err(error),
            // An error that ends a wait ends it below, too. A slow reply, or a failover, does not.
            Err(_) => {}
        }
        // Redis may be loading, or be without a master or enough replicas.
        let at_most = self.settings.left_for_redis(self.start.elapsed());
        retry(at_most, |_| self.wait_in_line())
    }

    /// Waits in the queue, from its end to its head. `None` when the time is over.
    fn wait_in_line(&self) -> Result<Option<Held>, Error> {
        let mut place = self.lock.enqueue()?;
        let mut is_told = false;
        loop {
            let left = self.settings.left(self.start.elapsed());
            let left = left.unwrap_or(Duration::MAX);
            let (pause, tells) = match self.settings.shown {
                Shown::Nothing => (Duration::MAX, false),
                Shown::Once => (Duration::MAX, !is_told),
                Shown::Always => (LOOK, true),
            };
            if tells && !left.is_zero() {
                is_told = true;
                // Without an answer the line says so, and the wait goes on.
                let info = self.manager.inspect(self.lock.name()).ok();
                let waiters = info.iter().flatten().map(|info| info.waiters).next();
                let _ = self.reports.send(Report::Progress(Progress {
                    // Both are upper bounds, and only the second counts down if others leave.
                    position: place.position().map(|at| at.min(waiters.unwrap_or(at))),
                    holder: info.map(|info| holder_of(info.as_ref())),
                }));
            }
            if let Some(held) = place.wait_for(left.min(pause))? {
                return Ok(Some(held));
            }
            if left <= pause {
                return Ok(None);
            }
        }
    }

    /// A wait ends in the same way whether others have the lock or Redis is silent. This tells
    /// them apart.
    fn busy(&self) -> Result<Waited, Error> {
        if self.settings.is_zero() && self.settings.shown == Shown::Nothing {
            return Ok(Waited::Busy(String::new()));
        }
        match self.manager.inspect(self.lock.name()) {
            // Nobody has it. A last try says why it was not granted, as when the servers of a
            // quorum have not run for long enough.
            Ok(None) if !self.settings.is_zero() => Ok(match self.lock.try_take()? {
                Some(held) => self.granted(held),
                None => Waited::Busy(String::new()),
            }),
            Ok(info) => Ok(Waited::Busy(holder_of(info.as_ref()))),
            // Redis has just said that the lock is taken.
            Err(_) if self.settings.is_zero() => Ok(Waited::Busy(String::new())),
            Err(error)
                if passes_by_itself(&error)
                    || matches!(&error, Error::Refused { code, .. } if code == "TLS") =>
            {
                Err(error)
            }
            // It answers, so the lock is taken.
            Err(_) => Ok(Waited::Busy(String::new())),
        }
    }
}
