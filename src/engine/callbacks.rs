//! The thread that runs the program's callbacks, so that a slow or panicking one harms no lease.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::engine::life::Life;
use crate::error::Result;
use crate::logging::{self, Logger};
use crate::loss::Loss;
use crate::options::OnLost;
use crate::store::clock::{Clock, Time};

const THREAD: &str = "fairlock-events";

/// A callback waits so long for what the log says of its loss, and not at all while the log is slow.
const LOG_FIRST: Duration = Duration::from_millis(50);

/// Sends callbacks to the thread, which starts before the first lock with a callback is taken.
pub(super) struct Callbacks {
    state: Mutex<CallbackState>,
}

enum CallbackState {
    Idle,
    Started(Sender<(OnLost, Loss)>),
    Ended,
}

impl Callbacks {
    pub(super) fn new() -> Callbacks {
        Callbacks {
            state: Mutex::new(CallbackState::Idle),
        }
    }

    pub(super) fn call(&self, callback: OnLost, loss: Loss) {
        if let CallbackState::Started(sender) = &*self.state.lock() {
            // The channel is unbounded, so this never blocks.
            let _ = sender.send((callback, loss));
        }
    }

    /// To be called before a lock with a callback is taken.
    pub(super) fn start(&self, life: &Life, clock: &Clock) -> Result<()> {
        let mut state = self.state.lock();
        if let CallbackState::Idle = &*state {
            let (sender, receiver) = unbounded();
            let clock = clock.clone();
            life.spawn(THREAD, move || run(&clock, &receiver))?;
            *state = CallbackState::Started(sender);
        }
        Ok(())
    }

    /// Ends the thread after the calls that were sent before.
    pub(super) fn end(&self) {
        *self.state.lock() = CallbackState::Ended;
    }
}

fn run(clock: &Clock, calls: &Receiver<(OnLost, Loss)>) {
    let mut is_log_slow = false;
    while let Some((callback, loss)) = clock.receive(calls, Time::NEVER) {
        // The callback may end the process, and the log has the loss before that.
        let most = if is_log_slow {
            Duration::ZERO
        } else {
            LOG_FIRST
        };
        is_log_slow = !logging::flush(most);
        if catch_unwind(AssertUnwindSafe(|| callback(&loss))).is_err() {
            log::error!(logger: Logger, "the on_lost callback of {:?} panicked", loss.lock);
        }
    }
}
