//! `fairlock run`: a command that runs while a lock is held.

mod ancestors;
pub(crate) mod guard;
mod lock;
mod program;
mod release;
mod signals;
mod supervisor;
mod times;
mod tree;
mod wait;

use crate::defaults::DEFAULT_COMMAND_TIMEOUT;
use std::cell::RefCell;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam_channel::Receiver;
use fairlock::{Builder, DetachedLock, LockManager, LockOptions};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::logger;
use crate::processes::Process;

use ancestors::{Ancestor, Ancestors};
use lock::{Held, Permits, Share};
use program::{DETACHED, FENCE, become_command};
use signals::Signals;
use supervisor::supervise;
use times::Times;
use tree::Tree;
use wait::{Stop, Wait};

/// How long the connection may take, unless `--command-timeout` says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread that takes the lock. It lives for as long as the run does.
pub(super) const THREAD: &str = "fairlock-run";

const EXAMPLES: &str = "\
Examples:
  fairlock run deploy -- ./deploy.sh               wait for the lock, then run
  fairlock run -n backup -- ./backup.sh            exit with 75 if it is taken
  fairlock run -w 5m -E 0 sync -- ./sync.sh        wait for 5 minutes at most; busy is no error
  fairlock run -n --hold-at-least 50m daily -- ./report.sh      once an hour, by cron on many hosts
  fairlock run --permits 1/4 encode -- ffmpeg ...  4 at a time, on all hosts together

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
    /// How long the lock outlives a host that crashed, or that Redis cannot hear.
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "10s")]
    ttl: Duration,
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

