//! `fairlock run`: a command that runs while a lock is held.

mod ancestors;
mod command;
mod connect;
mod detached;
mod exec;
mod foreground;
pub(super) mod label;
mod lock;
mod messages;
mod program;
mod release;
mod signals;
mod supervisor;
mod times;
mod tree;
mod wait;
mod waiting_line;

use crate::defaults::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_TTL};
use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossbeam_channel::never;
use fairlock::{Error, LockManager, LockOptions};
use humantime::format_duration;

use crate::connection::{Connection, TTL_PER_TIMEOUT};
use crate::duration::{self, whole_ms};
use crate::exit::{self, Exit, Failure};
use crate::signal_mask::without_ttou;

use ancestors::{Ancestor, Ancestors, Orphaned};
use command::{Environment, Handed};
use foreground::Foreground;
use lock::{Held, Permits, Share};
use messages::Messages;
use release::Release;
use signals::Signals;
use supervisor::{Rules, Supervisor};
use times::Times;
use wait::{WaitSettings, Waited, Wanted};
use waiting_line::Shown;

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
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The name of the lock.
    name: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Wait for at most this time, for Redis and then for the lock. Default: 10s for Redis, and
    /// without end for the lock.
    #[arg(
        short,
        long,
        visible_alias = "timeout",
        value_name = "D",
        conflicts_with = "no_wait"
    )]
    #[arg(value_parser = duration::parse)]
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
    #[arg(long, value_name = "D", value_parser = duration::parse)]
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

/// A lock, and what its command is to know.
struct Taken {
    held: Held,
    orphaned: Orphaned,
    environment: Environment,
}

/// The fate of the command if its lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnLoss {
    /// TERM, and KILL after the grace.
    Term,
    /// A warning on stderr. Exit code 74 in place of 0.
    Ignore,
}

