//! `fairlock run`: a command that runs while a lock is held.

mod ancestors;
mod command;
pub(super) mod label;
mod lock;
mod program;
mod release;
mod signals;
mod supervisor;
mod terminal;
mod times;
mod tree;
mod wait;

use crate::defaults::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_TTL, MAX_TTL};
use std::cell::Cell;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use clap::{Args, ValueEnum};
use fairlock::{Builder, DetachedLock, LockManager, LockOptions};
use humantime::format_duration;

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::logger;

use ancestors::{Ancestor, Ancestors};
use command::{DETACHED, Environment, FENCE};
use lock::{Held, Permits, Share};
use signals::Signals;
use supervisor::supervise;
use terminal::Terminal;
use times::Times;
use tree::Tree;
use wait::{Shown, Stop, Wait, Waited};

/// How long the connection may take, unless `--command-timeout` says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  fairlock run deploy -- ./deploy.sh               wait for the lock, then run
  fairlock run -n backup -- ./backup.sh            exit with 75 if it is taken
  fairlock run -w 5m -E 0 sync -- ./sync.sh        wait for 5 minutes at most; busy is no error
  fairlock run -n --hold-at-least 50m report -- ./report.sh
                                                   from cron on many hosts: once an hour
  fairlock run --permits 1/4 encode -- ffmpeg ...  4 at a time, on all hosts together
  fairlock run --shared data -- ./read.sh          beside others with --shared,
  fairlock run --exclusive data -- ./write.sh      but not beside this one
  fairlock run --detach 1m order -- ./submit.sh    pass the lock on, with a job
  fairlock run --attach order -- ./work.sh         take it over, from FAIRLOCK_DETACHED

Exit codes: that of the command; 128 + n if signal n ended it; 126 if it cannot be executed;
127 if it is not found; 64 wrong usage; 69 no Redis; 74 the lock was lost; 75 busy.

The command finds FAIRLOCK_NAME, FAIRLOCK_FENCE and FAIRLOCK_PREVIOUS in its environment, and what
a fairlock inside it needs: FAIRLOCK_HELD, and the options of the connection as variables.";

/// Runs a command while holding a lock
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The name of the lock.
    name: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Wait for at most this time, for Redis and then for the lock. Default: 10s for Redis, and
    /// without end for the lock.
    #[arg(short, long, visible_alias = "timeout", conflicts_with = "no_wait")]
    #[arg(value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Do not wait for the lock.
    #[arg(short, long)]
    no_wait: bool,
    /// How long the lock outlives a host that crashed, or that Redis cannot hear. Default: 10s.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Keep the lock taken for this time, even if the command ends before.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    hold_at_least: Option<Duration>,
    /// Do so only if the command exits with 0. Otherwise the lock is free at once.
    #[arg(long, requires = "hold_at_least", conflicts_with_all = ["shared", "exclusive"])]
    only_after_success: bool,
    /// End the command if it holds the lock for this time.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    max_hold: Option<Duration>,
    /// Take K of the N permits of a semaphore.
    #[arg(long, value_name = "K/N", conflicts_with_all = ["shared", "exclusive"])]
    permits: Option<Permits>,
    /// Hold the lock as a reader, beside other readers.
    #[arg(short, long, conflicts_with = "exclusive")]
    shared: bool,
    /// Hold the lock as the writer that excludes all readers.
    #[arg(short = 'x', long)]
    exclusive: bool,
    /// If the lock is lost: end the command, or let it go on.
    #[arg(long, value_name = "ACTION", default_value = "term")]
    on_loss: OnLoss,
    /// How long the command may take to end after TERM, before KILL. Default: a quarter of the ttl,
    /// and 10s at most.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// If a run around this one holds the lock, run the command as a part of that run. Without
    /// this, it is an error.
    #[arg(long)]
    reenter: bool,
    /// Hand the lock to the command, which attaches it within this time. The command finds it in
    /// FAIRLOCK_DETACHED, and takes the place of this process.
    #[arg(long, value_name = "D", value_parser = valid_for)]
    #[arg(conflicts_with_all = ["permits", "shared", "exclusive", "max_hold", "grace", "reenter"])]
    detach: Option<Duration>,
    /// Take over the lock that another process has detached, ahead of all that wait. It is in
    /// FAIRLOCK_DETACHED.
    #[arg(long, conflicts_with_all = ["permits", "shared", "exclusive", "reenter", "no_wait"])]
    attach: bool,
    /// The exit code if the lock is taken.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::BUSY.0)]
    conflict_exit_code: u8,
    /// The label that others see beside the host and the process. Default: the command's name.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Show no progress while waiting.
    #[arg(short, long)]
    quiet: bool,
}

