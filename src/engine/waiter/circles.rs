//! When the circles that `nested` finds are logged.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::waiter::nested::{self, Circle};
use crate::engine::waiter::registry::WaiterEntry;
use crate::engine::waiter::state::CircleWarning;

impl Engine {
    /// Logs a circle, unless one of the same names was logged a short time ago. Then the next check
    /// of the wait that closes it looks for it again. To be called when no mutex is held.
    pub(super) fn report_circle(&self, circle: &Circle) {
        let (now, first_pause) = (self.now(), self.config.long_wait);
        let names = circle.names();
        if self.waiters.begin_circle_report(names, now, first_pause) {
            circle.mark_logged();
            circle.warn();
        } else {
            circle.postpone();
        }
    }

    /// Looks again for the circles of these waiters that were not logged when they were closed.
    /// Otherwise a deadlock that begins in the pause after another warning would never be logged.
    ///
    /// For a queued waiter, the renewal thread calls this at each check of the name. A waiter that
    /// asks again calls it itself, after each request that was in vain.
    pub(in crate::engine) fn report_postponed_circles(&self, waiters: &[Arc<WaiterEntry>]) {
        for waiter in waiters {
            // Not in the `match`: its lock would be held in the arms.
            let warning = waiter.state.lock().circle_warning;
            let CircleWarning::Postponed { wait } = warning else {
                continue;
            };
            match nested::circle_of(wait) {
                Some(circle) => self.report_circle(&circle),
                // It has ended. If its waits are ever part of another one, the wait that closes
                // that one finds it.
                None => waiter.state.lock().end_circle(wait),
            }
        }
    }
}
