//! Redis at the start of a run: it may not be up yet.

use crate::defaults::DEFAULT_COMMAND_TIMEOUT;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Builder, Error, LockManager, Result};

use crate::exit::{Exit, Failure};

/// The pauses between two attempts double from this one on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The manager that the waiting thread makes, for a signal that ends the wait.
#[derive(Clone)]
pub(super) struct Connecting(Arc<Mutex<State>>);

enum State {
    Connecting,
    Connected(LockManager),
    Cancelled,
}

impl Connecting {
    pub(super) fn new() -> Connecting {
        Connecting(Arc::new(Mutex::new(State::Connecting)))
    }

    /// Builds the manager. Tries again while that fails for a reason that passes by itself, for
    /// `at_most`, and calls `on_failure` after each attempt. An attempt after the first one takes
    /// no longer than the time that is left. `None`: cancelled.
    pub(super) fn connect(
        &self,
        builder: &Builder,
        connect_timeout: Duration,
        at_most: Duration,
        mut on_failure: impl FnMut(),
    ) -> Result<Option<LockManager>> {
        let mut is_first = true;
        let manager = retry(at_most, |left| {
            let timeout = if is_first {
                connect_timeout
            } else {
                connect_timeout.min(left.max(FIRST_PAUSE))
            };
            is_first = false;
            let builder = builder.clone().connect_timeout(timeout);
            builder.build().inspect_err(|_| on_failure())
        })?;
        let mut state = self.state();
        if matches!(*state, State::Cancelled) {
            return Ok(None);
        }
        *state = State::Connected(manager.clone());
        Ok(Some(manager))
    }

    /// Ends the wait of the other thread, and leaves the queue. Blocks for at most a few command
    /// timeouts. Without an answer, the place in the queue is skipped as that of a dead process.
    pub(super) fn cancel(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Cancelled);
        if let State::Connected(manager) = before {
            // An error means that there is nothing to leave any more.
            let _ = manager.shutdown(DEFAULT_COMMAND_TIMEOUT);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls until something else comes than an error that passes by itself, or until the time is over.
/// The call gets the time that is left.
pub(super) fn retry<T>(
    at_most: Duration,
    mut call: impl FnMut(Duration) -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match call(at_most.saturating_sub(start.elapsed())) {
            Err(error) if passes_by_itself(&error) => error,
            ended => return ended,
        };
        let left = at_most.saturating_sub(start.elapsed());
        if left <= pause {
            // No time is left for another attempt after the pause.
            thread::sleep(left);
            return Err(error);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The failure after the wait for Redis. To the library, a replica is an error of the URL. A run
/// has waited for its promotion, as for any Redis that is away.
pub(super) fn failure(error: Error) -> Failure {
    if passes_by_itself(&error) {
        return Failure::new(Exit::NO_REDIS, Failure::from(error).to_string());
    }
    error.into()
}

/// Whether the same call may succeed later, though nobody changes a setting.
pub(super) fn passes_by_itself(error: &Error) -> bool {
    match error {
        // Behind a name that moves to the new master, it is the old one until then.
        Error::Misused { message, .. } => {
            message.starts_with("server: ") && message.contains("is a replica")
        }
        error => error.is_temporary(),
    }
}