impl Run {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let times = Times::new(self.ttl.unwrap_or(DEFAULT_TTL), self.grace, self.max_hold)?;
        // Before a wait that may take hours.
        program::check(&self.command[0])?;
        // The first process of a container gets no signal that it has no handler for.
        let signals = Signals::start()?;
        let messages = Messages::start();
        let settings = self.wait_settings();
        let explain = |error| self.refused(error, connection);
        let ancestors = Ancestors::read()?;
        let orphaned = ancestors.watch();
        let wanted = Wanted {
            orphaned: orphaned.received.clone(),
            ..self.wanted(connection, &times, ancestors.clone())?
        };
        match wait::wait_for(wanted, settings, &signals, &messages, explain)? {
            Waited::Granted(granted) => {
                let (held, manager) = granted.take();
                if self.detach.is_some() {
                    return self.start_detached(held, &manager, connection, &signals, &messages);
                }
                let all = ancestors.and(&held, connection.prefix(), self.share(), times.grace);
                let taken = Taken {
                    environment: Environment::under(&held, all, connection, self.handed())?,
                    orphaned,
                    held,
                };
                self.run_holding(taken, &manager, times, &signals, &messages)
            }
            Waited::Joined(ancestor) => {
                ancestor.check_joinable()?;
                drop(messages);
                self.join(&ancestor, connection, &signals)
            }
            Waited::ForItself(ancestor) => Err(self.waits_for_itself(&ancestor)),
            Waited::Busy(holder) => {
                if settings.shown != Shown::Nothing {
                    messages.say(format!("{}: busy{holder}", self.name));
                }
                Ok(Exit(self.conflict_exit_code))
            }
            Waited::Signal(signal) => {
                drop(messages);
                Ok(signals::end_by(
                    signal.number(),
                    Foreground::find().as_ref(),
                ))
            }
        }
    }

    /// The error for a lock that a run around this one holds.
    fn waits_for_itself(&self, ancestor: &Ancestor) -> Failure {
        let exit = if self.no_wait {
            Exit(self.conflict_exit_code)
        } else {
            Exit::USAGE
        };
        let remedy = if !self.reenter {
            "--reenter joins that run"
        } else {
            "it holds less than this one wants, so this one cannot join it"
        };
        let text = format!(
            "{}: held by the run around this one (pid {}, fence {}), so it would wait for itself; \
             {remedy}",
            self.name,
            ancestor.pid(),
            ancestor.fence
        );
        Failure::new(exit, text)
    }

    /// Runs the command as a part of the run around this one, in place of this process.
    fn join(
        &self,
        ancestor: &Ancestor,
        connection: &Connection,
        signals: &Signals,
    ) -> Result<Exit, Failure> {
        if let Err(signal) = signals.early() {
            let foreground = Foreground::find();
            return Ok(signals::end_by(signal.number(), foreground.as_ref()));
        }
        let environment = Environment {
            name: self.name.clone(),
            fence: ancestor.fence,
            previous: ancestor.previous.clone(),
            ancestors: None,
            connection: connection.variables()?,
            detached: Handed::Unchanged,
        };
        Err(command::become_it(&self.command, &environment))
    }

    fn run_holding(
        &self,
        taken: Taken,
        manager: &LockManager,
        times: Times,
        signals: &Signals,
        messages: &Messages,
    ) -> Result<Exit, Failure> {
        let Taken {
            held,
            orphaned,
            environment,
        } = taken;
        let foreground = Foreground::find();
        let receives = signals.receive_stops();
        let early = match signals.early() {
            Ok(early) => early,
            Err(signal) => {
                held.release_unused(manager);
                return Ok(signals::end_by(signal.number(), foreground.as_ref()));
            }
        };
        // Much may have happened since the grant: the host may have slept.
        if held.check().is_err() || held.remaining() <= times.left_at_term() {
            held.release_unused(manager);
            let text = "the lock was not renewed in time, so the command does not start";
            return Err(Failure::new(Exit::LOST, format!("{}: {text}", self.name)));
        }
        let start = || command::start(&self.command, &environment, foreground.as_ref());
        let tree = match receives.and_then(|()| start()) {
            Ok(tree) => tree,
            Err(error) => {
                held.release_unused(manager);
                return Err(program::failure(&self.command[0], &error));
            }
        };
        let rules = Rules {
            times,
            orphaned,
            on_loss: self.on_loss,
        };
        let supervisor = Supervisor::new(&held, tree, foreground, rules, messages);
        let ended = without_ttou(|| supervisor.run(signals, early));
        let release = Release {
            on_loss: self.on_loss,
            manager,
            only_after_success: self.only_after_success,
        };
        Ok(release.after(&ended, held, messages))
    }

    /// The lock, and a manager that is not connected yet.
    fn wanted(
        &self,
        connection: &Connection,
        times: &Times,
        ancestors: Ancestors,
    ) -> Result<Wanted, Failure> {
        let label = match &self.label {
            Some(label) => label.clone(),
            None => label::of_program(&self.command[0]),
        };
        let label = ancestors.label(label);
        let mut options = LockOptions::new().ttl(times.ttl).label(label);
        if let Some(least) = self.hold_at_least {
            options = options.hold_at_least(least);
        }
        if let Some(limit) = times.backstop() {
            options = options.max_hold(limit);
        }
        let timeout = connection.command_timeout();
        let mut builder = connection.builder()?.options(options);
        if let Some(wait) = self.wait {
            // An outage does not end a wait before its time.
            let timeout = timeout.unwrap_or(DEFAULT_COMMAND_TIMEOUT);
            builder = builder.outage_limit(wait.max(timeout));
        }
        Ok(Wanted {
            name: self.name.clone(),
            share: self.share(),
            prefix: connection.prefix().map(str::to_owned),
            orphaned: never(),
            ancestors,
            reenters: self.reenter,
            attached: self.attached()?,
            builder,
            // The library derives it from the ttl. That of a short ttl is too short for a
            // connection with TLS to another continent.
            connect_timeout: timeout.unwrap_or(CONNECT_TIMEOUT),
        })
    }

    /// The library says in its own words which times do not fit each other.
    fn refused(&self, error: Error, connection: &Connection) -> Failure {
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL);
        if let Some((what, message)) = exit::misused(&error)
            && (matches!(what, "ttl" | "horizon") || message.contains("with the ttl of"))
            && let Some(timeout) = connection.command_timeout()
            && let fitting = timeout.saturating_mul(TTL_PER_TIMEOUT)
            && ttl < fitting
        {
            let option = exit::given("--command-timeout");
            let given = match self.ttl {
                Some(_) => "--ttl",
                None => "the default --ttl",
            };
            return Failure::usage(format!(
                "{given} {} is too short for {option} {}: make it {}, or {option} {}",
                format_duration(ttl),
                format_duration(timeout),
                format_duration(fitting),
                format_duration(whole_ms(ttl / TTL_PER_TIMEOUT))
            ));
        }
        connect::failure(error)
    }

    fn share(&self) -> Share {
        match &self.permits {
            Some(permits) => Share::Permits(*permits),
            None if self.shared => Share::Reader,
            None if self.exclusive => Share::Writer,
            None => Share::Alone,
        }
    }

    fn wait_settings(&self) -> WaitSettings {
        let shown = match self.quiet {
            true => Shown::Nothing,
            false => Shown::by_stderr(),
        };
        WaitSettings {
            at_most: if self.no_wait {
                Some(Duration::ZERO)
            } else {
                self.wait
            },
            shown,
        }
    }
}
