//! The log's reports of waits: circles that `waiter/nested.rs` finds, and long waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::upkeep::{LongWait, Task, Upkeep};
use crate::engine::waiter::{Circle, CircleWarning, WaiterEntry, WaiterRegistry, circle_of};
use crate::store::clock::Time;
use crate::sync::Mutex;

/// The reports about the waits of one manager.
pub(crate) struct Reports {
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    registry: Arc<WaiterRegistry>,
    circles: ReportedCircles,
}

/// More circles than this are not kept in mind.
const MOST_CIRCLES: usize = 256;
/// The longest pause between two reports of circles of the same names. A real deadlock may begin in
/// it, which is reported only afterwards.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// A report of a circle.
struct CircleReport {
    next_at: Time,
    pause: Duration,
}

impl CircleReport {
    /// If nothing more is to be reported until then, the circle has ended.
    fn ends_at(&self) -> Time {
        self.next_at + self.pause
    }
}

/// The circles that were reported lately, by their names.
struct ReportedCircles(Mutex<HashMap<BTreeSet<Arc<str>>, CircleReport>>);

impl ReportedCircles {
    fn new() -> ReportedCircles {
        ReportedCircles(Mutex::new(HashMap::new()))
    }

    /// Whether a circle of waits for these names is to be reported. Then the next report of one of
    /// the same names comes after a pause at the earliest. The pause doubles while there are more to
    /// come, up to [`LONGEST_PAUSE`].
    ///
    /// A thread may try again and again to take what it took before, while another thread has the
    /// guard. Each of its waits seems to close a circle.
    fn begin(&self, names: BTreeSet<Arc<str>>, now: Time, first_pause: Duration) -> bool {
        let mut circles = self.0.lock();
        let pause = match circles.get(&names) {
            Some(last) if now < last.next_at => return false,
            Some(last) if now < last.ends_at() => last.pause * 2,
            _ => first_pause,
        };
        let pause = pause.min(LONGEST_PAUSE);
        if circles.len() >= MOST_CIRCLES {
            circles.retain(|_, last| now < last.ends_at());
        }
        if circles.len() >= MOST_CIRCLES {
            circles.clear();
        }
        let next_at = now + pause;
        circles.insert(names, CircleReport { next_at, pause });
        true
    }
}

impl Reports {
    pub(super) fn new(
        client: &Arc<Client>,
        upkeep: &Arc<Upkeep>,
        registry: &Arc<WaiterRegistry>,
    ) -> Reports {
        Reports {
            client: Arc::clone(client),
            upkeep: Arc::clone(upkeep),
            registry: Arc::clone(registry),
            circles: ReportedCircles::new(),
        }
    }

    /// Logs a circle, unless one of the same names was logged a short time ago. Then the next check
    /// of the wait that closes it looks for it again. To be called when no mutex is held.
    pub(super) fn report_circle(&self, circle: &Circle) {
        let (now, first_pause) = (self.client.now(), self.client.config().long_wait);
        let names = circle.names();
        if self.circles.begin(names, now, first_pause) {
            circle.mark_logged();
            circle.warn();
        } else {
            circle.postpone();
        }
    }

    /// As if a circle of these names was reported.
    #[cfg(all(test, feature = "memory"))]
    pub(super) fn begin_circle(&self, names: BTreeSet<Arc<str>>, pause: Duration) -> bool {
        self.circles.begin(names, self.client.now(), pause)
    }

    /// Looks again for the circles of these waiters that were not logged when they were closed.
    /// Otherwise a deadlock that begins in the pause after another warning would never be logged.
    ///
    /// For a queued waiter, the renewal thread calls this at each check of the name. A waiter that
    /// asks again calls it itself, after each request that was in vain.
    pub(super) fn report_postponed_circles(&self, waiters: &[Arc<WaiterEntry>]) {
        for waiter in waiters {
            // Not in the `match`: its lock would be held in the arms.
            let warning = waiter.state.lock().circle_warning;
            let CircleWarning::Postponed { wait } = warning else {
                continue;
            };
            match circle_of(wait) {
                Some(circle) => self.report_circle(&circle),
                // It has ended. If its waits are ever part of another one, the wait that closes
                // that one finds it.
                None => waiter.state.lock().end_circle(wait),
            }
        }
    }

    /// Reports the waiter of a name that has waited longest, if that is long.
    ///
    /// For a queued waiter, the renewal thread calls this at each check of the name. Where waiters ask
    /// again, the one that has waited longest calls it itself, after each request that was in vain.
    /// Looks at memory alone; the request follows only if a line is due.
    pub(super) fn report_if_long(&self, waiters: &[Arc<WaiterEntry>]) {
        let limit = self.client.config().long_wait;
        if limit == Duration::MAX {
            return;
        }
        let mut longest: Option<LongWait> = None;
        for waiter in waiters {
            if let Some((thread, since)) = waiter.state.lock().long_wait()
                && longest.as_ref().is_none_or(|longest| since < longest.since)
            {
                longest = Some(LongWait {
                    waiter: Arc::clone(waiter),
                    thread: thread.clone(),
                    since,
                });
            }
        }
        let Some(wait) = longest else {
            return;
        };
        let now = self.client.now();
        let waited = now - wait.since;
        let name = &wait.waiter.request.key.name;
        if waited >= limit && self.registry.begin_report(name, now, waited) {
            self.upkeep.ask(Task::AskHolder(wait));
        }
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests;
