//! A lock that goes to the command, which attaches it, or that came from another process.

use std::env;
use std::time::Duration;

use fairlock::{DetachedLock, LockManager, MAX_TTL};
use humantime::format_duration;

use super::Run;
use super::command::{self, DETACHED, Environment, Handed};
use super::foreground::Foreground;
use super::lock::Held;
use super::messages::Messages;
use super::signals::{self, Signals};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};

/// The lock of this name in the variable.
fn from_environment(name: &str) -> Result<DetachedLock, Failure> {
    let text = env::var(DETACHED)
        .map_err(|_| Failure::usage(format!("--attach needs a detached lock in {DETACHED}")))?;
    // The error does not have the text.
    let lock: DetachedLock = text
        .trim_end_matches(['\n', '\r'])
        .parse()
        .map_err(|error| Failure::usage(format!("{DETACHED}: {error}")))?;
    if lock.name() != name {
        let text = format!("{DETACHED} has the lock {:?}, not {name:?}", lock.name());
        return Err(Failure::usage(text));
    }
    Ok(lock)
}

/// The library would say so after the wait.
fn check(valid_for: Option<Duration>) -> Result<(), Failure> {
    let fits = |time: &Duration| (Duration::from_millis(1)..=MAX_TTL).contains(time);
    match valid_for.filter(|time| !fits(time)) {
        None => Ok(()),
        Some(time) => Err(Failure::usage(format!(
            "--detach {}: from 1ms to {}",
            format_duration(time),
            format_duration(MAX_TTL)
        ))),
    }
}

impl Run {
    /// The lock that this run takes over, if it does. This also checks `--detach`, before a wait
    /// that may take hours.
    pub(super) fn attached(&self) -> Result<Option<DetachedLock>, Failure> {
        check(self.detach)?;
        self.attach
            .then(|| from_environment(&self.name))
            .transpose()
    }

    /// The value of the variable for a command under the lock of this run.
    pub(super) fn handed(&self) -> Handed {
        if self.attach {
            Handed::Spent
        } else {
            Handed::Unchanged
        }
    }

    /// Starts the command with the lock in its environment, unless a signal came first.
    pub(super) fn start_detached(
        &self,
        held: Held,
        manager: &LockManager,
        connection: &Connection,
        signals: &Signals,
        messages: &Messages,
    ) -> Result<Exit, Failure> {
        messages.flush();
        if let Err(signal) = signals.early() {
            held.release_unused(manager);
            let foreground = Foreground::find();
            return Ok(signals::end_by(signal.number(), foreground.as_ref()));
        }
        Err(self.hand_over(held, manager, connection)?)
    }

    /// Detaches the lock, and replaces this process by the command, which finds it in the variable.
    /// Nothing is left to do here: no process has the lock until the command attaches it.
    fn hand_over(
        &self,
        held: Held,
        manager: &LockManager,
        connection: &Connection,
    ) -> Result<Failure, Failure> {
        let (Held::Mutex(guard), Some(valid_for)) = (held, self.detach) else {
            return Err(Failure::internal("only a mutex can be detached"));
        };
        let previous = guard.previous_holder().to_string();
        // An error drops the guard, and so releases the lock.
        let lock = guard.detach(valid_for).map_err(fairlock::Error::from)?;
        let environment = Environment {
            name: self.name.clone(),
            fence: lock.fence(),
            previous,
            ancestors: None,
            connection: connection.variables()?,
            detached: Handed::Over(lock.clone()),
        };
        let failure = command::become_it(&self.command, &environment);
        // The command could not be executed.
        if let Ok(guard) = manager.attach(&lock) {
            Held::Mutex(guard).release_unused(manager);
        }
        Ok(failure)
    }
}