impl Run {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        thread::scope(|scope| {
            // Redis and `fairlock ls` name the thread that takes the lock, and people look for it.
            let thread = thread::Builder::new().name(THREAD.into());
            let failed = |error| Failure::internal(format!("cannot start a thread: {error}"));
            // A thread does not inherit it. The command that this process may become dies by it,
            // with the run around it.
            #[cfg(target_os = "linux")]
            let death = rustix::process::parent_process_death_signal();
            let run = thread.spawn_scoped(scope, move || {
                #[cfg(target_os = "linux")]
                let _ = death.map(rustix::process::set_parent_process_death_signal);
                self.run_here(connection)
            });
            run.map_err(failed)?
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn run_here(&self, connection: &Connection) -> Result<Exit, Failure> {
        let times = Times::new(self.ttl, self.grace)?;
        // Before a wait that may take hours.
        program::check(&self.command[0])?;
        // The first process of a container gets no signal that it has no handler for.
        let signals = Signals::start()?;
        let ancestors = Ancestors::read()?;
        let orphaned = ancestors.watch();
        let wait = Wait {
            run: self,
            ancestors: &ancestors,
            attached: self.attached()?,
            builder: self.builder(connection)?,
            signals: &signals.received,
            orphaned: orphaned.0.clone(),
            start: Instant::now(),
            at_most: self.no_wait.then_some(Duration::ZERO).or(self.wait),
            said: RefCell::default(),
        };
        match wait.run() {
            Ok(granted) => {
                self.run_under(granted, connection, &ancestors, &signals, times, orphaned)
            }
            Err(stop) => self.without_lock(stop, &signals, connection),
        }
    }

    fn run_under(
        &self,
        (held, manager): (Held, LockManager),
        connection: &Connection,
        ancestors: &Ancestors,
        signals: &Signals,
        times: Times,
        orphaned: (Receiver<()>, Duration),
    ) -> Result<Exit, Failure> {
        signals.receive_stops();
        if let Err(signal) = signals.early() {
            held.release_unused(&manager);
            return Ok(signals::end_by(signal));
        }
        let own = Ancestors::under(&held, self.share(), times.grace);
        let mut command = program::under(&own, &self.command, connection);
        if let Some(valid_for) = self.detach {
            return Err(self.hand_over(held, valid_for, &manager, command)?);
        }
        // Much may have happened since the grant: the host may have slept.
        if held.check().is_err() || held.remaining() <= times.left_at_term() {
            held.release_unused(&manager);
            let text = "the lock was not renewed in time, so the command does not start";
            return Err(self.lost(text));
        }
        command.env(ancestors::VARIABLE, ancestors.and(own));
        if self.attach {
            // Its text is of no more use.
            command.env_remove(DETACHED);
        }
        // The command is in our own process group there. So the kernel sends Ctrl-C and Ctrl-Z to
        // both, as to any two programs of a job, and a shell continues both.
        let has_terminal = File::open("/dev/tty").is_ok();
        let modes = tcgetattr(io::stdin()).ok();
        match Tree::start(command, has_terminal) {
            Ok(tree) => {
                let ended = supervise(self, &held, tree, has_terminal, signals, times, orphaned);
                if ended.1 || ended.0.signal().is_some() {
                    restore(modes);
                }
                Ok(release::after(self, ended, has_terminal, held, &manager))
            }
            Err(error) => {
                held.release_unused(&manager);
                Err(program::failure(&self.command[0], &error))
            }
        }
    }

    /// How the run ends if the wait ended without the lock.
    fn without_lock(
        &self,
        stop: Stop,
        signals: &Signals,
        connection: &Connection,
    ) -> Result<Exit, Failure> {
        match stop {
            Stop::Joined(ancestor) => {
                if let Err(signal) = signals.early() {
                    return Ok(signals::end_by(signal));
                }
                let command = program::under(&ancestor, &self.command, connection);
                Err(become_command(command, &self.command[0]))
            }
            Stop::Busy(holder) => {
                if self.tells() {
                    self.say(&format!("busy{holder}"));
                }
                Ok(Exit(self.conflict_exit_code))
            }
            // To the library, a replica is an error of the URL. A run has waited for its promotion,
            // as for any Redis that is away.
            Stop::Error(error) if wait::passes(&error) => {
                let message = Failure::from(error).to_string();
                Err(Failure::new(Exit::NO_REDIS, message))
            }
            Stop::Error(error) => Err(error.into()),
            Stop::Failed(failure) => Err(failure),
            Stop::Signal(signal) => Ok(signals::end_by(signal)),
        }
    }

    /// Detaches the lock, and replaces this process by the command, which finds it in the variable.
    /// Nothing is left to do here: no process has the lock until the command attaches it.
    fn hand_over(
        &self,
        held: Held,
        valid_for: Duration,
        manager: &LockManager,
        mut command: Command,
    ) -> Result<Failure, Failure> {
        let Held::Mutex(guard) = held else {
            return Err(Failure::internal("only a mutex can be detached"));
        };
        // An error drops the guard, and so releases the lock.
        let lock = guard.detach(valid_for).map_err(fairlock::Error::from)?;
        command
            .env(DETACHED, lock.secret_text())
            .env(FENCE, lock.fence().to_string());
        let failure = become_command(command, &self.command[0]);
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
            return Err(wrong("it has the lock of another name"));
        }
        Ok(Some(lock))
    }

    /// The error for a lock that a run around this one holds.
    fn waits_for_itself(&self, ancestor: &Ancestor) -> Failure {
        let exit = match self.no_wait {
            true => Exit(self.conflict_exit_code),
            false => Exit::USAGE,
        };
        let remedies = [
            "--reenter joins that run",
            "this one cannot join it: it wants more, or is not below it in its session",
        ];
        let remedy = remedies[usize::from(self.reenter)];
        let (name, pid, fence) = (&self.name, ancestor.pid, ancestor.fence);
        let text = format!(
            "{name}: held by the run around this one (pid {pid}, fence {fence}), so it would wait \
             for itself; {remedy}"
        );
        Failure::new(exit, text)
    }

    /// A manager that is not connected yet.
    fn builder(&self, connection: &Connection) -> Result<Builder, Failure> {
        let label = self.label.clone();
        let label = label.unwrap_or_else(|| program::label(&self.command[0]));
        let mut options = LockOptions::new().ttl(self.ttl).label(label);
        if let Some(least) = self.hold_at_least {
            options = options.hold_at_least(least);
        }
        let timeout = connection.command_timeout;
        let mut builder = connection.builder()?.options(options);
        // The library derives it from the ttl. That of a short ttl is too short for a connection
        // with TLS to another continent.
        builder = builder.connect_timeout(timeout.unwrap_or(CONNECT_TIMEOUT));
        if let Some(wait) = self.wait {
            // An outage does not end a wait before its time.
            let least = timeout.unwrap_or(DEFAULT_COMMAND_TIMEOUT);
            builder = builder.outage_limit(wait.max(least));
        }
        Ok(builder)
    }

    fn share(&self) -> Share {
        match self.permits {
            Some(permits) => Share::Permits(permits),
            None if self.shared => Share::Reader,
            None if self.exclusive => Share::Writer,
            None => Share::Alone,
        }
    }

    /// Whether somebody reads how the wait goes. Cron mails every line that a job prints.
    fn tells(&self) -> bool {
        let is_verbose = log::max_level() >= log::LevelFilter::Info;
        !self.quiet && (is_verbose || io::stderr().is_terminal())
    }

    fn lost(&self, text: &str) -> Failure {
        Failure::new(Exit::LOST, format!("{}: {text}", self.name))
    }

    fn say(&self, text: &str) {
        logger::say(&format!("{}: {text}", self.name));
    }
}

/// Sets the modes of the terminal to those at the start: a command that was killed could not do it.
/// In a pipeline, the other commands set them, too.
fn restore(modes: Option<Termios>) {
    if let Some(modes) = modes
        && io::stdout().is_terminal()
        && Process::own().is_some_and(|own| own.is_in_foreground())
    {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
    }
}