/// The fate of the command if its lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnLoss {
    /// TERM, and KILL after the grace.
    Term,
    /// A warning on stderr. Exit code 74 in place of 0.
    Ignore,
}

/// The library would say so after the wait.
fn valid_for(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    let range = Duration::from_millis(1)..=MAX_TTL;
    let wrong = || format!("from 1ms to {}", format_duration(MAX_TTL));
    range.contains(&time).then_some(time).ok_or_else(wrong)
}

impl Run {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let times = Times::new(self.ttl(), self.grace, self.max_hold)?;
        // Before a wait that may take hours.
        program::check(&self.command[0])?;
        // The first process of a container gets no signal that it has no handler for.
        let signals = Signals::start()?;
        let ancestors = Ancestors::read(connection.prefix())?;
        let orphaned = ancestors.watch();
        let wait = self.wait(connection, &times, &ancestors, &signals, &orphaned.0)?;
        let waited = label::on_its_thread(move || wait.run())?;
        let (held, manager) = match self.granted(waited, &signals, connection)? {
            ControlFlow::Continue(granted) => granted,
            ControlFlow::Break(exit) => return Ok(exit),
        };
        signals.receive_stops();
        // Much may have happened since the grant: the host may have slept.
        let is_late = held.check().is_err() || held.remaining() <= times.left_at_term();
        if let Err(signal) = signals.early() {
            held.release_unused(&manager);
            return Ok(signals::end_by(signal));
        }
        let own = ancestors.under(&held, self.share(), times.grace);
        let environment = Environment::new(&own, connection)?;
        if let Some(valid_for) = self.detach {
            return Err(self.hand_over(held, valid_for, &manager, environment)?);
        }
        if is_late {
            held.release_unused(&manager);
            return Err(
                self.lost("the lock was not renewed in time, so the command does not start")
            );
        }
        let environment = environment.with(ancestors::VARIABLE, Some(ancestors.and(own)));
        let environment = match self.attach {
            // Its text is of no more use.
            true => environment.with(DETACHED, None),
            false => environment,
        };
        let terminal = Terminal::find();
        match Tree::start(environment.command(&self.command), terminal.is_some()) {
            Ok(tree) => {
                let ended = supervise(self, &held, tree, terminal, &signals, times, orphaned);
                Ok(release::after(self, &ended, held, &manager))
            }
            Err(error) => {
                held.release_unused(&manager);
                Err(program::failure(&self.command[0], &error))
            }
        }
    }

    fn wait(
        &self,
        connection: &Connection,
        times: &Times,
        ancestors: &Ancestors,
        signals: &Signals,
        orphaned: &Receiver<()>,
    ) -> Result<Wait, Failure> {
        Ok(Wait {
            run: self.clone(),
            ancestors: ancestors.clone(),
            attached: self.attached()?,
            builder: self.builder(connection, times, ancestors)?,
            signals: signals.received.clone(),
            orphaned: orphaned.clone(),
            start: Instant::now(),
            is_shown: Cell::new(false),
        })
    }

    /// The lock, if the wait ended with it, or how the run ends.
    fn granted(
        &self,
        waited: Result<Waited, Stop>,
        signals: &Signals,
        connection: &Connection,
    ) -> Result<ControlFlow<Exit, (Held, LockManager)>, Failure> {
        match waited {
            Ok(Waited::Granted(held, manager)) => Ok(ControlFlow::Continue((held, manager))),
            Ok(Waited::Joined(ancestor)) => {
                ancestor.check_joinable()?;
                if let Err(signal) = signals.early() {
                    return Ok(ControlFlow::Break(signals::end_by(signal)));
                }
                let environment = Environment::new(&ancestor, connection)?;
                Err(environment.become_command(&self.command))
            }
            Ok(Waited::ForItself(ancestor)) => Err(self.waits_for_itself(&ancestor)),
            Ok(Waited::Busy(holder)) => {
                if self.shown() != Shown::Nothing {
                    self.say(&format!("busy{holder}"));
                }
                Ok(ControlFlow::Break(Exit(self.conflict_exit_code)))
            }
            // To the library, a replica is an error of the URL. A run has waited for its promotion,
            // as for any Redis that is away.
            Err(Stop::Error(error)) if wait::passes(&error) => {
                let message = Failure::from(error).to_string();
                Err(Failure::new(Exit::NO_REDIS, message))
            }
            Err(Stop::Error(error)) => Err(error.into()),
            Err(Stop::Signal(signal)) => Ok(ControlFlow::Break(signals::end_by(signal))),
            Err(Stop::Orphaned) => {
                Err(self.lost("the run around this one has died, so the command does not start"))
            }
        }
    }

    /// Detaches the lock, and replaces this process by the command, which finds it in the variable.
    /// Nothing is left to do here: no process has the lock until the command attaches it.
    fn hand_over(
        &self,
        held: Held,
        valid_for: Duration,
        manager: &LockManager,
        environment: Environment,
    ) -> Result<Failure, Failure> {
        let Held::Mutex(guard) = held else {
            return Err(Failure::internal("only a mutex can be detached"));
        };
        // An error drops the guard, and so releases the lock.
        let lock = guard.detach(valid_for).map_err(fairlock::Error::from)?;
        let failure = environment
            .with(DETACHED, Some(lock.secret_text()))
            .with(FENCE, Some(lock.fence().to_string()))
            .become_command(&self.command);
        // The command could not be executed.
        if let Ok(guard) = manager.attach(&lock) {
            Held::Mutex(guard).release_unused(manager);
        }
        Ok(failure)
    }

    /// The lock in the variable, if this run takes it over.
    fn attached(&self) -> Result<Option<DetachedLock>, Failure> {
        if !self.attach {
            return Ok(None);
        }
        let wrong = |text: &str| Failure::usage(format!("{DETACHED}: {text}"));
        let text = env::var(DETACHED).map_err(|_| wrong("--attach needs a detached lock in it"))?;
        let lock = text.trim_end_matches(['\n', '\r']).parse::<DetachedLock>();
        // The error does not have the text.
        let lock = lock.map_err(|error| wrong(&error.to_string()))?;
        if lock.name() != self.name {
            return Err(wrong(&format!(
                "it has the lock {:?}, not {:?}",
                lock.name(),
                self.name
            )));
        }
        Ok(Some(lock))
    }

    /// The error for a lock that a run around this one holds.
    fn waits_for_itself(&self, ancestor: &Ancestor) -> Failure {
        let exit = if self.no_wait {
            Exit(self.conflict_exit_code)
        } else {
            Exit::USAGE
        };
        let remedy = match self.reenter {
            false => "--reenter joins that run",
            true => "it holds less than this one wants, so this one cannot join it",
        };
        let Ancestor {
            name, pid, fence, ..
        } = ancestor;
        let text = format!(
            "{name}: held by the run around this one (pid {pid}, fence {fence}), so it would wait \
             for itself; {remedy}"
        );
        Failure::new(exit, text)
    }

    /// A manager that is not connected yet.
    fn builder(
        &self,
        connection: &Connection,
        times: &Times,
        ancestors: &Ancestors,
    ) -> Result<Builder, Failure> {
        let label = self.label.clone();
        let label = label.unwrap_or_else(|| label::of_program(&self.command[0]));
        let mut options = LockOptions::new()
            .ttl(times.ttl)
            .label(ancestors.label(label));
        if let Some(least) = self.hold_at_least {
            options = options.hold_at_least(least);
        }
        if let Some(limit) = times.backstop() {
            options = options.max_hold(limit);
        }
        let timeout = connection.command_timeout();
        // The library derives it from the ttl. That of a short ttl is too short for a connection
        // with TLS to another continent.
        let connect = timeout.unwrap_or(CONNECT_TIMEOUT);
        let builder = connection
            .builder()?
            .options(options)
            .connect_timeout(connect);
        Ok(match self.wait {
            // An outage does not end a wait before its time.
            Some(wait) => {
                builder.outage_limit(wait.max(timeout.unwrap_or(DEFAULT_COMMAND_TIMEOUT)))
            }
            None => builder,
        })
    }

    fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }

    fn share(&self) -> Share {
        match self.permits {
            Some(permits) => Share::Permits(permits),
            None if self.shared => Share::Reader,
            None if self.exclusive => Share::Writer,
            None => Share::Alone,
        }
    }

    /// On a terminal, or with `-v`. Cron mails every line that a job prints.
    fn shown(&self) -> Shown {
        match (self.quiet, log::max_level()) {
            (true, _) => Shown::Nothing,
            _ if io::stderr().is_terminal() => Shown::Always,
            (_, level) if level >= log::LevelFilter::Info => Shown::Once,
            _ => Shown::Nothing,
        }
    }

    fn lost(&self, text: &str) -> Failure {
        Failure::new(Exit::LOST, format!("{}: {text}", self.name))
    }

    fn say(&self, text: &str) {
        logger::say(&format!("{}: {text}", self.name));
    }
}
