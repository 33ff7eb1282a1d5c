//! The calls that the renewal thread makes at certain times.

use std::iter;
use std::panic::catch_unwind;
use std::sync::Arc;

use super::schedule::Schedule;
use crate::engine::client::Client;
use crate::engine::upkeep::Timer;
use crate::logging::Logger;
use crate::store::clock::Time;

pub(super) struct Timers {
    client: Arc<Client>,
    schedule: Schedule<Arc<dyn Timer>>,
}

impl Timers {
    pub(super) fn new(client: &Arc<Client>) -> Timers {
        Timers {
            client: Arc::clone(client),
            schedule: Schedule::new(),
        }
    }

    pub(super) fn put(&mut self, at: Time, timer: Arc<dyn Timer>) {
        self.schedule.put(at, timer);
    }

    /// When the next one is to be called; [`Time::NEVER`] if there is none.
    pub(super) fn next_due(&self) -> Time {
        self.schedule.next()
    }

    /// Makes the calls that are due. A call that asks for another at once gets it in the next round, so
    /// that renewals come in between.
    ///
    /// A panic ends neither the thread nor the timer: leases that nobody looks after would stay. The
    /// timer is called again a check period later.
    pub(super) fn run(&mut self, now: Time) {
        let due: Vec<_> = iter::from_fn(|| self.schedule.take_due(now)).collect();
        for timer in due {
            let next = catch_unwind(|| timer.on_time(now)).unwrap_or_else(|_| {
                log::error!(logger: Logger, "a timer of fairlock panicked");
                Some(now + self.client.config().check_period)
            });
            if let Some(at) = next {
                self.schedule.put(at, timer);
            }
        }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
